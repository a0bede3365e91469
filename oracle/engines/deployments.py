"""A deployment from a TOML file: the fields of ``reference.routing.Deployment``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ...reference.routing import Deployment
from ..errors import BadInput


def read_deployment(path: Path) -> Deployment:
    """Raises BadInput with the field that is missing, unknown or cannot be."""
    try:
        return Deployment(**tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: expected the fields of a deployment as TOML, {error}") from error
