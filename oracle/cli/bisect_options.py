"""What every axis of ``attnoracle bisect`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import typer

from ..bisect.look import Settings
from ..bisect.probe import Probe
from ..errors import BadInput
from ..fleet.calls import StoppableCalls
from ..fleet.choose import Place
from . import options

Good = Annotated[str, typer.Option("--good", metavar="POINT", help="Where it is right; newer or older than the bad.")]
Bad = Annotated[str, typer.Option("--bad", metavar="POINT", help="Where it is wrong.")]
Case = Annotated[str | None, typer.Option("--case", metavar="ID", help="The case to check at every point.")]
Implementation = Annotated[
    str | None, typer.Option("--implementation", "-i", metavar="NAME", help="Like indexer_scores/triton.")
]
Impl = Annotated[
    str | None, typer.Option("--impl", metavar="TARGET", help="A callable of yours instead. Takes --operator.")
]
Operator = Annotated[str | None, typer.Option("--operator", metavar="NAME", help="Of the kernel of --impl.")]
ContractFile = Annotated[str | None, typer.Option("--contract", metavar="FILE", help="What --impl promises.")]
Run = Annotated[
    str | None,
    typer.Option("--run", metavar="COMMAND", help="Instead of a case: exit code 0 good, 125 skip, others bad."),
]
Measure = Annotated[
    str | None, typer.Option("--measure", metavar="NAME", help="Bad where this measure lies above --above.")
]
Above = Annotated[float | None, typer.Option("--above", metavar="VALUE", help="With --measure; like 0.8.")]
Runs = Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Looks at each end before the search.")]
Flaky = Annotated[bool, typer.Option("--flaky", help="Take verdicts as random: a noisy search with a confidence.")]
Confidence = Annotated[
    float, typer.Option("--confidence", metavar="P", min=0.5, max=0.999999, help="Of a noisy search.")
]
EngineName = Annotated[
    options.EngineName, typer.Option("--engine", help="local: processes here; ray: the CPUs or GPUs of a Ray cluster.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", metavar="N", min=1, help="Looks at once. [default: 1; on Ray one a CPU or GPU]"),
]
JournalFolder = Annotated[
    Path | None, typer.Option("--journal", metavar="DIR", help="Keep every look and log here; go on from it.")
]
Limit = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="For one run; longer is a skip.")]


def probe(
    case: str | None,
    implementation: str | None,
    impl: str | None,
    operator: str | None,
    contract: str | None,
    run: str | None,
    measure: str | None,
    above: float | None,
    timeout: float,
    device: str,
) -> Probe:
    """What is run at every point. Raises BadInput where the options name nothing, or two things."""
    if case is not None and (implementation is None) == (impl is None):
        raise BadInput("bisect: expected --implementation NAME or --impl MODULE:NAME beside --case, one of them")
    if impl is not None and operator is None and case is not None:
        operator = case.partition(":")[0]
    # Looks are made elsewhere: in work trees, environments, on other machines.
    path = str(_file(contract)) if contract is not None else None
    named = {"--implementation": implementation, "--impl": impl, "--operator": operator, "--contract": path}
    target = [part for option, value in named.items() if value is not None for part in (option, value)]
    return Probe(
        case=case or "",
        target=tuple(target),
        command=run or "",
        measure=measure or "",
        above=above,
        timeout=timeout,
        device=device if case else "cpu",
    )


def _file(contract: str) -> Path:
    path = Path(contract).absolute()
    if not path.is_file():
        raise BadInput(f"--contract {contract}: expected a file, there is none at {path}")
    return path


@dataclass(frozen=True, kw_only=True)
class Search:
    """The options of every axis that is searched, each a field."""

    case: Case = None
    implementation: Implementation = None
    impl: Impl = None
    operator: Operator = None
    contract: ContractFile = None
    run: Run = None
    measure: Measure = None
    above: Above = None
    runs: Runs = 2
    flaky: Flaky = False
    confidence: Confidence = 0.99
    journal: JournalFolder = None
    timeout: Limit = 600.0
    device: options.DeviceName = options.Device.cpu
    engine: EngineName = options.EngineName.local
    address: options.Address = None
    jobs: Jobs = None
    json: options.Json = None

    @property
    def settings(self) -> Settings:
        return Settings(runs=self.runs, flaky=self.flaky, confidence=self.confidence)

    def probe(self) -> Probe:
        """What is run at every point. Raises BadInput where the options name nothing, or two things."""
        target = (self.case, self.implementation, self.impl, self.operator, self.contract, self.run)
        return probe(*target, self.measure, self.above, self.timeout, self.place.device)

    @cached_property
    def place(self) -> Place:
        """Where looks are made. Raises BadInput or Unsupported for what is not there."""
        if self.engine is options.EngineName.local and self.case is None:
            # A command of the user's settles by itself what it runs on.
            return Place.of("local", self.address, options.Device.cpu)
        return Place.of(self.engine.value, self.address, self.device)

    def hands(self) -> StoppableCalls | None:
        """Where looks are made, several at once; None: in this process, one after another."""
        return None if self.place.ray is None and (self.jobs or 1) == 1 else self.place.hands(self.jobs)


def refuse(what: str, why: str, engine: options.EngineName, address: str | None, jobs: int | None) -> None:
    """For what looks at one set after another. Raises BadInput where several at once are asked for, or a cluster."""
    if engine is not options.EngineName.local or address is not None or jobs not in (None, 1):
        raise BadInput(f"bisect {what}: --engine, --address and --jobs are for commits, packages and sizes; here {why}")
