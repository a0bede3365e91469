"""A campaign while it runs: on a terminal a view that is drawn anew, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..campaign.groups import GROUPS
from ..campaign.night import Budget, Night
from .plain import duration, line, plural

#: Seconds between two lines where there is no terminal.
_QUIET_SECONDS = 30.0
#: Closest calls and findings in the view.
_SHOWN = 3

Watch = Callable[[Night], None]


@contextmanager
def live(console: Console, budget: Budget, *, quiet: bool = False) -> Iterator[Watch]:
    """A function that the night calls; writes to ``console``, which is that of stderr."""
    if quiet:
        yield lambda night: None
    elif console.is_terminal:
        with Live(console=console, transient=True, auto_refresh=False) as screen:
            yield lambda night: screen.update(view(night, budget), refresh=True)
    else:
        yield _lines(console)


def view(night: Night, budget: Budget) -> Group:
    """How far it is, what was seen, what came closest, what was found."""
    bar = Table.grid(padding=(0, 1), expand=True)
    done = night.cases / budget.cases if budget.cases else 0.0
    spent = night.seconds / budget.seconds if budget.seconds else 0.0
    bar.add_row("campaign", ProgressBar(total=1.0, completed=min(1.0, max(done, spent))), Text(_state(night)))
    seen = Table.grid(padding=(0, 2, 0, 0))
    counts = {group: sum(len(groups[group]) for groups in night.guide.seen.values()) for group in GROUPS}
    seen.add_row("seen", Text("  ".join(f"{group} {count:,}" for group, count in counts.items() if count), "dim"))
    calls = [call for call in night.guide.nearest() if call.measure == "ratio"][:_SHOWN]
    for call in calls:
        seen.add_row(
            "close", Text(f"{call.value:.3g}  {line(call.implementation)}  {call.case.id}", "dim", no_wrap=True)
        )
    for finding in list(night.findings)[-_SHOWN:]:
        told = f"{line(finding.implementation)}  {plural(finding.count, 'time')}  {line(str(finding.signature))}"
        seen.add_row(Text("found", "bold red"), Text(told, no_wrap=True))
    return Group(bar, seen)


def _state(night: Night) -> str:
    rate = night.cases / max(night.seconds, 1e-9)
    told = f"{night.cases:,} cases, {rate:.3g}/s, {duration(night.seconds)}, {plural(len(night.findings), 'finding')}"
    return told + (f", {night.looking} looked into" if night.looking else "")


def _lines(console: Console) -> Watch:
    last = time.monotonic()

    def watch(night: Night) -> None:
        nonlocal last
        if time.monotonic() - last >= _QUIET_SECONDS:
            last = time.monotonic()
            console.print(_state(night), markup=False, highlight=False, soft_wrap=True)

    return watch
