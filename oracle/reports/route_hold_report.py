"""What became of a router that was held to rules."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from ..routes.hold import Difference, Held
from .plain import line


def finding(one: Difference) -> dict[str, Any]:
    """An entry of ``findings[]``."""
    return {
        "kind": "router",
        "level": "error",
        "batch": one.text,
        "requests": [(request.query_len, request.context_len) for request in one.batch.requests],
        "padding": one.padding,
        "due": one.due,
        "reasons": list(one.reasons),
        "got": one.got,
    }


def print_held(console: Console, held: Held) -> None:
    """The smallest batch of each sort of difference, and the count."""
    for one in held.differences:
        console.print(Text(f"\n{one.text}", "bold"))
        console.print(Text(f"  the rules: {one.due} ({line('; '.join(one.reasons))})"))
        console.print(Text(f"  the router: {line(one.got)}", "bold red"))
    if held.wrong:
        console.print(Text(f"\n{held.wrong:,} of {held.batches:,} batches are routed otherwise", "bold red"))
    else:
        console.print(Text(f"{held.batches:,} batches as the rules say", "green"))
