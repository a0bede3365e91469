"""Rules and the deployment of the incident."""

from __future__ import annotations

from typing import Any

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.routes.setup import make_deployment, rules_named
from attnoracle.reference.routing import Deployment


@pytest.fixture
def deploy():
    """GLM-5.2 at TP 4 on SM100 with FlashMLA and an e4m3 cache, or with what is changed of it."""

    def deploy(version: str = "vllm-0.33", **changes: Any) -> Deployment:
        fields = {"backend": "FLASHMLA_SPARSE", "tensor_parallel": 4, "family": 100, "cache": "e4m3"}
        geometry = changes.pop("geometry", "glm-5.2")
        return make_deployment([rules_named(version)], geometry, **(fields | changes))

    return deploy


@pytest.fixture
def route(capsys, monkeypatch):
    """Exit code, stdout and stderr of ``attnoracle route`` at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def route(*arguments: str) -> tuple[int, str, str]:
        code = main(["route", *arguments])
        return code, *capsys.readouterr()

    return route
