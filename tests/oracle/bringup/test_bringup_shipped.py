"""The modules of transformers stage by stage, where transformers is installed; the judge of their stages everywhere."""

import importlib.util
import json

import pytest
import torch

from attnoracle.optimized.transformers_kernels import stages as shipped_stages
from attnoracle.oracle.bringup import shipped
from attnoracle.oracle.bringup.shipped import _judged
from attnoracle.oracle.bringup.subject import open_subject
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import Unsupported
from attnoracle.reference.stages import run

HAS = importlib.util.find_spec("transformers") is not None


@pytest.fixture
def module_run(suite):
    """What a right module would show of a chunk of 8 tokens behind 16, in float32."""
    hidden = torch.randn(24, suite.model.hidden, generator=torch.Generator().manual_seed(5))
    known = run(suite.model, suite.weights, hidden.double(), 8)
    seen = {
        name: value.float() if value.is_floating_point() else value
        for name, value in known.items()
        if name not in ("hidden", "new", "positions", "new_positions")
    }
    return hidden, seen


def test_a_right_module_passes_every_stage(suite, module_run):
    hidden, seen = module_run
    found = _judged(suite, "chunk", hidden, 8, [seen])
    assert [one.status for one in found] == ["PASS"] * 12, [one.message for one in found]


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("q_c", {"q_latent", "query", "index_query"}),
        ("scores", {"index_scores", "select"}),
        ("out", {"output"}),
    ],
)
def test_a_wrong_intermediate_fails_where_it_is_made_and_where_it_is_read(suite, module_run, name, stages):
    hidden, seen = module_run
    seen[name] = seen[name].flip(-1)
    found = _judged(suite, "chunk", hidden, 8, [seen])
    assert {one.stage for one in found if one.status == "FAIL"} == stages


def test_a_stage_that_is_not_shown_is_unseen(suite, module_run):
    hidden, seen = module_run
    del seen["index_q"]
    found = {one.stage: one.status for one in _judged(suite, "chunk", hidden, 8, [seen])}
    assert found["index_query"] == found["index_scores"] == "UNSEEN" and found["index_key"] == "PASS"


def test_other_models_are_refused(made_up, capsys):
    assert main(["bringup", str(made_up()), "--transformers"]) == 2
    assert "expected a model_type of glm_moe_dsa, deepseek_v32" in capsys.readouterr().err


@pytest.mark.skipif(HAS, reason="transformers is installed")
def test_without_transformers_it_says_so(capsys):
    assert main(["bringup", "glm-5", "--transformers"]) == 2
    assert "transformers is not installed" in capsys.readouterr().err


@pytest.mark.skipif(not HAS, reason="transformers is not installed")
def test_the_installed_transformers_shows_every_stage(tmp_path):
    out = tmp_path / "out.json"
    main(["bringup", "glm-5", "--transformers", "--json", str(out)])
    told = json.loads(out.read_text())
    assert told["summary"]["stages"] >= 37 and not [one for one in told["stages"] if one["status"] == "UNSEEN"]


@pytest.mark.parametrize(
    ("missing", "said"),
    [("transformers.models.glm_moe_dsa", "has no glm_moe_dsa"), ("httpx", "cannot be imported: .* 'httpx'")],
)
def test_a_release_without_the_model_is_told_from_one_that_lacks_its_needs(suite, missing, said, monkeypatch):
    def absent(*_):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(shipped_stages, "Shipped", absent)
    monkeypatch.setattr(shipped, "version", lambda: "5.2.0")
    with pytest.raises(Unsupported, match=f"transformers 5.2.0 {said}"):
        shipped.compare(open_subject("glm-5"), suite)
