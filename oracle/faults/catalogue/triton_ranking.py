"""Faults in the shipped Triton indexer, top-k and merge kernels, as edits of their source."""

from __future__ import annotations

from ..edits import edit

_INDEXER, _TOPK, _MERGE = "indexer_scores", "topk_select", "merge_lse"

TRITON_INDEXER = (
    edit(
        "triton-relu-missing", _INDEXER, _INDEXER,
        "tl.where(product < 0.0, 0.0, product)", "product",
        "Negative q.k of a head is not cut at 0.", "transformers#44690", "element",
    ),
    edit(
        "triton-relu-after-weighting", _INDEXER, _INDEXER,
        "weight[:, None] * tl.where(product < 0.0, 0.0, product)", "tl.maximum(weight[:, None] * product, 0.0)",
        "The ReLU is applied after the head weight.", "", "element",
    ),
    edit(
        "triton-key-scale-skipped", _INDEXER, _INDEXER,
        "acc * k_scale[None, :]", "acc",
        "Keys are not multiplied by their scale.", "", "element",
    ),
    edit(
        "triton-key-scale-per-block", _INDEXER, _INDEXER,
        "k_scale_ptr + columns", "k_scale_ptr + columns // 64 * 64",
        "One scale serves a block of 64 keys.", "", "element",
    ),
    edit(
        "triton-window-end-inclusive", _INDEXER, _INDEXER,
        "columns[None, :] < ke[:, None]", "columns[None, :] <= ke[:, None]",
        "Column ke is scored.", "", "structure",
    ),
    edit(
        "triton-window-start-ignored", _INDEXER, _INDEXER,
        "(columns[None, :] >= ks[:, None]) & ", "",
        "Columns before ks are scored.", "sglang#12582", "structure", ("requests=2",),
    ),
    edit(
        "triton-outside-window-zero", _INDEXER, _INDEXER,
        'acc * k_scale[None, :], float("-inf"))', "acc * k_scale[None, :], 0.0)",
        "Columns outside the window are 0.", "", "structure",
    ),
    edit(
        "triton-first-head-skipped", _INDEXER, _INDEXER,
        "for head in range(heads):", "for head in range(1, heads):",
        "The loop starts at the second weight, with the first query head.", "", "element",
    ),
    edit(
        "triton-query-head-not-advanced", _INDEXER, _INDEXER,
        "q_ptr += q_stride_i", "q_ptr += 0 * q_stride_i",
        "All heads use the first query head.", "", "element",
    ),
    edit(
        "triton-head-weight-of-first", _INDEXER, _INDEXER,
        "* weights_stride_s + head,", "* weights_stride_s,",
        "All heads have the weight of the first.", "", "element",
    ),
    edit(
        "triton-head-score-in-bf16", _INDEXER, _INDEXER,
        'tl.dot(queries, keys, input_precision="ieee")',
        'tl.dot(queries, keys, input_precision="ieee").to(tl.bfloat16).to(tl.float32)',
        "q.k of a head is rounded to bf16.", "", "element",
    ),
    edit(
        "triton-tile-skipped-by-one-row", _INDEXER, _INDEXER,
        "tl.max(tl.max(window.to(tl.int32), 1), 0)", "tl.min(tl.max(window.to(tl.int32), 1), 0)",
        "A tile is skipped if one of its rows sees none of it.", "", "element",
    ),
)

