"""Functions taken out of an engine's sources, to run without the engine.

Importing an engine means importing its compiled extensions. Its decisions are small pure functions, so their text is
cut out by its syntax tree, put into a module with stand-ins for the few names that they use, and imported from a file
(Triton reads the source of its kernels from one).
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from ..errors import BadInput, Unsupported


@dataclass(frozen=True, slots=True)
class Engine:
    """Where an engine's package lies, and which version it says it is."""

    name: str
    root: Path
    version: str


def locate(name: str, source: str | None = None) -> Engine:
    """The engine's package: ``source`` (the folder, or the one above it), else the one that Python would import.

    Raises BadInput for a ``source`` without the package, Unsupported where there is none to import.
    """
    if source is not None:
        folders = [Path(source), Path(source) / name]
        root = next((folder for folder in folders if folder.name == name and (folder / "__init__.py").is_file()), None)
        if root is None:
            raise BadInput(f"{name}: expected a folder {name}/ with its Python sources at {source}, found none")
    else:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise Unsupported(f"{name} is not installed here; install it, or name its sources with --source")
        root = Path(next(iter(spec.submodule_search_locations)))
    return Engine(name, root, _version(root))


def _version(root: Path) -> str:
    for file in ("_version.py", "version.py"):
        path = root / file
        if path.is_file():
            found = re.search(
                r"""^(?:__version__|version)\b[^'"]*['"]([^'"]+)""", path.read_text("utf-8"), re.MULTILINE
            )
            if found:
                return found[1]
    return "unknown"


class Sources:
    """An engine's files, and what is cut out of them. Methods raise Unsupported where a version lacks the piece."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def define(self, file: str, name: str) -> str:
        """Text of a function, class or assignment of a file; ``Class.method`` as a plain function."""
        node = self._find(file, name)
        if "." in name and isinstance(node, ast.FunctionDef):
            kept = [
                line for line in node.decorator_list if self._text(file, line) not in ("staticmethod", "classmethod")
            ]
            decorators = "".join(f"@{self._text(file, line)}\n" for line in kept)
            return decorators + self._block(file, node)
        return self._decorated(file, node)

    def statements(self, file: str, function: str, pattern: str) -> str:
        """The statements at the top of a function's body whose text matches, in order, dedented."""
        node = self._find(file, function)
        assert isinstance(node, ast.FunctionDef)
        found = [self._block(file, line) for line in node.body if re.search(pattern, self._block(file, line))]
        if not found:
            raise self.lacks(f"a statement like {pattern!r} in {function}", file)
        return "\n".join(found)

    def until(self, file: str, function: str, name: str) -> str:
        """A function's body from its start to the assignment of ``name``, dedented."""
        node = self._find(file, function)
        assert isinstance(node, ast.FunctionDef)
        parts = []
        for line in node.body:
            parts.append(self._block(file, line))
            if isinstance(line, ast.Assign) and any(isinstance(x, ast.Name) and x.id == name for x in line.targets):
                return "\n".join(parts)
        raise self.lacks(f"an assignment of {name} in {function}", file)

    def keyword(self, file: str, function: str, name: str) -> str:
        """Text of the value that a function passes as keyword ``name`` in the first call that has it."""
        for node in ast.walk(self._find(file, function)):
            if isinstance(node, ast.keyword) and node.arg == name:
                return f"({self._text(file, node.value)})"
        raise self.lacks(f"a keyword {name} in {function}", file)

    def load(self, name: str, *parts: str) -> ModuleType:
        """A module of the given texts, imported from a file that lives as long as the process."""
        path = Path(_folder().name) / f"{self.engine.name}_{name}.py"
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"attnoracle_engine_{self.engine.name}_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    def _find(self, file: str, name: str) -> ast.AST:
        nodes: Sequence[ast.stmt] = self.tree(file).body
        found: ast.stmt | None = None
        for part in name.split("."):
            found = next((node for node in nodes if part in _names(node)), None)
            if found is None:
                raise self.lacks(name, file)
            nodes = getattr(found, "body", ())
        assert found is not None
        return found

    def _decorated(self, file: str, node: ast.AST) -> str:
        decorators = "".join(f"@{self._text(file, line)}\n" for line in getattr(node, "decorator_list", ()))
        return decorators + self._text(file, node)

    def _block(self, file: str, node: ast.stmt) -> str:
        """Text of a statement from the start of its first line, dedented."""
        lines = self._lines(file)[node.lineno - 1 : node.end_lineno]
        return textwrap.dedent("\n".join(lines))

    def _text(self, file: str, node: ast.AST) -> str:
        text = ast.get_source_segment("\n".join(self._lines(file)), node)
        assert text is not None
        return text

    def _lines(self, file: str) -> list[str]:
        return _read(self.engine, file).splitlines()

    def tree(self, file: str) -> ast.Module:
        return _parsed(self.engine, file)

    def lacks(self, what: str, file: str) -> Unsupported:
        return Unsupported(
            f"{self.engine.name} {self.engine.version}: found no {what} in {file}; "
            "docs/engines.md names the releases that are known"
        )


@cache
def _read(engine: Engine, file: str) -> str:
    path = engine.root / file
    if not path.is_file():
        raise Unsupported(f"{engine.name} {engine.version}: found no file {file}")
    return path.read_text(encoding="utf-8")


@cache
def _parsed(engine: Engine, file: str) -> ast.Module:
    return ast.parse(_read(engine, file))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="attnoracle-engine-")


def _names(node: ast.stmt) -> tuple[str, ...]:
    """Names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(target.id for target in node.targets if isinstance(target, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()
