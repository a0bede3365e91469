"""A study of a config for people, on 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..bringup.choices import Choice
from ..bringup.routes import Routes
from ..bringup.shipped import StageResult
from ..bringup.study import Study
from ..bringup.support import Support
from .plain import line, plural

_MARKS = {"key": "", "derived": "derived", "default": "default", "none": "absent"}
_STYLES = {"default": "yellow", "none": "dim"}


def print_study(console: Console, study: Study, *, every: bool = False) -> None:
    """Values, choices, routes, support, bytes and siblings. ``every``: refused implementations one by one."""
    console.print(Text(f"{line(study.name)}: {line(str(study.subject.path.name))}, rules {line(study.rules)}", "bold"))
    for note in study.notes:
        console.print(Text(line(note), "yellow"))
    _values(console, study)
    _choices(console, study.choices)
    if study.routes:
        _routes(console, study.routes)
    _bytes(console, study)
    _support(console, study.support, every)
    _head(console, "models that share its code: a change for one re-tests all")
    for one in study.siblings:
        console.print(Text.assemble(f"  {line(one.name):<16}", (line(", ".join(one.shares)), "dim")))
    if not study.siblings:
        console.print(Text("  none of the shipped ones", "dim"))


def _head(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", "bold"))


def _grid(*columns: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(**{"overflow": "fold", **column})
    return table


def _values(console: Console, study: Study) -> None:
    _head(console, "what the config says")
    table = _grid({"header": "field", "no_wrap": True}, {"header": "value"}, {"header": "from"})
    for one in study.values:
        if one.field in ("name", "indexer_full_layers"):
            continue
        value = f"{one.value:.9g}" if isinstance(one.value, float) else str(one.value)
        mark = _MARKS[one.origin]
        told = one.source.removeprefix("none: ").removeprefix("rule: ")
        table.add_row(
            one.field, line(value), Text(line(f"{mark}: {told}" if mark else told), _STYLES.get(one.origin, ""))
        )
    console.print(table)


def _choices(console: Console, choices: Sequence[Choice]) -> None:
    _head(console, "what can be read in two ways, and the shortest sequence in which it shows")
    table = _grid({"header": "choice"}, {"header": "read as"}, {"header": "instead of"}, {"header": "stage"},
                  {"header": "tokens at its stage", "justify": "right", "max_width": 8},
                  {"header": "in the layer", "justify": "right", "max_width": 8})  # fmt: skip
    for one in choices:
        layer = "never" if one.layer_length is None else str(one.layer_length)
        table.add_row(one.name, line(one.reading), line(one.other), one.stage, str(one.stage_length),
                      Text(layer, "yellow" if layer == "never" or int(layer) > 2 else ""))  # fmt: skip
    console.print(table)
    for one in choices:
        if one.note:
            console.print(Padding(Text(f"{one.name}: {one.note}", "dim"), (0, 0, 0, 2)))


def _routes(console: Console, routes: Iterable[Routes]) -> None:
    _head(console, "what fresh prompts run as, by length in tokens")
    for way in routes:
        if way.why:
            console.print(Text(f"  TP {way.tensor_parallel}: {line(way.why)}", "yellow"))
            continue
        declared = "declared" if way.capability else "not declared"
        console.print(Text.assemble((f"  TP {way.tensor_parallel} ", "bold"),
                                    f"{way.backend}, dense MHA {declared}"))  # fmt: skip
        for first, last, told in way.ranges:
            span = f"{first}..{last}" if first != last else f"{first}"
            console.print(Text(f"    {span:<17}{told}"))


def _bytes(console: Console, study: Study) -> None:
    _head(console, "bytes")
    right = {"justify": "right"}
    table = _grid(
        {"header": "cache of one token"},
        {"header": "a layer", **right},
        {"header": "indexer key", **right},
        {"header": "all layers", **right},
    )
    for one in study.caches:
        cells = [f"{value:,}" if value is not None else "-" for value in (one.layer, one.index, one.model)]
        table.add_row(f"{one.cache}{f': {line(one.why)}' if one.why else ''}", *cells)
    console.print(table)
    if study.work:
        table = _grid({"header": "workspace"}, {"header": "tokens", "justify": "right"},
                      {"header": "bytes", "justify": "right"}, {"header": ""})  # fmt: skip
        for size in study.work:
            fits = Text("" if size.fits else "does not fit: MQA", "yellow")
            table.add_row(size.name, f"{size.tokens:,}", f"{size.bytes:,}", fits)
        console.print(table)


def _support(console: Console, support: Sequence[Support], every: bool) -> None:
    taken = sum(not one.reason for one in support)
    _head(console, f"implementations that take it: {taken} of {plural(len(support), 'implementation')}")
    table = _grid({"header": "operator", "no_wrap": True}, {"header": "takes it"}, {"header": "refuses it"})
    for operator, group in groupby(sorted(support, key=lambda one: one.operator), key=lambda one: one.operator):
        found = list(group)
        yes = ", ".join(one.implementation.partition("/")[2] for one in found if not one.reason)
        no = ", ".join(one.implementation.partition("/")[2] for one in found if one.reason)
        table.add_row(operator, Text(line(yes) or "none", "green" if yes else "yellow"), Text(line(no), "dim"))
    console.print(table)
    if every:
        for one in support:
            if one.reason:
                console.print(
                    Padding(Text.assemble(line(one.implementation), (f": {line(one.reason)}", "dim")), (0, 0, 0, 2))
                )
    elif taken < len(support):
        console.print(Text("  --why lists the reason of each refusal; --json has them too", "dim"))


def print_shipped(console: Console, name: str, version: str, results: Sequence[StageResult]) -> None:
    """A table stage x mode, then what each failure says."""
    console.print(Text(f"{line(name)} in transformers {line(version)}, small dims, float32", "bold"))
    modes = list(dict.fromkeys(one.mode for one in results))
    table = _grid({"header": "stage", "no_wrap": True}, *({"header": mode} for mode in modes))
    found = {(one.stage, one.mode): one.status for one in results}
    for stage in dict.fromkeys(one.stage for one in results):
        cells = (found.get((stage, mode), "-") for mode in modes)
        table.add_row(stage, *(Text(cell, {"PASS": "green", "FAIL": "bold red"}.get(cell, "dim")) for cell in cells))
    console.print(table)
    for one in results:
        if one.status == "FAIL":
            told = one.message if one.message.startswith(one.stage) else f"{one.mode}: {one.message}"
            console.print(Padding(Text(told), (0, 0, 0, 2)))
