"""An incident played in mixtures of two variants: rules, switches or stages of the one in the other.

All looks share one replay, so what is right is computed once, by the cured layers in fp64, and not again for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...reference.layer import Parts
from ...reference.routing import Rules
from ..layer.contract import LayerUnderTest
from ..replay.incident import Incident, Variant
from ..replay.operators import Injected
from ..replay.replay import Replay
from .look import Look

_NAME = "mixed"


class Mixture(Replay):
    """The incident; the variant called mixed has the rules and layers of the present look."""

    def __init__(self, incident: Incident, operators: Injected) -> None:
        super().__init__(incident, operators)
        self._rules: Rules
        self._layer: Callable[[Parts], LayerUnderTest] | None = None

    def look(
        self,
        base: Variant,
        length: int,
        *,
        rules: Rules,
        layer: Callable[[Parts], LayerUnderTest] | None = None,
        **switches: Any,
    ) -> Look:
        """One prompt length in ``base`` with these rules, switches and layers (None: as the switches say)."""
        self._rules, self._layer = rules, layer
        seen = self.outcome(replace(base, name=_NAME, faulty=False, **switches), length)
        if seen.status == "PASS":
            return Look("good")
        return Look("bad", " ".join(("FAIL", *seen.detected_by)), seen.worst)

    def rules(self, variant: Variant) -> Rules:
        return self._rules if variant.name == _NAME else super().rules(variant)

    def layer(self, parts: Parts, variant: Variant) -> LayerUnderTest:
        if variant.name == _NAME and self._layer is not None:
            return self._layer(parts)
        return super().layer(parts, variant)
