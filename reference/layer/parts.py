"""What a sparse-MLA layer is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..routing import Decision, Deployment, LayerKind, Rules, dense_capability
from .buffer import TopkBuffer
from .cache import IndexCache, LatentCache
from .query import Rotate
from .trace import Trace

#: Operator name -> function with the keyword names of its reference.
Operators = Mapping[str, Callable[..., tuple[Any, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """Weights, caches, operators and switches of one layer; the switches decide which history it repeats."""

    name: str
    position: int
    """Place in the model, from 0."""
    rules: Rules
    deployment: Deployment
    operators: Operators
    w_uk: Tensor
    """[h, p, c]."""
    w_uv: Tensor
    """[h, v, c]."""
    scale: float
    """Softmax scale of the unabsorbed head dim."""
    rotate: Rotate
    latent: LatentCache
    buffer: TopkBuffer
    """Shared by all layers of the model."""
    index: IndexCache | None = None
    kind: LayerKind = "full"
    q_scale: float | None = None
    """Pack absorbed queries in e4m3 with this scale; None: keep the model dtype."""
    runs_mha: bool | None = None
    """Whether the layer has an MHA branch; None: a generic layer has, a fused one where the rules say so."""

    def __post_init__(self) -> None:
        if (self.index is None) != (self.kind == "shared"):
            raise ValueError(
                f"layer {self.name!r}: expected an index cache unless it is shared, got kind {self.kind!r}"
            )
        if self.q_scale is not None and not (self.latent.quantized and self.latent.format == "model"):
            raise ValueError(f"layer {self.name!r}: expected a plain e4m3 latent cache beside packed queries")

    @property
    def has_mha(self) -> bool:
        if self.runs_mha is not None:
            return self.runs_mha
        return self.deployment.wrapper == "generic" or self.rules.fused_runs_mha

    @property
    def capability(self) -> Decision[bool]:
        """Declared: what the metadata builder believes."""
        return dense_capability(self.rules, self.deployment)

    def need_index_cache(self) -> IndexCache:
        if self.index is None:
            raise ValueError(f"layer {self.name!r}: expected a layer with an indexer, got a shared one")
        return self.index

    def new_trace(self, step: int | None = None, clock: Tensor | None = None) -> Trace:
        """An empty trace of a step, by default of a dummy run; ``clock`` as in :class:`Trace`."""
        return Trace(
            step=-1 if step is None else step,
            layer=self.name,
            position=self.position,
            kind=self.kind,
            supports_dense=self.capability.value,
            runs_mha=self.has_mha,
            dummy=step is None,
            clock=clock,
        )
