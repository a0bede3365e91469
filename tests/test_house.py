"""Rules of the house that no single module can hold: imports, packaging, sizes, names, words."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import attnoracle.reference as reference
from attnoracle.optimized.catalogue import IMPLEMENTATIONS
from attnoracle.oracle.inputs import KINDS, OPTIONS
from attnoracle.oracle.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("benchmarks", "fixtures", "optimized", "oracle", "reference")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
#: What a light module may not import when it is imported.
HEAVY = {"triton", "flashinfer", "transformers", "matplotlib", "hypothesis"}
#: Which modules are not light: Triton kernels, what calls FlashInfer, and the strategies, which need Hypothesis.
NOT_LIGHT = re.compile(
    r"optimized/hopper_kernels/(?!__init__)\w+\.py"
    r"|optimized/triton_kernels/(?!__init__|checks|launch|padding)\w+\.py|oracle/strategies\.py"
    r"|optimized/flashinfer_kernels/(ragged|mla|merge|select)\.py"
)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _imports(path: Path, *, top_only: bool = False) -> list[str]:
    """Dotted names that a module imports, relative ones resolved from the root (``optimized.contract``)."""
    tree = ast.parse(path.read_text())
    found = []
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = path.relative_to(ROOT).parent.parts
            above = here[: len(here) - node.level + 1] if node.level else ()
            found.append(".".join((*above, *([node.module] if node.module else []))))
    return found


def _packages(path: Path) -> set[str]:
    """Which of our five packages a module imports."""
    ours = {name.removeprefix("attnoracle.").split(".")[0] for name in _imports(path)}
    return ours & {*PACKAGES, "tests"}


def test_imports_follow_the_rule():
    allowed = {
        "reference": {"reference"},
        "optimized": {"optimized"},
        "fixtures": {"fixtures"},
        "oracle": {"oracle", "optimized", "reference", "fixtures"},
        "benchmarks": set(PACKAGES),
    }
    assert [
        (_name(path), _packages(path)) for path in SOURCES if _packages(path) - allowed[_name(path).split("/")[0]]
    ] == []


def test_packages_import_each_other_by_relative_names():
    assert [_name(path) for path in SOURCES if any(name.split(".")[0] == "attnoracle" for name in _imports(path))] == []


def test_light_modules_import_nothing_heavy():
    light = [path for path in SOURCES if not NOT_LIGHT.fullmatch(_name(path))]
    heavy = {_name(path): {name.split(".")[0] for name in _imports(path, top_only=True)} & HEAVY for path in light}
    assert {name: found for name, found in heavy.items() if found} == {}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("attnoracle.oracle.cli.app", ["torch", "triton", "numpy", "scipy", "hypothesis"]),
        ("attnoracle.optimized.catalogue", ["triton", "flashinfer"]),
        ("attnoracle.oracle.check", ["triton", "flashinfer", "hypothesis"]),
    ],
    ids=["command", "catalogue", "loop"],
)
def test_what_importing_a_module_leaves_out(module, absent):
    code = (
        f"import sys; before = {{*sys.modules}}; import {module}; "
        f"print([name for name in {absent!r} if name in {{*sys.modules}} - before])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def _setuptools() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_with_python_files_is_packaged():
    folders = {"attnoracle." + _name(path.parent).replace("/", ".") for path in SOURCES}
    assert folders == set(_setuptools()["packages"])
    assert len(_setuptools()["packages"]) == len(folders), "one of them is listed twice"


def test_every_data_file_is_packaged():
    """What a checkout reads and a wheel lacks would be missing without a word."""
    patterns = _setuptools()["package-data"]["attnoracle.fixtures"]
    packed = {path for pattern in patterns for path in (ROOT / "fixtures").glob(pattern)}
    read = [path for folder in ("cases", "golden", "models") for path in (ROOT / "fixtures" / folder).iterdir()]
    assert read and [_name(path) for path in read if path not in packed] == []


def test_the_typings_folder_links_to_every_package_and_nothing_else():
    links = {path.name: os.readlink(path) for path in (ROOT / "typings" / "attnoracle").iterdir()}
    assert links == {package: f"../../{package}" for package in PACKAGES}


def test_the_import_package_has_no_init():
    assert not (ROOT / "__init__.py").exists() and not (ROOT / "typings" / "attnoracle" / "__init__.py").exists()
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_files_are_short():
    lines = {_name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: n for name, n in lines.items() if n > (120 if name.startswith("reference/") else 400)} == {}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=lambda one: one.name)
def test_an_implementation_has_the_keywords_of_its_reference(implementation):
    if implementation.operator not in {one.name for one in OPERATORS}:
        pytest.fail(f"{implementation.name} belongs to no operator")
    try:
        function = implementation.load()
    except ImportError as error:
        pytest.skip(f"cannot be loaded here: {error}")
    expected = inspect.signature(getattr(reference, implementation.operator)).parameters
    got = inspect.signature(function).parameters
    assert [(x.name, x.kind, x.default) for x in got.values()] == [
        (x.name, x.kind, x.default) for x in expected.values()
    ]


def test_names_of_implementations_are_distinct():
    assert [name for name, count in Counter(one.name for one in IMPLEMENTATIONS).items() if count > 1] == []


def test_every_operator_has_a_reference_an_implementation_and_inputs():
    names = {one.name for one in OPERATORS}
    assert names == {one.operator for one in IMPLEMENTATIONS} == set(KINDS) == set(OPTIONS)
    assert all(callable(getattr(reference, name)) for name in names)


def test_kinds_and_options_are_described():
    entries = [
        (operator, *entry) for table in (KINDS, OPTIONS) for operator in table for entry in table[operator].items()
    ]
    undescribed = [one for one in entries if len(one[2].split()) < 2 or one[1] in one[2].split()[:1]]
    assert entries and undescribed == []


def _texts() -> list[Path]:
    """Text files of the checkout, whatever the version control is."""
    folders = (*PACKAGES, "tests", "docs", "examples", ".ci")
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    paths += [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    text = {".py", ".md", ".toml", ".txt", ".json", ".sh", ".yml", ".yaml", ".cfg", ""}
    return [path for path in paths if path.suffix in text and "__pycache__" not in path.parts]


def test_no_file_knows_the_machine_it_was_written_on():
    machine = re.compile(r"""(?:^|[\s"'`=(:])/(?:opt|work|home|root|Users|tmp|mnt)/\w""", re.MULTILINE)
    texts = _texts()
    assert len(texts) > 100
    found = [_name(path) for path in texts if machine.search(path.read_text(errors="ignore"))]
    assert found == []
