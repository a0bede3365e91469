"""Options that name what a user brings, and how a command makes it known before anything looks names up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import BadInput
from .terminal import clean_stdout, console

if TYPE_CHECKING:
    from ..guests.external import External

Impl = Annotated[
    list[str] | None,
    typer.Option("--impl", metavar="TARGET", help="A callable of yours, my_pkg.kernels:mine. Takes --operator."),
]
Contract = Annotated[
    str | None,
    typer.Option(
        "--contract", metavar="FILE", help="What --impl promises: TOML, or a bundle's contract.json. [default: probed]"
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option("--adapter", metavar="NAME", help="For another signature: flash-mla, absorbed, … or pkg:function."),
]


@dataclass(frozen=True, slots=True)
class Brought:
    """What ``--impl`` and the options beside it say."""

    targets: tuple[str, ...]
    operator: str
    contract: str
    adapter: str

    @classmethod
    def of(
        cls, impl: Sequence[str] | None, operators: Sequence[str] | None, contract: str | None, adapter: str | None
    ) -> Brought | None:
        """None without ``--impl``. Raises BadInput for options that do not go together."""
        if not impl:
            for option, value in (("--contract", contract), ("--adapter", adapter)):
                if value is not None:
                    raise BadInput(f"{option} {value}: goes with --impl TARGET")
            return None
        if not operators or len(operators) != 1:
            raise BadInput(
                f"--impl {impl[0]}: expected one --operator NAME beside it (what the callable computes), "
                f"got {len(operators or ())}"
            )
        if any(mark in operators[0] for mark in "*?["):
            raise BadInput(f"--impl {impl[0]}: expected the name of one operator beside it, got {operators[0]!r}")
        if contract is not None and len(impl) > 1:
            raise BadInput("--contract: holds for one --impl; check several one by one")
        # The repro command has to work from any folder.
        path = str(Path(contract).absolute()) if contract else ""
        return cls(tuple(impl), operators[0], path, adapter or "")

    def admitted(self) -> tuple[External, ...]:
        """The callables, imported, fitted and known by name. Call it after the device is settled."""
        from ..guests import known
        from ..guests.external import external

        return tuple(
            known.admit(external(target, self.operator, contract=self.contract, adapter=self.adapter))
            for target in self.targets
        )


def of_the_case(
    impl: Sequence[str] | None,
    operators: Sequence[str] | None,
    contract: str | None,
    adapter: str | None,
    *,
    operator: str,
    device: str,
    promised: str = "",
) -> tuple[External, ...]:
    """What the user brings for a case of ``operator``, each with a contract. Call it after the device is settled.

    ``promised`` is the file of the contract where ``--contract`` names none: that of a bundle. Raises BadInput where
    ``--operator`` names another, and for options that do not go together.
    """
    for name in operators or ():
        if name != operator:
            raise BadInput(f"--operator {name}: the case is one of {operator}; leave the option out")
    brought = Brought.of(impl, [operator], contract or (promised if impl and promised else None), adapter)
    return with_contracts(brought.admitted(), device) if brought else ()


def with_contracts(found: Sequence[External], device: str) -> tuple[External, ...]:
    """Each with a contract: the declared one, or one that is proposed by probing, printed, and held from here on."""
    from ..guests import known
    from ..guests.probing import propose

    held = []
    for guest in found:
        if not guest.contract_path:
            with clean_stdout():
                proposal = propose(guest, device=device)
            console(stderr=True).print(proposal.toml(), soft_wrap=True)
            guest = known.admit(replace(guest, contract=proposal.contract, limits=proposal.limits))
        held.append(guest)
    return tuple(held)


def geometries(values: Sequence[str] | None) -> list[str]:
    """The values of ``--geometry`` as names: a path is read and known under its stem from here on."""
    from ..config import register

    return [register(value) if _is_path(value) else value for value in values or ()]


def _is_path(value: str) -> bool:
    return value.endswith(".json") or "/" in value or "\\" in value
