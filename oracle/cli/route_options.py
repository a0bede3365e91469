"""The options of ``route``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Cache(StrEnum):
    model = "model"
    e4m3 = "e4m3"
    fp8_ds_mla = "fp8_ds_mla"


class Wrapper(StrEnum):
    fused = "fused"
    generic = "generic"


class Kind(StrEnum):
    full = "full"
    shared = "shared"
    mtp = "mtp"


class Graph(StrEnum):
    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


BatchText = Annotated[str | None, typer.Argument(metavar="BATCH", help="Like 8q1s2k_2q512s4k.")]
Query = Annotated[list[str] | None, typer.Option("--q", metavar="N", help="New tokens, like 4096 or 4k. Repeatable.")]
Context = Annotated[
    list[str] | None, typer.Option("--context", metavar="N", help="Cached tokens of each --q, or of all. Repeatable.")
]
GeometryName = Annotated[
    str | None, typer.Option("--geometry", metavar="NAME", help="Model or config. [default: glm-5.2; audit: all]")
]
RulesName = Annotated[
    str | None,
    typer.Option("--rules", metavar="NAME|FILE", help="Rule version or file. [default: vllm-0.33; audit: all]"),
]
Provider = Annotated[str, typer.Option("--provider", metavar="NAME", help="Who offers masked MHA.")]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Sparse-MLA backend. [default: first in priority]")
]
TensorParallel = Annotated[int, typer.Option("--tp", metavar="N", min=1, help="Tensor-parallel size.")]
Family = Annotated[int, typer.Option("--sm", metavar="N", help="Device family: 90 or 100.")]
CacheName = Annotated[Cache, typer.Option("--cache", help="Format of the latent cache; model: unquantised.")]
WrapperName = Annotated[Wrapper, typer.Option("--wrapper", help="Which layer implementation.")]
LayerName = Annotated[Kind, typer.Option("--layer", help="Own indexer, shared selection, or draft layer.")]
ModeName = Annotated[Graph, typer.Option("--mode", help="CUDA graph mode of the step.")]
ForceMqa = Annotated[bool, typer.Option("--force-mqa", help="As with sparse_mla_force_mqa.")]
Speculative = Annotated[int, typer.Option("--speculative", metavar="N", min=0, help="Speculative tokens.")]
Dcp = Annotated[int, typer.Option("--dcp", metavar="N", min=1, help="Decode context-parallel ranks.")]
Pcp = Annotated[int, typer.Option("--pcp", metavar="N", min=1, help="Prefill context-parallel ranks.")]
MaxSeqs = Annotated[int, typer.Option("--max-num-seqs", metavar="N", min=1, help="Requests of a step at most.")]
MaxLength = Annotated[int, typer.Option("--max-model-len", metavar="N", min=2, help="Longest sequence.")]
Sweep = Annotated[bool, typer.Option("--sweep", help="Map of routes over query and sequence length.")]
Png = Annotated[str | None, typer.Option("--png", metavar="FILE", help="With --sweep: draw the map.")]
Diff = Annotated[
    tuple[str, str] | None, typer.Option("--diff", metavar="A B", help="Compare two rule versions, batch by batch.")
]
Audit = Annotated[bool, typer.Option("--audit", help="Audit the policy tables.")]
Hold = Annotated[
    str | None, typer.Option("--hold", metavar="MODULE:FUNCTION", help="Hold a router of your own to the rules.")
]
All = Annotated[bool, typer.Option("--all", help="With --audit of a file: its inherited rows too.")]
Prefills = Annotated[
    list[int] | None,
    typer.Option("--prefills", metavar="N", min=1, help="Prefills in a step, for --audit and --sweep. Repeatable."),
]
WorkspaceMib = Annotated[
    int | None, typer.Option("--workspace-mib", metavar="N", min=1, help="With another mask workspace.")
]
