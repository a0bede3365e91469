"""Faults in the shipped Triton attention kernels, as edits of their source."""

from __future__ import annotations

from ..edits import edit

_DENSE, _MASKED, _SPARSE, _TILES, _VISIBLE = "dense_mha", "masked_mha", "sparse_mqa", "tiles", "visible_tiles"

TRITON_DENSE = (
    edit(
        "triton-scale-off-1-percent", _DENSE, _DENSE,
        "scale * LOG2_E.value", "scale * 1.01 * LOG2_E.value",
        "The softmax scale is 1% too large.", "", "element",
    ),
    edit(
        "triton-log2e-missing", _DENSE, _DENSE,
        "scale * LOG2_E.value", "scale",
        "Scores meet exp2 in natural units.", "flashinfer#787", "element",
    ),
    edit(
        "triton-causal-off-by-one", _DENSE, _DENSE,
        "rows[:, None] + (k_len - q_len))", "rows[:, None] + (k_len - q_len) + 1)",
        "A query sees one key past its diagonal.", "", "element",
    ),
    edit(
        "triton-causal-top-left", _DENSE, _DENSE,
        "rows[:, None] + (k_len - q_len))", "rows[:, None])",
        "The causal diagonal starts at the first key.", "flash-attention#282", "element",
    ),
    edit(
        "triton-causal-forced", _DENSE, _DENSE,
        "CAUSAL=causal", "CAUSAL=True",
        "A non-causal call is computed as causal.", "", "element", ("noncausal",),
    ),
    edit(
        "triton-diagonal-tile-taken-as-full", _DENSE, _DENSE,
        "first + 1 + k_len - q_len", "first + BLOCK_M + k_len - q_len",
        "Keys up to the diagonal of the tile's last query are computed without a mask.", "pytorch#182593", "element",
    ),
    edit(
        "triton-whole-tiles-rounded-up", _DENSE, _DENSE,
        "whole = whole // BLOCK_N * BLOCK_N", "whole = (whole + BLOCK_N - 1) // BLOCK_N * BLOCK_N",
        "The last partial tile is computed without a mask.", "", "element",
    ),
    edit(
        "triton-limit-of-first-row", _DENSE, _DENSE,
        "tl.minimum(k_len, first + BLOCK_M + k_len - q_len)", "tl.minimum(k_len, first + 1 + k_len - q_len)",
        "Keys beyond the diagonal of the tile's first query are not visited.", "", "element",
    ),
    edit(
        "triton-last-key-dropped", _DENSE, _DENSE,
        "live = keys < limit", "live = keys < limit - 1",
        "The last key of a query tile is not seen.", "", "element",
    ),
    edit(
        "triton-partial-tile-dropped", _DENSE, _DENSE,
        "range(whole, limit, BLOCK_N)", "range(whole, limit // BLOCK_N * BLOCK_N, BLOCK_N)",
        "Keys after the last whole tile are not visited.", "", "element",
    ),
    edit(
        "triton-value-head-stride-of-key", _DENSE, _DENSE,
        "v_stride_t + head * v_stride_h", "v_stride_t + head * k_stride_h",
        "Heads of V are found with the head stride of K.", "local-inference-lab/vllm#17", "element", ("heads=2",),
    ),
    edit(
        "triton-keys-of-first-request", _DENSE, _DENSE,
        "k_ptr += k_start.to(tl.int64) * k_stride_t + head", "k_ptr += head",
        "Every request reads the keys of the first.", "", "element", ("requests=2",),
    ),
    edit(
        "triton-queries-of-first-request", _DENSE, _DENSE,
        "q_ptr += q_start.to(tl.int64) * q_stride_s + head", "q_ptr += head",
        "Every request reads the queries of the first.", "", "element", ("requests=2",),
    ),
    edit(
        "triton-output-head-major", _DENSE, _DENSE,
        "(q_start + rows).to(tl.int64) * h + head", "head * s + (q_start + rows).to(tl.int64)",
        "Rows are stored head by head.", "", "element",
    ),
    edit(
        "triton-row-past-request-stored", _DENSE, _DENSE,
        "in_request = rows < q_len", "in_request = rows <= q_len",
        "One row past each request is stored.", "flashinfer#3957", "memory",
    ),
    edit(
        "triton-lse-base-2", _DENSE, _TILES,
        "(top + tl.log2(total)) * LN_2", "top + tl.log2(total)",
        "The LSE is a base-2 logarithm.", "sglang#40903", "lse",
    ),
    edit(
        "triton-lse-mixed-bases", _DENSE, _TILES,
        "(top + tl.log2(total)) * LN_2", "top * LN_2 + tl.log2(total)",
        "The maximum is converted to natural units, the sum is not.", "", "lse",
    ),
    edit(
        "triton-accumulator-not-rescaled", _DENSE, _TILES,
        "acc * shrink[:, None]", "acc",
        "The accumulator keeps its scale when the maximum grows.", "", "element",
    ),
    edit(
        "triton-sum-not-rescaled", _DENSE, _TILES,
        "total * shrink + tl.sum(p, 1)", "total + tl.sum(p, 1)",
        "The denominator keeps its scale when the maximum grows.", "", "element",
    ),
    edit(
        "triton-sum-of-rounded-probabilities", _DENSE, _TILES,
        "tl.sum(p, 1)", "tl.sum(p.to(values.dtype).to(tl.float32), 1)",
        "The denominator sums rounded probabilities.", "", "lse",
    ),
    edit(
        "triton-accumulator-in-input-dtype", _DENSE, _TILES,
        'acc * shrink[:, None], input_precision="ieee")',
        'acc * shrink[:, None], input_precision="ieee").to(values.dtype).to(tl.float32)',
        "The accumulator is rounded to the input dtype after each tile.", "", "element",
    ),
    edit(
        "triton-main-dims-overwritten", _DENSE, _TILES,
        "tl.dot(q_rest, tl.trans(k_rest), scores, ", "tl.dot(q_rest, tl.trans(k_rest), ",
        "The product over the last dims replaces that over the first.", "DeepGEMM#433", "element",
    ),
    edit(
        "triton-empty-row-nan", _DENSE, _TILES,
        "    total = tl.where(total == 0.0, 1.0, total)\n", "",
        "A query with no key gets 0 / 0.", "flashinfer#3996", "structure", ("k<q",),
    ),
    edit(
        "triton-first-tiles-unvisited", _DENSE, _TILES,
        "(tile - (q_start // BLOCK + low)) * BLOCK", "(tile - q_start // BLOCK) * BLOCK",
        "Later requests start at a later tile; their first rows stay unwritten.", "sglang#19902", "structure",
        ("requests=2",),
    ),
    edit(
        "triton-tile-search-strict", _DENSE, _TILES,
        "+ middle <= tile", "+ middle < tile",
        "The first tile of a request is looked for in the one before.", "", "structure", ("requests=2",),
    ),
)  # fmt: skip

