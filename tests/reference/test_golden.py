"""Every reference against the committed outputs, and the committed inputs against the script that made them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file

from attnoracle import reference

spec = importlib.util.spec_from_file_location("make_golden", Path(__file__).with_name("make_golden.py"))
assert spec and spec.loader
make_golden: ModuleType = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_golden)

CASES = [(operator, name) for operator, calls in make_golden.cases().items() for name in calls]


def rope(x: torch.Tensor, positions: torch.Tensor, interleaved: bool) -> torch.Tensor:
    tables = reference.rope_tables(positions, dim=x.shape[-1], theta=10000.0)
    return (reference.rotate_interleaved if interleaved else reference.rotate_halves)(x, *tables)


def mla(kv_b: torch.Tensor, rows: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
    w_uk, w_uv = reference.split_kv_b(kv_b, heads=3, qk_nope_head_dim=5, v_head_dim=2)
    return *reference.up_project(rows[:, :8], rows[:, 8:], w_uk, w_uv), reference.absorb_query(q, w_uk)


def stored(operator: str, case: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The call and the outputs that the file holds."""
    file = make_golden.FOLDER / f"{operator}.safetensors"
    with safe_open(file, "np") as opened:
        call = json.loads(opened.metadata()["options"])[case]
    arrays = {name.split("/", 1)[1]: x for name, x in load_file(file).items() if name.split("/")[0] == case}
    call |= {name.removeprefix("in/"): x for name, x in arrays.items() if name.startswith("in/")}
    return call, [arrays[name] for name in sorted(arrays) if name.startswith("out/")]


@pytest.mark.parametrize("operator,case", CASES, ids=["-".join(case) for case in CASES])
def test_reference_gives_the_golden_outputs(operator, case, tensors, agree):
    call, outputs = stored(operator, case)
    function = {"rope": rope, "mla": mla}.get(operator) or getattr(reference, operator)
    result = function(**tensors(call))
    agree(result if isinstance(result, tuple) else [result], outputs, relative=1e-13)


@pytest.mark.parametrize("operator,case", CASES, ids=["-".join(case) for case in CASES])
def test_script_makes_the_stored_inputs(operator, case):
    call, made = stored(operator, case)[0], make_golden.cases()[operator][case]
    assert call.keys() == made.keys()
    for name, value in made.items():
        assert np.array_equal(call[name], value), name
        assert not isinstance(value, np.ndarray) or (call[name].dtype, call[name].shape) == (value.dtype, value.shape)


def test_files_are_those_of_the_script_and_small(tmp_path):
    make_golden.write(tmp_path)
    committed = sorted(make_golden.FOLDER.glob("*.safetensors"))
    assert [file.name for file in committed] == sorted(file.name for file in tmp_path.iterdir())
    assert sum(file.stat().st_size for file in committed) < 300 * 1024
