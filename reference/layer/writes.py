"""The captured part of a layer: what is written whatever the step's route turns out to be."""

from __future__ import annotations

import torch
from torch import Tensor

from .inputs import LayerInputs
from .metadata import StepMetadata, need
from .parts import Parts
from .trace import Trace


def write_caches(parts: Parts, inputs: LayerInputs, k_pe: Tensor, metadata: StepMetadata, trace: Trace) -> None:
    """Cache the latents and the indexer keys of the new tokens; the fused layer also resets its buffer rows.

    ``k_pe`` [s, r] is rotated. The fused kernel resets the rows of padding too, and only in layers with an indexer.
    """
    slots, positions = need(metadata, "slots"), need(metadata, "positions")
    owners = need(metadata, "owners")
    parts.latent.write(slots, torch.cat((inputs.kv_c, k_pe), -1), owners, positions, trace)
    if parts.kind == "shared":
        return
    parts.need_index_cache().write(slots, inputs.need("index_k"), owners, positions, trace)
    if parts.deployment.wrapper == "fused":
        parts.buffer.reset((0, len(slots) + metadata.padding), trace)
