"""What can go wrong with a request, as opposed to with a kernel.

::

    OracleError
    ├── BadInput          the request cannot be: unknown name, broken config, impossible lengths (exit 2)
    └── Unsupported       it can be, but not here: no GPU, no package, no such feature (exit 2 if nothing else ran)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OracleError(Exception):
    """Base of all errors that this project raises on purpose."""


class BadInput(OracleError, ValueError):
    """A request that cannot be; the message says what was expected, what came, and what to do."""


class Unsupported(OracleError, RuntimeError):
    """A request that cannot be met on this machine; the message says what is missing."""


def unknown(what: str, name: str, known: Iterable[str]) -> BadInput:
    """An error for a misspelt name that offers the nearest ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:12]
    return BadInput(f"unknown {what} {name!r}; nearest: {', '.join(near)}")
