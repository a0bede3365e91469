"""What stands against a peer here, in words. Imports none of them."""

from __future__ import annotations

from .. import triton_runtime
from ..implementation import Facts
from .locate import DEEPGEMM, FA4, FLASHMLA, VLLM, Peer

HOPPER = (9, 0)


def _there(facts: Facts, peer: Peer) -> str | None:
    if facts["device"] != "cuda":
        return f"{peer.name} needs a CUDA device, got {facts['device']}"
    return _found(peer)


def _found(peer: Peer) -> str | None:
    try:
        found = peer.find()
    except FileNotFoundError as error:
        return str(error)
    return None if found else peer.missing()


def _flashmla(facts: Facts) -> str | None:
    reason = _there(facts, FLASHMLA)
    if reason is not None:
        return reason
    if facts["capability"] != HOPPER:
        return f"the adapter pads as the kernel for compute capability 9.0 asks, got {facts['capability']}"
    if facts["dtype"] != "bf16":
        return f"expected dtype bf16, got {facts['dtype']}"
    if facts["heads"] > 128:
        return f"expected at most 128 heads, got {facts['heads']}"
    return None


def flashmla(facts: Facts) -> str | None:
    reason = _flashmla(facts)
    if reason is not None:
        return reason
    if facts["cache_format"] != "model":
        return f"this is the prefill kernel, for caches of the model's dtype, got {facts['cache_format']}"
    if facts["c"] != 512 or facts["r"] not in (0, 64):
        return f"expected a cache row of 512 or 512+64, got {facts['c']}+{facts['r']}"
    return None


def flashmla_decode(facts: Facts) -> str | None:
    reason = _flashmla(facts)
    if reason is not None:
        return reason
    if facts["cache_format"] != "fp8_ds_mla":
        return f"this is the decode kernel, for caches of fp8_ds_mla, got {facts['cache_format']}"
    if (facts["c"], facts["r"]) != (512, 64):
        return f"expected a cache row of 512+64, got {facts['c']}+{facts['r']}"
    if facts["layout"] == "strided":
        return "rows of the cache must follow each other without gaps, got layout strided"
    if "invalid" in facts["options"]:
        return "the kernel knows -1 alone as invalid, and reads where other slots point"
    if sum(facts["q_lens"]) == 0:
        return "FlashMLA needs at least one query"
    return None


def _deepgemm(facts: Facts, heads: tuple[int, ...]) -> str | None:
    reason = _there(facts, DEEPGEMM)
    if reason is not None:
        return reason
    if facts["capability"] < HOPPER:
        return f"DeepGEMM needs compute capability 9.0, got {facts['capability']}"
    if facts["dtype"] != "e4m3":
        return f"expected dtype e4m3, got {facts['dtype']}"
    if facts["heads"] not in heads or facts["e"] not in (32, 64, 128):
        known = " or ".join(map(str, heads))
        return f"expected {known} heads of 32, 64 or 128 dims, got {facts['heads']} of {facts['e']}"
    if facts["layout"] == "strided":
        return "DeepGEMM needs contiguous tensors, got layout strided"
    if 0 in (sum(facts["q_lens"]), sum(facts["k_lens"])):
        return "DeepGEMM needs at least one query and one key"
    return None


def deepgemm_unclean(facts: Facts) -> str | None:
    return _deepgemm(facts, (32, 64))


def deepgemm(facts: Facts) -> str | None:
    reason = deepgemm_unclean(facts)
    if reason is None and "compressed" in facts["options"]:
        return "compressed rows are not cleaned; indexer_scores/deepgemm-unclean takes them"
    return reason


def deepgemm_paged(facts: Facts) -> str | None:
    reason = _deepgemm(facts, (32, 64))
    if reason is None and facts["q_lens"][0] not in (1, 2):
        # With four the kernel runs in clusters of two and wants a schedule for half as many (asserted, 2.5).
        return f"the schedule is made for 1 or 2 queries a request, got {facts['q_lens'][0]}"
    return reason


def fa4(facts: Facts) -> str | None:
    reason = _there(facts, FA4)
    if reason is not None:
        return reason
    if facts["capability"] < HOPPER:
        return f"FlashAttention 4 needs compute capability 9.0, got {facts['capability']}"
    if facts["dtype"] not in ("bf16", "fp16"):
        return f"expected one of the dtypes bf16, fp16, got {facts['dtype']}"
    if facts["d"] > 256 or facts["v"] > 256 or facts["d"] % 8 or facts["v"] % 8:
        return f"expected head dims of at most 256 that 8 divides, got {facts['d']}/{facts['v']}"
    if 0 in (sum(facts["q_lens"]), sum(facts["k_lens"])):
        return "FlashAttention 4 needs at least one query and one key"
    return None


def vllm(facts: Facts) -> str | None:
    reason = _found(VLLM) or triton_runtime.availability()
    if reason is not None:
        return reason
    if facts["device"] != "cuda" and not facts["interpreted"]:
        return f"compiled Triton kernels need a CUDA device, got {facts['device']}; TRITON_INTERPRET=1 interprets them"
    if facts["dtype"] not in ("bf16", "fp16", "fp32"):
        return f"expected one of the dtypes bf16, fp16, fp32, got {facts['dtype']}"
    if facts["layout"] == "strided":
        return "the merge takes a query to be as long as its heads, got layout strided"
    return None


def vllm_masked(facts: Facts) -> str | None:
    reason = vllm(facts)
    if reason is None and facts["interpreted"]:
        return (
            "every program of the mask, one a query and head, searches its request: minutes where Triton is interpreted"
        )
    return reason
