"""State and concurrency: what an earlier call, another thread or the batch leaves behind."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..fault import sited
from ..simulated import Kernel, planted, simulated
from ..simulated.merge import MERGE_SITES, merge_pair
from ..simulated.radix import threshold_digit
from ..simulated.sites import INF
from ..wrapped import Inputs, Outputs, around, remembering

fault = sited("state")
Memory = dict[str, Any]


def _shapes(inputs: Inputs) -> str:
    return str([x.shape for x in inputs.values() if isinstance(x, Tensor)])


def _first(*names: str) -> Any:
    """The named inputs of the first call serve all later ones of the same shape."""

    def body(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
        first = {n: x.clone() if isinstance(x := inputs[n], Tensor) else x for n in names if n in inputs}
        return kernel(**{**inputs, **memory.setdefault(_shapes(inputs), first)})

    return body


def _stale_splits(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    """Partial results of a larger earlier call are merged into this one."""
    out, lse = kernel(**inputs)
    keys, before = int(inputs["cu_k"][-1]), memory.get(str(out.shape))
    if before is None or before[0] <= keys:
        memory[str(out.shape)] = (keys, out.clone(), lse.clone())
        return out, lse
    merged, joint = merge_pair(out.float(), lse, before[1].float(), before[2], MERGE_SITES)
    return merged.to(out.dtype), joint


def _by_pointer(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    key = tuple((x.data_ptr(), x.shape) for x in inputs.values() if isinstance(x, Tensor))
    if str(key) not in memory:
        memory[str(key)] = kernel(**inputs)
    return tuple(x.clone() for x in memory[str(key)])


def _by_shape(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    key = _shapes(inputs)
    if key not in memory:
        memory[key] = kernel(**inputs)
    return tuple(x.clone() for x in memory[key])


def _accumulates(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    """The output buffer of a shape is reused and added to."""
    out, lse = kernel(**inputs)
    before = memory.get(str(out.shape), torch.zeros_like(out))
    memory[str(out.shape)] = out + before
    return memory[str(out.shape)].clone(), lse


def _one_buffer(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    """All calls of a shape return the same memory, so the next call overwrites the last answer."""
    out, lse = kernel(**inputs)
    shared = memory.setdefault(str(out.shape), torch.empty_like(out))
    shared.copy_(out)
    return shared, lse


def _warm_up_differs(kernel: Kernel, inputs: Inputs, memory: Memory) -> Outputs:
    """From the second call on, a tuned configuration runs that loses each last tile key."""
    memory["calls"] = memory.get("calls", 0) + 1
    return kernel(**inputs) if memory["calls"] == 1 else simulated("sparse_mqa", block_k=32, slots=_tuned)(**inputs)


def _tuned(k: int, block: int) -> range:
    return range(0, max(k - 1, 1), block + 1)


def _random_tile_lost() -> Kernel:
    """A missing barrier: on some runs a tile is read before it was written."""
    calls = count()

    def tiles(stop: int, block: int) -> list[int]:
        starts = list(range(0, stop, block))
        return starts if next(calls) % 3 else starts[1:]

    return simulated("dense_mha", tiles=tiles)


def _unordered_sum() -> Kernel:
    """Atomic additions: every call adds the tiles of slots in another order."""
    calls = count(1)

    def slots(k: int, block: int) -> list[int]:
        starts = list(range(0, k, block))
        turn = next(calls) % max(1, len(starts))
        return starts[turn:] + starts[:turn]

    return simulated("sparse_mqa", slots=slots, block_k=16)


def _lost_update() -> Kernel:
    """Two heads add to one score without atomics: on some runs one addition is lost."""
    calls = count()
    return simulated("indexer_scores", heads=lambda n: range(n - 1 if next(calls) % 3 == 1 and n > 1 else n))


def _stale_row_scalars() -> Kernel:
    """A persistent block keeps the threshold of the row before whenever it is the larger one."""
    seen = {"threshold": 0}

    def threshold(histogram: Tensor, need: int) -> int:
        right = threshold_digit(histogram, need)
        used, seen["threshold"] = max(right, seen["threshold"]), right
        return used

    return simulated("topk_select", threshold=threshold)


def _arrival_order() -> Kernel:
    """Ties at a truncated key are taken in the order of arrival, which differs from run to run."""
    calls = count()

    def ties(candidates: Tensor, need: int, k: int) -> Tensor:
        return candidates.roll(next(calls))[:need]

    return simulated("topk_select", shifts=(24, 16), ties=ties)


def _scaled_in_place(kernel: Kernel, inputs: Inputs) -> Outputs:
    outputs = kernel(**inputs)
    inputs["q"].mul_(inputs["scale"])
    return outputs


def _compacted_in_place(kernel: Kernel, inputs: Inputs) -> Outputs:
    outputs = kernel(**inputs)
    indices = inputs["indices"]
    indices.copy_(indices.sort(dim=1, descending=True).values)
    return outputs


def _masked_in_place(kernel: Kernel, inputs: Inputs) -> Outputs:
    outputs = kernel(**inputs)
    cols = torch.arange(inputs["scores"].shape[1], device=inputs["ke"].device)
    inputs["scores"].masked_fill_(cols >= inputs["ke"][:, None], -INF)
    return outputs


def _past_the_end(name: str) -> Any:
    """One element after the end of an input's memory is overwritten, if its storage goes that far."""

    def body(kernel: Kernel, inputs: Inputs) -> Outputs:
        outputs, x = kernel(**inputs), inputs[name]
        last = x.storage_offset() + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        if x.numel() and last + 1 < x.untyped_storage().nbytes() // x.element_size():
            x.as_strided((1,), (1,), last + 1).zero_()
        return outputs

    return body


