"""The tables of conventions in the docs, made from the contracts.

python -m attnoracle.oracle.reports.conventions_table            prints it
python -m attnoracle.oracle.reports.conventions_table --write    renews docs/conventions.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ..errors import BadInput

BEGIN, END = "<!-- conventions -->", "<!-- /conventions -->"
#: Fields that say how exact an implementation is, not what its numbers mean.
ARITHMETIC = ("scores", "probabilities", "accumulator", "partials", "output", "exp_error", "lse_error")
#: Title, operators, and field to heading. What no table names stands in the last one.
TABLES: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    (
        "Dense and masked MHA",
        ("dense_mha", "masked_mha"),
        {
            "lse_base": "LSE base", "empty_out": "out, no key", "empty_lse": "LSE, no key", "row_sum": "row sum",
            "causal_alignment": "causal diagonal",
        },
    ),
    (
        "Sparse MQA",
        ("sparse_mqa",),
        {
            "lse_base": "LSE base", "empty_out": "out, no key", "empty_lse": "LSE, no key", "row_sum": "row sum",
            "invalid_index": "invalid index", "duplicates": "index twice", "index_space": "index space",
        },
    ),
    ("Merge", ("merge_lse",), {"lse_base": "LSE base", "empty_side": "empty side"}),
    (
        "Indexer scores",
        ("indexer_scores", "paged_indexer_scores"),
        {"outside_window": "outside the window"},
    ),
    (
        "Top-k",
        ("topk_select",),
        {
            "index_space": "index space", "topk_order": "order", "topk_short": "short windows",
            "topk_ties": "ties at the threshold",
        },
    ),
)  # fmt: skip


def block(implementations: Sequence[Implementation]) -> str:
    """The tables, markers included."""
    parts = [BEGIN]
    for title, operators, columns in TABLES:
        known = {name: heading for name, heading in columns.items() if name in _names()}
        rows = [one for one in implementations if one.operator in operators]
        parts += ["", f"### {title}", "", *_table(rows, known)]
    parts += ["", "### Whatever the operator", "", *_table(implementations, _common())]
    return "\n".join([*parts, "", END])


def _names() -> list[str]:
    return [field.name for field in fields(Contract)]


def _common() -> dict[str, str]:
    """Fields that no table above names, by their own names."""
    named = {name for _, _, columns in TABLES for name in columns} | set(ARITHMETIC)
    return {name: name.replace("_", " ") for name in _names() if name not in named}


def _table(rows: Iterable[Implementation], columns: dict[str, str]) -> list[str]:
    """One line an implementation; those that declare the same share a line."""
    grouped: dict[tuple[str, ...], list[str]] = {}
    for one in rows:
        values = tuple(_spelled(getattr(one.contract, name)) for name in columns)
        grouped.setdefault(values, []).append(f"`{one.name}`")
    head = ["implementation", *columns.values()]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |"]
    return lines + [f"| {', '.join(names)} | {' | '.join(values)} |" for values, names in grouped.items()]


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def updated(text: str, implementations: Sequence[Implementation]) -> str:
    """A page with the block replaced. Raises BadInput unless the markers stand there once each, in order."""
    begin, end = text.find(BEGIN), text.find(END)
    if not 0 <= begin < end or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise BadInput(f"docs/conventions.md: expected {BEGIN} and {END} once each, in this order")
    return text[:begin] + block(implementations) + text[end + len(END) :]


def page() -> Path:
    """The page in a checkout; a wheel has none."""
    return Path(__file__).resolve().parents[2] / "docs" / "conventions.md"


def main(words: list[str]) -> int:
    from ...optimized.catalogue import IMPLEMENTATIONS

    if words == ["--write"]:
        page().write_text(updated(page().read_text(encoding="utf-8"), IMPLEMENTATIONS), encoding="utf-8")
        return 0
    if words:
        print(__doc__, file=sys.stderr)
        return 2
    print(block(IMPLEMENTATIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
