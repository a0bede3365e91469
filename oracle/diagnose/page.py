"""The table of figures in ``docs/diagnose.md``, made from the committed file: between two markers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .measure import FILE, SECONDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnose.md"
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
_WHERE = {
    "all": "all",
    "simulated": "simulated kernels",
    "reference-pipeline": "the pipeline before an operator",
    "triton": "the shipped Triton kernels",
    "layouts": "of all these: layout operators",
}


def recorded() -> dict[str, Any]:
    """The committed file."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def block(measured: Mapping[str, Any]) -> str:
    """The table, markers included."""
    diagnosis, shrinking = measured["summary"]["diagnosis"], measured["summary"]["shrinking"]
    rows = []
    for name, words in _WHERE.items():
        s = diagnosis[name]
        shares = (s["first"], s["top_three"], s["right_stage"])
        rows.append(f"| {words} | {s['faults']} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    whole = diagnosis["all"]
    alike = round((whole["first"] - whole["told_apart_from_all_others"]) * whole["faults"])
    small = shrinking["at_most_4_tokens_2_heads"]
    return f"""{BEGIN}
{whole["faults"]} of the {measured["catalogue"]} faults were measured, in the order of the hashes of their cases.

| planted in | faults measured | ranked first | in the top three | right stage |
| --- | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

* Of those ranked first, {alike} share their place with ideas that return the very same on the case; they count as one.
* Without any entry of the catalogue, the ideas with free parameters alone explain {whole["families_alone_explain"]:.0%}
  of {whole["families_alone_of"]} faults (every tenth), {whole["families_alone_right_stage"]:.0%} at the right stage.
* In a layer, of the faults that showed on random steps, at the right stage:
  {_in_layer(measured["summary"]["layer"])}.
* Shrinking: {small} of {shrinking["faults"]} first failing cases that were measured come down to at most
  4 tokens and 2 heads. The median is {shrinking["median_tokens"]:g} tokens and {shrinking["median_heads"]:g} heads,
  after {shrinking["median_runs"]:g} runs and {shrinking["median_seconds"]:g} s of one core.
  The others need what is large: an edge of a tile of 64 keys, a window of 128, statistics over many elements.
  {shrinking["cut_off"]} were cut off after {SECONDS:g} s of the clock, on a busy machine.
{END}"""


def _in_layer(found: Mapping[str, Any]) -> str:
    """Faults that showed, and how many of them were found at their stage."""
    words = {"layer": "its own code", "builder": "its metadata builder", "operator": "one of its operators"}
    parts = []
    for place, what in words.items():
        one = found[place]
        parts.append(f"{one['right_stage']:.0%} of {one['shown']} in {what}")
    return ", ".join(parts)


def update() -> None:
    """Write the table into the page. Raises BadInput where the page lacks the markers."""
    page = PAGE.read_text(encoding="utf-8")
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise BadInput(f"{PAGE.name}: expected {BEGIN} and {END} once each")
    new = block(recorded())
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: new, page, flags=re.DOTALL), encoding="utf-8")
