"""What stands against an implementation here, in words."""

from __future__ import annotations

import shutil

from ..implementation import Facts


def dtypes(facts: Facts, *known: str) -> str | None:
    if facts["dtype"] in known:
        return None
    return f"expected one of the dtypes {', '.join(known)}, got {facts['dtype']}"


def attention(facts: Facts) -> str | None:
    return dtypes(facts, "bf16", "fp16", "fp32")


def rounded_attention(facts: Facts) -> str | None:
    """fp16 matmuls of the CPU and of cuBLAS may add in fp16; bf16 and fp32 ones add in fp32."""
    return dtypes(facts, "bf16", "fp32")


def sparse(facts: Facts) -> str | None:
    return None if facts["cache_format"] != "model" else rounded_attention(facts)


def sparse_fp8(facts: Facts) -> str | None:
    if facts["cache_format"] != "fp8_e4m3":
        return f"this one multiplies fp8 by fp8 and needs a cache of fp8_e4m3, got {facts['cache_format']}"
    return None


def indexer(facts: Facts) -> str | None:
    return dtypes(facts, "bf16", "fp16", "fp32", "e4m3")


def paged_indexer(facts: Facts) -> str | None:
    return dtypes(facts, "e4m3")


def anything(_facts: Facts) -> str | None:
    return None


def _no_empty_request(facts: Facts) -> str | None:
    if any(keys == 0 for queries, keys in zip(facts["q_lens"], facts["k_lens"], strict=True) if queries):
        return "a request without keys divides by zero in this kernel and ends the process (torch 2.13, CPU)"
    return None


def _same_dims(facts: Facts) -> str | None:
    if facts["d"] != facts["v"]:
        return f"this backend needs values as wide as queries and keys, got {facts['v']} and {facts['d']}"
    return None


def flash_cpu(facts: Facts) -> str | None:
    if facts["device"] != "cpu":
        return f"this is the CPU kernel, got device {facts['device']}"
    return dtypes(facts, "bf16", "fp16") or _same_dims(facts) or _no_empty_request(facts)


def flash_cpu_fp32(facts: Facts) -> str | None:
    if facts["device"] != "cpu":
        return f"this is the CPU kernel, got device {facts['device']}"
    return dtypes(facts, "fp32") or _same_dims(facts) or _no_empty_request(facts)


def _cuda(facts: Facts) -> str | None:
    if facts["device"] != "cuda":
        return f"this backend needs a CUDA device, got {facts['device']}"
    if facts["capability"] < (8, 0):
        return f"this backend needs compute capability 8.0, got {facts['capability']}"
    return dtypes(facts, "bf16", "fp16")


def _no_empty_query(facts: Facts) -> str | None:
    """CUDA backends disagree between versions about a row whose keys are all masked."""
    for queries, keys in zip(facts["q_lens"], facts["k_lens"], strict=True):
        if queries and (keys == 0 or (facts["causal"] and queries > keys)):
            return f"a query without keys has no promised answer here; got {queries} queries over {keys} keys"
    return None


def _square(facts: Facts) -> str | None:
    """These kernels take no mask, and their causal diagonal is bottom-right only where both corners are the same."""
    if facts["causal"] and facts["q_lens"] != facts["k_lens"]:
        return "this backend is causal for requests with as many keys as queries only"
    return None


def flash_cuda(facts: Facts) -> str | None:
    reason = _cuda(facts) or _same_dims(facts) or _no_empty_query(facts)
    if reason is None and (facts["d"] > 256 or facts["d"] % 8):
        return f"this backend needs a head dim of at most 256 that 8 divides, got {facts['d']}"
    return reason or _square(facts)


def efficient(facts: Facts) -> str | None:
    reason = _cuda(facts) or _no_empty_query(facts)
    if reason is None and (facts["d"] % 8 or facts["v"] % 8):
        return f"this backend needs head dims that 8 divides, got {facts['d']} and {facts['v']}"
    return reason


def cudnn(facts: Facts) -> str | None:
    reason = _cuda(facts) or _no_empty_query(facts)
    if reason is not None:
        return reason
    # Hopper's kernels take 192/128 and 256/256 (seen on an H200 with torch 2.11); before it cuDNN stops at 128.
    most = 256 if facts["capability"] >= (9, 0) else 128
    if max(facts["d"], facts["v"]) > most or facts["d"] % 8 or facts["v"] % 8:
        return f"this backend needs head dims of at most {most} that 8 divides, got {facts['d']} and {facts['v']}"
    return _square(facts)


def flex(facts: Facts) -> str | None:
    if facts["device"] == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
        return "FlexAttention on a CPU needs a C++ compiler, found neither g++ nor clang++"
    if facts["device"] == "cuda" and facts["interpreted"]:
        return "FlexAttention on a GPU needs compiled Triton; this process interprets it"
    if 0 in (sum(facts["q_lens"]), sum(facts["k_lens"])):
        return "FlexAttention needs at least one query and one key"
    return dtypes(facts, "bf16", "fp16")
