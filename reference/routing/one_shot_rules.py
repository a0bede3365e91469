"""What SGLang lays down about routing sparse-MLA layers, and the step that it is asked about; see ``one_shot``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotRules:
    """What a version lays down."""

    name: str
    date: str
    source: str
    extend_modes: tuple[str, ...]
    devices: tuple[tuple[int, int], ...]
    """First and last compute capability, as 90 for 9.0."""
    chunk_capacity: int
    keys_per_query: int
    ragged_kernels: tuple[str, ...]
    kernels: Mapping[str, Mapping[str, tuple[str, str]]]
    """Prefill and decode kernel by cache, ``below`` and ``from_10``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotStep:
    """One step of an installation."""

    mode: str
    seq_lens: tuple[int, ...]
    """Keys of every request."""
    queries: int
    """New tokens of all requests."""
    capability: int
    """As 90 for 9.0."""
    cache: str
    """``model``: bf16; ``e4m3``: scaled rows."""
    index_topk: int
    dense_limit: int
    """Longest sequence for dense MHA: the model's top-k, unless the environment sets another."""
    prefill_kernel: str
    in_graph: bool = False
    """Whether a prefill graph in pieces is captured or replayed."""
    prefill_cp: bool = False
    hisparse: bool = False
    dcp: int = 1
    sharded_pool: bool = False
    captured: Literal["", "whole", "dense"] = ""
    """Whether a graph of decodes is captured, with the whole indexer or for sequences of at most top-k keys."""
