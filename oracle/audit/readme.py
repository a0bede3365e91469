"""The figures of the README, made from the audit file: between ``<!-- audit -->`` and ``<!-- /audit -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import BadInput

BEGIN, END = "<!-- audit -->", "<!-- /audit -->"
#: The verdicts in use elsewhere, in words.
VERDICTS = {
    "allclose-1e-2": "`torch.allclose` at 1e-2",
    "cosine": "cosine similarity at 0.99",
    "calc_diff-1e-3": "DeepGEMM's `calc_diff` at 1e-3",
    "2x-eager": "FlashAttention's twice the eager error",
    "flashmla": "FlashMLA's element, cosine and LSE bounds",
    "fib": "flashinfer-bench's element bound",
}


def block(audit: Mapping[str, Any]) -> str:
    """The block for an audit file, markers included."""
    s = audit["summary"]
    missed = s["missed_by_other_verdicts"]
    rows = [("**attnoracle**", s["survived"]), *((words, missed[name]) for name, words in VERDICTS.items())]
    table = "\n".join(f"| {words} | {count} | {_share(count, s['faults'])} |" for words, count in rows)
    kills = ", ".join(f"{check} {s['kills'][check]}" for check in sorted(s["kills"], key=lambda c: -s["kills"][c]))
    sole = ", ".join(f"{check} {count}" for check, count in s["sole_kills"].items())
    others = s.get("state_faults", {})
    besides = "".join(
        f"\n* Planted in a {kind}, where no kernel is wrong: {one['killed']} of {one['faults']} killed by its contract."
        for kind, one in others.items()
    )
    return f"""{BEGIN}
## How good is the verdict?

`attnoracle audit` plants {s["faults"]} faults, many of them from public bug reports, in simulated kernels, in the
reference pipeline and in the shipped Triton kernels: {s["killed"]} of {s["faults"]} are killed.
{s["good_runs"]:,} runs of kernels known to be good gave {s["false_alarms"]} false alarms:
with {s["confidence"]:.0%} confidence, the chance of one is below {s["false_alarm_upper_bound"]:.2g}.

| verdict | faults missed | of {s["faults"]} |
| --- | ---: | ---: |
{table}

The others are measured on random normal inputs, as they are in use.

* Faults that each check fired on: {kills}.
* Faults that one check alone fired on: {sole}.{besides}
{END}"""


def _share(count: int, total: int) -> str:
    return f"{count / total:.0%}" if total else "-"


def updated(text: str, audit: Mapping[str, Any]) -> str:
    """A README with the block replaced. Raises BadInput if the markers do not stand there once each, in order."""
    found = re.findall(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    if len(found) != 1 or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise BadInput(f"README: expected {BEGIN} and {END} once each, in this order")
    return text.replace(found[0], block(audit))
