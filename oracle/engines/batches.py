"""Deployments and batches to ask two parties about: rich in the lengths at which decisions change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ...reference.routing import Batch, Deployment, LayerKind, Mode, Rules
from ..routes.batches import draw_batch, draw_padding

#: Backend and device family that rules have thresholds for.
PLACES = (
    ("FLASHMLA_SPARSE", 100),
    ("FLASHINFER_MLA_SPARSE", 100),
    ("FLASH_ATTN_MLA_SPARSE_FA4", 100),
    ("FLASHMLA_SPARSE", 90),
    ("FLASH_ATTN_MLA_SPARSE", 90),
)
#: Total heads, kv_lora_rank, nope, rope, value dims: DeepSeek-V3.2, GLM-5, GLM-5.3-Flash, and one that is no model's.
DIMS = ((128, 512, 128, 64, 128), (64, 512, 192, 64, 256), (64, 512, 256, 0, 256), (32, 512, 128, 64, 128))


@dataclass(frozen=True, slots=True)
class Question:
    """One deployment, an arranged batch, and how it runs."""

    deployment: Deployment
    batch: Batch
    mode: Mode
    kind: LayerKind
    capturing: bool
    padding: int = 0
    """Requests without a token behind the others, by which a full graph of decodes fills its size."""


def questions(rules: Rules, count: int, seed: int) -> Iterator[Question]:
    """``count`` questions; the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        deployment = _deployment(random)
        batch = draw_batch(random, rules, deployment)
        mode: Mode = random.choice(("NONE", "NONE", "PIECEWISE", "FULL"))
        kind: LayerKind = random.choice(("full", "full", "full", "shared", "mtp"))
        capturing = random.random() < 0.1
        yield Question(deployment, batch, mode, kind, capturing, draw_padding(random, rules, deployment, batch, mode))


def _deployment(random: Random) -> Deployment:
    backend, family = random.choice(PLACES + PLACES[:2] * 2)
    heads, *dims = random.choice(DIMS[:3] * 3 + DIMS)
    parallel = random.choice((1, 2, 4, 8))
    often = random.random
    dcp, interleave = random.choice((1, 1, 1, 1, 2, 4)), random.choice((1, 1, 2, 64))
    return Deployment(
        backend=backend,
        device_family=family,
        local_heads=heads // parallel,
        tensor_parallel=parallel,
        kv_lora_rank=dims[0],
        qk_nope_head_dim=dims[1],
        qk_rope_head_dim=dims[2],
        v_head_dim=dims[3],
        index_topk=random.choice((2048, 2048, 2048, 512, 1000)),
        cache=random.choice(("model",) * 6 + ("e4m3", "fp8_ds_mla")),
        flash_attention=random.choice((4,) * 8 + (3, None)),
        implementation_supports_dense=often() < 0.9,
        layer_supports_dense=None if often() < 0.9 else False,
        prefill_backend_usable=often() < 0.95,
        force_mqa=often() < 0.05,
        hisparse=backend == "FLASHMLA_SPARSE" and often() < 0.1,
        dcp=dcp,
        dcp_varlen={"FLASHMLA_SPARSE": interleave == 1, "FLASH_ATTN_MLA_SPARSE": False}.get(backend, True),
        pcp=random.choice((1, 1, 1, 1, 2)),
        speculative_tokens=random.choice((0, 0, 1, 3, 200)),
        max_model_len=random.choice((8192, 131072)),
        max_num_seqs=random.choice((1, 3, 4, 256, 2048)),
        block_size=random.choice((64, 64, 128)),
        cp_interleave=interleave if dcp > 1 else 1,
    )
