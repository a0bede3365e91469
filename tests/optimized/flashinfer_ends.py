"""Checks one installed FlashInfer against what is called of it: a process of its own a release.

    PYTHONPATH=FOLDER:typings python tests/optimized/flashinfer_ends.py

FOLDER holds the release and what its import needs. No GPU is used. Exit status 1 and a line for each thing that is
missing; importing the adapters, and planning without a GPU, must work as far as it can.
"""

import inspect
import sys

import flashinfer

import attnoracle.reference as reference
from attnoracle.optimized.flashinfer_kernels import IMPLEMENTATIONS
from attnoracle.optimized.flashinfer_kernels.interface import missing


def main() -> int:
    found = missing()
    for one in IMPLEMENTATIONS:
        expected = list(inspect.signature(getattr(reference, one.operator)).parameters)
        for function in filter(None, (one.load(), one.plan() if one.plan else None)):
            got = list(inspect.signature(function).parameters)
            if got != expected:
                found.append(f"{one.name}: expected the parameters {expected}, got {got}")
    print("\n".join(found) or f"flashinfer {flashinfer.__version__}: everything that is called is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
