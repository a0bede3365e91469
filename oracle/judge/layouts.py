"""Judges of the layout operators: the reference's answer under the declared conventions, and the mistakes to name.

Every mistake is a reading: the reference on inputs changed as the mistake sees them, or its answer changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ... import reference
from ...optimized.contract import Contract
from ...reference.layouts import decode_ue8m0, encode_e4m3
from . import exact
from .exact import Outputs, Part, Reading
from .findings import Judgement
from .misreadings import named_pages, outside, planes_to_rows, rows_to_planes, scales_cut, scales_read
from .stored_nan import counting

Arguments = Mapping[str, Any]
#: What is compared, and the mistakes to name: (inputs, outputs, contract) to both.
Task = tuple[Sequence[Part], list[Reading]]
MakeTask = Callable[[Arguments, Outputs, Contract], Task]
SIDE_BY_SIDE = "codes and scale of a token lay side by side"
#: Floors of quantisers in use.
RULES: dict[str, dict[str, Any]] = {
    "scales were not raised to a power of two": {"scale_format": "fp32"},
    "scales were raised to a power of two": {"scale_format": "pow2"},
    "the floor were 1e-10 on the largest value": {"least_amax": 1e-10, "least_scale": 0.0},
    "the floor were 1e-4 on the largest value": {"least_amax": 1e-4, "least_scale": 0.0},
    "the floor were 1e-4 on the scale": {"least_amax": 0.0, "least_scale": 1e-4},
}


def _rules(a: Arguments, answer: Callable[..., Outputs]) -> list[Reading]:
    """Other rules of scales, as far as the operator knows them."""
    known = {name: {key: value for key, value in rule.items() if key in a} for name, rule in RULES.items()}

    def reading(name: str, rule: dict[str, Any]) -> Reading:
        return Reading(name, lambda: answer(**rule))

    def floored(rule: dict[str, Any]) -> bool:
        floors: dict[str, Any] = {"least_amax": 0.0, "least_scale": 0.0, **a, **rule}
        return bool(rule) and bool(floors["least_amax"] > 0 or floors["least_scale"] > 0)

    exponents = a["scale_format"] == "ue8m0"
    return [
        reading(name, rule)
        for name, rule in known.items()
        if floored(rule) and not (exponents and "scale_format" in rule)
    ]


def _quantize(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    expected: Outputs = reference.quantize(**a)
    blocks = a["x"].float().unflatten(1, (-1, a["block"]))
    scales = decode_ue8m0(expected[1]) if expected[1].dtype is torch.uint8 else expected[1]

    def by_reciprocal() -> Outputs:
        codes = encode_e4m3(blocks * (1.0 / scales)[..., None]).flatten(1)
        return codes.view(torch.float8_e4m3fn), expected[1]

    def fnuz() -> Outputs:
        codes = (blocks / scales[..., None]).clamp(-240.0, 240.0).to(torch.float8_e4m3fnuz).flatten(1)
        return codes.view(torch.uint8).view(torch.float8_e4m3fn), expected[1]

    def times(factor: float) -> Outputs:
        codes = encode_e4m3(blocks / (factor * scales)[..., None]).flatten(1).view(torch.float8_e4m3fn)
        moved = int(math.log2(factor))
        exponents = expected[1].dtype is torch.uint8
        return codes, (expected[1] + moved).to(torch.uint8) if exponents else expected[1] * factor

    if contract.scale_quotient == "reciprocal":
        expected = by_reciprocal()
    finite = torch.isfinite(blocks).all(-1) if contract.nonfinite == "undefined" else None
    parts = (
        Part(
            "codes",
            expected[0],
            outputs[0].view(torch.float8_e4m3fn),
            ("rows", "columns"),
            None if finite is None else finite.repeat_interleave(a["block"], 1),
        ),
        Part("scales", expected[1], outputs[1], ("rows", "blocks"), finite),
    )
    readings = [
        Reading("all were zero", lambda: exact.zeros(expected), True),
        Reading("values were multiplied by 1 / scale", by_reciprocal),
        Reading("codes were those of the FNUZ format", fnuz),
        Reading("scales were twice as large", lambda: times(2.0)),
        Reading("scales were half as large", lambda: times(0.5)),
        *_rules(a, lambda **rule: reference.quantize(**{**a, **rule})),
    ]
    if len(a["x"]) > 1:
        readings.append(Reading("each row were the one before", lambda: exact.roll(expected), True))
    return parts, readings


def _write_cache(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    size = a["cache"].shape[1]
    return _written(a, "cache", size, outputs[0], ("pages", "places", "elements"), reference.write_cache)


def _write_index(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    size = a["pages"].shape[1] // (a["k"].shape[1] + 4)
    return _written(a, "pages", size, outputs[0], ("pages", "bytes"), reference.write_index)


def _written(
    a: Arguments,
    name: str,
    size: int,
    observed: Tensor,
    axes: tuple[str, ...],
    write: Callable[..., tuple[()]],
) -> Task:
    """``observed`` is the last part of the cache ``name``; what lies before it is no memory and nobody's slot."""
    first = len(a[name]) - len(observed)
    before, slots = a[name][first:], a["slots"] - first * size

    def after(target: Tensor = before, **changes: Any) -> Outputs:
        target = target.clone()
        write(**{**a, name: target, "slots": slots, **changes})
        return (target,)

    def as_rows() -> Outputs:
        e = a["k"].shape[1]
        return (planes_to_rows(after(rows_to_planes(before, e))[0], e),)

    (expected,) = after()
    rows = len(before) * size
    own = (slots >= 0) & (slots < rows)
    readings = [
        Reading("every slot were the next one", lambda: after(slots=torch.where(own, slots + 1, slots))),
        Reading("padding were written to the first slot", lambda: after(slots=torch.where(slots < 0, 0, slots))),
        Reading("padding were written to the last slot", lambda: after(slots=torch.where(slots < 0, rows - 1, slots))),
        *_rules(a, after),
    ]
    if name == "pages":
        readings.append(Reading(SIDE_BY_SIDE, as_rows))
    if bool(own.any()):
        readings.append(Reading("nothing was written", lambda: (before,), True))
    written = torch.zeros(rows, dtype=torch.bool, device=observed.device)
    written[slots[own].long()] = True
    return (Part(name, expected, observed, axes, counting(a, expected, observed, written)),), readings


