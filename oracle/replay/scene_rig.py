"""A rig for the scenes of an incident: scaled rules, inputs that fp32 holds, pipeline stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...reference.layer import LayerInputs, Operators, Parts, StepBatch, TopkBuffer
from ...reference.routing import Deployment, LayerKind, Rules, TableRow, Threshold
from ..faults import fault
from ..faults.simulated import KERNELS
from ..layer.bytes import IndexPageCache
from ..layer.expected import UNIT, output_error
from ..layer.faults import layer_fault
from ..layer.rig import REFERENCE_OPERATORS, Rig, RigSizes
from ..policies import load_rules
from .steps_incident import Model, Scaled, StepsVariant

#: Two heads of a small layer on SM100; an incident says what else matters.
DEPLOYMENT: Mapping[str, Any] = {
    "backend": "FLASHMLA_SPARSE",
    "device_family": 100,
    "local_heads": 2,
    "tensor_parallel": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "index_topk": 8,
    "flash_attention": 4,
    "max_num_seqs": 64,
    "max_model_len": 1024,
    "block_size": 4,
}
ROWS = 256


def scaled_rules(name: str, scaled: Scaled, deployment: Deployment) -> Rules:
    """The rules of a version with the thresholds, the table and the mask workspace of small lengths."""
    rules = load_rules(name)
    thresholds = {
        key: Threshold(by_heads={}, otherwise=scaled.decode_threshold, require_uniform=entry.require_uniform)
        for key, entry in rules.thresholds.items()
    }
    changes: dict[str, Any] = {"thresholds": thresholds}
    if scaled.masked_mha:
        backend = rules.table_backend(deployment.backend)
        key = (deployment.qk_head_dim, deployment.v_head_dim, backend, deployment.tensor_parallel)
        changes["tables"] = {key: TableRow(pure=((deployment.max_model_len, 0),))}
        changes["gates"] = {provider: replace(gate, geometries=()) for provider, gate in rules.gates.items()}
    if scaled.mask_bytes and rules.mask_workspace:
        changes["mask_workspace"] = replace(rules.mask_workspace, max_bytes=scaled.mask_bytes)
    return replace(rules, **changes)


class SceneRig(Rig):
    """Layers over random inputs that fp32 holds exactly, so that a rig in fp64 gets the same; one or two stages."""

    def __init__(self, variant: StepsVariant, model: Model, scaled: Scaled, deployment: Deployment) -> None:
        self.model, self.variant, self.second = model, variant, TopkBuffer(ROWS, deployment.index_topk)
        planted = layer_fault(variant.fault) if variant.fault else None
        self.alter = planted.alter() if planted else lambda metadata: metadata
        sizes = RigSizes(
            kinds=model.kinds,
            index_heads=model.index_heads,
            index_dim=model.index_dim,
            blocks=2 * ROWS // deployment.block_size,
            max_tokens=ROWS,
        )
        rules = scaled_rules(variant.rules, scaled, deployment)
        operators = _operators(variant.operators)
        if planted:
            super().__init__(rules, deployment, sizes, operators=operators, make=planted.make)
        else:
            super().__init__(rules, deployment, sizes, operators=operators)

    def parts(self, place: int, kind: LayerKind, operators: Operators) -> Parts:
        parts = super().parts(place, kind, operators)
        buffer = self.second if self._second_stage(place) else parts.buffer
        parts = replace(parts, w_uk=_fp32(parts.w_uk), w_uv=_fp32(parts.w_uv), buffer=buffer)
        dims, blocks = self.deployment, self.sizes.blocks
        if self.model.index_pages and parts.index is not None:
            parts = replace(parts, index=IndexPageCache(blocks, dims.block_size, self.sizes.index_dim))
        return parts

    def inputs(self, step: StepBatch, place: int, outputs: Sequence[Tensor] = ()) -> LayerInputs:
        if self.variant.stage and place == self.variant.stage and self.variant.sends_selection:
            for name in ("indices", "steps", "layers", "requests", "stamps"):
                getattr(self.second, name).copy_(getattr(self.buffer, name))
        return super().inputs(step, place, outputs)

    def sequence(self, request: int, place: int, start: int, stop: int) -> dict[str, Tensor]:
        return {name: _fp32(x) for name, x in super().sequence(request, place, start, stop).items()}

    def budget(self, step: StepBatch, place: int) -> float:
        """Most that an output element of a layer can be off, by its arithmetic: fp32 where a kernel is planted.

        Scores and values are bounded over all pairs of tokens.
        """
        dims, unit = self.deployment, 2.0**-24 if self.variant.operators else UNIT
        up = super().parts(place, self.sizes.kinds[place], REFERENCE_OPERATORS)
        largest_score = largest_value = 0.0
        for number, request in zip(step.ids, step.batch.requests, strict=True):
            x = {name: tensor.abs() for name, tensor in self.sequence(number, place, 0, request.seq_len).items()}
            nope, pe = x["q"][..., : dims.qk_nope_head_dim], x["q"][..., dims.qk_nope_head_dim :]
            absorbed = torch.einsum("shp,hpc,tc->hst", nope, up.w_uk.abs(), x["kv_c"])
            # Rotation keeps the length of a vector, and a sum of products is at most the product of lengths.
            rotated = torch.einsum("sh,t->hst", pe.norm(dim=-1), x["k_pe"].norm(dim=-1))
            largest_score = max(largest_score, dims_scale(dims) * float((absorbed + rotated).max()))
            largest_value = max(largest_value, float(torch.einsum("hvc,tc->htv", up.w_uv.abs(), x["kv_c"]).max()))
        keys = max(request.seq_len for request in step.batch.requests)
        return output_error(dims, keys, largest_score, largest_value, unit)

    def _second_stage(self, place: int) -> bool:
        return bool(self.variant.stage) and place >= self.variant.stage


def dims_scale(dims: Deployment) -> float:
    """Softmax scale of the rig's layers."""
    return float(dims.qk_head_dim**-0.5)


def _fp32(x: Tensor) -> Tensor:
    return x.to(torch.float32).to(x.dtype)


def _operators(planted: Mapping[str, str]) -> Operators:
    """The references, but for operators that are given a fault of the catalogue or its right kernel."""
    kernels = {
        operator: KERNELS[operator] if name == "simulated" else fault(name).implementation(operator).load()
        for operator, name in planted.items()
    }
    return {**REFERENCE_OPERATORS, **kernels}
