"""Which layers of a model score and select, and which reuse an earlier layer's selection."""

from __future__ import annotations

from typing import Any

from .reader import Reader

#: Defaults of vLLM 0.33.0 and huggingface/transformers.
_FREQUENCY, _OFFSET = 1, 2


def full_layers(config: Reader, layers: int) -> tuple[int, ...]:
    """Indices of the layers with an indexer of their own.

    Rule (vLLM 0.33.0 and huggingface/transformers agree): ``index_topk_pattern`` ("F" or "S" a layer) if given,
    otherwise full iff ``max(layer - index_skip_topk_offset + 1, 0) % index_topk_freq == 0``. ``indexer_types``, which
    vLLM ignores, is used where neither is given. Raises BadInput where the fields contradict each other: engines would
    then differ.
    """
    types = _listed(config, "indexer_types", {"full": True, "shared": False}, layers)
    pattern = _listed(config, "index_topk_pattern", {"F": True, "S": False}, layers)
    if pattern is not None:
        full, source = pattern, "index_topk_pattern"
    elif types is not None and not config.has("index_topk_freq"):
        full, source = types, "indexer_types"
    else:
        frequency = config.optional_count("index_topk_freq") or _FREQUENCY
        offset = config.optional_count("index_skip_topk_offset", least=0)
        offset = _OFFSET if offset is None else offset
        full = [max(layer - offset + 1, 0) % frequency == 0 for layer in range(layers)]
        source = f"rule: max(layer - {offset} + 1, 0) % {frequency} == 0 (index_skip_topk_offset, index_topk_freq)"
    if not full[0]:
        raise config.bad(source.split(":")[0], "layer 0 full: there is no earlier selection to share", "layer 0 shared")
    if types is not None and types != full:
        layer = next(i for i in range(layers) if types[i] != full[i])
        kind = "full" if full[layer] else "shared"
        raise config.bad("indexer_types", f"what {source} says: layer {layer} {kind}", config.raw("indexer_types"))
    config.sources["indexer_full_layers"] = source
    return tuple(layer for layer in range(layers) if full[layer])


def _listed(config: Reader, key: str, words: dict[str, bool], layers: int) -> list[bool] | None:
    if not config.has(key):
        return None
    value: Any = config.raw(key)
    expected = f"one of {' or '.join(words)} for each of the {layers} layers"
    if not isinstance(value, str | list) or len(value) != layers:
        raise config.bad(key, expected, value)
    for word in value:
        if not isinstance(word, str) or word not in words:
            raise config.bad(key, expected, word)
    return [words[word] for word in value]
