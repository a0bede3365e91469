"""The step's metadata of a running vLLM, for a layer: what its forward context holds."""

from __future__ import annotations

from typing import Any


def metadata(layer: Any) -> Any:
    """Metadata of the attention group of a layer with ``mla_attn``, in this step; None in a profile run."""
    import importlib

    of_step = importlib.import_module("vllm.forward_context").get_forward_context().attn_metadata
    return of_step.get(layer.mla_attn.layer_name) if isinstance(of_step, dict) else of_step
