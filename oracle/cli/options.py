"""The options that commands have, each declared once."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated

import typer

from ..errors import BadInput

#: The seeds of a suite's cases and of fresh draws and later calls of them, which count on from it, fit into a case id.
MOST_SEED = 2**30


class Suite(StrEnum):
    quick = "quick"
    full = "full"
    production = "production"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class EngineName(StrEnum):
    local = "local"
    ray = "ray"


Operators = Annotated[
    list[str] | None, typer.Option("--operator", metavar="NAME", help="Like dense_mha or '*_mha'. Repeatable.")
]
OfTheCase = Annotated[
    str | None, typer.Option("--operator", metavar="NAME", help="What --impl computes. [default: the case's]")
]
Implementations = Annotated[
    list[str] | None,
    typer.Option("--implementation", "-i", metavar="NAME", help="Like '*/triton'. Repeatable. [default: all]"),
]
ImplementationName = Annotated[
    str | None, typer.Option("--implementation", "-i", metavar="NAME", help="Like dense_mha/triton, or fault:NAME.")
]
Geometries = Annotated[
    list[str] | None,
    typer.Option("--geometry", metavar="NAME", help="Like glm-5 or 'glm-*', or a config.json. Repeatable."),
]
SuiteName = Annotated[Suite, typer.Option("--suite", help="Which cases.")]
CaseIds = Annotated[
    list[str] | None, typer.Option("--case", metavar="ID", help="This case instead of a suite. Repeatable.")
]
CaseId = Annotated[str, typer.Argument(metavar="CASE", help="Id of the case.")]
DeviceName = Annotated[Device, typer.Option("--device", help="auto: CUDA if there is any.")]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", min=1, help="Worker processes. [default: CPUs, at most 8; one on CUDA]"),
]
Engine = Annotated[
    EngineName, typer.Option("--engine", help="local: worker processes here; ray: the GPUs or CPUs of a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="Of the Ray cluster. [default: the one that runs here]"),
]
PerDevice = Annotated[
    bool, typer.Option("--per-device", help="Every case on each kind of device of the cluster, compared.")
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="For one check; a longer one is an ERROR."),
]
Isolate = Annotated[
    bool, typer.Option("--isolate", help="A process for each implementation, with limits: a crash costs one verdict.")
]
Memory = Annotated[
    float | None,
    typer.Option("--memory", metavar="GIB", min=0.01, help="For one worker of --isolate. [default: 80% / jobs]"),
]
Resume = Annotated[
    str | None, typer.Option("--resume", metavar="FILE", help="Keep verdicts here; go on from it if it exists.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=MOST_SEED, help="Same seed, same cases.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is stdout.")]
JUnit = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML; - is stdout.")]
BundleFolder = Annotated[
    str | None,
    typer.Option("--bundle", metavar="DIR", help="Shrink each kind of failure and write a bundle of it there."),
]
Diagnose = Annotated[bool, typer.Option("--diagnose", help="Say why it failed, once for each kind of failure.")]
Markdown = Annotated[
    str | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown for GitHub; - is stdout.")
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that needs no network.")]
KnownFile = Annotated[
    str | None, typer.Option("--known", metavar="FILE", help="Ledger of failures accepted for a time (TOML).")
]
History = Annotated[str | None, typer.Option("--history", metavar="FILE", help="Add the verdicts to a SQLite file.")]
Properties = Annotated[
    bool,
    typer.Option("--properties", help="Relations between an implementation's own answers, without a reference."),
]
Sanitize = Annotated[
    bool, typer.Option("--sanitize", help="compute-sanitizer over the Triton kernels, on a GPU; --timeout a tool.")
]
List = Annotated[bool, typer.Option("--list", help="Print the ids of the cases and stop.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only failures and the last line.")]


def seconds(value: float | None) -> float | None:
    """A time limit. Raises BadInput for NaN; ``inf`` is a limit that is never reached."""
    if value is not None and math.isnan(value):
        raise BadInput("--timeout nan: expected seconds")
    return value
