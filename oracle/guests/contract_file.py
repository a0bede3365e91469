"""A contract in a file: what an implementation promises, and what it does not take.

A TOML file that people write, or the ``contract.json`` of a bundle, which has all fields and no limits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...optimized.contract import Contract
from ..case import DTYPES, LAYOUTS
from ..errors import BadInput, unknown
from ..inputs.options import OPTIONS
from ..toml_file import read_toml

#: How None is spelt in TOML, which has none.
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which cases an implementation takes; an empty tuple: all."""

    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Options of cases that it does not take."""
    heads: tuple[int, ...] = ()
    topk_multiple: int = 1

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        """Why a case is outside the limits; None: it is inside."""
        for name, got in (("dtypes", facts["dtype"]), ("layouts", facts["layout"]), ("heads", facts["heads"])):
            allowed = getattr(self, name)
            if allowed and got not in allowed:
                return f"its contract takes {name} {', '.join(map(str, allowed))}, got {got}"
        refused = [option for option in facts["options"] if option in self.without]
        if refused:
            return f"its contract is without {', '.join(refused)}"
        if facts["k"] % self.topk_multiple:
            return f"its contract takes a top-k that {self.topk_multiple} divides, got {facts['k']}"
        return None


@dataclass(frozen=True, slots=True)
class Declared:
    """What a contract file says."""

    contract: Contract
    limits: Limits = Limits()
    operator: str | None = None


def read(path: str, base: Contract | None = None) -> Declared:
    """The contract in a file; what it leaves out is as in ``base``, or has the field's default.

    Raises BadInput with the field, what was expected and what came.
    """
    table = _of_a_bundle(path) if path.endswith(".json") else read_toml(Path(path), f"--contract {path}")
    for key in table:
        if key in {one.name for one in fields(Contract)}:
            raise BadInput(f"{key} in {path}: expected fields of a contract under [contract], got it above")
        if key not in ("operator", "contract", "supports"):
            raise unknown(f"key of {path}", key, ("operator", "contract", "supports"))
    operator = table.get("operator")
    if operator is not None and operator not in OPTIONS:
        raise unknown(f"operator in {path}", str(operator), OPTIONS)
    limits = _limits(path, _table(path, table, "supports"), operator)
    return Declared(parse(path, _table(path, table, "contract"), base), limits, operator)


def _of_a_bundle(path: str) -> dict[str, Any]:
    """The JSON file of a bundle as the table that a TOML file would have."""
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"--contract {path}: expected TOML, or the contract.json of a bundle: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"--contract {path}: expected an object of fields, got {type(found).__name__}")
    return {"contract": {key: NONE if value is None else value for key, value in found.items()}}


def parse(path: str, table: Mapping[str, Any], base: Contract | None = None) -> Contract:
    """The contract that a table of fields states; a field that is not there is as in ``base``, or has its default."""
    hints = get_type_hints(Contract)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in hints:
            raise unknown(f"contract field in {path}", key, hints)
        values[key] = _value(path, key, value, hints[key])
    try:
        return replace(base or Contract(), **values)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None


def spelled(contract: Contract, *, notes: Mapping[str, str] | None = None, only: Collection[str] | None = None) -> str:
    """The ``[contract]`` table, a field a line, each with its note behind it; ``only`` these fields."""
    lines = []
    for one in fields(contract):
        if only is not None and one.name not in only:
            continue
        value, note = getattr(contract, one.name), (notes or {}).get(one.name, "")
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, int | float):
            text = repr(value)
        else:
            text = f'"{NONE if value is None else value}"'
        lines.append(f"{one.name} = {text}" + (f"  # {note}" if note else ""))
    return "\n".join(["[contract]", *lines]) + "\n"


def _value(path: str, key: str, value: Any, hint: Any) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if type(None) in options and value == NONE:
        return None
    kinds = [one for one in options if one in (bool, int, float)]
    if kinds:
        if bool in kinds and type(value) is bool:
            return value
        if int in kinds and type(value) is int:
            return value
        if float in kinds and type(value) in (int, float):
            return float(value)
        raise BadInput(f"{path}: contract field {key!r}: expected {kinds[0].__name__}, got {value!r}")
    allowed = [word for one in options if get_origin(one) is Literal for word in get_args(one)]
    if value not in allowed:
        words = ", ".join([*allowed, *([NONE] if type(None) in options else [])])
        raise BadInput(f"{path}: contract field {key!r}: expected one of {words}; got {value!r}")
    return value


def _table(path: str, table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise BadInput(f"{path}: {key}: expected a table [{key}], got {found!r}")
    return found


def _limits(path: str, table: Mapping[str, Any], operator: str | None) -> Limits:
    known: dict[str, Any] = {
        "dtypes": DTYPES,
        "layouts": LAYOUTS,
        "without": sorted({o for name, some in OPTIONS.items() if operator in (None, name) for o in some}),
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in known:
            if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
                raise BadInput(f"{path}: supports.{key}: expected a list of names, got {value!r}")
            for word in value:
                if word not in known[key]:
                    raise unknown(f"word in supports.{key} of {path}", word, known[key])
            values[key] = tuple(value)
        elif key == "heads":
            if not isinstance(value, list) or not all(type(count) is int and count > 0 for count in value):
                raise BadInput(f"{path}: supports.heads: expected a list of head counts, got {value!r}")
            values[key] = tuple(value)
        elif key == "topk_multiple":
            if type(value) is not int or value < 1:
                raise BadInput(f"{path}: supports.topk_multiple: expected a whole number above 0, got {value!r}")
            values[key] = value
        else:
            raise unknown(f"key of [supports] in {path}", key, [one.name for one in fields(Limits)])
    return Limits(**values)
