"""What a person reads: one table, the reasons for what did not run, and a block for each failure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..verdict import Status, Verdict
from .plain import duration, line, number, plural, printable
from .summary import Summary

STYLES: dict[Status, str] = {
    "PASS": "green",
    "FAIL": "bold red",
    "SUSPECT": "magenta",
    "WEAK": "yellow",
    "UNSUPPORTED": "dim",
    "ERROR": "bold red",
}
_COLUMNS: tuple[tuple[Status, str], ...] = (
    ("PASS", "pass"),
    ("FAIL", "fail"),
    ("WEAK", "weak"),
    ("SUSPECT", "susp"),
    ("ERROR", "err"),
    ("UNSUPPORTED", "unsup"),
)
#: Blocks shown for one implementation, and reasons for one status: a broken kernel fails everywhere in the same way.
_BLOCKS, _REASONS = 3, 6
#: Below so many columns the table leaves out what says nothing.
NARROW = 64


def report(console: Console, verdicts: Sequence[Verdict], summary: Summary, *, failures_only: bool = False) -> None:
    """Print everything: failures last but for the summary, where the eye lands."""
    if not failures_only and verdicts:
        console.print(matrix(verdicts, narrow=console.width < NARROW))
        for status in ("UNSUPPORTED", "WEAK"):
            _print_reasons(console, verdicts, status)
    _print_failures(console, verdicts)
    for text, style in [(told, "bold red") for told in summary.problems] + [(told, "yellow") for told in summary.notes]:
        console.print(Text(f"\n{line(text)}", style))
    console.print(closing(summary))


def matrix(verdicts: Sequence[Verdict], *, narrow: bool = False) -> Table:
    """Operator x implementation: counts by status, the worst ratio of error to budget, and the time taken.

    ``narrow`` leaves out what says nothing here, so that the names stay readable.
    """
    rows: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.implementation].append(verdict)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    seen = {verdict.status for verdict in verdicts}
    columns = tuple(column for column in _COLUMNS if not narrow or column[0] in seen)
    if not narrow:
        table.add_column("operator", no_wrap=True)
    table.add_column("implementation", overflow="fold", min_width=12)
    for _, heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("worst", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("time", justify="right", no_wrap=True)
    shown = ""
    for name in sorted(rows, key=lambda name: name.partition("/")[0]):
        operator, _, backend = name.partition("/")
        cells = _cells(rows[name], columns)
        if narrow:
            table.add_row(Text(line(name)), *cells[:-1])
        else:
            table.add_row(operator if operator != shown else "", Text(line(backend)), *cells)
        shown = operator
    return table


def _cells(verdicts: Sequence[Verdict], columns: Sequence[tuple[Status, str]]) -> list[Text]:
    counts = Counter(verdict.status for verdict in verdicts)
    none = Text("-", "dim")
    cells = [Text(str(counts[status]), STYLES[status]) if counts[status] else none for status, _ in columns]
    ratios = [ratio for verdict in verdicts if (ratio := verdict.worst_ratio) is not None]
    worst = max(ratios, default=None)
    cells.append(none if worst is None else Text(f"{worst:.3g}", "bold red" if worst > 1 else ""))
    cells.append(Text(duration(sum(verdict.seconds for verdict in verdicts))))
    return cells


def _print_reasons(console: Console, verdicts: Sequence[Verdict], status: Status) -> None:
    """Distinct reasons of one status, each with the implementations it holds for, most frequent first."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.status == status:
            reasons[line(verdict.reason) or "no reason given"].append(verdict.implementation)
    if not reasons:
        return
    console.print(Text(f"\n{status.lower()}", STYLES[status]))
    ordered = sorted(reasons, key=lambda reason: -len(reasons[reason]))
    for reason in ordered[:_REASONS]:
        names = ", ".join(sorted(set(reasons[reason])))
        console.print(
            Padding(
                Text.assemble(f"{len(reasons[reason])} x ", reason, (f"  {names}", "dim")), (0, 0, 0, 2), expand=False
            )
        )
    if len(ordered) > _REASONS:
        console.print(f"  and {plural(len(ordered) - _REASONS, 'other reason')}; --json FILE has them all")


def _print_failures(console: Console, verdicts: Sequence[Verdict]) -> None:
    shown: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.status in ("FAIL", "ERROR", "SUSPECT"):
            shown[verdict.implementation] += 1
            if shown[verdict.implementation] <= _BLOCKS:
                console.print()
                print_block(console, verdict)
    for name, count in shown.items():
        if count > _BLOCKS:
            console.print(Text(f"\n{name}: {count - _BLOCKS} more like these; --json FILE has them all", "bold"))


def print_block(console: Console, verdict: Verdict, *, measures: bool = False) -> None:
    """One verdict in full: what was found, the worst elements, and the command that runs it again."""
    console.print(Text.assemble((verdict.status, STYLES[verdict.status]), f"  {line(verdict.implementation)}"))
    # Never wrapped by us, as the command below: with line breaks in it, it could not be pasted.
    console.print(Text.assemble(("  case       ", "dim"), verdict.case.id), soft_wrap=True)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim", min_width=9)
    grid.add_column(overflow="fold")
    if not verdict.findings and verdict.reason:
        grid.add_row("reason", Text(printable(verdict.reason)))
    for finding in verdict.findings:
        strength = "proved" if finding.proved else "statistical"
        if finding.p_value is not None:
            strength += f", p = {finding.p_value:.1e}"
        told: list[RenderableType] = [Text(f"{printable(finding.message)} ({strength})")]
        if finding.where:
            told.append(Text(f"at {printable(finding.where)}"))
        grid.add_row(Text(line(finding.check), "bold"), Group(*told))
    if verdict.worst:
        grid.add_row("worst", _elements(verdict))
    if measures and verdict.measures:
        grid.add_row(
            "measures", Text("\n".join(f"{line(k)} = {number(v)}" for k, v in sorted(verdict.measures.items())))
        )
    if measures:
        grid.add_row("ran", Text(f"{duration(verdict.seconds)} on {verdict.device}"))
    if grid.row_count:
        console.print(Padding(grid, (0, 0, 0, 2), expand=False))
    console.print(Text.assemble(("  repro      ", "dim"), verdict.repro), soft_wrap=True)


def _elements(verdict: Verdict) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("element", overflow="fold")
    for heading in ("observed", "expected", "budget", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for worst in verdict.worst:
        place = f"{worst.output}[{', '.join(map(str, worst.index))}]"
        table.add_row(
            Text(place), number(worst.observed), number(worst.expected), f"{worst.budget:.3g}", f"{worst.ratio:.3g}"
        )
    return table


def closing(summary: Summary) -> Text:
    """The last line: how many verdicts of each kind, and the time."""
    text = Text(f"\n{plural(summary.total, 'verdict')} in {duration(summary.seconds)}: ")
    present = [(status, count) for status, count in summary.counts.items() if count]
    for i, (status, count) in enumerate(present):
        text.append(", " if i else "").append(f"{count} {status.lower()}", STYLES[status])
    if not present:
        text.append("nothing to judge")
    if summary.known:
        text.append(f"; {plural(summary.known, 'failure')} known", "yellow")
    if summary.resumed:
        text.append(f"; {summary.resumed} of them from the file of --resume", "dim")
    if present and not summary.judged and summary.exit_code != 1:
        text.append("; nothing could be judged", "yellow")
    return text
