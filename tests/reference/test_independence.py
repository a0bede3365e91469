"""The specification stands alone: no code of ours behind the references, no torch behind the second formulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from attnoracle import reference

FOLDER = Path(reference.__file__).resolve().parent


def modules_after(code: str, path: Path) -> set[str]:
    """Names of all modules that a fresh interpreter holds after ``code``, with ``path`` importable."""
    listing = f"import sys; sys.path.insert(0, {str(path)!r}); {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reference_imports_nothing_of_ours():
    loaded = modules_after("import attnoracle.reference", FOLDER.parent / "typings")
    ours = {name for name in loaded if name.startswith("attnoracle.")}
    assert "attnoracle.reference.dense_mha" in ours
    assert {name for name in ours if not name.startswith("attnoracle.reference")} == set()
    assert {name for name in ours if name.startswith("attnoracle.reference.second")} == set()
    assert loaded.isdisjoint({"triton", "flashinfer"})


def test_second_formulation_needs_no_torch():
    """Loaded as a package of its own, every module of it, since the parent package does import torch."""
    names = sorted(f"second.{file.stem}" for file in (FOLDER / "second").glob("*.py") if file.stem != "__init__")
    loaded = modules_after(f"import {', '.join(names)}", FOLDER)
    assert set(names) <= loaded
    assert len(names) == 18
    assert {name for name in loaded if name.split(".")[0] in ("torch", "attnoracle")} == set()


def test_every_operator_has_a_second_formulation():
    second = {file.stem for file in (FOLDER / "second").glob("*.py")}
    operators = {"dense_mha", "masked_mha", "sparse_mqa", "indexer_scores", "topk_select", "merge_lse", "rope", "mla"}
    operators |= {"paged_indexer_scores"}
    operators |= {"quantize", "write_cache", "write_index", "gather", "gather_index", "convert_indices", "build_mask"}
    assert operators <= second
    assert operators <= {file.stem for file in FOLDER.glob("*.py")}


def test_files_stay_short():
    for file in FOLDER.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 120, file.name
