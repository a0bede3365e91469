"""From what was asked to the cases that are timed: batches, sweeps and grids from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from ...fixtures import PATH
from ...oracle.case import Case
from ...oracle.config import load
from ...oracle.errors import BadInput, unknown
from ...oracle.inputs import OPTIONS
from ...oracle.operators import operator
from ...oracle.routes.grammar import parse_batch
from ...oracle.toml_file import read_toml

#: The pattern that a case has without naming one.
DEFAULT_PATTERN = "causal-random"
#: Fields of a grid, and of ``--sweep``: everything that a case is made from.
FIELDS = ("operator", "geometry", "batch", "heads", "topk", "pattern", "dtype", "kind", "seed")
_NUMBERS = ("heads", "topk", "seed")
_SELECTS = ("masked_mha", "sparse_mqa", "topk_select")
_SHIPPED = PATH / "benchmarks"


@dataclass(frozen=True, slots=True)
class Setting:
    """One shape as a person writes it; zeros and empty texts are filled in from the geometry."""

    operator: str = "sparse_mqa"
    geometry: str = "deepseek-v3.2"
    batch: str = "q1k"
    heads: int = 0
    """Of this rank; 0: all of the model's (of the indexer's, for the indexer)."""
    topk: int = 0
    """0: the model's, where the operator selects."""
    pattern: str = DEFAULT_PATTERN
    dtype: str = ""
    """Empty: e4m3 for the indexer, else bf16."""
    kind: str = "randn"
    seed: int = 0

    def case(self) -> Case:
        """The case to check and to time. Raises BadInput for what cannot be."""
        operator(self.operator)
        geometry, batch = load(self.geometry), parse_batch(self.batch)
        indexer = self.operator == "indexer_scores"
        return Case(
            operator=self.operator,
            geometry=self.geometry,
            heads=self.heads or (geometry.index_n_heads or 1 if indexer else self._heads(geometry.heads)),
            q_lens=tuple(request.query_len for request in batch.requests),
            k_lens=tuple(request.seq_len for request in batch.requests),
            topk=(self.topk or geometry.index_topk) if self.operator in _SELECTS else 0,
            dtype=self.dtype or ("e4m3" if indexer else "bf16"),
            kind=self.kind,
            options=self._options(),
            seed=self.seed,
        )

    def _heads(self, all_heads: int) -> int:
        return 1 if self.operator == "topk_select" else all_heads

    def _options(self) -> tuple[str, ...]:
        if self.pattern == DEFAULT_PATTERN:
            return ()
        if self.pattern not in OPTIONS[self.operator]:
            raise unknown(f"pattern of {self.operator}", self.pattern, (*OPTIONS[self.operator], DEFAULT_PATTERN))
        return (self.pattern,)


def swept(base: Setting, sweeps: Sequence[str]) -> list[Setting]:
    """Every combination of ``field=a,b,c`` texts over ``base``. Raises BadInput naming the text."""
    axes: dict[str, list[Any]] = {}
    for text in sweeps:
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise BadInput(f"--sweep {text!r}: expected field=value,value such as heads=64,32,16,8")
        if name in axes:
            raise BadInput(f"--sweep {text!r}: {name} is swept twice; put all its values into one option")
        axes[name] = [_value(name, value.strip(), f"--sweep {text!r}") for value in values.split(",")]
    return [replace(base, **dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def grids(name: str) -> list[Setting]:
    """The settings of a shipped grid or of a TOML file: tables ``[[grid]]`` whose fields may be lists.

    Raises BadInput for a file or name that is not there, and for a field that is none.
    """
    path = Path(name) if name.endswith(".toml") else _SHIPPED / f"{name}.toml"
    if not path.is_file():
        if name.endswith(".toml"):
            raise BadInput(f"--config {name}: expected a file, found none")
        raise unknown("grid", name, shipped())
    rows = read_toml(path, f"--config {path.name}").get("grid")
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"--config {path.name}: expected at least one table [[grid]], found none")
    return [setting for number, row in enumerate(rows, 1) for setting in _grid(row, f"{path.name}, grid {number}")]


def shipped() -> tuple[str, ...]:
    """Names of the grids that come along."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def _grid(row: Mapping[str, Any], where: str) -> list[Setting]:
    axes = {
        name: [_value(name, value, where) for value in (values if isinstance(values, list) else [values])]
        for name, values in row.items()
        if name != "why"
    }
    return [Setting(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


def _value(name: str, value: Any, where: str) -> Any:
    if name not in FIELDS:
        raise BadInput(f"{where}: {unknown('field', name, FIELDS)}")
    if name not in _NUMBERS:
        return str(value)
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()):
        raise BadInput(f"{where}, field {name}: expected a whole number of at least 0, got {value!r}")
    return int(text)