def _before_the_start(kernel: Kernel, inputs: Inputs) -> Outputs:
    outputs, x = kernel(**inputs), inputs["lse_a"]
    if x.storage_offset():
        x.as_strided((1,), (1,), x.storage_offset() - 1).fill_(-INF)
    return outputs


def _amax_of_everything(kernel: Kernel, inputs: Inputs) -> Outputs:
    """The output is scaled by the largest value of the whole cache and back: NaN in unused rows spreads."""
    out, lse = kernel(**inputs)
    largest = inputs["kv"].float().abs().amax()
    return (out.float() / largest * largest).to(out.dtype), lse


def _split_by_batch(kernel: Kernel, inputs: Inputs) -> Outputs:
    """The number of splits follows the number of requests, and larger batches lose the boundary key."""
    if len(inputs["cu_q"]) < 4:
        return kernel(**inputs)
    return simulated("dense_mha", splits=2, seen=lambda seen, cols: seen & (cols % 64 != 32))(**inputs)


STATE = (
    fault(
        "plan-of-first-call", "dense_mha", "Lengths of the first call of a shape are used for all.",
        "TensorRT-LLM#18443", "sequence", options=("sequence",), plant=remembering("dense_mha", _first("cu_q", "cu_k")),
    ),
    fault(
        "scale-of-first-call", "sparse_mqa", "The compiled kernel is cached without the scale in its key.",
        "flashinfer#4014", "sequence", options=("sequence",), plant=remembering("sparse_mqa", _first("scale")),
    ),
    fault(
        "mask-of-first-call", "masked_mha", "The mask of the first plan survives.", "flashinfer#1028", "sequence",
        options=("sequence",),
        plant=remembering("masked_mha", _first("mask")),
    ),
    fault(
        "index-buffer-of-first-call", "sparse_mqa", "A captured graph reads the index buffer of its capture.",
        "TensorRT-LLM#16290", "sequence", options=("sequence",), plant=remembering("sparse_mqa", _first("indices")),
    ),
    fault(
        "split-workspace-stale", "dense_mha", "Partial results of an earlier, longer call are merged in.",
        "vllm#47188", "sequence", options=("sequence",), plant=remembering("dense_mha", _stale_splits),
    ),
    fault(
        "answer-cached-by-pointer", "sparse_mqa", "The answer is cached by the address of the inputs.",
        "KernelBench#82", "sequence", options=("sequence",), plant=remembering("sparse_mqa", _by_pointer),
    ),
    fault(
        "answer-cached-by-shape", "indexer_scores", "The answer is cached by the shapes of the inputs.",
        "KernelBench#82", "sequence", options=("sequence",), plant=remembering("indexer_scores", _by_shape),
    ),
    fault(
        "selection-cached-by-shape", "topk_select", "A layer reuses the selection of an earlier call.",
        "sglang#28532", "sequence", options=("sequence",), plant=remembering("topk_select", _by_shape),
    ),
    fault(
        "output-accumulates", "dense_mha", "The output buffer is not cleared between calls.", "", "rerun",
        plant=remembering("dense_mha", _accumulates),
    ),
    fault(
        "output-buffer-shared", "merge_lse", "Every call returns the same buffer.", "sglang#34076", "sequence",
        options=("sequence",),
        plant=remembering("merge_lse", _one_buffer),
    ),
    fault(
        "second-call-differs", "sparse_mqa", "After warm-up a configuration that loses keys is chosen.",
        "helion#655", "rerun", plant=remembering("sparse_mqa", _warm_up_differs),
    ),
    fault(
        "tile-lost-on-some-runs", "dense_mha", "A barrier is missing: some runs lose a tile.", "flashinfer#5252",
        "rerun", plant=_random_tile_lost,
    ),
    fault(
        "sum-order-varies", "sparse_mqa", "Tiles are added atomically, in any order.", "fla#889", "rerun",
        plant=_unordered_sum,
    ),
    fault(
        "head-sum-race", "indexer_scores", "Head sums race: on some runs one is lost.", "DeepGEMM#392", "rerun",
        plant=_lost_update,
    ),
    fault(
        "threshold-of-previous-row", "topk_select", "A persistent block starts a row with the threshold of the last.",
        "vllm#55314", "topk", plant=_stale_row_scalars,
    ),
    fault(
        "ties-in-arrival-order", "topk_select", "Candidates that agree in 16 bits are taken as they arrive.",
        "sglang#35257", "topk", options=("kind=clustered",), plant=_arrival_order,
    ),
    fault(
        "queries-scaled-in-place", "masked_mha", "The caller's queries are multiplied by the scale.", "", "structure",
        plant=around("masked_mha", _scaled_in_place),
    ),
    fault(
        "indices-sorted-in-place", "sparse_mqa", "The caller's index rows are sorted.", "", "structure",
        plant=around("sparse_mqa", _compacted_in_place),
    ),
    fault(
        "scores-masked-in-place", "topk_select", "The caller's scores are overwritten past each row's end.",
        "vllm#47629", "structure", plant=around("topk_select", _masked_in_place),
    ),
    fault(
        "write-past-the-end", "dense_mha", "One element after the values is overwritten; the answer is right.",
        "flashinfer#3978", "memory", plant=around("dense_mha", _past_the_end("v")),
    ),
    fault(
        "write-past-the-scores", "indexer_scores", "One element after the key scales is overwritten.",
        "vllm#48611", "memory", plant=around("indexer_scores", _past_the_end("k_scale")),
    ),
    fault(
        "write-before-the-start", "merge_lse", "One element before the LSE is overwritten.", "flashinfer#3957",
        "memory", plant=around("merge_lse", _before_the_start),
    ),
    fault(
        "amax-over-unused-rows", "sparse_mqa", "A tensor-wide scale is taken over rows that nobody reads.",
        "vllm#37442", "structure", plant=around("sparse_mqa", _amax_of_everything),
    ),
    fault(
        "large-batch-loses-key", "dense_mha", "With three requests or more another split plan runs and loses keys.",
        "sglang#22688", "element", options=("requests=3",), plant=around("dense_mha", _split_by_batch),
    ),
    fault(
        "carry-in-not-neutral", "masked_mha", "The running maximum is reused from scratch memory holding 5.",
        "tpu-inference#3426", "element", plant=planted("masked_mha", start=5.0, decay_sum=lambda d: d + 0.05),
    ),
)
