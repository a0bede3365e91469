"""Geometries by name: those of the shipped configs, and those of configs that were named for this run."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from ...fixtures import PATH
from ..errors import BadInput, unknown
from ..geometry import Geometry
from .fields import parse
from .reader import read

_MODELS = PATH / "models"
#: Geometries of configs that were named for this run, by name, each with its file.
_registered: dict[str, tuple[Path, Geometry]] = {}


def names() -> tuple[str, ...]:
    """Names of the shipped and the registered models, sorted."""
    return tuple(sorted({*_shipped_names(), *_registered}))


def _shipped_names() -> set[str]:
    return {path.stem for path in _MODELS.glob("*.json")}


def register(path: str | Path) -> str:
    """Make a config known under its stem (``config.json``: under its folder's name), and return that name.

    Cases name a geometry, so a made-up one is one JSON file away. Worker processes are told of it. Raises BadInput for
    a config that is none, and for a name that means other dimensions already.
    """
    geometry = load(Path(path))
    where = Path(path).absolute()
    known = _shipped(geometry.name) if geometry.name in _shipped_names() else None
    if geometry.name in _registered:
        known = _registered[geometry.name][1]
    if known is not None and replace(known, sources={}) != replace(geometry, sources={}):
        raise BadInput(f"{path}: another geometry is called {geometry.name!r} already; rename the file")
    if known is None:
        _registered[geometry.name] = (where, geometry)
    return geometry.name


def registered() -> tuple[str, ...]:
    """Files of the registered models."""
    return tuple(str(path) for path, _ in _registered.values())


def origin(name: str) -> str:
    """The file that a registered name was read from; empty for a shipped one."""
    return str(_registered[name][0]) if name in _registered else ""


def forget() -> None:
    """Know the shipped models only, as at the start."""
    _registered.clear()


def load(name_or_path: str | Path) -> Geometry:
    """The geometry of a shipped model, of a config file, or of a model folder that holds a ``config.json``.

    Raises BadInput if there is no such model or file, if it is no config, if a field that decides a result is absent,
    and if fields contradict each other.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and text in _registered:
        return _registered[text][1]
    if isinstance(name_or_path, str) and text in _shipped_names():
        return _shipped(text)
    path = Path(name_or_path)
    if not text or (re.fullmatch(r"[\w.-]+", text) and not text.endswith(".json") and not path.exists()):
        raise unknown("geometry", text, names())
    return parse(read(path / "config.json" if path.is_dir() else path))


@cache
def _shipped(name: str) -> Geometry:
    return parse(read(_MODELS / f"{name}.json"))