def _gather(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    return _read(a, "cache", outputs, contract, reference.gather, {"rows": ("tokens", "columns")})


def _gather_index(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    axes = {"k": ("tokens", "columns"), "k_scale": ("tokens",)}
    return _read(a, "pages", outputs, contract, reference.gather_index, axes)


def _read(
    a: Arguments,
    name: str,
    outputs: Outputs,
    contract: Contract,
    read: Callable[..., Outputs],
    axes: Mapping[str, tuple[str, ...]],
) -> Task:
    cache, table = named_pages(a[name], a["block_table"])
    a = {**a, name: cache, "block_table": table}
    a[name] = scales_read(a, name, contract.scale_read)
    blocks, missing = len(cache), outside(table, len(cache))

    def answer(**changes: Any) -> Outputs:
        return read(**{**a, **changes})

    expected = answer()
    counts = None
    if contract.invalid_index == "undefined":
        counts = ~_without_place(a, cache.shape[1] if name == "cache" else cache.shape[1] // (a["e"] + 4))
    parts = [
        Part(label, right, seen.view(right.dtype), places, _against(counts, right))
        for (label, places), right, seen in zip(axes.items(), expected, outputs, strict=True)
    ]
    readings = [
        Reading("all were zero", lambda: exact.zeros(expected), True),
        Reading("stored scales were read by their exponent", lambda: answer(**{name: scales_cut(a, name)})),
        Reading("every chunk began at position 0", lambda: answer(starts=torch.zeros_like(a["starts"]))),
        Reading("a missing page were page 0", lambda: answer(block_table=torch.where(missing, 0, table))),
        Reading("a missing page were the last", lambda: answer(block_table=torch.where(missing, blocks - 1, table))),
        Reading("every request had the pages of the first", lambda: answer(block_table=table[:1].expand_as(table))),
    ]
    if name == "pages":
        readings.append(Reading(SIDE_BY_SIDE, lambda: answer(pages=rows_to_planes(cache, a["e"]))))
    elif a["cache_format"] == "fp8_e4m3":
        readings.append(Reading("k_scale were 1", lambda: answer(k_scale=1.0)))
    if len(parts[0].expected) > 1:
        readings.append(Reading("each row were the one before", lambda: exact.roll(expected), True))
    return parts, readings


def _without_place(a: Arguments, size: int) -> Tensor:
    """Gathered tokens [t] that have no place in the cache."""
    table: Tensor = a["block_table"]
    cu: Tensor = a["cu_k"].long()
    token = torch.arange(a["tokens"], device=table.device)
    request = torch.searchsorted(cu[1:].contiguous(), token, right=True)
    column: Tensor = (token - cu[request] + a["starts"].long()[request]) // size
    reached = column < table.shape[1]
    cache = a["cache"] if "cache" in a else a["pages"]
    return ~reached | outside(table, len(cache))[request, torch.where(reached, column, 0)]


def _against(rows: Tensor | None, output: Tensor) -> Tensor | None:
    return None if rows is None else rows.view(-1, *[1] * (output.dim() - 1))


def _convert_indices(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    def answer(**changes: Any) -> Outputs:
        return _ordered(reference.convert_indices(**{**a, **changes}), contract, a["compact"])

    expected, observed = answer(), _ordered(outputs, contract, a["compact"])
    parts = (
        Part("physical", expected[0], observed[0], ("queries", "slots")),
        Part("counts", expected[1], observed[1], ("queries",)),
    )
    table, rows, local = a["block_table"], expected[0], a["indices"]
    readings = [
        Reading("nothing was valid", lambda: (torch.full_like(rows, -1), torch.zeros_like(expected[1])), True),
        Reading("positions were rows already", lambda: (local, expected[1]), True),
        Reading("-1 became 0", lambda: (torch.where(rows < 0, 0, rows), expected[1])),
        Reading("every request had the pages of the first", lambda: answer(requests=torch.zeros_like(a["requests"]))),
        Reading("pages lay as close as they are long", lambda: answer(page_rows=a["block_size"])),
        Reading("entries were not compacted", lambda: answer(compact=False)),
        Reading("a missing page were page 0", lambda: answer(
            block_table=torch.where(outside(table, a["blocks"]), 0, table))),
    ]  # fmt: skip
    if not bool((expected[1] > 0).any()):
        readings = [reading for reading in readings if not reading.plain]
    return parts, readings


def _ordered(outputs: Outputs, contract: Contract, compact: bool) -> Outputs:
    """Valid entries in ascending order where the contract leaves the order of compacted ones open."""
    if not compact or contract.compaction == "stable":
        return outputs
    key = torch.where(outputs[0] < 0, 2**31 - 1, outputs[0])
    valid = torch.arange(key.shape[1], device=key.device) < outputs[1][:, None]
    ordered = torch.where(valid, key, 2**31 - 1).sort(1).values
    return torch.where(valid, ordered, outputs[0]).to(torch.int32), outputs[1]


def _build_mask(a: Arguments, outputs: Outputs, contract: Contract) -> Task:
    def answer(**changes: Any) -> Outputs:
        return reference.build_mask(**{**a, **changes})

    (expected,) = answer()
    counts = _rest(a, expected) if contract.mask_rest == "undefined" else None
    zero = torch.zeros_like(a["starts"])
    readings = [
        Reading("no bit was set", lambda: (torch.zeros_like(expected),), True),
        Reading("each row were the one before", lambda: (expected.roll(1, 1),), True),
        Reading("chunks began at position 0", lambda: answer(starts=zero)),
        Reading("key starts were forgotten", lambda: answer(key_starts=None)),
        Reading("bits ran from the highest to the lowest", lambda: (_reversed(expected),)),
    ]
    if not bool((expected != 0).any()):
        readings = [reading for reading in readings if not reading.plain]
    return (Part("mask", expected, outputs[0], ("requests", "rows", "words"), counts),), readings


def _rest(a: Arguments, mask: Tensor) -> Tensor:
    """Rows of queries and words of keys, bool [b, rows, words], and the word of key starts."""
    queries = (a["cu_q"][1:] - a["cu_q"][:-1])[:, None, None]
    words = torch.arange(mask.shape[2], device=mask.device)
    rows = torch.arange(mask.shape[1], device=mask.device)[:, None]
    inside: Tensor = (rows < queries) & (words * 32 < a["lengths"][:, None, None])
    if a.get("key_starts") is not None:
        inside = inside | ((rows == 0) & (words == mask.shape[2] - 1))
    return inside


def _reversed(mask: Tensor) -> Tensor:
    bits = (mask[..., None] >> torch.arange(32, device=mask.device, dtype=torch.int32)) & 1
    weights = torch.arange(31, -1, -1, device=mask.device)
    packed = (bits.long() << weights).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


TASKS: dict[str, MakeTask] = {
    "quantize": _quantize,
    "write_cache": _write_cache,
    "write_index": _write_index,
    "gather": _gather,
    "gather_index": _gather_index,
    "convert_indices": _convert_indices,
    "build_mask": _build_mask,
}


def judge_of(name: str) -> Callable[[Arguments, Outputs, Contract, bool], Judgement]:
    """The judge of a layout operator."""
    task = TASKS[name]
    return lambda a, outputs, contract, power: exact.judge(*task(a, outputs, contract), power=power)
