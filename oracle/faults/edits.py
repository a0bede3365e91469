"""Faults in the shipped Triton kernels: one exact snippet of their source replaced, and the result loaded afresh.

The whole kernel package is copied, so that an edit of a helper reaches the kernels that import it. The copy lies in a
temporary folder until the process ends, since Triton reads the source of a kernel when it first runs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType

from ... import optimized
from ...optimized.implementation import Implementation
from ..errors import BadInput, unknown
from .fault import Fault

#: Folder of the kernels inside ``optimized``.
PACKAGE = "triton_kernels"


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file of the kernel package."""

    file: str
    """Name without ``.py``."""
    old: str
    """Must stand in the file exactly once."""
    new: str


def source_of(file: str) -> Path:
    """Path of a kernel source file. Raises BadInput for an unknown one, with the nearest names."""
    folder = Path(next(iter(optimized.__path__))) / PACKAGE
    path = folder / f"{file}.py"
    if not path.is_file():
        raise unknown("kernel source file", file, [found.stem for found in folder.glob("*.py")])
    return path


def edited_source(fault: str, edit: Edit) -> str:
    """Source of the edited file. Raises BadInput if the snippet does not stand there exactly once."""
    text = source_of(edit.file).read_text()
    found = text.count(edit.old)
    if found != 1:
        raise BadInput(
            f"fault {fault!r}: expected this snippet exactly once in {PACKAGE}/{edit.file}.py, found it {found} times; "
            f"write the edit for the source as it is now:\n{edit.old}"
        )
    return text.replace(edit.old, edit.new)


def edited(fault: str, implementation: str, edit: Edit) -> Implementation:
    """The named Triton implementation with the edit applied: same contract, same supports, a name of its own.

    Raises BadInput for an edit that does not apply and for an unknown implementation.
    """
    package = _loaded(fault, edit)
    by_name: dict[str, Implementation] = {entry.name: entry for entry in package.IMPLEMENTATIONS}
    if implementation not in by_name:
        raise unknown("Triton implementation", implementation, by_name)
    operator = implementation.partition("/")[0]
    return replace(by_name[implementation], name=f"{operator}/fault-{fault}")


@cache
def _loaded(fault: str, edit: Edit) -> ModuleType:
    """A fresh copy of the kernel package with the edit; imports no Triton by itself."""
    text = edited_source(fault, edit)
    unique = f"{PACKAGE}_{fault.replace('-', '_').replace('.', '_')}"
    folder = _folder() / unique
    shutil.copytree(source_of("__init__").parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / f"{edit.file}.py").write_text(text)
    name = f"{optimized.__name__}.{unique}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="attnoracle-faults-")


def _folder() -> Path:
    return Path(_temporary().name)


def edit(
    name: str,
    operator: str,
    file: str,
    old: str,
    new: str,
    description: str,
    source: str,
    expected_check: str,
    options: tuple[str, ...] = (),
    escapes: tuple[str, ...] = (),
) -> Fault:
    """A fault of the Triton kernel of ``operator``, planted by replacing ``old`` by ``new`` in ``file``."""
    change = Edit(file, old, new)

    def host() -> Implementation:
        return edited(name, f"{operator}/triton", change)

    return Fault(
        name,
        operator,
        "triton",
        description,
        source,
        expected_check,
        lambda: host().load(),
        "triton",
        escapes,
        options,
        host=host,
    )