TRITON_MASKED = (
    edit(
        "triton-mask-bits-reversed", _MASKED, _VISIBLE,
        ">> tl.arange(0, 32)[None, None, :]", ">> (31 - tl.arange(0, 32))[None, None, :]",
        "The most significant bit is taken for the first key.", "", "element",
    ),
    edit(
        "triton-mask-of-first-request", _MASKED, _MASKED,
        "mask_ptr += request.to(tl.int64) * mask_stride_b", "mask_ptr += 0 * mask_stride_b",
        "Every request uses the mask of the first.", "", "element", ("requests=2",),
    ),
    edit(
        "triton-mask-word-of-wrong-tile", _MASKED, _MASKED,
        "start // 32, words, WORDS)", "start // 64, words, WORDS)",
        "Mask words of later tiles are taken from earlier ones.", "", "element",
    ),
    edit(
        "triton-mask-row-stride-of-words", _MASKED, _VISIBLE,
        "rows.to(tl.int64)[:, None] * stride", "rows.to(tl.int64)[:, None] * words",
        "Mask rows are taken to be as far apart as they are long.", "text-generation-inference#3324", "element",
        ("layout=strided",),
    ),
    edit(
        "triton-mask-last-word-unread", _MASKED, _VISIBLE,
        "(at < words)", "(at < words - 1)",
        "The last word of each mask row is not read.", "", "element",
    ),
    edit(
        "triton-mask-replaces-causal", _MASKED, _MASKED,
        "visible = visible & (keys[None, :] <= rows[:, None] + (k_len - q_len))", "visible = visible",
        "With a mask, causality is not applied inside a tile.", "", "element",
    ),
    edit(
        "triton-mask-causal-off-by-one", _MASKED, _MASKED,
        "rows[:, None] + (k_len - q_len))", "rows[:, None] + (k_len - q_len) - 1)",
        "A query does not see its own position.", "ATOM#2118", "element",
    ),
    edit(
        "triton-mask-tile-lost-by-sign", _MASKED, _VISIBLE,
        "tl.max((seen != 0).to(tl.int32), 1)", "tl.max((seen > 0).to(tl.int32), 1)",
        "A tile is skipped if bit 31 of its words is set, which makes them negative.", "", "element",
    ),
    edit(
        "triton-mask-tiles-overwritten", _MASKED, _VISIBLE,
        "count += tl.sum(occupied, 0)", "count = tl.sum(occupied, 0)",
        "Only the tiles of the last step over the mask are kept.", "", "element", ("reach=batch",),
    ),
    edit(
        "triton-mask-last-tile-skipped", _MASKED, _MASKED,
        "range(tl.load(counts_ptr + tile))", "range(tl.load(counts_ptr + tile) - 1)",
        "The last visible tile is not computed.", "", "element",
    ),
    edit(
        "triton-mask-scale-twice", _MASKED, _MASKED,
        "scale * LOG2_E.value", "scale * scale * LOG2_E.value",
        "Scores are scaled twice.", "", "element",
    ),
    edit(
        "triton-mask-values-of-first-head", _MASKED, _MASKED,
        "v_stride_t + head * v_stride_h", "v_stride_t",
        "All heads use the values of the first.", "", "element", ("heads=2",),
    ),
    edit(
        "triton-mask-leading-nan", _MASKED, _TILES,
        'base = tl.where(new_top == float("-inf"), 0.0, new_top)', "base = new_top",
        "Before any visible key, -inf is subtracted from -inf.", "vllm#48366", "structure",
    ),
    edit(
        "triton-mask-probabilities-in-fp8", _MASKED, _TILES,
        "tl.dot(p.to(values.dtype)", "tl.dot(p.to(tl.float8e4nv).to(values.dtype)",
        "Probabilities meet V in e4m3, undeclared.", "", "element",
    ),
)  # fmt: skip

