"""Which requests count as decode and which as prefill."""

from __future__ import annotations

from dataclasses import dataclass

from .batch import Batch, Request
from .decision import Decision
from .deployment import Deployment
from .rules import Rules, Threshold


@dataclass(frozen=True, slots=True)
class Split:
    """A batch cut in two: decodes first, prefills after them."""

    decodes: tuple[Request, ...]
    prefills: tuple[Request, ...]

    @property
    def num_decode_tokens(self) -> int:
        return sum(request.query_len for request in self.decodes)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(request.query_len for request in self.prefills)

    @property
    def prefill_max_query_len(self) -> int:
        return max((request.query_len for request in self.prefills), default=0)

    @property
    def prefill_max_seq_len(self) -> int:
        """Longest context plus new tokens among the prefills; 0 without any."""
        return max((request.seq_len for request in self.prefills), default=0)

    @property
    def has_context(self) -> bool:
        return any(request.context_len for request in self.prefills)


def threshold_entry(rules: Rules, backend: str, family: int) -> Threshold:
    """The version's entry for a backend on a device family. Raises ValueError naming the known pairs."""
    key = (rules.table_backend(backend), family)
    if key not in rules.thresholds:
        known = ", ".join(f"{name} on SM{known_family}" for name, known_family in sorted(rules.thresholds))
        raise ValueError(f"rules {rules.name!r}: no decode threshold for {backend} on SM{family}; known: {known}")
    return rules.thresholds[key]


def decode_threshold(rules: Rules, deployment: Deployment) -> Decision[int]:
    """Longest query, in tokens, that the main attention classifies as decode (vLLM ``reorder_batch_threshold``)."""
    entry = threshold_entry(rules, deployment.backend, deployment.device_family)
    heads = deployment.local_heads
    value = entry.by_heads.get(heads, entry.otherwise)
    reasons = [f"{deployment.backend} on SM{deployment.device_family} with {heads} local heads: {value}"]
    if deployment.hisparse:
        value = 1
        reasons.append("HiSparse decodes one token at a time: 1")
    if deployment.speculative_tokens + 1 > value:
        value = deployment.speculative_tokens + 1
        reasons.append(f"raised to the decode query length {value} of speculative decoding")
    if deployment.dcp > 1 and not deployment.dcp_varlen:
        value = 1
        reasons.append("DCP without decodes of several lengths: 1")
    return Decision(value, tuple(reasons))


def indexer_threshold(deployment: Deployment) -> Decision[int]:
    """The indexer's own threshold; it may classify a request differently from the main attention."""
    value = 1 + deployment.speculative_tokens
    return Decision(value, (f"the indexer decodes 1 + {deployment.speculative_tokens} speculative tokens",))


def split_batch(
    batch: Batch, threshold: int, *, require_uniform: bool = False, short_extends_are_decodes: bool = True
) -> Decision[Split]:
    """Cut an arranged batch at its first prefill.

    A request is a prefill if its query is longer than ``threshold``; also, if ``require_uniform``, if its length
    differs from the first one's, and, if not ``short_extends_are_decodes``, if its prompt is not yet through.
    """
    lengths = [request.query_len for request in batch.requests]
    prefill = [length > threshold for length in lengths]
    reasons = [f"{sum(not long for long in prefill)} of {len(lengths)} queries are at most {threshold} tokens"]
    if require_uniform and lengths[0] <= threshold:
        prefill = [length != lengths[0] for length in lengths]
        reasons.append(f"uniform decodes: those of {lengths[0]} tokens like the first")
    if not short_extends_are_decodes:
        prefill = [long or request.is_prefilling for long, request in zip(prefill, batch.requests, strict=True)]
        reasons.append("PCP: a short extend counts as prefill")
    cut = prefill.index(True) if True in prefill else len(prefill)
    split = Split(batch.requests[:cut], batch.requests[cut:])
    reasons.append(f"{cut} decodes ({split.num_decode_tokens} tokens), {len(lengths) - cut} prefills")
    return Decision(split, tuple(reasons))
