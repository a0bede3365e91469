"""Which kernel a bundle is run with: a shipped one by its name, one of the user's only when they name it again."""

from __future__ import annotations

import os
import shlex

from ..cause.named import Make, named
from ..errors import BadInput
from ..guests import known
from .read import Bundle


def kernel(bundle: Bundle, name: str = "", *, command: str = "repro") -> Make:
    """The kernel of that name, the bundle's own without one.

    Nothing in a bundle is imported by being read. Raises BadInput, with the command that runs it, for the bundle of a
    user's kernel that is not named for this run; and for an unknown name.
    """
    name = name or bundle.implementation
    if bundle.target and name == bundle.implementation and name not in known.names():
        words = ["attnoracle", command, _shown(bundle), "--impl", bundle.target]
        words += ["--adapter", bundle.adapter] if bundle.adapter else []
        words += ["--device", "cpu"] if bundle.device == "cpu" else []
        raise BadInput(
            f"this bundle is of a kernel of yours: add --impl {bundle.target}, where that imports:\n"
            f"  {shlex.join(words)}"
        )
    return named(name, bundle.case.operator)


def _shown(bundle: Bundle) -> str:
    """The folder as it is typed from here."""
    path = os.path.relpath(bundle.folder)
    return str(bundle.folder) if path.startswith("..") else path
