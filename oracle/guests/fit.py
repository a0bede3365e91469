"""Fits a callable to an operator: by the reference's own keywords, or through an adapter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from torch import Tensor

from ... import reference
from ..errors import BadInput, unknown
from .adapters import ADAPTERS, Adapter, Kernel
from .target import resolve

#: Option of a case -> keyword of the reference without which a kernel cannot run it.
_OPTIONAL = {
    "sink": "sink",
    "lengths": "lengths",
    "noncausal": "causal",
    "ds-mla": "cache_format",
    "q-scale": "q_scale",
    "compressed": "max_seqlen_k",
}
#: What a sparse MQA kernel of any adapter lacks: caches of another format than the queries'.
_FORMATS = {"ds-mla": "cache_format"}


@dataclass(frozen=True, slots=True)
class Fitted:
    """A callable with the reference's keywords."""

    function: Callable[..., tuple[Any, ...]]
    adapter: str = ""
    """Name or target of the adapter; empty: the kernel has the reference's keywords."""
    refused: dict[str, str] = field(default_factory=dict)
    """Option of a case -> parameter that the kernel lacks for it."""


def refusal(fitted: Fitted, facts: Mapping[str, Any]) -> str | None:
    """Why the parameters of a kernel stand against a case, or None."""
    options = [
        *facts["options"],
        *(["ds-mla"] if facts["operator"] == "sparse_mqa" and facts["dtype"] == "e4m3" else []),
    ]
    lacking = [parameter for option, parameter in fitted.refused.items() if option in options]
    return f"it has no parameter {lacking[0]}" if lacking else None


def parameters(kernel: Kernel) -> frozenset[str] | None:
    """Names of the parameters; None where any may be given, or nothing can be known."""
    try:
        found = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found):
        return None
    return frozenset(one.name for one in found)


def fit(kernel: Any, operator: str, adapter: str = "", *, what: str = "the implementation") -> Fitted:
    """The kernel under the operator's keywords.

    ``adapter``: a name of ``ADAPTERS``, the target of one's own, or empty: the reference's keywords, else the first
    adapter whose parameters the kernel has. Raises BadInput with what was found and what was expected.
    """
    if not callable(kernel):
        raise BadInput(f"{what}: expected a callable, got {type(kernel).__name__}")
    wanted = inspect.signature(getattr(reference, operator)).parameters
    if ":" in adapter:
        wrapped = resolve(adapter)(kernel)
        if not callable(wrapped):
            raise BadInput(f"adapter {adapter}: expected it to return a callable, got {type(wrapped).__name__}")
        return Fitted(_tuple(wrapped), adapter, _lacks(parameters(wrapped), _OPTIONAL, wanted))
    takes = parameters(kernel)
    if adapter:
        return _through(_named(adapter, operator), kernel, takes)
    required = _positional(kernel)
    known = takes is None or required <= set(wanted)
    # What an option of a case brings may be missing; value_dim may be what the kernel is made for.
    empty = inspect.Parameter.empty
    needed = {name for name, one in wanted.items() if one.default is empty and name != "value_dim"}
    if known and (takes is None or needed <= takes):
        return Fitted(
            _tuple(kernel, None if takes is None else takes & set(wanted)), "", _lacks(takes, _OPTIONAL, wanted)
        )
    for candidate in ADAPTERS:
        if candidate.operator == operator and takes is not None and set(candidate.required) <= takes:
            return _through(candidate, kernel, takes)
    raise BadInput(_unfit(kernel, operator, what))


def _through(adapter: Adapter, kernel: Kernel, takes: frozenset[str] | None) -> Fitted:
    missing = sorted(set(adapter.required) - takes) if takes is not None else []
    if missing:
        raise BadInput(f"adapter {adapter.name}: expected {adapter.signature}; the kernel has no {', '.join(missing)}")
    refused = {option: name for option, name in adapter.optional.items() if takes is not None and name not in takes}
    refused |= _FORMATS if adapter.operator == "sparse_mqa" else {}
    return Fitted(_tuple(adapter.wrap(kernel, takes)), adapter.name, refused)


def _named(name: str, operator: str) -> Adapter:
    fitting = [one for one in ADAPTERS if one.operator == operator]
    for candidate in fitting:
        if candidate.name == name:
            return candidate
    if any(one.name == name for one in ADAPTERS):
        fits = ", ".join(one.name for one in fitting) or "none"
        raise BadInput(f"adapter {name!r} is not for {operator}; for that: {fits}")
    raise unknown("adapter", name, [one.name for one in ADAPTERS])


def _positional(kernel: Kernel) -> set[str]:
    """Parameters without a default."""
    try:
        found = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):
        return set()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {one.name for one in found if one.default is inspect.Parameter.empty and one.kind not in variable}


def _lacks(takes: frozenset[str] | None, options: dict[str, str], wanted: Any) -> dict[str, str]:
    if takes is None:
        return {}
    return {option: name for option, name in options.items() if name in wanted and name not in takes}


def _tuple(kernel: Kernel, only: frozenset[str] | None = None) -> Callable[..., tuple[Any, ...]]:
    """The kernel with its one output in a tuple; keywords that it does not have are left out."""

    @wraps(kernel, assigned=("__name__", "__qualname__", "__doc__"), updated=())
    def call(**inputs: Any) -> Any:
        outputs = kernel(**{name: value for name, value in inputs.items() if only is None or name in only})
        if isinstance(outputs, Tensor):
            return (outputs,)
        return tuple(outputs) if isinstance(outputs, list) else outputs

    return call


def _unfit(kernel: Kernel, operator: str, what: str) -> str:
    """Signatures side by side."""
    try:
        got = str(inspect.signature(kernel))
    except (TypeError, ValueError):
        got = "(unknown)"
    expected = inspect.signature(getattr(reference, operator)).parameters
    fitting = [f"{one.name}: {one.signature}" for one in ADAPTERS if one.operator == operator]
    lines = [
        f"{what} cannot be called as {operator}: its signature is {got}",
        f"expected the keywords {', '.join(expected)}",
        *(f"or, by adapter, {line}" for line in fitting),
        "or an adapter of your own: --adapter my_pkg.adapters:function, which takes the kernel and returns a function "
        "with those keywords",
    ]
    return "\n  ".join(lines)
