"""Explanations, maps and comparisons of routes, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ...reference.routing import Deployment, Rules
from ..routes.behaviour import LETTERS
from ..routes.diff import Change, Comparison
from ..routes.explain import Explanation, Step
from ..routes.grammar import batch_text, length_text
from ..routes.sweep import RouteMap
from .plain import line, plural

_STYLES = {".": "dim", "D": "green", "d": "green", "M": "cyan", "Q": "yellow", "!": "bold red", " ": ""}
_SENTENCES = {
    "q": "fresh prompts",
    "4q": "four fresh prompts of one length",
    "1q1s1k_q": "a fresh prompt beside a decode",
    "q..s..": "a prompt with cached context",
}


def heading(deployment: Deployment, geometry: str, *versions: Rules) -> Text:
    """Two lines that say what was asked about."""
    cache = "unquantised" if deployment.cache == "model" else deployment.cache
    return Text(
        f"{line(geometry)}, TP {deployment.tensor_parallel}, {deployment.backend} on SM{deployment.device_family}, "
        f"{cache} cache\nrules {' against '.join(f'{line(each.name)} ({line(each.date)})' for each in versions)}",
        "bold",
    )


def print_explanation(console: Console, explanation: Explanation) -> None:
    """The decision chain as a tree: a question and its answer, then one leaf a reason."""
    tree = Tree(Text(f"batch {batch_text(explanation.batch)}", "bold"), guide_style="dim")
    for step in explanation.steps:
        _grow(tree, step)
    console.print(tree)
    for hazard in explanation.hazards:
        console.print(Text(f"hazard: {line(hazard)}", "bold red"))


def _grow(tree: Tree, step: Step) -> None:
    branch = tree.add(Text.assemble(f"{step.name}: ", (step.answer, "bold")))
    for under in step.under:
        _grow(branch, under)
    said = {reason for under in step.under for reason in under.reasons}
    for reason in step.reasons:
        if reason not in said:
            branch.add(Text(line(reason), "dim"))


def print_map(console: Console, found: RouteMap) -> None:
    """Columns are query lengths, each ending over its column; rows are sequence lengths."""
    console.print(Text("sequence length by query length; fresh: no cached context"))
    pitch = next((each for each in (3, 2) if len(found.queries) * each + 8 <= console.width), 1)
    heads = column_heads([length_text(query).upper() for query in found.queries], pitch)
    for number, head in enumerate(heads, 1):
        console.print(Text(f"{'query' if number == len(heads) else '':>7} {head}", "dim"), no_wrap=True)
    gap = " " * (pitch - 1)
    for seq, row in zip(found.sequences, found.rows, strict=True):
        text = Text(f"{'fresh' if seq is None else length_text(seq).upper():>7} {gap}")
        for number, letter in enumerate(row):
            text.append(gap if number else "").append(letter, _STYLES[letter])
        console.print(text, no_wrap=True, crop=True)
    console.print()
    for letter in found.used:
        console.print(Text.assemble((f"      {letter} ", _STYLES[letter]), LETTERS[letter]))


def column_heads(labels: Sequence[str], pitch: int) -> tuple[str, ...]:
    """Labels of columns ``pitch`` characters apart, on as few lines as keep them apart; each ends over its column."""
    levels = -(-(max(map(len, labels)) + 1) // pitch)
    lines = [""] * levels
    for place, label in enumerate(labels):
        level = place % levels
        room = (place + 1) * pitch - len(lines[level])
        lines[level] += label.rjust(room)
    return tuple(lines)


def print_comparison(console: Console, comparison: Comparison, names: tuple[str, str]) -> None:
    """First what differs for every batch, then ranges of lengths by kind of batch."""
    for name, before, after in comparison.settings:
        console.print(Text(name, "bold"))
        for version, value in zip(names, (before, after), strict=True):
            console.print(Text(f"  {version}: {line(value)}"))
    _print_closed(console, comparison, names)
    if not comparison.changes:
        console.print(Text("no batch behaves differently"))
        return
    for batch in dict.fromkeys(change.batch for change in comparison.changes):
        console.print(Text(f"\n{_SENTENCES[batch]} ({batch})", "bold"))
        console.print(_ranges([change for change in comparison.changes if change.batch == batch]))
    console.print(Text(f"\n{plural(len(comparison.changes), 'range')} of lengths behave differently"))


def _print_closed(console: Console, comparison: Comparison, names: tuple[str, str]) -> None:
    """Routes that neither or one of two versions can take here: a reason why rules differ and batches do not."""
    before, after = comparison.closed
    told: dict[str, list[str]] = {}
    for each in dict.fromkeys((*before, *after)):
        under = [name for name, version in zip(names, comparison.closed, strict=True) if each in version]
        whose = "" if len(under) == 2 else f" under {line(under[0])}"
        told.setdefault(f"cannot run here{whose}: {each.gate}: {line('; '.join(each.reasons))}", []).append(each.route)
    for why, routes in told.items():
        console.print(Text(f"{' and '.join(routes)} {why}"))


def _ranges(changes: Sequence[Change]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for change in changes:
        told = Text()
        for number, behaviour in enumerate((change.before, change.after)):
            hazard = behaviour.hazard
            told.append("\n-> " if number else "").append(f"{behaviour}", "bold red" if hazard else "")
            told.append(" (hazard)" if hazard else "", "bold red")
        seq = "" if change.seq is None else f"s {span(change.seq)}" + ("" if change.exact else " at the first q")
        table.add_row(f"  q {span(change.query)}", seq, told)
    return table


def span(ends: tuple[int, int]) -> str:
    """``129..2048``, or one number."""
    return f"{ends[0]}..{ends[1]}" if ends[0] != ends[1] else f"{ends[0]}"
