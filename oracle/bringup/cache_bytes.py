"""The caches as bytes: what a writer stores and what a reader makes of it, each judged by itself, bit by bit.

write_latent  kv_c, k_pe -> rows uint8 [t, width] of fp8_ds_mla        read_latent  rows -> [t, c + r]
write_index   index_k -> codes uint8 [t, e] and fp32 scales [t]        read_index   codes, scales -> [t, e]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ...reference.layouts import ScaleRule, block_scales, decode_e4m3, decode_mla_rows, encode_e4m3, encode_mla_rows
from ...reference.stages import Model

STAGES = ("write_latent", "read_latent", "write_index", "read_index")
#: Floors of vLLM's writers: of the scale of a latent row, of the largest key element.
LATENT, INDEX = ScaleRule("pow2", least_scale=1e-4), ScaleRule("pow2", least_amax=1e-4)
#: Below the floors of both, for values about 1.
SMALL = 2.0**-16
Outputs = tuple[Tensor, ...]


def names(m: Model) -> tuple[str, ...]:
    """The stages that a model's dims allow."""
    latent = STAGES[:2] if not m.latent % 4 and (m.latent <= 128 or not m.latent % 128) else ()
    return (*latent, *(STAGES[2:] if m.index_heads else ()))


def inputs(m: Model, known: Mapping[str, Tensor], stage: str) -> dict[str, Tensor]:
    """What a stage is given: bf16 values as an engine hands them on, or the bytes of the reference's writer."""
    kv_c, k_pe = _with_small(known["kv_c"]).bfloat16(), known["k_rotated"].bfloat16()
    if stage == "write_latent":
        return {"kv_c": kv_c, "k_pe": k_pe}
    if stage == "read_latent":
        return {"rows": encode_mla_rows(kv_c, k_pe, LATENT)}
    key = _with_small(known["index_k"]).bfloat16()
    if stage == "write_index":
        return {"index_k": key}
    codes, scales = _index(key, INDEX)
    return {"codes": codes, "scales": scales}


def _with_small(x: Tensor) -> Tensor:
    """Every third token so small that a floor decides its scale, and the last one zero."""
    sizes = torch.ones(len(x), dtype=x.dtype)
    sizes[::3], sizes[-1] = SMALL, 0.0
    return x * sizes[:, None]


def judge(m: Model, stage: str, given: Mapping[str, Any], outputs: Outputs) -> tuple[str, tuple[str, ...]]:
    """What is wrong, empty if nothing is, and the misreadings that give these very outputs."""
    wanted = _right(m, stage, given)
    if _same(outputs, wanted):
        return "", ()
    shapes = ", ".join(f"{each.dtype} {list(each.shape)}" for each in wanted)
    came = ", ".join(f"{each.dtype} {list(each.shape)}" for each in outputs)
    message = f"expected {shapes}, got {came}" if shapes != came else _first(outputs, wanted)
    wrong = ((told, make) for name, told, make in WRONG if name == stage)
    return message, tuple(told for told, make in wrong if _same(outputs, make(m, given)))


def _right(m: Model, stage: str, x: Mapping[str, Any]) -> Outputs:
    if stage == "write_latent":
        return (encode_mla_rows(x["kv_c"], x["k_pe"], LATENT),)
    if stage == "read_latent":
        return (decode_mla_rows(x["rows"], latent=m.latent),)
    if stage == "write_index":
        return _index(x["index_k"], INDEX)
    return (decode_e4m3(x["codes"]) * x["scales"][:, None],)


def _index(key: Tensor, rule: ScaleRule) -> Outputs:
    scales = block_scales(key, rule)
    return encode_e4m3(key.float() / scales[:, None]), scales


def _same(one: Outputs, other: Outputs) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(one, other, strict=True)
    )


def _first(outputs: Outputs, wanted: Outputs) -> str:
    for number, (one, other) in enumerate(zip(outputs, wanted, strict=True)):
        places = (one != other).nonzero()
        if len(places):
            index = tuple(int(each) for each in places[0])
            return (
                f"output {number}{list(index)} is {one[index].item()}, expected {other[index].item()}; "
                f"{len(places)} of {one.numel()} differ"
            )
    return "NaN where the reference has one"


def _fnuz(codes: Tensor) -> Tensor:
    """Bytes read as e4m3fnuz: another exponent bias, so half the value, and 0x80 is its NaN."""
    return codes.contiguous().view(torch.float8_e4m3fnuz).float()


def _rows_fnuz(m: Model, x: Mapping[str, Any]) -> Outputs:
    values = decode_mla_rows(x["rows"], latent=m.latent)
    as_fn, as_fnuz = decode_e4m3(x["rows"][:, : m.latent]), _fnuz(x["rows"][:, : m.latent])
    scale = torch.where(as_fn == 0, 1.0, values[:, : m.latent] / as_fn)
    return (torch.cat((as_fnuz * scale, values[:, m.latent :]), 1),)


def _floor_of(rule: ScaleRule) -> Callable[[Model, Mapping[str, Any]], Outputs]:
    return lambda m, x: _index(x["index_k"], rule)


#: (stage, what is wrong, what it then gives)
WRONG: tuple[tuple[str, str, Callable[[Model, Mapping[str, Any]], Outputs]], ...] = (
    ("write_latent", "the scales are amax / 448 and no powers of two (fp32-scales)",
     lambda m, x: (encode_mla_rows(x["kv_c"], x["k_pe"], ScaleRule("fp32", least_scale=1e-4)),)),
    ("write_latent", "the floor is 1e-4 on the largest value, not on the scale (floor-on-amax)",
     lambda m, x: (encode_mla_rows(x["kv_c"], x["k_pe"], ScaleRule("pow2", least_amax=1e-4)),)),
    ("read_latent", "the codes are read as FNUZ (read-as-fnuz)", _rows_fnuz),
    ("write_index", "the scales are amax / 448 and no powers of two (fp32-scales)", _floor_of(ScaleRule("fp32", 1e-4))),
    ("write_index", "the floor is 1e-4 on the scale, not on the largest value (floor-on-scale)",
     _floor_of(ScaleRule("pow2", least_scale=1e-4))),
    ("read_index", "the codes are read as FNUZ (read-as-fnuz)",
     lambda m, x: (_fnuz(x["codes"]) * x["scales"][:, None],)),
    ("read_index", "the scale divides instead of multiplying (inverse-scale)",
     lambda m, x: (decode_e4m3(x["codes"]) / x["scales"][:, None],)),
)  # fmt: skip
