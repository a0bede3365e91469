"""Makes a report of `attnoracle check` small enough to commit: one short record a verdict, the rest as it was.

python -m attnoracle.benchmarks.condense FILE [FILE …]      rewrites each file in place
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = ("implementation", "status", "reason", "worst_ratio", "seconds", "device")


def condensed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with `verdicts[]` cut to the case id and the fields in KEPT; failures stay whole.

    Of `properties[]` those that say nothing about an implementation are left out.
    """
    # Where the report was first written is nobody's business.
    command = [Path(word).name if word.startswith("/") else word for word in document.get("command", [])]
    if "properties" in document:
        kept = [one for one in document["properties"] if one["status"] != "not applicable"]
        return document | {"command": command, "properties": kept}
    return document | {"command": command, "verdicts": [_short(verdict) for verdict in document["verdicts"]]}


def _short(verdict: dict[str, Any]) -> dict[str, Any]:
    if verdict["status"] in ("FAIL", "ERROR", "SUSPECT"):
        return verdict
    case = verdict["case"]
    return {"case": case["id"] if isinstance(case, dict) else case} | {name: verdict[name] for name in KEPT}


def main(files: list[str]) -> int:
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    for name in files:
        path = Path(name)
        document = condensed(json.loads(path.read_text()))
        name = "properties" if "properties" in document else "verdicts"
        lines = ",\n".join(json.dumps(record) for record in document.pop(name))
        path.write_text(f'{json.dumps(document, indent=1)[:-2]},\n "{name}": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
