"""Loads dated routing rules from ``fixtures/policies``: one file a version, each a difference to the one before.

A file names the version it is based on; its tables (``[flags]``, ``[aliases]``, ``[mask_workspace]``) override single
keys, and its rows (``[[thresholds]]``, ``[[tables]]``, ``[[gates]]``) replace the row of the same key or add one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from ..fixtures import PATH
from ..reference.routing import Gate, Interval, MaskWorkspace, Rules, TableKey, TableRow, Threshold, interval_fault
from .errors import BadInput, unknown
from .toml_file import read_toml

POLICIES = PATH / "policies"
_TOP = {"name", "date", "source", "based_on", "flags", "aliases", "mask_workspace", "thresholds", "tables", "gates"}
_FLAGS: Mapping[str, type] = {
    "dense_prefill": bool,
    "dense_excludes_pcp_with_dcp": bool,
    "capability_reads_layer": bool,
    "layer_supports_dense": bool,
    "fused_runs_mha": bool,
    "indexer_skip": bool,
    "fused_binds_skip": bool,
    "context_rows_floor": str,
}
#: Collects rows that appear twice, and lets intervals be as they are; None: both are refused.
_Faults = list[tuple[str, str]] | None
_FLOORS = ("block_size", "max_num_seqs*block_size")


def rule_versions() -> tuple[str, ...]:
    """Names of the shipped versions, oldest first."""
    return tuple(sorted((path.stem for path in POLICIES.glob("*.toml")), key=lambda name: (_depth(name), name)))


def _depth(name: str) -> int:
    parent = _parse(POLICIES / f"{name}.toml").get("based_on")
    return 0 if parent is None else 1 + _depth(parent)


@cache
def load_rules(name: str) -> Rules:
    """The shipped rules of a version, such as ``vllm-0.33``. Raises BadInput naming the nearest known versions."""
    path = POLICIES / f"{name}.toml"
    if not path.is_file():
        raise unknown("rule version", name, [path.stem for path in POLICIES.glob("*.toml")])
    return read_rules(path)


def read_rules(path: Path, *, faults: list[tuple[str, str]] | None = None) -> Rules:
    """Rules from a file; ``based_on`` is looked up beside it, then among the shipped ones.

    Raises BadInput with file and row for unknown keys, wrong types, rows that appear twice, and intervals that are
    unsorted, contradict each other or can never hold. With ``faults``, for an audit, such rows and intervals are loaded
    all the same: of a row that appears twice the first counts and the second is appended as (row, what is wrong).
    """
    merged = _merge_chain(path, (), faults)
    try:
        return Rules(**merged)
    except TypeError as error:
        raise BadInput(f"{path}: incomplete rules, {error}") from error


def own_tables(path: Path) -> frozenset[TableKey]:
    """Keys of the table rows that a file has itself, not from ``based_on``. Raises BadInput as ``read_rules``."""
    rows = _parse(path).get("tables", [])
    return frozenset(_rows(path, "tables", rows, partial(_table, faults=[]), []))


def _merge_chain(path: Path, seen: tuple[Path, ...], faults: _Faults) -> dict[str, Any]:
    if path in seen:
        raise BadInput(f"{path}: expected an end to the chain of based_on, got a circle")
    data = _parse(path)
    base: dict[str, Any] = {}
    if "based_on" in data:
        parent = path.with_name(f"{data['based_on']}.toml")
        if not parent.is_file():
            parent = POLICIES / parent.name
        if not parent.is_file():
            raise BadInput(f"{path}: based_on {data['based_on']!r}: expected a file {parent.name}, found none")
        base = _merge_chain(parent, (*seen, path), faults)
    base |= {key: data[key] for key in ("name", "date", "source")}
    base |= _flags(path, data.get("flags", {}))
    base["aliases"] = {**base.get("aliases", {}), **data.get("aliases", {})}
    if "mask_workspace" in data:
        base["mask_workspace"] = _workspace(path, data["mask_workspace"])
    for key, read in (("thresholds", _threshold), ("tables", partial(_table, faults=faults)), ("gates", _gate)):
        base[key] = {**base.get(key, {}), **_rows(path, key, data.get(key, []), read, faults)}
    return base


def _parse(path: Path) -> dict[str, Any]:
    data = read_toml(path, f"{path}", "a TOML file of routing rules")
    _known(f"{path}", data, _TOP)
    for key in ("name", "date", "source"):
        if not isinstance(data.get(key), str):
            raise BadInput(f"{path}: key {key!r}: expected a string, got {data.get(key)!r}")
    return data


def _known(where: str, data: Mapping[str, Any], known: set[str]) -> None:
    extra = sorted(set(data) - known)
    if extra:
        raise BadInput(f"{where}: unknown key {extra[0]!r}; known: {', '.join(sorted(known))}")


def _flags(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    _known(f"{path}, flags", data, set(_FLAGS))
    for key, value in data.items():
        if type(value) is not _FLAGS[key]:
            raise BadInput(f"{path}, flags, {key}: expected {_FLAGS[key].__name__}, got {value!r}")
    if data.get("context_rows_floor", _FLOORS[0]) not in _FLOORS:
        raise BadInput(
            f"{path}, flags, context_rows_floor: expected one of {_FLOORS}, got {data['context_rows_floor']!r}"
        )
    return dict(data)


def _rows(path: Path, key: str, rows: Any, read: Any, faults: _Faults) -> dict[Any, Any]:
    if not isinstance(rows, list):
        raise BadInput(f"{path}, {key}: expected a list of rows [[{key}]], got {type(rows).__name__}")
    found: dict[Any, Any] = {}
    for number, row in enumerate(rows, 1):
        where = f"{path}, {key} row {number}"
        name, value = read(where, row)
        if name in found:
            _refuse(where, f"contradicts an earlier row of the same key {name}", faults)
        found.setdefault(name, value)
    return found


def _refuse(where: str, fault: str, faults: _Faults) -> None:
    if faults is None:
        raise BadInput(f"{where}: {fault}")
    faults.append((where, fault))


def _threshold(where: str, row: Mapping[str, Any]) -> tuple[tuple[str, int], Threshold]:
    _known(where, row, {"backend", "device_family", "by_heads", "otherwise", "require_uniform"})
    table = row.get("by_heads", {})
    if not all(head.isdecimal() for head in table):
        raise BadInput(f"{where}, by_heads: expected numbers of heads as keys, got {sorted(table)}")
    by_heads = {int(head): _whole(f"{where}, by_heads", value, 1) for head, value in table.items()}
    entry = Threshold(
        by_heads=by_heads,
        otherwise=_whole(f"{where}, otherwise", row.get("otherwise"), 1),
        require_uniform=bool(row.get("require_uniform", False)),
    )
    return (_text(where, row, "backend"), _whole(f"{where}, device_family", row.get("device_family"), 1)), entry


def _table(where: str, row: Mapping[str, Any], faults: _Faults) -> tuple[tuple[int, int, str, int], TableRow]:
    _known(where, row, {"head_dims", "backend", "tensor_parallel", "pure", "context"})
    dims = row.get("head_dims")
    if not isinstance(dims, list) or len(dims) != 2:
        raise BadInput(f"{where}, head_dims: expected [query/key dim, value dim], got {dims!r}")
    qk, value = (_whole(f"{where}, head_dims", dim, 1) for dim in dims)
    parallel = _whole(f"{where}, tensor_parallel", row.get("tensor_parallel"), 1)
    pure = _intervals(f"{where}, pure", row.get("pure"), faults)
    context = _intervals(f"{where}, context", row["context"], faults) if "context" in row else None
    return (qk, value, _text(where, row, "backend"), parallel), TableRow(pure=pure, context=context)


def _intervals(where: str, value: Any, faults: _Faults) -> tuple[Interval, ...]:
    if not isinstance(value, list) or not all(isinstance(item, list) and len(item) == 2 for item in value):
        raise BadInput(f"{where}: expected a list of [longest sequence, shortest query], got {value!r}")
    intervals = tuple((_whole(where, longest, 0), _whole(where, shortest, 0)) for longest, shortest in value)
    fault = interval_fault(intervals)
    if fault is not None and faults is None:
        raise BadInput(f"{where}: {fault}")
    return intervals


def _gate(where: str, row: Mapping[str, Any]) -> tuple[str, Gate]:
    values = {key: value for key, value in row.items() if key != "provider"}
    geometries = values.get("geometries", [])
    if not all(isinstance(dims, list) and len(dims) == 5 for dims in geometries):
        raise BadInput(f"{where}, geometries: expected [heads, kv_lora_rank, nope, rope, v] each, got {geometries!r}")
    values["geometries"] = tuple(tuple(_whole(f"{where}, geometries", dim, 0) for dim in dims) for dims in geometries)
    families = values.get("device_families", [])
    values["device_families"] = tuple(_whole(f"{where}, device_families", family, 1) for family in families)
    for key in ("flash_attention", "max_head_dim"):
        if key in values:
            _whole(f"{where}, {key}", values[key], 1)
    gate: Gate = _record(where, "gate", Gate, values)
    return _text(where, row, "provider"), gate


def _workspace(path: Path, data: Mapping[str, Any]) -> MaskWorkspace:
    workspace: MaskWorkspace = _record(path, "mask_workspace", MaskWorkspace, data)
    _whole(f"{path}, mask_workspace, max_bytes", workspace.max_bytes, 1)
    _whole(f"{path}, mask_workspace, word_multiple", workspace.word_multiple, 1)
    if type(workspace.guarded) is not bool:
        raise BadInput(f"{path}, mask_workspace, guarded: expected true or false, got {workspace.guarded!r}")
    return workspace


def _record(where: object, key: str, kind: Any, data: Mapping[str, Any]) -> Any:
    _known(f"{where}, {key}", data, {field.name for field in fields(kind)})
    try:
        return kind(**data)
    except TypeError as error:
        raise BadInput(f"{where}, {key}: incomplete, {error}") from error


def _whole(where: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise BadInput(f"{where}: expected a whole number of {least} or more, got {value!r}")
    return value


def _text(where: str, row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise BadInput(f"{where}, {key}: expected a name, got {value!r}")
    return value
