"""A case: the small frozen record that everything else is made from.

A case holds sizes and names, never tensors. Its id is readable, parses back to the same case, and is all that a
reproduction needs::

    sparse_mqa:glm-5.2:h16:q64,1:k300,1:top64:bf16:needle:strided:sink+lengths:s3
    operator   geometry heads lengths   top-k  dtype kind layout  options      seed

Lengths that repeat are written ``8x1`` (eight requests of one token). ``-`` stands for no options.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from itertools import groupby

from .errors import BadInput

DTYPES = ("bf16", "fp16", "fp32", "e4m3")
LAYOUTS = ("contiguous", "offset", "strided")
#: Largest length, head count, top-k and seed: what an int32 index can reach.
MOST = 2**31 - 1
MOST_REQUESTS = 2**16
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Sizes, kinds and seed of one check."""

    operator: str
    geometry: str
    """Name of a model in ``fixtures/models``."""
    heads: int
    """Heads of this rank: a tensor-parallel slice of the model's (indexer heads for the indexer)."""
    q_lens: tuple[int, ...]
    """New query tokens a request."""
    k_lens: tuple[int, ...]
    """Keys a request, cached context and new tokens together."""
    topk: int = 0
    """Selected slots a query; 0 where the operator selects nothing."""
    dtype: str = "bf16"
    kind: str = "randn"
    """How the values are drawn; see ``oracle/inputs/kinds.py``."""
    layout: str = "contiguous"
    """How the tensors lie in memory."""
    options: tuple[str, ...] = ()
    """Named variations, sorted: index patterns, ``sink``, ``lengths``, ``noncausal`` and the like."""
    seed: int = 0

    def __post_init__(self) -> None:
        def bad(field: str, expected: str, known: tuple[str, ...] = ()) -> BadInput:
            value = getattr(self, field)
            near = difflib.get_close_matches(value, known, cutoff=0.4) if known else []
            hint = f"; nearest: {', '.join(near)}" if near else ""
            return BadInput(f"case field {field!r}: expected {expected}, got {value!r}{hint}")

        if len(self.q_lens) != len(self.k_lens) or not self.q_lens:
            raise BadInput(
                f"case lengths: expected as many query as key lengths and at least one request, "
                f"got {len(self.q_lens)} and {len(self.k_lens)}"
            )
        if min(self.q_lens) < 0 or min(self.k_lens) < 0:
            raise BadInput(f"case lengths: expected none negative, got q {self.q_lens}, k {self.k_lens}")
        if self.heads < 1:
            raise bad("heads", "at least 1")
        if self.topk < 0:
            raise bad("topk", "0 or more")
        if self.dtype not in DTYPES:
            raise bad("dtype", f"one of {', '.join(DTYPES)}", DTYPES)
        if self.layout not in LAYOUTS:
            raise bad("layout", f"one of {', '.join(LAYOUTS)}", LAYOUTS)
        if self.seed < 0:
            raise bad("seed", "0 or more")
        for name in ("operator", "geometry", "kind"):
            if not _WORD.fullmatch(getattr(self, name)):
                raise bad(name, "letters, digits, '.', '_' and '-'")
        if tuple(sorted(set(self.options))) != self.options:
            raise bad("options", "a sorted tuple of distinct names")
        for option in self.options:
            if not _WORD.fullmatch(option):
                raise bad("options", "names of letters, digits, '.', '_' and '-'")

    @property
    def id(self) -> str:
        """Every field in one readable line, like ``dense_mha:glm-5:h2:q37,1:k37,130:bf16:…:s0``; ``parse`` reads it."""
        parts = [self.operator, self.geometry, f"h{self.heads}", f"q{_spell(self.q_lens)}", f"k{_spell(self.k_lens)}"]
        if self.topk:
            parts.append(f"top{self.topk}")
        parts += [self.dtype, self.kind, self.layout, "+".join(self.options) or "-", f"s{self.seed}"]
        return ":".join(parts)

    @property
    def queries(self) -> int:
        """Query tokens of all requests."""
        return sum(self.q_lens)

    @property
    def keys(self) -> int:
        """Keys of all requests."""
        return sum(self.k_lens)

    def with_seed(self, seed: int) -> Case:
        """The same sizes with other values."""
        return replace(self, seed=seed)

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case that an id names. Raises BadInput with the part that does not parse."""
        parts = text.strip().split(":")
        if len(parts) not in (10, 11):
            raise BadInput(
                f"case id {text!r}: expected operator:geometry:hN:qN,…:kN,…[:topN]:dtype:kind:layout:options:sN, "
                f"got {len(parts)} parts"
            )
        top = parts.pop(5) if len(parts) == 11 else "top0"
        operator, geometry, heads, q, k, dtype, kind, layout, options, seed = parts
        return cls(
            operator=operator,
            geometry=geometry,
            heads=_number(heads, "h", text),
            q_lens=_lengths(q, "q", text),
            k_lens=_lengths(k, "k", text),
            topk=_number(top, "top", text),
            dtype=dtype,
            kind=kind,
            layout=layout,
            options=() if options == "-" else tuple(sorted(options.split("+"))),
            seed=_number(seed, "s", text),
        )


def _spell(lengths: tuple[int, ...]) -> str:
    runs = [(length, len(list(run))) for length, run in groupby(lengths)]
    return ",".join(f"{count}x{length}" if count > 1 else f"{length}" for length, count in runs)


def _number(part: str, prefix: str, text: str) -> int:
    if not re.fullmatch(rf"{prefix}\d+", part, flags=re.ASCII):
        raise BadInput(f"case id {text!r}: expected {prefix}<number>, got {part!r}")
    number = int(part.removeprefix(prefix))
    if number > MOST:
        raise BadInput(f"case id {text!r}: expected at most {prefix}{MOST}, got {part!r}")
    return number


def _lengths(part: str, prefix: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(rf"{prefix}(\d+x)?\d+(,(\d+x)?\d+)*", part, flags=re.ASCII):
        raise BadInput(f"case id {text!r}: expected {prefix}<length>[,<length>…], got {part!r}")
    lengths: list[int] = []
    for item in part.removeprefix(prefix).split(","):
        count, _, length = item.rpartition("x")
        if int(count or 1) > MOST_REQUESTS or int(length) > MOST:
            most = f"{MOST_REQUESTS} requests of {MOST} tokens"
            raise BadInput(f"case id {text!r}: expected at most {most}, got {item!r}")
        lengths += [int(length)] * int(count or 1)
    return tuple(lengths)