TRITON_SPARSE = (
    edit(
        "triton-index-past-end-clamped", _SPARSE, _SPARSE,
        "valid = (rows >= 0) & (rows < n)", "valid = rows >= 0\n        rows = tl.minimum(rows, n - 1)",
        "Entries past the cache name its last row.", "FlashMLA#184", "element", ("invalid",),
    ),
    edit(
        "triton-invalid-maps-to-row-0", _SPARSE, _SPARSE,
        "valid = (rows >= 0) & (rows < n)", "rows = tl.maximum(rows, 0)\n        valid = rows < n",
        "Invalid entries name row 0 and count.", "vllm#45324", "structure", ("invalid",),
    ),
    edit(
        "triton-invalid-scores-zero", _SPARSE, _SPARSE,
        'tl.where(valid[None, :], scores * scale_log2, float("-inf"))', "scores * scale_log2",
        "Invalid entries count with score 0.", "", "element", ("invalid",),
    ),
    edit(
        "triton-tail-entry-is-row-0", _SPARSE, _SPARSE,
        "mask=slots < length, other=-1", "mask=slots < length, other=0",
        "Slots past the end of a row name row 0.", "", "structure",
    ),
    edit(
        "triton-lengths-ignored", _SPARSE, _SPARSE,
        "length = tl.minimum(k, tl.load(lengths_ptr + query))", "length = k",
        "Entries past the row's length count.", "vllm#36616", "structure", ("lengths",),
    ),
    edit(
        "triton-length-rounded-to-tile", _SPARSE, _SPARSE,
        "mask=slots < length, other=-1", "mask=slots < k, other=-1",
        "Entries past the length count up to the end of their tile.", "", "structure", ("lengths",),
    ),
    edit(
        "triton-lengths-of-first-row", _SPARSE, _SPARSE,
        "tl.load(lengths_ptr + query)", "tl.load(lengths_ptr)",
        "Every row has the length of the first.", "", "element", ("lengths",),
    ),
    edit(
        "triton-partial-slot-tile-dropped", _SPARSE, _SPARSE,
        "range(0, length, BLOCK_K)", "range(0, length - BLOCK_K + 1, BLOCK_K)",
        "Only whole tiles of slots are visited.", "", "element",
    ),
    edit(
        "triton-latent-dims-overwritten", _SPARSE, _SPARSE,
        "tl.dot(q_r, tl.trans(k_r), scores, ", "tl.dot(q_r, tl.trans(k_r), ",
        "The product over the rotated dims replaces that over the latent.", "", "element",
    ),
    edit(
        "triton-rope-key-from-latent", _SPARSE, _SPARSE,
        "valid, C, C + R, R_BLOCK", "valid, 0, R, R_BLOCK",
        "Rotated key dims are read from the start of the row.", "", "element",
    ),
    edit(
        "triton-index-row-stride-of-width", _SPARSE, _SPARSE,
        "indices_ptr += query * indices_stride_s", "indices_ptr += query * k",
        "Index rows are taken to be contiguous.", "", "element", ("layout=strided",),
    ),
    edit(
        "triton-last-head-unwritten", _SPARSE, _SPARSE,
        "real = heads < h", "real = heads < h - 1",
        "The last head is not computed.", "local-inference-lab/vllm#5", "structure",
    ),
    edit(
        "triton-sink-ignored", _SPARSE, _SPARSE,
        "HAS_SINK=sink is not None", "HAS_SINK=False",
        "The sink is dropped.", "vllm#54568", "element", ("sink",),
    ),
    edit(
        "triton-sink-in-base-2", _SPARSE, _SPARSE,
        "lse)) * LOG2_E))", "lse))))",
        "The sink is exponentiated in base 2.", "", "element", ("sink",),
    ),
    edit(
        "triton-sink-of-first-head", _SPARSE, _SPARSE,
        "sink_ptr + heads", "sink_ptr + heads * 0",
        "All heads use the sink of the first.", "", "element", ("sink",),
    ),
    edit(
        "triton-leading-invalid-nan", _SPARSE, _TILES,
        'base = tl.where(new_top == float("-inf"), 0.0, new_top)', "base = new_top",
        "Before any valid entry, -inf is subtracted from -inf.", "vllm#48366", "structure", ("empty-rows",),
    ),
    edit(
        "triton-offset-product-in-int32", _SPARSE, _TILES,
        "rows.to(tl.int64)[:, None] * stride", "((rows[:, None] * stride) & 2147483647)",
        "Row times stride keeps 31 bits: a stray read inside the cache.", "flashinfer#3130", "structure", ("hugerows",),
    ),
)  # fmt: skip
