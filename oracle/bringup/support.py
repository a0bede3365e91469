"""Which implementation takes the geometry, asked of each with a case of its dims, and which models share its code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...fixtures import PATH
from ...optimized.implementation import Implementation
from ..config.reader import read
from ..doctor import representative
from ..facts import facts
from ..inputs.options import INDEXERS
from .subject import Subject

#: Operators that read the indexer's dims.
_INDEX = {*INDEXERS, "topk_select", "write_index", "gather_index"}


@dataclass(frozen=True, slots=True)
class Support:
    operator: str
    implementation: str
    reason: str
    """Empty: it takes these dims here."""


@dataclass(frozen=True, slots=True)
class Sibling:
    name: str
    shares: tuple[str, ...]
    """The class, the model_type or both."""


def support(subject: Subject, name: str, implementations: Iterable[Implementation], device: str) -> tuple[Support, ...]:
    """Every implementation's own answer; operators of an indexer that the model lacks are refused with that reason."""
    g = subject.geometry
    found = []
    for one in implementations:
        if one.operator in _INDEX and not subject.has_indexer:
            found.append(Support(one.operator, one.name, "the config has no indexer of this kind"))
            continue
        case = representative(one.operator)
        heads = g.index_n_heads or 1 if one.operator in INDEXERS else g.heads
        topk = min(case.topk, g.index_topk or case.topk)
        case = replace(case, geometry=name, heads=min(case.heads, heads), topk=topk)
        if one.operator == "paged_indexer_scores":  # decode alone: a few queries a request, quantised keys
            case = replace(case, q_lens=(1, 1), dtype="e4m3")
        try:
            reason = one.supports(facts(case, g, device))
        except Exception as error:  # one broken implementation must not hide the others
            reason = f"supports() raised {type(error).__name__}: {error}"
        found.append(Support(one.operator, one.name, reason or ""))
    return tuple(found)


def siblings(subject: Subject) -> tuple[Sibling, ...]:
    """Shipped models of the same class or model_type: what a change for this one has to be tested on again."""
    own = subject.config.fields
    found = []
    for path in sorted((PATH / "models").glob("*.json")):
        if path.stem == subject.geometry.name:
            continue
        other = read(path).fields
        shares = []
        classes = set(own.get("architectures") or ()) & set(other.get("architectures") or ())
        shares += [f"class {name}" for name in sorted(classes)]
        kind = own.get("model_type")
        if kind is not None and kind == other.get("model_type"):
            shares.append(f"model_type {kind}")
        if shares:
            found.append(Sibling(path.stem, tuple(shares)))
    return tuple(found)
