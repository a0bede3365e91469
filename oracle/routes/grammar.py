"""Batches as text: ``8q1s2k_2q512s4k`` is eight requests of one new token after 2047, and two of 512 new in 4096.

``[count]q<query>[k][s<sequence>[k]]``, parts joined by ``_``; ``k`` is 1024; without ``s`` a pure prefill. The sequence
counts context and new tokens together. The grammar is that of vLLM's ``benchmarks/attention_benchmarks``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ...reference.routing import Batch, Request
from ..errors import BadInput

_PART = re.compile(r"(?P<count>\d+)?q(?P<query>\d+k?)(?:s(?P<seq>\d+k?))?", re.ASCII)
_LENGTH = re.compile(r"\d+k?", re.ASCII)
RULE = "[count]q<query>[k][s<sequence>[k]], joined by '_', such as 8q1s2k_2q512s4k"
#: More requests than any engine schedules in one step; a longer batch is a typing error and would take minutes.
MOST_REQUESTS = 65536
_LONGEST = 2**31 - 1


def parse_batch(text: str) -> Batch:
    """The batch of a text. Raises BadInput naming the part, the field and the rule that it breaks."""
    requests: list[Request] = []
    for part in text.split("_"):
        requests += _parse_part(part, f"batch {text!r}, part {part!r}")
        if len(requests) > MOST_REQUESTS:
            raise BadInput(f"batch {text!r}, field count: expected at most {MOST_REQUESTS} requests, got more")
    return Batch(tuple(requests))


def _parse_part(part: str, where: str) -> list[Request]:
    found = _PART.fullmatch(part)
    if found is None:
        raise BadInput(f"{where}: expected {RULE}")
    count = int(found["count"] or 1)
    if not 1 <= count <= MOST_REQUESTS:
        raise BadInput(f"{where}, field count: expected 1 to {MOST_REQUESTS} requests, got {count}")
    query = parse_length(found["query"], f"{where}, field q")
    seq = parse_length(found["seq"], f"{where}, field s") if found["seq"] else query
    if query < 1:
        raise BadInput(f"{where}, field q: expected at least one new token, got {query}")
    if seq < query:
        raise BadInput(f"{where}, field s: expected at least q = {query} tokens (context and new together), got {seq}")
    return [Request.of_sequence(query, seq)] * count


def parse_length(text: str, where: str) -> int:
    """Tokens of ``512`` or ``4k``. Raises BadInput."""
    if not _LENGTH.fullmatch(text):
        raise BadInput(f"{where}: expected a number of tokens such as 512 or 4k, got {text!r}")
    value = int(text.removesuffix("k")) * (1024 if text.endswith("k") else 1)
    if value > _LONGEST:
        raise BadInput(f"{where}: expected at most {_LONGEST} tokens, got {value}")
    return value


def batch_of_lengths(queries: Sequence[str], contexts: Sequence[str]) -> Batch:
    """The batch of ``--q`` and ``--context`` options: one context for every query, one for all, or none.

    Raises BadInput where the counts do not go together or a length is none.
    """
    if not queries:
        raise BadInput("--context: expected --q beside it, got none; a request needs new tokens")
    if len(contexts) not in (0, 1, len(queries)):
        raise BadInput(
            f"--context: expected one for all or one for each of {len(queries)} --q, got {len(contexts)} of them"
        )
    news = [parse_length(text, "--q") for text in queries]
    cached = [parse_length(text, "--context") for text in contexts] or [0]
    if min(news) < 1:
        raise BadInput("--q: expected at least one new token, got 0")
    return Batch.of(zip(news, cached * len(news) if len(cached) == 1 else cached, strict=True))


def batch_text(batch: Batch) -> str:
    """The batch in the grammar, equal neighbours counted together; parses to the same lengths."""
    parts = []
    for (query, seq), same in groupby((request.query_len, request.seq_len) for request in batch.requests):
        count = len(list(same))
        tail = f"s{length_text(seq)}" if seq != query else ""
        parts.append(f"{count if count > 1 else ''}q{length_text(query)}{tail}")
    return "_".join(parts)


def length_text(tokens: int) -> str:
    """``4096`` as ``4k``; what is no multiple of 1024 as it is."""
    return f"{tokens // 1024}k" if tokens and tokens % 1024 == 0 else str(tokens)
