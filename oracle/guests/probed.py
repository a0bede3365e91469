"""How far probing gets: every shipped implementation that runs on a device, probed; a committed file and a table of it.

python -m attnoracle.oracle.guests.probed [cpu|cuda]      measures for some minutes, writes file and table
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...optimized.catalogue import IMPLEMENTATIONS
from ..config import load
from ..environment import environment
from ..errors import BadInput, unknown
from ..facts import facts
from .external import default_contract
from .known import TOO_SLOW, find
from .probes import PROBES, case_of
from .probing import GEOMETRY, contradictions, proposed

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "contract.md"
BEGIN, END = "<!-- probed -->", "<!-- /probed -->"
DEVICES = {"cpu": "a CPU", "cuda": "an H200"}
#: Probed on the first of these that an implementation takes: kernels for Hopper take no other dims than a model's.
GEOMETRIES = (GEOMETRY, "deepseek-v3.2")
#: Fields in which a public kernel does not keep what its makers say of it, each told in docs/findings.md: the contract
#: stays what they say, and the probe is right to deny it.
FINDINGS: Mapping[str, tuple[str, ...]] = {"dense_mha/flashinfer-fa3": ("empty_out", "empty_lse")}
OPERATORS = tuple(dict.fromkeys(operator for probe in PROBES for operator in probe.operators))


def file(device: str) -> Path:
    """Where the record of a device lies."""
    return _ROOT / "fixtures" / "probing" / f"{device}.json"


def here(device: str) -> dict[str, str]:
    """What is probed, and on which geometry: implementations of an operator with probes that run on this device."""
    found = dict[str, str]()
    for one in IMPLEMENTATIONS:
        if one.operator not in OPERATORS or one.name in TOO_SLOW:
            continue
        for geometry in GEOMETRIES:
            case = case_of(one.operator, geometry, "bf16", ((3, 2), (20, 9)))
            if one.name not in found and one.supports(facts(case, load(geometry), device)) is None:
                found[one.name] = geometry
    return found


def measure(name: str, device: str = "cpu", geometry: str = GEOMETRY) -> dict[str, Any]:
    """One implementation, probed as if nothing was known of it."""
    declared = find(name).contract
    base = default_contract(name.partition("/")[0])
    found = proposed(name, base, device=device, geometry=geometry, trusted=True)
    return {
        "name": name,
        "settled": {field: getattr(found.contract, field) for field in found.settled},
        "contradicts": [field for field in contradictions(declared, found) if field not in FINDINGS.get(name, ())],
        "stopped": list(found.problems),
    }


def recorded(device: str) -> dict[str, Any]:
    """The committed file of a device."""
    read: dict[str, Any] = json.loads(file(device).read_text(encoding="utf-8"))
    return read


def block(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The tables, one a device, markers included."""
    return "\n".join([BEGIN, *(_table(DEVICES[device], record) for device, record in records.items()), END])


def _table(device: str, record: Mapping[str, Any]) -> str:
    found = record["implementations"]
    rows = [
        f"| `{one['name']}` | {len(one['settled'])} | {', '.join(f'`{n}`' for n in one['settled'])} |" for one in found
    ]
    fields = sum(len(one["settled"]) for one in found)
    denied = sum(len(one["contradicts"]) for one in found)
    known = [one["name"] for one in found if one["name"] in FINDINGS]
    told = f"\nFields of `{known[0]}` that are [findings](findings.md) are left out.\n" if known else ""
    return f"""Of the {len(found)} shipped implementations that ran on {device} (all but `masked_mha/flex`, which
compiles every shape), probing settled {fields} fields; {denied} of them contradict what the implementation declares.

| implementation | settled | fields |
| --- | ---: | --- |
{chr(10).join(rows)}
{told}"""


def records() -> dict[str, dict[str, Any]]:
    """What is committed, by device."""
    return {device: recorded(device) for device in DEVICES if file(device).is_file()}


def update() -> None:
    """Write the tables into the page. Raises BadInput where the page lacks the markers."""
    page = PAGE.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise BadInput(f"{PAGE.name}: expected {BEGIN} and {END} once each")
    new = block(records())
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: new, page, flags=re.DOTALL), encoding="utf-8")


def main(words: list[str]) -> int:
    device = words[0] if words else "cpu"
    if device not in DEVICES:
        raise unknown("device", device, tuple(DEVICES))
    if device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    found = []
    for name, geometry in here(device).items():
        found.append(measure(name, device, geometry))
        print(name, len(found[-1]["settled"]), *found[-1]["contradicts"], file=sys.stderr, flush=True)
    facts_ = {
        key: value for key, value in environment().items() if key in ("attnoracle", "date", "python", "torch", "triton")
    }
    record = {"schema": "attnoracle.probed/1", "environment": facts_, "implementations": found}
    file(device).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    update()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
