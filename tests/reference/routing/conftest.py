from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from attnoracle.reference.routing import Deployment

POINTS = tomllib.loads((Path(__file__).parent / "points.toml").read_text(encoding="utf-8"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``<table>_point`` runs once for each row of that table of points.toml."""
    for name in metafunc.fixturenames:
        if name.endswith("_point"):
            rows = POINTS[name.removesuffix("_point")]
            metafunc.parametrize(name, rows, ids=["-".join(_words(row)) for row in rows])


def _words(row: dict[str, Any]) -> list[str]:
    if "id" in row:
        return [row["id"]]
    return [str(value).replace(", ", "x").strip("[]") for value in row.values()]


@pytest.fixture
def glm() -> Deployment:
    """GLM-5.2 at TP 4 on SM100 with FlashMLA: 16 local heads, decode threshold 128."""
    return Deployment(
        backend="FLASHMLA_SPARSE",
        device_family=100,
        local_heads=16,
        tensor_parallel=4,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        index_topk=2048,
        cache="e4m3",
        flash_attention=4,
    )
