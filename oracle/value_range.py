"""Whether the values of a case fit the formats that a contract declares for what is made of them."""

from __future__ import annotations

from ..optimized.contract import Contract
from .case import Case

#: Formats with less range than bf16 and fp32.
_NARROW = ("fp16", "e4m3", "e5m2")
#: Fields of a contract that name the format of values, or of sums of them; scores of ``powers`` are ordinary.
_OF_VALUES = {
    "accumulator": "sums",
    "partials": "partial results",
    "output": "results",
    "dequantised": "dequantised values",
}


def leaves_range(case: Case, contract: Contract) -> str | None:
    """Why a case is beyond what the contract promises, or None: values of ``powers`` use the range of the inputs'
    format, and partial results that are declared to be fp16 may well overflow there."""
    if case.kind != "powers":
        return None
    for name, what in _OF_VALUES.items():
        held = getattr(contract, name)
        used = name != "dequantised" or "ds-mla" in case.options
        if used and held in _NARROW and (case.dtype != held or name == "accumulator"):
            return f"its contract keeps {what} in {held}, whose range values of kind powers leave"
    return None
