"""The records of flashinfer-bench as plain ones, and both ways between them and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .reading import At

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "int64", "int32",
    "int16", "int8", "bool",
)  # fmt: skip
#: How a run ended; numerical errors are known for the first two, times for the first.
STATUSES = (
    "PASSED", "INCORRECT_NUMERICAL", "INCORRECT_SHAPE", "INCORRECT_DTYPE", "RUNTIME_ERROR", "COMPILE_ERROR", "TIMEOUT",
)  # fmt: skip
Scalar = bool | int | float


@dataclass(frozen=True, slots=True)
class Tensor:
    """Shape by names of axes, None for a scalar, and dtype."""

    shape: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What is computed."""

    name: str
    op_type: str
    axes: dict[str, int | None]
    """Size of a constant axis; None for one that each workload has its own of."""
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    reference: str
    """Python source with a function ``run``; shown, compared, and never executed here."""
    description: str = ""
    tags: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        axes = {
            name: {"type": "var"} if size is None else {"type": "const", "value": size}
            for name, size in self.axes.items()
        }
        found: dict[str, Any] = {"name": self.name, "op_type": self.op_type}
        found |= {"description": self.description} if self.description else {}
        found |= {"tags": list(self.tags)} if self.tags else {}
        found |= {"axes": axes}
        found |= {"constraints": list(self.constraints)} if self.constraints else {}
        for side, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            found[side] = {
                name: {"shape": None if one.shape is None else list(one.shape), "dtype": one.dtype}
                for name, one in tensors.items()
            }
        return found | {"reference": self.reference}

    @classmethod
    def parse(cls, at: At) -> Definition:
        """Raises BadInput with the field for what is no definition."""
        axes = {name: _axis(one) for name, one in at["axes"].items()}
        return cls(
            name=at["name"].text(),
            op_type=at["op_type"].text(),
            axes=axes,
            inputs={name: _tensor(one, axes) for name, one in at["inputs"].items()},
            outputs={name: _tensor(one, axes) for name, one in at["outputs"].items()},
            reference=at["reference"].text(),
            description=at["description"].text() if at.object().get("description") else "",
            tags=tuple(one.text() for one in at["tags"].elements()) if at.has("tags") else (),
            constraints=tuple(one.text() for one in at["constraints"].elements()) if at.has("constraints") else (),
        )


def _axis(at: At) -> int | None:
    return at["value"].integer(1) if at["type"].one_of(("const", "var")) == "const" else None


def _tensor(at: At, axes: dict[str, int | None]) -> Tensor:
    dtype = at["dtype"].one_of(DTYPES)
    if at["shape"].value is None:
        return Tensor(None, dtype)
    return Tensor(tuple(one.one_of(tuple(axes)) for one in at["shape"].elements()), dtype)


@dataclass(frozen=True, slots=True)
class Stored:
    """An input in a safetensors file, its path relative to the folder."""

    path: str
    key: str


#: Where an input comes from: a file, a value, or (None) numbers at random.
Source = Stored | Scalar | None


@dataclass(frozen=True, slots=True)
class Workload:
    """One call: sizes of the variable axes, and the inputs."""

    uuid: str
    axes: dict[str, int]
    inputs: dict[str, Source]

    def as_dict(self) -> dict[str, Any]:
        return {"uuid": self.uuid, "axes": self.axes, "inputs": {n: _source(one) for n, one in self.inputs.items()}}

    @classmethod
    def parse(cls, at: At) -> Workload:
        """Raises BadInput with the field for what is no workload."""
        return cls(
            uuid=at["uuid"].text(),
            axes={name: one.integer() for name, one in at["axes"].items()},
            inputs={name: _parsed_source(one) for name, one in at["inputs"].items()},
        )


def _source(source: Source) -> dict[str, Any]:
    if source is None:
        return {"type": "random"}
    if isinstance(source, Stored):
        return {"type": "safetensors", "path": source.path, "tensor_key": source.key}
    return {"type": "scalar", "value": source}


def _parsed_source(at: At) -> Source:
    kind = at["type"].one_of(("random", "scalar", "safetensors"))
    if kind == "safetensors":
        return Stored(at["path"].text(), at["tensor_key"].text())
    if kind == "random":
        return None
    value: Scalar = at["value"].value
    return value if isinstance(value, bool | int) else at["value"].number()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """How one run ended."""

    status: str
    log: str
    hardware: str
    libs: dict[str, str]
    timestamp: str
    """ISO 8601."""
    errors: tuple[float, float] | None = None
    """Largest relative and largest absolute error."""
    milliseconds: tuple[float, float] | None = field(default=None)
    """Of the implementation and of the reference."""

    def as_dict(self) -> dict[str, Any]:
        errors, times = self.errors, self.milliseconds
        return {
            "status": self.status,
            "environment": {"hardware": self.hardware, "libs": self.libs},
            "timestamp": self.timestamp,
            "log": self.log,
            "correctness": errors and {"max_relative_error": errors[0], "max_absolute_error": errors[1]},
            "performance": times
            and {"latency_ms": times[0], "reference_latency_ms": times[1], "speedup_factor": times[1] / times[0]},
        }

    @classmethod
    def parse(cls, at: At) -> Evaluation:
        """Raises BadInput with the field for what is no evaluation."""
        status, errors, times = at["status"].one_of(STATUSES), None, None
        if status in STATUSES[:2]:
            one = at["correctness"]
            errors = one["max_relative_error"].number(), one["max_absolute_error"].number()
        if status == STATUSES[0]:
            one = at["performance"]
            times = one["latency_ms"].number(), one["reference_latency_ms"].number()
            if times[0] <= 0.0:
                raise one["latency_ms"].bad("a time above 0")
        return cls(
            status=status,
            log=str(at.object().get("log", "")),
            hardware=at["environment"]["hardware"].text(),
            libs={name: one.text() for name, one in at["environment"]["libs"].items()},
            timestamp=at["timestamp"].text(),
            errors=errors,
            milliseconds=times,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload, and where there is a solution what came of it."""

    definition: str
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "definition": self.definition,
            "workload": self.workload.as_dict(),
            "solution": self.solution,
            "evaluation": self.evaluation and self.evaluation.as_dict(),
        }

    @classmethod
    def parse(cls, at: At) -> Trace:
        """Raises BadInput with the field for what is no trace."""
        at.only("definition", "workload", "solution", "evaluation")
        return cls(
            at["definition"].text(),
            Workload.parse(at["workload"]),
            at["solution"].text() if at.has("solution") else None,
            Evaluation.parse(at["evaluation"]) if at.has("evaluation") else None,
        )
