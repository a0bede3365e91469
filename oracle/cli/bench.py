"""``attnoracle bench``: implementations timed side by side, each only after it passed its check on that shape."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from ..device import settle
from . import options
from .guests import geometries
from .terminal import check_target

Batches = Annotated[list[str] | None, typer.Argument(metavar="BATCH", help="Like q4k, q512s8k or 8q1s2k_2q512s4k.")]
Operator = Annotated[str, typer.Option("--operator", metavar="NAME", help="What is timed.")]
Geometry = Annotated[str, typer.Option("--geometry", metavar="NAME", help="Model or config.")]
Heads = Annotated[
    int,
    typer.Option("--heads", metavar="N", help="Heads of this rank. [default: the model's]", show_default=False, min=0),
]
TopK = Annotated[
    int, typer.Option("--topk", metavar="N", help="Selected keys. [default: the model's]", show_default=False, min=0)
]
Pattern = Annotated[
    str, typer.Option("--pattern", metavar="NAME", help="causal-random, overlapping, prefix, window, …")
]
Dtype = Annotated[
    str, typer.Option("--dtype", metavar="NAME", help="Of the inputs. [default: bf16; e4m3 for the indexer]")
]
Kind = Annotated[str, typer.Option("--kind", metavar="NAME", help="How values are drawn, as in check.")]
Sweep = Annotated[
    list[str] | None, typer.Option("--sweep", metavar="FIELD=A,B", help="Like heads=64,32,16,8. Repeatable.")
]
Config = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME|FILE", help="A grid of shapes. Repeatable.")
]
Seconds = Annotated[
    float, typer.Option("--seconds", metavar="SECONDS", min=0.0, help="Timed for about so long, each on each shape.")
]
Csv = Annotated[str | None, typer.Option("--csv", metavar="FILE", help="Write CSV; - is stdout.")]
Png = Annotated[str | None, typer.Option("--png", metavar="FILE", help="Draw the rates (needs matplotlib).")]

Tp = Annotated[
    list[int] | None,
    typer.Option("--tp", metavar="N", min=1, help="With a word: tensor-parallel sizes. Repeatable. [default: 1 2 4 8]"),
]
Routes = Annotated[
    list[str] | None,
    typer.Option("--route", metavar="NAME", help="For whole: this route, whatever fits. Repeatable. [default: all]"),
]
Requests = Annotated[
    list[int] | None,
    typer.Option("--requests", metavar="N", min=1, help="For decode: so many at once. Repeatable. [default: 1 8 32]"),
]
Steps = Annotated[int, typer.Option("--steps", metavar="N", min=4, help="For decode: tokens of each request.")]
#: Words that may stand before, or instead of, batches.
MODES = ("crossover", "whole", "decode")
Policy = Annotated[str | None, typer.Option("--policy", metavar="FILE", help="For crossover: write the routing table.")]


def bench(
    context: typer.Context,
    batch: Batches = None,
    operator: Operator = "sparse_mqa",
    implementation: options.Implementations = None,
    geometry: Geometry = "deepseek-v3.2",
    heads: Heads = 0,
    topk: TopK = 0,
    pattern: Pattern = "causal-random",
    dtype: Dtype = "",
    kind: Kind = "randn",
    sweep: Sweep = None,
    config: Config = None,
    device: options.DeviceName = options.Device.auto,
    seconds: Seconds = 0.3,
    seed: options.Seed = 0,
    json: options.Json = None,
    csv: Csv = None,
    png: Png = None,
    list_: options.List = False,
    tp: Tp = None,
    policy: Policy = None,
    route: Routes = None,
    requests: Requests = None,
    steps: Steps = 1024,
) -> None:
    """Time implementations side by side; what fails its check on a shape is not timed on it.

    With a word instead of a batch: crossover, up to which lengths masked MHA beats sparse MQA, as a routing table;
    whole BATCH…, what a prefill pays on each route, indexer and projections included; decode, whether decoding slows
    down where the indexer may skip short prompts.
    """
    from ..errors import BadInput
    from ..reports.route_picture import require_matplotlib

    for name, target in (("--json", json), ("--csv", csv), ("--png", png), ("--policy", policy)):
        check_target(name, target)
    if json == "-" and csv == "-":
        raise BadInput("--json - and --csv -: stdout takes one document; name a file for the other")
    if png:
        require_matplotlib()
    (geometry,) = geometries([geometry])
    where = "cpu" if list_ else settle(device)
    # By name: the oracle leaves the benchmarks out until somebody asks for them.
    package: str = (__package__ or "").rpartition(".oracle")[0] + ".benchmarks.bench"
    plan: Any = import_module(f"{package}.plan")
    command: Any = import_module(f"{package}.command")
    words = ["attnoracle", *context.obj]
    mode = batch[0] if batch and batch[0] in MODES else ""
    _only_for(mode, {"tp": tp, "policy": policy, "route": route, "requests": requests})
    if mode:
        modes: Any = import_module(f"{package}.modes")
        asked = modes.Asked(words, geometry, tuple(tp or (1, 2, 4, 8)), where, seconds, json, png)
        if mode == "crossover":
            raise typer.Exit(modes.crossover(asked, policy))
        if mode == "whole":
            raise typer.Exit(modes.whole(asked, (batch or [])[1:], route or ()))
        raise typer.Exit(modes.decode(asked, requests or (1, 8, 32), steps))
    base = plan.Setting(operator, geometry, "q1k", heads, topk, pattern, dtype, kind, seed)
    settings = command.settings_of(base, batch or (), sweep or (), config or ())
    if list_:
        command.list_cases(settings)
        return
    request = command.Request(words, settings, implementation or (), where, seconds, json, csv, png)
    raise typer.Exit(command.run(request))


def _only_for(mode: str, given: dict[str, Any]) -> None:
    """Raises BadInput for an option that belongs to another word."""
    from ..errors import BadInput

    homes = {"tp": MODES, "policy": ("crossover",), "route": ("whole",), "requests": ("decode",)}
    for name, value in given.items():
        if value and mode not in homes[name]:
            raise BadInput(f"--{name}: expected the word {' or '.join(homes[name])} before it")
