"""Deployments and batches to ask two parties about: rich in the lengths at which decisions change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ...reference.routing import Batch, Deployment, LayerKind, Mode, Request, Rules, decode_threshold

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
#: Where a table, a tile, a word of a mask, top-k, a threshold or the guard changes its mind.
EDGES = (
    1, 2, 4, 32, 64, 128, 256, 512, 1024, 1536, 2048, 4096, 6144, 8192, 10240, 12288, 16384, 20480, 24576, 28672, 32768,
    34816, 36864, 40960, 49152, 57344, 65536, 73728, 81920, 114688,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One deployment, an arranged batch, and how it runs."""

    deployment: Deployment
    batch: Batch
    mode: Mode
    kind: LayerKind
    capturing: bool


def questions(rules: Rules, count: int, seed: int) -> Iterator[Question]:
    """``count`` questions; the same for the same seed."""
    random = Random(seed)
    for _ in range(count):
        deployment = _deployment(random)
        threshold = decode_threshold(rules, deployment).value
        batch, _ = Batch(tuple(_request(random, threshold) for _ in range(random.choice((1, 1, 1, 2, 3, 6))))).arranged(
            threshold
        )
        mode: Mode = random.choice(("NONE", "NONE", "PIECEWISE", "FULL"))
        kind: LayerKind = random.choice(("full", "full", "full", "shared", "mtp"))
        yield Question(deployment, batch, mode, kind, random.random() < 0.1)


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
        index_topk=random.choice((2048, 2048, 2048, 512)),
        cache=random.choice(("model",) * 6 + ("e4m3", "fp8_ds_mla")),
        flash_attention=random.choice((4,) * 8 + (3, None)),
        implementation_supports_dense=often() < 0.9,
        layer_supports_dense=None if often() < 0.9 else False,
        prefill_backend_usable=often() < 0.95,
        force_mqa=often() < 0.05,
        hisparse=backend == "FLASHMLA_SPARSE" and often() < 0.05,
        dcp=dcp,
        dcp_varlen={"FLASHMLA_SPARSE": interleave == 1, "FLASH_ATTN_MLA_SPARSE": False}.get(backend, True),
        pcp=random.choice((1, 1, 1, 1, 2)),
        speculative_tokens=random.choice((0, 0, 1, 3, 200)),
        max_model_len=random.choice((8192, 131072)),
        max_num_seqs=random.choice((1, 4, 256, 2048)),
        block_size=random.choice((64, 64, 128)),
        cp_interleave=interleave if dcp > 1 else 1,
    )


def _request(random: Random, threshold: int) -> Request:
    query = max(1, _length(random, (threshold,)))
    context = random.choice((0, 0, 1)) * _length(random, ())
    if random.random() < 0.3:  # a whole length at an edge
        context = max(0, _length(random, ()) - query)
    return Request(query, context)


def _length(random: Random, more: tuple[int, ...]) -> int:
    near = random.choice((*EDGES, *more)) + random.choice((-1, 0, 0, 0, 1))
    return near if random.random() < 0.7 else int(2 ** (random.random() * 17))
