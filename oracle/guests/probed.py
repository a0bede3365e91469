"""How far probing gets: every shipped implementation that runs on a CPU, probed; a committed file and a table of it.

python -m attnoracle.oracle.guests.probed      measures for some minutes, writes file and table
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
from ..errors import BadInput
from ..facts import facts
from .external import default_contract
from .probes import PROBES, case_of
from .probing import GEOMETRY, contradictions, proposed

_ROOT = Path(__file__).resolve().parents[2]
FILE = _ROOT / "fixtures" / "probing" / "cpu.json"
PAGE = _ROOT / "docs" / "contract.md"
BEGIN, END = "<!-- probed -->", "<!-- /probed -->"
#: Left out: FlexAttention compiles every shape anew, minutes of it on a CPU.
TOO_SLOW = ("masked_mha/flex",)
OPERATORS = tuple(dict.fromkeys(operator for probe in PROBES for operator in probe.operators))


def here() -> list[str]:
    """Names of the implementations that are probed: of an operator with probes, and able to run on this CPU."""
    found = []
    for one in IMPLEMENTATIONS:
        if one.operator in OPERATORS and one.name not in TOO_SLOW:
            case = case_of(one.operator, GEOMETRY, "bf16", ((3, 2), (20, 9)))
            if one.supports(facts(case, load(GEOMETRY), "cpu")) is None:
                found.append(one.name)
    return found


def measure(name: str) -> dict[str, Any]:
    """One implementation, probed as if nothing was known of it."""
    declared = next(one.contract for one in IMPLEMENTATIONS if one.name == name)
    found = proposed(name, default_contract(name.partition("/")[0]), device="cpu", trusted=True)
    return {
        "name": name,
        "settled": {field: getattr(found.contract, field) for field in found.settled},
        "contradicts": list(contradictions(declared, found)),
        "stopped": list(found.problems),
    }


def recorded() -> dict[str, Any]:
    """The committed file."""
    read: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return read


def block(record: Mapping[str, Any]) -> str:
    """The table, markers included."""
    found = record["implementations"]
    rows = [
        f"| `{one['name']}` | {len(one['settled'])} | {', '.join(f'`{n}`' for n in one['settled'])} |" for one in found
    ]
    fields = sum(len(one["settled"]) for one in found)
    denied = sum(len(one["contradicts"]) for one in found)
    return f"""{BEGIN}
Of the {len(found)} shipped implementations that run on a CPU (all but `masked_mha/flex`, which compiles every shape),
probing settled {fields} fields; {denied} of them contradict what the implementation declares.

| implementation | settled | fields |
| --- | ---: | --- |
{chr(10).join(rows)}
{END}"""


def update() -> None:
    """Write the table into the page. Raises BadInput where the page lacks the markers."""
    page = PAGE.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise BadInput(f"{PAGE.name}: expected {BEGIN} and {END} once each")
    new = block(recorded())
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: new, page, flags=re.DOTALL), encoding="utf-8")


def main() -> int:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    found = []
    for name in here():
        found.append(measure(name))
        print(name, len(found[-1]["settled"]), *found[-1]["contradicts"], file=sys.stderr, flush=True)
    facts_ = {
        key: value for key, value in environment().items() if key in ("attnoracle", "date", "python", "torch", "triton")
    }
    FILE.parent.mkdir(exist_ok=True)
    record = {"schema": "attnoracle.probed/1", "environment": facts_, "implementations": found}
    FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    update()
    return 0


if __name__ == "__main__":
    sys.exit(main())
