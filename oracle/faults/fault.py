"""A fault: a named defect, the code that plants it, where it was seen in public, and which check must see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ...optimized.contract import Contract
from ...optimized.implementation import Implementation
from ..errors import BadInput
from .simulated import KERNELS, SIMULATED, Kernel, planted

Place = Literal["simulated", "reference-pipeline", "triton"]
CHECKS = (
    "element", "row", "global", "bias", "lse", "structure", "memory", "topk", "exact", "rerun", "sequence",
)  # fmt: skip
#: Verdicts in use elsewhere, as in ``weak.py``.
VERDICTS = ("allclose-1e-2", "cosine", "calc_diff-1e-3", "2x-eager", "flashmla", "fib")


@dataclass(frozen=True, slots=True)
class Fault:
    """One defect of one operator, as small as it can be.

    ``plant()`` returns a fresh faulty kernel with the operator's keyword names; a fault with memory keeps it in that
    kernel, so call ``plant`` once for a sequence of runs.
    """

    name: str
    operator: str
    theme: str
    description: str
    source: str
    """Public report or file the defect is known from; empty where it is common knowledge of the trade."""
    expected_check: str
    """The check that is expected to see it first."""
    plant: Callable[[], Kernel]
    planted_in: Place = "simulated"
    escapes: tuple[str, ...] = ()
    """Verdicts in use elsewhere that accept it on random normal inputs of a few dozen tokens (measured)."""
    options: tuple[str, ...] = ()
    """What a case must have for the fault to act: the name of a case option, ``field=value`` for its kind, dtype,
    layout or heads, ``reach=`` a row of ``suites/reach``, or a mark of its lengths: ``requests=N`` (at least), for one
    request ``k=0``, ``k<q``, ``k>q``, ``k=topk``, ``k=topk+1``.

    ``sequence`` asks for two calls of one kernel on the same memory, every value changed in between: lengths (fewer
    keys) and scale too. The first answer must still be right after the second call.
    """
    contract: Contract = SIMULATED
    """What the faulty kernel claims; ``host`` has its own."""
    convention: str = ""
    """Convention that the verdict must name (``judge/conventions.py``); empty where the fault is of another kind."""
    host: Callable[[], Implementation] | None = None
    """The edited implementation of a fault that is planted in a shipped kernel."""

    def __post_init__(self) -> None:
        if self.operator not in KERNELS:
            raise BadInput(f"fault {self.name!r}: expected an operator of {sorted(KERNELS)}, got {self.operator!r}")
        if self.expected_check not in CHECKS:
            raise BadInput(f"fault {self.name!r}: expected a check of {CHECKS}, got {self.expected_check!r}")
        unknown = set(self.escapes) - set(VERDICTS)
        if unknown:
            raise BadInput(f"fault {self.name!r}: expected verdicts of {VERDICTS}, got {sorted(unknown)}")

    def implementation(self, operator: str | None = None) -> Implementation:
        """The faulty kernel as an implementation; one kernel for all runs, so that a fault can remember.

        Raises BadInput if ``operator`` is given and is not the fault's.
        """
        if operator not in (None, self.operator):
            raise BadInput(f"fault {self.name!r} is planted in {self.operator!r}; it does not fit {operator!r}")
        if self.host is not None:
            edited = self.host()
            return replace(edited, supports=lambda facts: self.supports(facts) or edited.supports(facts))
        kernel = self.plant()
        return Implementation(
            name=f"{self.operator}/fault-{self.name}",
            contract=self.contract,
            supports=self.supports,
            load=lambda: kernel,
        )

    def supports(self, facts: Mapping[str, Any]) -> str | None:
        """None, or why the fault cannot be run on a case (wrong operator or dtype)."""
        if facts.get("operator", self.operator) != self.operator:
            return f"fault {self.name} is planted in {self.operator}"
        cache_format = facts.get("cache_format", "model")
        if cache_format != "model" and not {"ds-mla", "dtype=e4m3"} & set(self.options):
            return f"fault {self.name} is planted for caches of the model's dtype, got {cache_format}"
        if "ds-mla" in self.options and cache_format != "fp8_ds_mla":
            return f"fault {self.name} needs a cache of fp8_ds_mla, got {cache_format}"
        for option in self.options:
            field, _, value = option.partition("=")
            if field == "dtype" and facts.get("dtype", value) != value:
                return f"fault {self.name} needs dtype {value}"
        return None


def sited(theme: str) -> Callable[..., Fault]:
    """Makes the faults of a theme: ``fault(name, operator, description, source, check, **sites)``.

    Sites are those of the operator's simulated kernel; ``plant=`` takes their place for a fault that no site expresses.
    """
    return partial(_sited, theme)


def _sited(
    theme: str,
    name: str,
    operator: str,
    description: str,
    source: str,
    expected_check: str,
    *,
    plant: Callable[[], Kernel] | None = None,
    planted_in: Place = "simulated",
    escapes: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
    contract: Contract = SIMULATED,
    **sites: Any,
) -> Fault:
    if (plant is None) == (not sites):
        raise BadInput(f"fault {name!r}: expected either sites or a plant, got {'both' if sites else 'neither'}")
    return Fault(
        name,
        operator,
        theme,
        description,
        source,
        expected_check,
        plant or planted(operator, **sites),
        planted_in,
        escapes,
        options,
        contract,
    )
