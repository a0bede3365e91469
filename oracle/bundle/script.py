"""The script of a bundle: the smallest program that shows the failure."""

from __future__ import annotations

from ..verdict import Verdict

_TEXT = '''"""{name} fails on {case}

Run: python repro.py      needs the package attnoracle; exits 1 while the failure is there, 0 once it is gone.
"""

import sys
from pathlib import Path

from attnoracle.oracle.bundle import kernel, read, replay
from attnoracle.oracle.device import settle
from attnoracle.oracle.errors import BadInput

HERE = Path(__file__).resolve().parent
device = settle("{device}")

try:
    bundle = read(HERE)
    # To run another kernel, make this a function that returns an attnoracle.optimized.implementation.Implementation.
    make = kernel(bundle, {name!r})
except BadInput as error:
    print(error, file=sys.stderr)
    sys.exit(2)

# The call itself, for a debugger; options: {options}.
inputs = bundle.inputs(device)
outputs = make().prepare(**inputs.kwargs())()
for name, value in zip({outputs!r}, outputs):
    print(name, tuple(value.shape), value.dtype, value.flatten()[:4].tolist())

# The verdict, and whether it is the failure that was bundled.
result = replay(bundle, make, device)
print(result)
sys.exit(1 if result.verdict.bad else 0)
'''


def script(verdict: Verdict, name: str, *, sequence: bool) -> str:
    """The text of ``repro.py``."""
    from ..operators import operator

    return _TEXT.format(
        name=name,
        case=verdict.case.id,
        outputs=operator(verdict.case.operator).outputs,
        options="called in sequence" if sequence else "called once",
        device="cpu" if verdict.device == "cpu" else "auto",
    )
