"""What a layer did in one step, event by event: the evidence that its contract is checked on."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..routing import LayerKind
from .events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class Trace:
    """The events of one layer in one step, in order."""

    step: int
    layer: str
    position: int
    """Place of the layer in the model, from 0."""
    kind: LayerKind
    supports_dense: bool
    """The declared capability: implementation and layer."""
    runs_mha: bool
    """Whether the layer has a branch that executes MHA."""
    dummy: bool = False
    """A run without metadata, to allocate and to compile; nothing is read or written."""
    clock: Tensor | None = None
    """int64 []: the step on the device. A graph freezes ``step``, and stamps what it writes with this."""
    events: list[Event] = field(default_factory=list)
