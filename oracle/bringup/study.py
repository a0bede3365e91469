"""Everything about one config, put together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...reference.routing import Rules
from ..config import names, register
from ..errors import BadInput
from .choices import Choice, choices
from .routes import Routes, deployment_of, routes
from .sizes import CacheSize, WorkSize, cache_sizes, work_sizes
from .subject import Subject, Value, values
from .support import Sibling, Support, siblings, support


@dataclass(frozen=True, slots=True)
class Study:
    """``notes``: what cannot be looked at for this model, and why."""

    subject: Subject
    name: str
    rules: str
    values: tuple[Value, ...]
    choices: tuple[Choice, ...]
    routes: tuple[Routes, ...]
    caches: tuple[CacheSize, ...]
    work: tuple[WorkSize, ...]
    support: tuple[Support, ...]
    siblings: tuple[Sibling, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> dict[str, Any]:
        g = self.subject.geometry
        return {
            "geometry": self.name,
            "sparse": self.subject.has_indexer,
            "softmax_scale": g.softmax_scale,
            "full_layers": len(g.indexer_full_layers),
            "shared_layers": (g.num_layers or 0) - len(g.indexer_full_layers) if self.subject.has_indexer else None,
            "choices": len(self.choices),
            "supported": sum(not one.reason for one in self.support),
            "implementations": len(self.support),
        }

    def lists(self) -> dict[str, Any]:
        """JSON-ready, one list a kind of thing."""
        return {
            "values": [asdict(one) for one in self.values],
            "choices": [asdict(one) for one in self.choices],
            "routes": [asdict(one) for one in self.routes],
            "caches": [asdict(one) for one in self.caches],
            "workspaces": [asdict(one) for one in self.work],
            "implementations": [asdict(one) for one in self.support],
            "siblings": [asdict(one) for one in self.siblings],
            "notes": list(self.notes),
        }


def study(subject: Subject, rules: Rules, *, family: int, cache: str, device: str) -> Study:
    """Look at a model from every side. A made-up one is registered, so that cases may name it. Raises BadInput."""
    from ...optimized.catalogue import IMPLEMENTATIONS

    g = subject.geometry
    name = g.name if g.name in names() else register(subject.path)
    notes = []
    ways: tuple[Routes, ...] = ()
    work: tuple[WorkSize, ...] = ()
    if subject.has_indexer:
        ways = routes(subject, name, rules, family=family, cache=cache)
        possible = [way.tensor_parallel for way in ways if not way.why]
        if not possible:
            raise BadInput(ways[0].why)
        work = work_sizes(rules, deployment_of(subject, name, rules, possible[-1], family=family, cache=cache))
    else:
        why = g.sources["index_topk"].removeprefix("none: ")
        told = "dense_mha, merge_lse, caches and the attention's stages can still be checked"
        notes.append(f"no sparse attention here ({why}): no routes, no indexer; {told}, and sparse_mqa on selections")
    if subject.missing:
        fields = ", ".join(subject.missing)
        notes.append(f"no {fields}: the attention operators can be checked, the stages from hidden states on cannot")
    if rules.tables and not any(key[:2] == (g.qk_head_dim, g.v_head_dim) for key in rules.tables):
        notes.append(f"{rules.name} has no policy rows for head dims {g.qk_head_dim}/{g.v_head_dim}: never masked MHA")
    return Study(
        subject,
        name,
        rules.name,
        values(subject),
        choices(subject),
        ways,
        cache_sizes(g),
        work,
        support(subject, name, IMPLEMENTATIONS, device),
        siblings(subject),
        tuple(notes),
    )