TRITON_TOPK = (
    edit(
        "triton-negative-scores-mirrored", _TOPK, _TOPK,
        "bits ^ ((bits >> 31) | -2147483648)", "bits ^ -2147483648",
        "Among negative scores the smallest is taken for the largest.", "", "topk", ("kind=negative",),
    ),
    edit(
        "triton-nan-ranks-lowest", _TOPK, _TOPK,
        "tl.where(scores != scores, -1, flipped)", "tl.where(scores != scores, 0, flipped)",
        "NaN ranks below -inf.", "", "topk", ("kind=nan",),
    ),
    edit(
        "triton-low-byte-ignored", _TOPK, _TOPK,
        "bits ^ ((bits >> 31) | -2147483648)", "(bits ^ ((bits >> 31) | -2147483648)) & -256",
        "The last byte of a score is not compared.", "sglang#35257", "topk", ("kind=clustered",),
    ),
    edit(
        "triton-short-test-off-by-one", _TOPK, _TOPK,
        "if length <= k:", "if length <= k + 1:",
        "A row of k + 1 columns counts as short.", "", "topk", ("k=topk+1",),
    ),
    edit(
        "triton-row-start-ignored", _TOPK, _TOPK,
        "row * scores_stride_s + ks", "row * scores_stride_s",
        "Rows are read from column 0.", "sglang#12582", "topk", ("requests=2",),
    ),
    edit(
        "triton-indices-absolute", _TOPK, _TOPK,
        "tl.store(indices_ptr + place, at, mask=take)", "tl.store(indices_ptr + place, at + ks, mask=take)",
        "Columns of the batch are stored.", "vllm#56749", "topk", ("requests=2",),
    ),
    edit(
        "triton-row-end-inclusive", _TOPK, _TOPK,
        "tl.minimum(tl.load(ke_ptr + row), t)", "tl.minimum(tl.load(ke_ptr + row) + 1, t)",
        "Column ke is read as well.", "", "topk",
    ),
    edit(
        "triton-one-tie-short", _TOPK, _TOPK,
        "tl.cumsum(equal, 0) <= missing", "tl.cumsum(equal, 0) < missing",
        "The last tie is not stored and its slot not written.", "", "topk",
    ),
    edit(
        "triton-ties-not-filled", _TOPK, _TOPK,
        " | ((equal != 0) & (tl.cumsum(equal, 0) <= missing))", "",
        "Only scores above the threshold are stored.", "sglang#30645", "topk",
    ),
    edit(
        "triton-threshold-digit-high", _TOPK, _TOPK,
        "tl.sum((at_least >= missing).to(tl.int32), 0) - 1", "tl.sum((at_least >= missing).to(tl.int32), 0)",
        "The threshold digit is one too high.", "", "topk",
    ),
    edit(
        "triton-short-row-padded-with-zero", _TOPK, _TOPK,
        "tl.where(at < length, at, -1)", "tl.where(at < length, at, 0)",
        "Unused slots of a short row are 0.", "vllm#45324", "topk",
    ),
)

TRITON_MERGE = (
    edit(
        "triton-merge-weight-of-a-twice", _MERGE, _MERGE,
        "(weight_b / total)[:, None] * b", "(weight_a / total)[:, None] * b",
        "The second side gets the weight of the first.", "", "element",
    ),
    edit(
        "triton-merge-one-side-base-2", _MERGE, _MERGE,
        "weight_b = tl.exp(lse_b - base)", "weight_b = tl.exp2(lse_b - base)",
        "One side's LSE is exponentiated in base 2.", "sglang#40903", "element",
    ),
    edit(
        "triton-merge-empties-nan", _MERGE, _MERGE,
        'base = tl.where(top == float("-inf"), 0.0, top)', "base = top",
        "Two empty sides merge to NaN.", "vllm#27491", "structure", ("kind=empties",),
    ),
    edit(
        "triton-merge-empties-divide-by-zero", _MERGE, _MERGE,
        "    total = tl.where(total == 0.0, 1.0, total)\n", "",
        "Two empty sides are divided by their weight 0.", "vllm#27491", "structure", ("kind=empties",),
    ),
    edit(
        "triton-merge-empty-side-read", _MERGE, _MERGE,
        'mask=inside & (lse_b != float("-inf"))[:, None]', "mask=inside",
        "An empty side is read and multiplied by 0.", "vllm#47188", "structure", ("kind=empties",),
    ),
    edit(
        "triton-merge-lse-is-max", _MERGE, _MERGE,
        "top, top + tl.log(total))", "top, top)",
        "The merged LSE is the larger of the two.", "", "lse",
    ),
    edit(
        "triton-merge-lse-log2", _MERGE, _MERGE,
        "tl.log(total)", "tl.log2(total)",
        "The logarithm of the total is base 2.", "flashinfer#4547", "lse",
    ),
    edit(
        "triton-merge-b-as-contiguous", _MERGE, _MERGE,
        "(query * b_stride_s + head * b_stride_h)[:, None]", "(row * V)[:, None]",
        "The second side is read as if it were contiguous.", "local-inference-lab/vllm#17", "element",
        ("layout=strided",),
    ),
    edit(
        "triton-merge-lse-of-first-head", _MERGE, _MERGE,
        "query * lse_b_stride_s + head * lse_b_stride_h", "query * lse_b_stride_s",
        "The second side's heads share the LSE of the first head.", "", "element", ("heads=2",),
    ),
    edit(
        "triton-merge-last-row-unwritten", _MERGE, _MERGE,
        "live = row < rows", "live = row < rows - 1",
        "The last row is not stored.", "fla#892", "structure",
    ),
    edit(
        "triton-merge-not-normalised", _MERGE, _MERGE,
        "(weight_a / total)[:, None] * a", "weight_a[:, None] * a",
        "The first side is not divided by the total weight.", "", "element",
    ),
)
