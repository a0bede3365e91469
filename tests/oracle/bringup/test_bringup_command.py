"""``attnoracle bringup``: the shipped models' figures, a made-up model as one file, and input that is none."""

import json

import pytest

from attnoracle.fixtures import PATH
from attnoracle.oracle.bringup.choices import choices
from attnoracle.oracle.bringup.routes import routes
from attnoracle.oracle.bringup.sizes import cache_sizes
from attnoracle.oracle.bringup.subject import open_subject, values
from attnoracle.oracle.bringup.support import siblings
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.config import fields, named
from attnoracle.oracle.policies import load_rules

MODELS = tuple(sorted(path.stem for path in (PATH / "models").glob("*.json")))


def _values(name):
    return {value.field: value.value for value in values(open_subject(name))}


@pytest.mark.parametrize(
    ("name", "heads", "dims", "scale", "layers", "eps"),
    [
        ("deepseek-v3.2", 128, (128, 64, 128), 0.13523378, "61 full, 0 shared", 1e-6),
        ("glm-5", 64, (192, 64, 256), 0.0625, "78 full, 0 shared", 1e-5),
        ("glm-5.1", 64, (192, 64, 256), 0.0625, "78 full, 0 shared", 1e-5),
        ("glm-5.2", 64, (192, 64, 256), 0.0625, "21 full, 57 shared", 1e-5),
        ("glm-5.3-flash", 64, (256, 0, 256), 0.0625, None, 1e-6),
    ],
)
def test_the_shipped_models_resolve_to_the_published_figures(name, heads, dims, scale, layers, eps):
    found = _values(name)
    assert (found["heads"], found["rms_norm_eps"]) == (heads, eps)
    assert (found["qk_nope_head_dim"], found["qk_rope_head_dim"], found["v_head_dim"]) == dims
    assert found["softmax_scale"] == pytest.approx(scale, rel=1e-7)
    assert found.get("indexer_layers") == layers


@pytest.mark.parametrize(
    ("name", "family", "thresholds"),
    [
        ("deepseek-v3.2", 100, [1024, 256, 128, 128]),
        ("glm-5.1", 100, [256, 128, 128, 128]),
        ("glm-5.2", 90, [256, 128, 128, 256]),
    ],
)
def test_decode_thresholds_follow_the_local_heads(name, family, thresholds):
    cache = "fp8_ds_mla" if family == 90 else "model"
    found = routes(open_subject(name), name, load_rules("vllm-0.33"), family=family, cache=cache)
    assert [way.threshold for way in found] == thresholds


def test_the_routes_of_glm_are_those_of_the_policy_table_and_the_guard():
    found = {
        way.tensor_parallel: way.ranges
        for way in routes(open_subject("glm-5.2"), "glm-5.2", load_rules("vllm-0.33"), family=100, cache="model")
    }
    assert found[1] == (
        (1, 256, "decode, scored"),
        (257, 2048, "dense_mha, skipped"),
        (2049, 8192, "masked_mha, scored"),
        (8193, 1048576, "sparse_mqa, scored"),
    )
    assert found[8][2] == (2049, 32768, "masked_mha, scored")


def test_bytes_of_a_token():
    found = {one.cache: (one.layer, one.index) for one in cache_sizes(open_subject("deepseek-v3.2").geometry)}
    assert found == {"model": (1152, 132), "fp8_e4m3": (576, 132), "fp8_ds_mla": (656, 132)}


def test_a_rule_for_one_more_model_changes_no_value_of_another(made_up, monkeypatch):
    before = {name: values(open_subject(name)) for name in MODELS}
    monkeypatch.setitem(fields._INDEX_ROPE, "made_up", True)
    named._shipped.cache_clear()
    path = made_up(without=["indexer_rope_interleave"])
    assert _values(str(path))["index_rope_interleaved"] is True
    assert {name: values(open_subject(name)) for name in MODELS} == before
    named._shipped.cache_clear()


