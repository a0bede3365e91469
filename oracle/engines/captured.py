"""Real operator calls as files: inputs and the engine's own answer, bounded in size, and judged as any kernel is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...optimized.contract import Contract
from ..errors import BadInput
from ..judge.findings import Judgement
from ..operators import operator

SCHEMA = "attnoracle.captured/1"


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """One call of an operator: its inputs by keyword, and what came out."""

    operator: str
    inputs: Mapping[str, Any]
    outputs: tuple[Tensor, ...]
    origin: Mapping[str, str]
    """Layer, step, engine: where it was seen."""

    @property
    def bytes(self) -> int:
        tensors = [x for x in (*self.inputs.values(), *self.outputs) if isinstance(x, Tensor)]
        return sum(x.numel() * x.element_size() for x in tensors)


def sparse_call(
    q: Tensor, kv: Tensor, slots: Tensor, out: Tensor, lse: Tensor | None, *, scale: float, rank: int, queries: int
) -> tuple[dict[str, Any], tuple[Tensor, ...]]:
    """Inputs and outputs of the first ``queries`` queries of a sparse MQA call, and only the cache rows that they name.

    q [s, h, c+r], kv [n, c+r] rows of the cache, slots int [s, k] physical rows (negative: none), out [s, h, c], lse
    [s, h] in natural log. Everything is copied.
    """
    q, slots, out = q[:queries].detach(), slots[:queries], out[:queries].detach()
    valid = (slots >= 0) & (slots < len(kv))
    rows, place = torch.unique(slots[valid], return_inverse=True)
    indices = torch.full(slots.shape, -1, dtype=torch.int32, device=slots.device)
    indices[valid] = place.to(torch.int32)
    inputs = {"q": q, "kv": kv[rows.long()].detach(), "indices": indices}
    copied = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in inputs.items()}
    outputs = [out, *([] if lse is None else [lse[:queries].detach().float()])]
    return {**copied, "scale": scale, "value_dim": rank}, tuple(x.to("cpu", copy=True).contiguous() for x in outputs)


def save(one: Captured, path: Path) -> None:
    """Write a safetensors file; plain inputs, operator and origin are in its header."""
    from safetensors.torch import save_file

    tensors = {f"input.{name}": x for name, x in one.inputs.items() if isinstance(x, Tensor)}
    tensors |= {f"output.{place}": x for place, x in enumerate(one.outputs)}
    plain = {f"input.{name}": repr(x) for name, x in one.inputs.items() if not isinstance(x, Tensor)}
    origin = {f"origin.{name}": x for name, x in one.origin.items()}
    save_file(tensors, str(path), {"schema": SCHEMA, "operator": one.operator, **plain, **origin})


def load(path: Path) -> Captured:
    """Raises BadInput for a file that is no captured call."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise BadInput(f"{path}: expected a safetensors file of a captured call, {error}") from error
    if header.get("schema") != SCHEMA:
        raise BadInput(f"{path}: expected a captured call ({SCHEMA}), got {header.get('schema', 'no schema')!r}")
    inputs: dict[str, Any] = {
        name.removeprefix("input."): float(text) if "." in text or "e" in text else int(text)
        for name, text in header.items()
        if name.startswith("input.")
    }
    inputs |= {name.removeprefix("input."): x for name, x in tensors.items() if name.startswith("input.")}
    outputs = tuple(tensors[name] for name in sorted(tensors) if name.startswith("output."))
    origin = {name.removeprefix("origin."): x for name, x in header.items() if name.startswith("origin.")}
    return Captured(header["operator"], inputs, outputs, origin)


def judge(one: Captured, contract: Contract | None = None) -> Judgement:
    """The engine's answer against the reference in fp64, by what the contract (a kernel's of its dtype) allows.

    The input-power check runs too: ``survivors`` of the judgement names wrong answers that this call could not tell.
    """
    return operator(one.operator).judge(one.inputs, one.outputs, contract or Contract(), True)
