"""Workloads of a folder as jobs: read, compared with their definitions, and made into calls of an operator."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..case import Case
from ..check import drawn
from ..config import load, names
from ..errors import BadInput
from ..geometry import Geometry
from ..inputs import DTYPES, Inputs
from ..inputs.arena import Arena
from . import records
from .folder import CASE, NAMES, axes
from .forms import FORMS, Form, Values
from .reading import At, document, lines
from .records import Definition, Stored, Trace, Workload


@dataclass(frozen=True, slots=True)
class Job:
    """A workload, ready to be judged."""

    definition: Definition
    workload: Workload
    form: Form
    case: Case
    """The case that was written, or one that names the sizes of a workload from elsewhere."""
    call: dict[str, Any]
    """Keywords of the reference."""
    ours: bool
    """Whether the case stands for these very values, so that its id runs them again."""

    def draw(self, case: Case, device: str) -> Inputs:
        """The inputs of the workload, anew; ``check`` asks for them."""
        if self.ours:
            return drawn(self.case, device)
        arena = Arena("contiguous", device)
        for name, value in self.call.items():
            if isinstance(value, Tensor):
                arena.place(name, value.to(arena.device))
        tensors = {name: guarded.tensor for name, guarded in arena.tensors.items()}
        options: dict[str, object] = {n: value for n, value in self.call.items() if not isinstance(value, Tensor)}
        return Inputs(self.case, load(self.case.geometry), tensors, options, arena)


def jobs(folder: Path) -> Iterator[Job]:
    """Every workload of the folder. Raises BadInput with file, line and field for what is not as it should be."""
    definitions: dict[str, tuple[Definition, Path]] = {}
    for path in sorted((folder / "definitions").rglob("*.json")):
        one = Definition.parse(document(path))
        if one.name in definitions:
            raise BadInput(f"{path}: name: {one.name} is the name of {definitions[one.name][1]} too; rename one")
        definitions[one.name] = one, path
    files = sorted((folder / "workloads").rglob("*.jsonl"))
    if not definitions or not files:
        raise BadInput(
            f"{folder}: expected definitions/**/*.json and workloads/**/*.jsonl in it; write cases with --case"
        )
    for path in files:
        for at in lines(path):
            trace = Trace.parse(at)
            if trace.definition not in definitions:
                raise at["definition"].bad(f"the name of a definition, one of {', '.join(sorted(definitions))}")
            yield _job(folder, *definitions[trace.definition], trace.workload, at["workload"])


def _job(folder: Path, definition: Definition, path: Path, workload: Workload, at: At) -> Job:
    form = next((one for one in FORMS if _is(one, definition)), None)
    if form is None:
        known = ", ".join(dict.fromkeys(one.op_type for one in FORMS))
        raise BadInput(
            f"{path}: op_type: expected one of {known}, with the inputs of such a type, got {definition.op_type}"
        )
    sizes: dict[str, int] = dict(workload.axes)
    for axis, size in definition.axes.items():
        if size is not None:
            sizes[axis] = size
        elif axis not in sizes:
            raise at["axes"][axis].bad("a size")
    values: Values = {}
    written = ""
    for name, tensor in definition.inputs.items():
        if name not in workload.inputs:
            raise at["inputs"][name].bad("its source")
        where, source = at["inputs"][name], workload.inputs[name]
        if tensor.shape is None:
            if source is None or isinstance(source, Stored):
                raise where["type"].bad("scalar, as the definition has it")
            values[name] = source
            continue
        shape, dtype = tuple(sizes[axis] for axis in tensor.shape), getattr(torch, tensor.dtype, None)
        if dtype is None:
            raise BadInput(f"{path}: inputs.{name}.dtype: {tensor.dtype} is no format of this torch")
        if isinstance(source, Stored):
            values[name], written = _stored(folder, source, where)
        elif source is None and dtype.is_floating_point:
            generator = torch.Generator().manual_seed(zlib.crc32(f"{workload.uuid}:{name}".encode()))
            values[name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            raise where["type"].bad("safetensors: whole numbers at random would be no indices or bounds")
        found = values[name]
        assert isinstance(found, Tensor)
        if tuple(found.shape) != shape or found.dtype is not dtype:
            raise where.bad(f"{tensor.dtype} {list(shape)}, and it is {NAMES.get(found.dtype)} {list(found.shape)}")
    return _ready(definition, workload, form, values, written, at)


def _is(form: Form, definition: Definition) -> bool:
    """Whether the definition is of the form: its type, all inputs and outputs known under these axes."""
    tensors = {
        name: one.shape for name, one in (definition.inputs | definition.outputs).items() if one.shape is not None
    }
    if form.op_type != definition.op_type or set(form.outputs) != set(definition.outputs):
        return False
    return all(name in form.axes and shape == axes(form, name) for name, shape in tensors.items())


def _stored(folder: Path, source: Stored, at: At) -> tuple[Tensor, str]:
    path = (folder / source.path).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise at["path"].bad("a file inside the folder")
    try:
        with safe_open(path, framework="pt") as file:
            if source.key not in file.keys():  # noqa: SIM118 (it is no mapping)
                raise at["tensor_key"].bad(f"one of {', '.join(file.keys())}")
            return file.get_tensor(source.key), (file.metadata() or {}).get(CASE, "")
    except (OSError, SafetensorError) as error:
        raise at["path"].bad(f"a safetensors file ({error})") from None


def _ready(definition: Definition, workload: Workload, form: Form, values: Values, written: str, at: At) -> Job:
    try:
        call = form.ours(values)
    except (KeyError, RuntimeError) as error:
        raise at["inputs"].bad(f"the inputs of {form.op_type} ({error})") from None
    case = _written(written, form, values)
    ours = case is not None
    return Job(definition, workload, form, case or _named(form, call, definition, workload), call, ours)


def _written(id_: str, form: Form, values: Values) -> Case | None:
    """The case whose id stands in the tensor file, if it stands for these very values."""
    try:
        case = Case.parse(id_)
        again = form.theirs(drawn(case, "cpu").kwargs()) if case.operator == form.operator else None
    except BadInput:
        return None
    if again is None or set(again) != set(values):
        return None
    return case if all(_same(again[name], values[name]) for name in values) else None


def _same(a: Tensor | records.Scalar, b: Tensor | records.Scalar) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


def _named(form: Form, call: dict[str, Any], definition: Definition, workload: Workload) -> Case:
    """A case of the sizes of a call: what implementations are asked about. Its tensors are the workload's."""
    first: Tensor = call[next(name for name in ("q", "out_a", "scores") if name in call)]
    queries = (len(first),)
    keys = (
        len(call["kv"]) if "kv" in call else len(call["k"]) if "k" in call and isinstance(call["k"], Tensor) else 0,
    )
    if "cu_q" in call:
        queries, keys = (tuple(b - a for a, b in pairwise(call[cu].tolist())) for cu in ("cu_q", "cu_k"))
    elif form.operator == "topk_select":
        keys = (first.shape[1],)
    elif form.operator == "merge_lse":
        keys = queries
    dtype = next((short for short, one in DTYPES.items() if one is first.dtype), "fp32")
    return Case(
        operator=form.operator,
        geometry=_geometry(form.operator, call, definition),
        heads=first.shape[1] if first.dim() == 3 else 1,
        q_lens=queries,
        k_lens=keys,
        topk=call["indices"].shape[1]
        if "indices" in call
        else int(call.get("k", 0))
        if form.operator == "topk_select"
        else 0,
        dtype=dtype,
        options=tuple(sorted({"lengths", "sink"} & set(call))),
        seed=zlib.crc32(workload.uuid.encode()) & 0x7FFFFFFF,
    )


def _geometry(operator: str, call: dict[str, Any], definition: Definition) -> str:
    """A model with these dims. Raises BadInput where none is known."""
    found = next((name for name in names() if _of(load(name), operator, call)), None)
    if found is None:
        told = f"definition {definition.name}: no model with its dims is known; name one with --geometry config.json"
        raise BadInput(told)
    return found


def _of(one: Geometry, operator: str, call: dict[str, Any]) -> bool:
    if operator in ("dense_mha", "masked_mha"):
        return (int(call["q"].shape[-1]), int(call["v"].shape[-1])) == (one.qk_head_dim, one.v_head_dim)
    if operator == "sparse_mqa":
        return (int(call["q"].shape[-1]), int(call["value_dim"])) == (one.latent_dim, one.kv_lora_rank)
    if operator == "indexer_scores":
        return int(call["q"].shape[-1]) == one.index_head_dim
    if operator == "merge_lse":
        return int(call["out_a"].shape[-1]) in (one.v_head_dim, one.kv_lora_rank)
    return one.index_head_dim is not None
