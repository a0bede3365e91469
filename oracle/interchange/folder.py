"""Cases written into a folder: definitions, workloads, tensors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...optimized.contract import Contract
from ..case import Case
from ..check import drawn
from ..errors import BadInput
from ..inputs import DTYPES
from ..operators import operator as operator_named
from . import records
from .forms import FORMS, SHORT, SIZES, Form, Values
from .reading import lines
from .records import Definition, Source, Stored, Trace, Workload

#: Key of a tensor file's metadata that holds the id of the case whose tensors these are.
CASE = "attnoracle.case"
#: What a definition says a number, a truth value or a whole number is.
_SCALARS: dict[type, str] = {bool: "bool", int: "int64", float: "float32"}
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in (*DTYPES.values(), torch.int32, torch.int64)}


def write(folder: Path, cases: Iterable[Case]) -> list[Trace]:
    """Write definitions, workloads and tensors of cases; a workload that is there already stays as it is.

    Raises BadInput for a case that the format cannot hold: quantised caches and pages, which are bytes.
    """
    written = []
    for case in cases:
        form, values, call = _spelt(case)
        found = _definition(form, values, call, case)
        name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"attnoracle:{case.id}"))
        path = Path("blob") / "workloads" / form.op_type / found.name / f"{name}.safetensors"
        tensors = {one: value.contiguous() for one, value in values.items() if isinstance(value, Tensor)}
        sources: dict[str, Source] = {
            one: Stored(path.as_posix(), one) if isinstance(value, Tensor) else value for one, value in values.items()
        }
        variable = {axis: size for axis, size in _sizes(form, values).items() if axis == axis.lower()}
        trace = Trace(found.name, Workload(name, variable, sources))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / path, metadata={CASE: case.id})
        target = folder / "definitions" / form.op_type / f"{found.name}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(found.as_dict(), indent=2) + "\n", encoding="utf-8")
        add(folder / "workloads" / form.op_type / f"{found.name}.jsonl", [trace])
        written.append(trace)
    return written


def add(path: Path, traces: Iterable[Trace]) -> None:
    """Append the traces that the file does not hold, by workload and solution. Raises BadInput for what is none."""
    there = {(one.workload.uuid, one.solution) for one in map(Trace.parse, lines(path))} if path.exists() else set()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for one in traces:
            if (one.workload.uuid, one.solution) not in there:
                file.write(json.dumps(one.as_dict(), allow_nan=False) + "\n")


def _spelt(case: Case) -> tuple[Form, Values, dict[str, Any]]:
    call: dict[str, Any] = drawn(case, "cpu").kwargs()
    for form in FORMS:
        values = form.theirs(call) if form.operator == case.operator else None
        if values is not None:
            return form, values, call
    raise BadInput(f"{case.id}: the format has no words for this call: expected tensors of numbers and plain scalars")


def _definition(form: Form, values: Values, call: dict[str, Any], case: Case) -> Definition:
    sizes = _sizes(form, values)
    option = SIZES.get(form.operator)
    if option and option[0] not in sizes:
        sizes[option[0]] = call[option[1]]
    one = operator_named(form.operator)
    dtypes = [allowed[0] for allowed in one.dtypes(call, Contract())]
    inputs = {
        name: records.Tensor(axes(form, name), NAMES[value.dtype])
        if isinstance(value, Tensor)
        else records.Tensor(None, _SCALARS[type(value)])
        for name, value in values.items()
    }
    used = {axis for name in (*inputs, *form.outputs) if name in form.axes for axis in form.axes[name].split()}
    sizes = {axis: size for axis, size in sizes.items() if axis in used}
    constant = "_".join(f"{SHORT[axis]}{size}" for axis, size in sizes.items() if axis == axis.upper())
    # A definition is what its name says: other optional inputs and other formats are other definitions.
    optional = "".join(f"_{name}" for name in ("lengths", "sink", "q_scale") if name in inputs)
    return Definition(
        name=f"{form.prefix}_{constant}_{case.dtype}{optional}",
        op_type=form.op_type,
        axes={axis.lower(): size if axis == axis.upper() else None for axis, size in sizes.items()},
        inputs=inputs,
        outputs={
            name: records.Tensor(axes(form, name), NAMES[dtype])
            for name, dtype in zip(form.outputs, dtypes, strict=True)
        },
        reference=form.reference(tuple(inputs)),
        description=_meaning(form.operator),
        tags=("status:draft", f"model:{case.geometry}"),
    )


def _meaning(operator: str) -> str:
    """First sentence of the reference's docstring."""
    from importlib import import_module

    module = import_module(f"...reference.{operator}", __package__)
    return " ".join((module.__doc__ or "").split("\n\n")[0].split())


def axes(form: Form, name: str) -> tuple[str, ...]:
    return tuple(axis.lower() for axis in form.axes[name].split())


def _sizes(form: Form, values: Values) -> dict[str, int]:
    """Size of every axis of the inputs, in the order in which they come."""
    return {
        axis: size
        for name, value in values.items()
        if isinstance(value, Tensor)
        for axis, size in zip(form.axes[name].split(), value.shape, strict=True)
    }