def test_models_that_share_a_class_are_named():
    assert [one.name for one in siblings(open_subject("glm-5.2"))] == ["glm-5.1", "glm-5"]
    assert siblings(open_subject("glm-5.3-flash")) == ()


def test_choices_say_from_which_length_on_a_wrong_one_shows():
    found = {one.name: one for one in choices(open_subject("glm-5.2"))}
    assert (found["indexer RoPE style"].stage_length, found["indexer RoPE style"].layer_length) == (2, 2049)
    assert found["weight scale"].layer_length is None
    assert "YaRN mscale" not in found
    assert "YaRN mscale" in {one.name for one in choices(open_subject("deepseek-v3.2"))}


def test_one_file_makes_a_geometry_known_to_every_command(made_up, capsys, tmp_path):
    path, out = str(made_up()), tmp_path / "out.json"
    assert main(["bringup", path, "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    assert told["schema"] == {"name": "attnoracle.bringup", "version": 1}
    assert told["summary"]["full_layers"] == 3 and told["summary"]["shared_layers"] == 4
    assert {"values", "choices", "routes", "caches", "workspaces", "implementations", "siblings"} <= set(told)
    sources = {value["field"]: (value["origin"], value["source"]) for value in told["values"]}
    assert sources["rope_theta"] == ("key", "rope_parameters.rope_theta")
    assert sources["rope_interleaved"][0] == "default" and sources["softmax_scale"][0] == "derived"
    assert main(["check", "--geometry", path, "--list"]) == 0
    assert ":made-up:" in capsys.readouterr().out
    assert main(["route", "1q65", "--geometry", path, "--tp", "1"]) == 0
    timed = ["bench", "q5s9", "--operator", "dense_mha", "--implementation", "dense_mha/eager", "--device", "cpu"]
    assert main([*timed, "--heads", "1", "--seconds", "0", "--geometry", path, "--json", str(out)]) == 0
    (result,) = json.loads(out.read_text())["results"]
    assert ":made-up:" in json.dumps(result)


def test_the_report_keeps_to_80_columns(made_up, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("deepseek-v3.2", "glm-5.3-flash"):
        assert main(["bringup", name, "--why"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) > 40 and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("changes", "without", "words"),
    [
        ({}, ["kv_lora_rank"], "'kv_lora_rank': expected the latent rank of MLA attention"),
        ({}, ["qk_nope_head_dim"], "'qk_nope_head_dim': expected a whole number"),
        ({}, ["index_topk"], "'index_topk': expected a whole number"),
        ({"qk_head_dim": 31}, [], "'qk_head_dim': expected qk_nope_head_dim + qk_rope_head_dim = 32, got 31"),
        ({"rms_norm_eps": "small"}, [], "'rms_norm_eps': expected a number between 0 and 1"),
        ({}, ["indexer_rope_interleave"], "there is no rule for model_type 'made_up'"),
        ({"num_attention_heads": 7}, [], None),
    ],
)
def test_what_a_config_may_not_say(made_up, capsys, changes, without, words):
    path = made_up(changes, without)
    assert main(["bringup", str(path)]) == (0 if words is None else 2)
    told = capsys.readouterr()
    assert words is None or words in told.err
    if words is None:
        assert "expected a divisor of the 7 heads" in " ".join(told.out.split())


def test_files_that_are_no_config(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text("{")
    assert main(["bringup", str(path)]) == 2 and "expected JSON" in capsys.readouterr().err
    assert main(["bringup", "glm-6"]) == 2 and "nearest: glm-5" in capsys.readouterr().err


def test_a_model_without_sparse_attention_is_told_what_can_still_be_checked(made_up, capsys):
    path = made_up(without=["index_n_heads", "index_head_dim", "index_topk"])
    assert main(["bringup", str(path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "no sparse attention here (the config has no indexer)" in told and "can still be checked" in told
