"""``attnoracle capture``: a live layer watched under the contract, its calls saved, and saved calls judged."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import BadInput, Unsupported
from . import options
from .terminal import check_target, console, write

Target = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT [ARGS] | FILES", help="A script that runs the engine, or with --judge saved calls."),
]
LayerName = Annotated[
    str, typer.Option("--layer", metavar="MODULE:CLASS", help="Class of the layers to watch.", show_default=True)
]
MetadataName = Annotated[
    str,
    typer.Option("--metadata", metavar="MODULE:FUNCTION", help="Called with a layer: the step's metadata."),
]
ShapeName = Annotated[
    str, typer.Option("--shape", metavar="MODULE:OBJECT", help="A Shape: where the layer keeps what is watched.")
]
Folder = Annotated[str, typer.Option("--out", metavar="FOLDER", help="Where captured calls go.")]
RulesName = Annotated[str, typer.Option("--rules", metavar="NAME|FILE", help="Rules that the layers are held to.")]
Deploy = Annotated[
    str | None, typer.Option("--deployment", metavar="FILE", help="TOML with the fields of the deployment.")
]
Cases = Annotated[int, typer.Option("--cases", metavar="N", min=0, help="Calls saved of each layer.")]
Queries = Annotated[int, typer.Option("--queries", metavar="N", min=1, help="Queries saved of each call.")]
Megabytes = Annotated[int, typer.Option("--megabytes", metavar="N", min=1, help="Of all saved calls together.")]
Judge = Annotated[bool, typer.Option("--judge", help="Judge saved calls against the reference in fp64.")]


def capture(
    context: typer.Context,
    target: Target = None,
    layer: LayerName = "vllm.model_executor.layers.mla:MultiHeadLatentAttentionWrapper",
    metadata: MetadataName = "attnoracle.oracle.engines.vllm_live:metadata",
    shape: ShapeName = "attnoracle.oracle.engines.shape:VLLM",
    out: Folder = "captured",
    rules: RulesName = "vllm-0.33",
    deployment: Deploy = None,
    cases: Cases = 4,
    queries: Queries = 64,
    megabytes: Megabytes = 64,
    judge: Judge = False,
    json: options.Json = None,
) -> None:
    """Run a script and watch an engine's sparse-MLA layers in it: what they do, step by step, under the layer contract.

    Saves real operator calls, bounded in size; --judge holds saved calls against the reference.
    """
    check_target("--json", json)
    if not target:
        raise BadInput("capture: expected a script that runs the engine, or --judge and saved calls, got nothing")
    from ..environment import environment
    from ..reports import capture_report
    from ..reports.json_report import document, dumps

    started = time.monotonic()
    if judge:
        summary, lists = capture_report.judged([Path(name) for name in target])
    else:
        limits = {"cases": cases, "queries": queries, "bytes": megabytes * 2**20}
        summary, lists = _watch(target, (layer, metadata, shape), Path(out), rules, deployment, limits)
    summary["seconds"] = time.monotonic() - started
    if json is not None:
        command = ["attnoracle", *context.obj]
        write(json, lambda: dumps(document("capture", command, environment(), summary, **lists)))
    capture_report.report(console(stderr=json == "-"), summary, lists)
    raise typer.Exit(capture_report.exit_code(summary))


def _settle() -> None:
    """Before the script or its layer import Triton: without a GPU its kernels are interpreted, as ``check`` does."""
    from ...optimized.interpreter import MendError
    from ...optimized.triton_runtime import prepare_if_available
    from ..device import settle

    if settle("auto") == "cpu":
        try:
            prepare_if_available()
        except MendError as error:
            raise Unsupported(f"capture: Triton kernels of the script cannot be interpreted here: {error}") from error


def _watch(
    target: list[str], names: tuple[str, str, str], folder: Path, rules: str, deployment: str | None, limits: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    from ..engines.attach import named, run_script, watched
    from ..engines.deployments import read_deployment
    from ..engines.watch import Limits, Watch
    from ..reports import capture_report
    from ..routes.setup import rules_named

    if deployment is None:
        raise BadInput("capture: expected --deployment FILE with the backend, heads and dims of the engine's layers")
    _settle()
    script = Path(target[0])
    # The script's own folder may hold the layer.
    sys.path.insert(0, str(script.absolute().parent))
    try:
        kind, source, shape = map(named, names)
        folder.mkdir(parents=True, exist_ok=True)
        facts = read_deployment(Path(deployment))
        watch = Watch(rules_named(rules), facts, source, shape=shape, folder=folder, limits=Limits(**limits))
        with watched(kind, watch), contextlib.redirect_stdout(sys.stderr):
            run_script(script, target[1:])
    finally:
        sys.path.remove(str(script.absolute().parent))
    return capture_report.seen(watch)
