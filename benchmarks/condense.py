"""Makes a report of `attnoracle check` small enough to commit: one short record a verdict, everything else as it was.

python -m attnoracle.benchmarks.condense FILE [FILE …]      rewrites each file in place
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = ("implementation", "status", "reason", "worst_ratio", "seconds", "device")


def condensed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with `verdicts[]` cut to the case id and the fields in KEPT; failures stay whole."""
    # Where the report was first written is nobody's business.
    command = [Path(word).name if word.startswith("/") else word for word in document.get("command", [])]
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
        head = json.dumps({key: value for key, value in document.items() if key != "verdicts"}, indent=1)
        lines = ",\n".join(json.dumps(verdict) for verdict in document["verdicts"])
        path.write_text(f'{head[:-2]},\n "verdicts": [\n{lines}\n]}}\n')
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
