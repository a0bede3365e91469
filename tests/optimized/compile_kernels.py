"""Compiles, for Hopper and without a GPU, what each launcher would launch at production dims; prints JSON lines.

Run as a program, since a process that has interpreted Triton cannot compile. Every launch is caught, specialised as
Triton would specialise it, and compiled; nothing runs. The first launch of a kernel is compiled whole, to machine code.
Its others, in other dims, formats and types, are lowered until their shared memory is allocated, which is where dims,
layouts and types that do not go together show; LLVM and ptxas, nine tenths of the work, would see the same operations.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from attnoracle.optimized.hopper_kernels import attention as hopper_attention
from attnoracle.optimized.hopper_kernels import indexer_scores as hopper_indexer
from attnoracle.optimized.hopper_kernels import sparse_mqa as hopper_sparse
from attnoracle.optimized.hopper_kernels import topk_select as hopper_topk
from attnoracle.optimized.hopper_kernels.dense_mha import dense_mha as hopper_dense
from attnoracle.optimized.hopper_kernels.masked_mha import masked_mha as hopper_masked
from attnoracle.optimized.triton_kernels import launch
from attnoracle.optimized.triton_kernels.build_mask import build_mask
from attnoracle.optimized.triton_kernels.convert_indices import convert_indices
from attnoracle.optimized.triton_kernels.dense_mha import dense_mha
from attnoracle.optimized.triton_kernels.gather import gather
from attnoracle.optimized.triton_kernels.gather_index import gather_index
from attnoracle.optimized.triton_kernels.indexer_scores import indexer_scores
from attnoracle.optimized.triton_kernels.masked_mha import masked_mha
from attnoracle.optimized.triton_kernels.merge_lse import merge_lse
from attnoracle.optimized.triton_kernels.paged_indexer_scores import paged_indexer_scores
from attnoracle.optimized.triton_kernels.quantize import quantize
from attnoracle.optimized.triton_kernels.sparse_mqa import sparse_mqa
from attnoracle.optimized.triton_kernels.topk_select import topk_select
from attnoracle.optimized.triton_kernels.write_cache import write_cache
from attnoracle.optimized.triton_kernels.write_index import write_index

TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32",
    torch.float8_e4m3fn: "*fp8e4nv", torch.uint8: "*u8", torch.int64: "*i64",
}  # fmt: skip


def compile_launch(kernel: Any, *args: Any, num_warps: int, num_stages: int = 3, **constants: Any) -> None:
    signature, aligned = dict.fromkeys(constants, "constexpr"), {}
    for position, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        free = kernel.params[position].do_not_specialize
        if value is None or (type(value) is int and value == 1 and not free):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], aligned[(position,)] = TYPES[value.dtype], [["tt.divisibility", 16]]
        elif hasattr(value, "block_shape"):
            signature[name] = f"tensordesc<{TYPES[value.base.dtype][1:]}{list(value.block_shape)},{value.layout!r}>"
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0 and not free:
                aligned[(position,)] = [["tt.divisibility", 16]]
    form = GluonASTSource if kernel.is_gluon() else ASTSource
    source = form(kernel, {name: signature[name] for name in kernel.arg_names}, constants, aligned)
    options = {"num_warps": num_warps, "num_stages": num_stages}
    whole = kernel not in COMPILED
    nvidia.CUDABackend.add_stages = ADD_STAGES if whole else _only_allocate
    try:
        shared = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared
    except Allocated as allocated:
        shared = allocated.shared
    COMPILED.add(kernel)
    print(json.dumps({"part": PART[-1], "kernel": kernel.__name__, "shared": shared, "whole": whole}))


#: Kernels that were compiled whole, and the parts of this program that have begun.
COMPILED: set[Any] = set()
PART: list[str] = []


class Allocated(Exception):
    """Ends a compilation where its shared memory (bytes) is known."""

    def __init__(self, shared: int) -> None:
        self.shared = shared


class _Passes(Exception):
    """The passes up to the one that allocates."""


ADD_STAGES = nvidia.CUDABackend.add_stages


def _only_allocate(backend: Any, stages: dict[str, Any], *about: Any) -> None:
    """Of the stage after TTGIR only the passes up to the allocation."""
    ADD_STAGES(backend, stages, *about)
    lower, passes = stages["llir"], nvidia.nvidia.passes.ttgpuir
    allocate = passes.add_allocate_shared_memory_nv

    def until(manager: Any, *arguments: Any) -> None:
        allocate(manager, *arguments)
        raise _Passes(manager)

    def allocated(module: Any, metadata: Any) -> None:
        passes.add_allocate_shared_memory_nv = until
        try:
            lower(module, metadata)
        except _Passes as stopped:
            stopped.args[0].run(module, "allocate")
        finally:
            passes.add_allocate_shared_memory_nv = allocate
        raise Allocated(module.get_int_attr("ttg.shared"))

    stages["llir"] = allocated


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def main(dtype: torch.dtype) -> None:
    """All kernels in bf16; in another type those that know it, at the dims that take most shared memory."""
    fp32, int32, everything = torch.float32, torch.int32, dtype is torch.bfloat16
    cu = numbers(int32, 3)
    for d, v in ((192, 128), (256, 256)) if everything else ((256, 256),):
        q, k, v = numbers(dtype, 64, 2, d), numbers(dtype, 64, 2, d), numbers(dtype, 64, 2, v)
        dense_mha(q, k, v, cu, cu, scale=0.1)
        masked_mha(q, k, v, numbers(int32, 2, 64, 2), cu, cu, scale=0.1)
    for h, r in ((128, 64), (32, 64), (8, 0)) if everything else ((128, 64),):
        q, kv, indices = numbers(dtype, 2, h, 512 + r), numbers(dtype, 9, 512 + r), numbers(int32, 2, 64)
        sparse_mqa(q, kv, indices, scale=0.1, value_dim=512, lengths=numbers(int32, 2), sink=numbers(fp32, h))
    rows = numbers(int32, 64)
    keys = numbers(fp32, 256)
    indexer_scores(numbers(dtype, 64, 32, 128), numbers(dtype, 256, 128), keys, numbers(fp32, 64, 32), rows, rows)
    out, lse = numbers(dtype, 64, 2, 512), numbers(fp32, 64, 2)
    merge_lse(out, lse, out, lse)
    layouts(dtype, everything)
    if everything:
        quantised()


def quantised() -> None:
    """What holds fp8 or counts, whatever the type of the model."""
    fp32, int32 = torch.float32, torch.int32
    rows, keys = numbers(int32, 64), numbers(fp32, 256)
    for h in (128, 16):
        q, indices, sink = numbers(torch.bfloat16, 2, h, 576), numbers(int32, 2, 64), numbers(fp32, h)
        pages = numbers(torch.uint8, 3, 64, 656)
        pages[..., 512:528].view(fp32).fill_(1.0)
        more = {"scale": 0.1, "value_dim": 512, "lengths": numbers(int32, 2), "sink": sink}
        sparse_mqa(q, pages, indices, **more, cache_format="fp8_ds_mla")
        codes = numbers(torch.uint8, 2, h, 576).view(torch.float8_e4m3fn)
        sparse_mqa(codes, codes[0], indices, **more, cache_format="fp8_e4m3", q_scale=0.3, k_scale=0.7)
    e4m3 = numbers(torch.uint8, 64, 32, 128).view(torch.float8_e4m3fn)
    indexer_scores(e4m3, e4m3[:, 0].contiguous(), keys[:64], numbers(fp32, 64, 32), rows, rows)
    weights = numbers(fp32, 64, 32)
    indexer_scores(e4m3, e4m3[:, 0].contiguous(), keys[:64], weights, rows, rows, q_scale=weights + 1, max_seqlen_k=64)
    pages, table, cache = numbers(int32, 4), numbers(int32, 4, 40), numbers(torch.uint8, 9, 64 * 132)
    for heads in (64, 32):
        q = numbers(torch.uint8, 4, 2, heads, 128).view(torch.float8_e4m3fn)
        weights = numbers(fp32, 8, heads)
        paged_indexer_scores(q, cache, weights, pages, table, max_model_len=2560, q_scale=weights + 1)
    topk_select(numbers(fp32, 64, 5000), rows, rows, k=2048)


def layouts(dtype: torch.dtype, everything: bool) -> None:
    int32, uint8 = torch.int32, torch.uint8
    for scale_format in ("fp32", "ue8m0") if everything else ("fp32",):
        quantize(numbers(dtype, 64, 512), block=128, scale_format=scale_format, least_amax=1e-4)
    slots, table, starts, cu = numbers(torch.int64, 64), numbers(int32, 2, 9), numbers(int32, 2), numbers(int32, 3)
    caches = [("model", 64, 576), ("fp8_e4m3", 64, 576), ("fp8_ds_mla", 64, 656), ("fp8_ds_mla", 0, 528)]
    for cache_format, r, width in caches if everything else (caches[0], caches[2]):
        cache = numbers(dtype if cache_format == "model" else uint8, 9, 64, width)
        options = {"cache_format": cache_format, "k_scale": 0.7}
        write_cache(numbers(dtype, 64, 512), numbers(dtype, 64, r), slots, cache, **options)
        gather(cache, table, starts, cu, tokens=100, latent=512, rope=r, **options)
    pages = numbers(uint8, 9, 64 * 132)
    write_index(numbers(dtype, 64, 128), slots, pages)
    gather_index(pages, table, starts, cu, tokens=100, e=128)
    if not everything:
        return
    one, single = numbers(int32, 1, 9), numbers(int32, 2)  # of one request: Triton makes a constant of a 1
    gather(numbers(dtype, 9, 64, 576), one, starts[:1], single, tokens=100, latent=512, rope=64, cache_format="model")
    gather_index(pages, one, starts[:1], single, tokens=100, e=128)
    indices = numbers(int32, 64, 2048)
    build_mask(indices, single, starts[:1], starts[:1], rows=128, words=64, key_starts=starts[:1])
    convert_indices(indices, numbers(int32, 64), one, block_size=64, blocks=9, page_rows=64, compact=True)
    for compact in (False, True):
        convert_indices(indices, numbers(int32, 64), table, block_size=64, blocks=9, page_rows=64, compact=compact)
    build_mask(indices, cu, starts, starts, rows=128, words=64, key_starts=starts)


def hopper() -> None:
    """The kernels for Hopper alone, at the dims they take."""
    bf16, fp32, int32 = torch.bfloat16, torch.float32, torch.int32
    cu = numbers(int32, 3)
    for d, v in ((192, 128), (256, 256)):
        q, k, v = numbers(bf16, 256, 2, d), numbers(bf16, 256, 2, d), numbers(bf16, 256, 2, v)
        hopper_dense(q, k, v, cu, cu, scale=0.1)
        hopper_masked(q, k, v, numbers(int32, 2, 256, 8), cu, cu, scale=0.1)
    kv, indices = numbers(bf16, 9, 576), numbers(int32, 16, 2048)
    hopper_sparse.sparse_mqa(numbers(bf16, 16, 128, 576), kv, indices, scale=0.1, value_dim=512)
    hopper_sparse.sparse_mqa_shared(numbers(bf16, 16, 8, 576), kv, indices, scale=0.1, value_dim=512)
    rows = numbers(int32, 64)
    e4m3 = numbers(torch.uint8, 64, 64, 128).view(torch.float8_e4m3fn)
    hopper_indexer.indexer_scores(e4m3, e4m3[:, 0].contiguous(), numbers(fp32, 64), numbers(fp32, 64, 64), rows, rows)
    hopper_indexer.indexer_scores(
        numbers(torch.uint8, 4096, 64, 128).view(torch.float8_e4m3fn),
        numbers(torch.uint8, 32768, 128).view(torch.float8_e4m3fn), numbers(fp32, 32768), numbers(fp32, 4096, 64),
        rows.new_zeros(4096), rows.new_zeros(4096),
    )  # fmt: skip
    hopper_topk.topk_select(numbers(fp32, 64, 32768), rows, rows, k=2048)
    hopper_topk.topk_select(numbers(fp32, 63, 8191), rows[:63], rows[:63], k=2048)  # ends within 16 bytes


if __name__ == "__main__":
    launch.room = lambda device: launch.room_of((9, 0))
    interface = triton.runtime.jit.KernelInterface
    interface.__getitem__ = lambda kernel, grid: lambda *args, **options: compile_launch(kernel, *args, **options)
    hopper_topk.processors = hopper_attention.processors = lambda device: 132
    torch.Tensor.data_ptr = lambda tensor: 0  # memory on a CPU is aligned as it falls
    for part in sys.argv[1:]:
        PART.append(part)
        hopper() if part == "hopper" else main(getattr(torch, part))
