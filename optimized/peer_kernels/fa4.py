"""Dense attention by FlashAttention 4 (``flash_attn.cute``), and what its build on this machine can do.

Features are tried, not looked up by version: which head dims and masks compile differs between its builds and between
GPU families.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..implementation import Run
from . import locate

#: What is called: its parameters by position, then those by name. The same in 4.0.0b4 to 4.0.0b36 and in vLLM's copy.
FUNCTION = "flash_attn_varlen_func"
BY_POSITION = ("q", "k", "v")
BY_NAME = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal", "return_lse")


def missing(folder: Path) -> list[str]:
    """What the sources of a ``flash_attn/cute`` lack of that, in words; empty if all is there. Imports nothing of it:
    its compiler is 200 MB."""
    path = folder / "interface.py"
    functions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    found = next((node for node in functions if node.name == FUNCTION), None)
    if found is None:
        return [f"{path}: expected a function {FUNCTION}, got {', '.join(node.name for node in functions) or 'none'}"]
    names = [one.arg for one in (*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs)]
    lines = []
    if tuple(names[: len(BY_POSITION)]) != BY_POSITION:
        lines.append(f"{FUNCTION}: expected its parameters to begin with {BY_POSITION}, got {tuple(names[:3])}")
    lacking = [word for word in BY_NAME if word not in names]
    if lacking:
        lines.append(f"{FUNCTION}: expected a parameter {', '.join(lacking)}, got {tuple(names)}")
    return lines


@cache
def interface() -> Any:
    """Its module ``interface``. Raises ImportError if it is not there or its compiler (``cutlass``) is not."""
    found = locate.FA4.find()
    if found is None:
        raise ImportError(locate.FA4.missing())
    if found.origin == "inside vllm":
        return importlib.import_module("vllm.vllm_flash_attn.cute.interface")
    if found.origin == locate.FA4_VARIABLE:
        parent = str(found.path.parent.parent)
        if parent not in sys.path:
            sys.path.append(parent)
        return importlib.import_module(f"{found.path.parent.name}.cute.interface")
    return importlib.import_module("flash_attn.cute.interface")


def plan_dense_mha(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> Run:
    """``dense_mha`` with the greatest lengths, which it takes as numbers, read once, so that a call need not wait."""
    longest_q, longest_k = (int((cu[1:] - cu[:-1]).max()) for cu in (cu_q, cu_k))
    function = interface().flash_attn_varlen_func

    def run() -> tuple[Tensor, ...]:
        out, lse = function(
            q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=longest_q, max_seqlen_k=longest_k,
            softmax_scale=scale, causal=causal, return_lse=True,
        )  # fmt: skip
        return out, lse.T

    return run


def dense_mha(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *, scale: float, causal: bool = True
) -> tuple[Tensor, ...]:
    """q [s,h,d], k [t,h,d], v [t,h,v] -> out [s,h,v], lse fp32 [s,h], natural; the kernel stores it [h,s]."""
    return plan_dense_mha(q, k, v, cu_q, cu_k, scale=scale, causal=causal)()


def features() -> dict[str, str]:
    """Feature to ``yes``, what was seen, or why not. Needs a GPU; compiles three small kernels."""
    tried: dict[str, Callable[[], str]] = {
        "head dims 192/128": lambda: _runs(192, 128),
        "head dims 256/256": lambda: _runs(256, 256),
        "mask_mod": _mask_mod,
        "fully masked rows": _masked_rows,
    }
    return {name: _answer(probe) for name, probe in tried.items()}


def _answer(probe: Callable[[], str]) -> str:
    try:
        return probe()
    except Exception as error:  # a refusal is an answer
        return f"no: {type(error).__name__}: {error}".splitlines()[0]


def _small(queries: int, keys: int, d: int, v: int) -> tuple[Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (queries, 1, d), (keys, 1, d), (keys, 1, v)
    q, k, values = (torch.randn(shape, generator=generator, device="cuda").bfloat16() for shape in shapes)
    cu_q, cu_k = (torch.tensor([0, count], dtype=torch.int32, device="cuda") for count in (queries, keys))
    return dense_mha(q, k, values, cu_q, cu_k, scale=0.1)


def _runs(d: int, v: int) -> str:
    out, _ = _small(16, 16, d, v)
    return "yes" if bool(torch.isfinite(out).all()) else "no: the answer is not finite"


def _mask_mod() -> str:
    known = inspect.signature(interface().flash_attn_varlen_func).parameters
    return "yes" if "mask_mod" in known else "no: flash_attn_varlen_func has no such parameter"


def _masked_rows() -> str:
    out, lse = _small(3, 1, 128, 128)
    return f"out {float(out[0, 0, 0]):g}, LSE {float(lse[0, 0]):g} for a query without keys"
