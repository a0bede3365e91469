"""The properties, in the order of their numbers. A literal table, the only place that knows them all.

1 to 46 relate answers to each other; 47 and 48 are the race tests.
"""

from __future__ import annotations

from ..errors import unknown
from . import callers, heads, indexer, masks, order, parts, rows, scores, selection, steps, values
from .property import Property

_D, _M, _S = "dense_mha", "masked_mha", "sparse_mqa"
_DM, _DMS, _LSE = (_D, _M), (_D, _M, _S), ("merge_lse",)
_X, _PAGED = ("indexer_scores",), ("paged_indexer_scores",)
_XP = (*_X, *_PAGED)
_TOP, _QUANT = ("topk_select",), ("quantize",)
_BATCHES = (*_DMS, *_XP, *_TOP, *_LSE, *_QUANT)
_LAYOUTS = (*_QUANT, "write_cache", "write_index", "gather", "gather_index", "convert_indices", "build_mask")

PROPERTIES: tuple[Property, ...] = (
    Property(1, "key-order", _DM, order.key_order),
    Property(2, "slot-order", (_S,), order.slot_order),
    Property(3, "row-relocation", (_S, *_PAGED, "gather", "gather_index"), order.row_relocation),
    Property(4, "batch-order", _BATCHES, order.batch_order),
    Property(5, "batch-invariance", _BATCHES, order.alone),
    Property(6, "repeat", (*_BATCHES, *_LAYOUTS[1:]), order.rerun),
    Property(7, "split-and-merge", _DMS, parts.split_and_merge),
    Property(8, "empty-part", (*_DMS, *_LSE), parts.empty_part),
    Property(9, "masked-keys", (_M,), parts.masked_keys),
    Property(10, "invalid-slots", (_S,), parts.invalid_slots),
    Property(11, "value-linearity", (*_DMS, *_LSE), values.value_linearity),
    Property(12, "value-scale", (*_DMS, *_LSE), values.value_scale),
    Property(13, "constant-values", (*_DMS, *_LSE), values.constant_values),
    Property(14, "value-offset", _DMS, values.value_offset),
    Property(15, "one-hot-values", _DMS, values.one_hot_values),
    Property(16, "convexity", (*_DMS, *_LSE), values.convexity),
    Property(17, "score-shift", (*_DMS, *_LSE), scores.score_shift),
    Property(18, "scale-exchange", _DMS, scores.scale_exchange),
    Property(19, "rotation", _DMS, scores.rotation),
    Property(20, "repeated-keys", (*_DMS, *_LSE), scores.repeated_keys),
    Property(21, "duplicate-index", (_S,), scores.duplicate_index),
    Property(22, "identical-keys", _DMS, scores.identical_keys),
    Property(23, "dominant-key", _DMS, scores.dominant_key),
    Property(24, "growing-prefix", _DM, masks.growing_prefix),
    Property(25, "causality", _DMS, masks.causality),
    Property(26, "window", (_M,), masks.window),
    Property(27, "full-mask", (_M,), masks.full_mask),
    Property(28, "head-order", (*_DMS, *_LSE), heads.head_order),
    Property(29, "all-selected", (_S,), heads.all_selected),
    Property(30, "monotone-sets", _DMS, heads.monotone_sets),
    Property(31, "rope-is-no-value", (_S,), heads.rope_is_no_value),
    Property(32, "absorbed", (_S,), heads.absorbed),
    Property(33, "sink", (_S,), rows.sink),
    Property(34, "empty-row", _DMS, rows.empty_row),
    Property(35, "selection-length", (_S,), rows.selection_length),
    Property(36, "head-sum", _XP, indexer.head_sum),
    Property(37, "homogeneity", _XP, indexer.homogeneity),
    Property(38, "key-scale", _XP, indexer.key_scale),
    Property(39, "sign", _XP, indexer.sign),
    Property(40, "locality", _XP, indexer.locality),
    Property(41, "key-columns", _X, indexer.key_columns),
    Property(42, "monotone-scores", _TOP, selection.monotone_scores),
    Property(43, "window-shift", (*_X, *_TOP), selection.window_shift),
    Property(44, "lost-mass", (_S,), steps.lost_mass),
    Property(45, "chunked", (*_DM, *_PAGED), steps.chunked),
    Property(46, "stable-codes", (*_QUANT, "write_cache", "write_index"), steps.stable_codes),
    Property(47, "two-callers", (*_BATCHES, *_LAYOUTS[1:]), callers.two_callers),
    Property(48, "two-streams", (*_BATCHES, *_LAYOUTS[1:]), callers.two_streams),
)


def property_named(name: str) -> Property:
    """The property of that name or number. Raises BadInput with the nearest names."""
    for one in PROPERTIES:
        if name in (one.name, str(one.number)):
            return one
    raise unknown("property", name, (one.name for one in PROPERTIES))
