"""Geometries: the shipped models' figures, and what a config may not say."""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from attnoracle.fixtures import PATH
from attnoracle.oracle.config import load, names, yarn_mscale
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.geometry import Geometry

GLM = {
    "model_type": "glm_moe_dsa",
    "num_attention_heads": 64,
    "num_hidden_layers": 8,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


@pytest.fixture
def write(tmp_path):
    def write(changes=(), *, without=(), text=None, name="model.json") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        config = {key: value for key, value in (GLM | dict(changes)).items() if key not in without}
        path.write_text(json.dumps(config) if text is None else text)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-v3.2", (128, 7168, 61, 1536, 512, 128, 64, 128, 64, 128, 2048, 10_000.0, 163_840)),
        ("glm-5", (64, 6144, 78, 2048, 512, 192, 64, 256, 32, 128, 2048, 1e6, 202_752)),
        ("glm-5.2", (64, 6144, 78, 2048, 512, 192, 64, 256, 32, 128, 2048, 8e6, 1_048_576)),
        ("glm-5.3-flash", (64, None, None, None, 512, 256, 0, 256, None, None, 0, None, None)),
    ],
)
def test_shipped_models_have_the_published_dimensions(name, expected):
    g = load(name)
    assert (
        g.heads, g.hidden_size, g.num_layers, g.q_lora_rank, g.kv_lora_rank, g.qk_nope_head_dim, g.qk_rope_head_dim,
        g.v_head_dim, g.index_n_heads, g.index_head_dim, g.index_topk, g.rope_theta, g.max_positions,
    ) == expected  # fmt: skip
    assert g.name == name
    assert g.rope_interleaved


@pytest.mark.parametrize(
    ("name", "qk", "latent", "scale"),
    [
        ("deepseek-v3.2", 192, 576, 0.13523378),
        ("glm-5", 256, 576, 0.0625),
        ("glm-5.2", 256, 576, 0.0625),
        ("glm-5.3-flash", 256, 512, 0.0625),
        ("tiny", 48, 80, 48**-0.5 * (0.1 * math.log(4) + 1) ** 2),
    ],
)
def test_derived_widths_and_softmax_scales(name, qk, latent, scale):
    g = load(name)
    assert (g.qk_head_dim, g.latent_dim) == (qk, latent)
    assert g.softmax_scale == pytest.approx(scale, rel=1e-7)


def test_yarn_mscale_is_that_of_a_factor_of_forty():
    assert yarn_mscale(40, 1.0) == pytest.approx(1.3688879, rel=1e-7)
    assert yarn_mscale(1.0, 1.0) == 1.0


@pytest.mark.parametrize(
    ("name", "interleaved"), [("deepseek-v3.2", False), ("glm-5", True), ("glm-5.2", True), ("glm-5.3-flash", None)]
)
def test_indexer_rope_style(name, interleaved):
    assert load(name).index_rope_interleaved is interleaved


def test_indexer_layers():
    assert load("deepseek-v3.2").indexer_full_layers == tuple(range(61))
    assert load("glm-5").indexer_full_layers == tuple(range(78))
    assert load("glm-5.2").indexer_full_layers == (0, 1, 2, *range(6, 78, 4))
    assert len(load("glm-5.2").indexer_full_layers) == 21
    assert load("glm-5.3-flash").indexer_full_layers == ()


@pytest.mark.parametrize("name", names())
def test_every_field_has_a_source(name):
    assert set(load(name).sources) == {field.name for field in fields(Geometry)} - {"sources"}


def test_unread_values_are_noted_in_the_shipped_configs():
    for name in names():
        config = json.loads((PATH / "models" / f"{name}.json").read_text())
        assert config["_attnoracle"]["notes"]


def test_names_are_sorted_and_offered():
    assert names() == ("deepseek-v3.2", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3-flash", "tiny")
    with pytest.raises(BadInput, match=r"unknown geometry 'glm5.2'; nearest: glm-5\.2"):
        load("glm5.2")


def test_a_path_or_a_model_folder_names_the_geometry(write):
    assert load(write(name="My Model.json")).name == "my-model"
    assert load(write(name="GLM-6/config.json").parent).name == "glm-6"


def test_values_are_found_where_other_versions_nest_them(write):
    scaling = {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}
    old = load(write({"rope_scaling": scaling, "rope_theta": 7.0}, without=["rope_parameters"]))
    assert old.softmax_scale == pytest.approx(0.0625 * 1.3688879**2)
    assert (old.rope_theta, old.sources["rope_theta"]) == (7.0, "rope_theta")
    nested = load(write(text=json.dumps({"model_type": "glm", "text_config": GLM})))
    assert nested.sources["rope_theta"] == "text_config.rope_parameters.rope_theta"
    assert nested.index_rope_interleaved


def test_yarn_without_attention_scaling(write):
    rope = {"rope_type": "yarn", "factor": 4, "attention_factor": 1.0, "rope_theta": 1e4}
    assert load(write({"rope_parameters": rope})).softmax_scale == 0.0625


def test_stated_styles_win_over_rules(write):
    g = load(write({"indexer_rope_interleave": False, "rope_interleave": False}))
    assert (g.index_rope_interleaved, g.rope_interleaved) == (False, False)
    assert g.sources["index_rope_interleaved"] == "indexer_rope_interleave"
    assert load(write()).sources["index_rope_interleaved"] == "rule: model_type glm_moe_dsa is interleaved"


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({"index_topk_pattern": "FSSFSSFS"}, (0, 3, 6)),
        ({"index_topk_pattern": list("FSFSFSFS"), "index_topk_freq": 4}, (0, 2, 4, 6)),
        ({"index_topk_freq": 4}, (0, 1, 5)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, (0, 1, 2, 6)),
        ({"indexer_types": ["full"] * 2 + ["shared"] * 6}, (0, 1)),
        ({"index_topk_freq": None, "index_topk_pattern": None}, tuple(range(8))),
    ],
    ids=["pattern", "pattern-over-frequency", "frequency", "offset", "types", "null"],
)
def test_layer_rules(write, changes, full):
    assert load(write(changes)).indexer_full_layers == full


def test_a_pooling_indexer_is_left_out(write):
    g = load(write({"index_kpool": 4}))
    assert (g.index_n_heads, g.index_head_dim, g.index_topk, g.indexer_full_layers) == (None, None, 0, ())
    assert "pools keys" in g.sources["index_topk"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 0}, "'num_attention_heads': expected a whole number of at least 1, got 0"),
        (
            {"num_attention_heads": 2**31},
            "a whole number of at least 1 and at most 2147483647, got 2147483648",
        ),
        ({"kv_lora_rank": -512}, "'kv_lora_rank': .*got -512"),
        ({"v_head_dim": "256"}, "'v_head_dim': .*got '256'"),
        ({"v_head_dim": 256.0}, "'v_head_dim': .*got 256.0"),
        ({"index_topk": True}, "'index_topk': .*got True"),
        ({"index_head_dim": 10**40}, "'index_head_dim': expected"),
        ({"qk_rope_head_dim": 63}, "'qk_rope_head_dim': expected an even number: .*got 63"),
        ({"qk_head_dim": 192}, "'qk_head_dim': expected .* = 256, got 192"),
        ({"index_head_dim": 32}, "'index_head_dim': expected at least qk_rope_head_dim = 64"),
        ({"model_type": "glm6", "index_n_heads": 32}, "'indexer_rope_interleave': .*no rule for model_type 'glm6'"),
        ({"model_type": 5}, "'model_type': expected a string"),
        ({"indexer_rope_interleave": "yes"}, "'indexer_rope_interleave': expected true or false, got 'yes'"),
        ({"rope_parameters": "default"}, "'rope_parameters': expected an object"),
        ({"rope_parameters": {}}, "'rope_theta': expected a finite number, found none"),
        ({"rope_parameters": {"rope_theta": -1}}, "'rope_theta': expected a positive number"),
        ({"rope_theta": 5e5}, "'rope_theta': expected one value in rope_theta, rope_parameters.rope_theta"),
        ({"rope_scaling": {"type": "yarn", "factor": 40}}, "'rope_type': expected one value"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1}}, "'rope_type': expected default or yarn"),
        ({"rope_parameters": {"rope_type": ["yarn"], "rope_theta": 1}}, "'rope_type': expected a string"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "mscale_all_dim": 1}}, "factor': expected"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 40}}, "mscale_all_dim': expected"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 0.5, "mscale_all_dim": 1}}, "at least 1"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1, "factor": 2, "mscale_all_dim": -1}}, "or more"),
        ({"index_topk_pattern": "FS"}, "'index_topk_pattern': expected one of F or S for each of the 8 layers"),
        ({"index_topk_pattern": "FSSSSSSX"}, "'index_topk_pattern': .*got 'X'"),
        ({"index_topk_pattern": "SFFFFFFF"}, "expected layer 0 full"),
        ({"index_topk_freq": 0}, "'index_topk_freq': expected a whole number of at least 1"),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 0}, "layer 0 full"),
        ({"index_topk_freq": 1, "indexer_types": ["full"] * 7 + ["shared"]}, "'indexer_types': expected what rule"),
        ({"indexer_types": "full"}, "'indexer_types': expected one of full or shared"),
    ],
)
def test_broken_fields_are_named(write, changes, words):
    with pytest.raises(BadInput, match=words) as error:
        load(write(changes))
    assert "model.json: field " in str(error.value)


@pytest.mark.parametrize(
    "field",
    [
        "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "num_hidden_layers", "index_n_heads", "index_head_dim", "index_topk",
    ],
)  # fmt: skip
def test_absent_fields_that_decide_a_result_are_named(write, field):
    with pytest.raises(BadInput, match=rf"model\.json: field '{field}': expected .*, found none"):
        load(write(without=[field]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "expected JSON: .*line 1, column 2"),
        ("", "expected JSON"),
        ("[1]", "expected a JSON object, got list"),
        ('{"kv_lora_rank": NaN}', "NaN is no JSON number"),
        ('{"kv_lora_rank": 1, "kv_lora_rank": 2}', "'kv_lora_rank' is there twice, with 1 and 2"),
        ("[" * 100_000, "expected JSON"),
    ],
    ids=["truncated", "empty", "list", "nan", "duplicate", "deep"],
)
def test_files_that_are_no_config(write, text, words):
    with pytest.raises(BadInput, match=words):
        load(write(text=text))


def test_infinite_numbers_are_refused(write):
    text = json.dumps(GLM).replace("1000000.0", "1e999")
    with pytest.raises(BadInput, match="'rope_theta': expected a finite number, got inf"):
        load(write(text=text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match=r"no config at .*none\.json"):
        load(tmp_path / "none.json")
    with pytest.raises(BadInput, match=r"no config at .*config\.json"):
        load(tmp_path)
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(BadInput, match=r"latin\.json: expected UTF-8 text, got byte 0xe9 at 7"):
        load(tmp_path / "latin.json")
    with pytest.raises(BadInput, match="unknown geometry ''"):
        load("")
    with pytest.raises(BadInput, match="cannot be read"):
        load("a\0b")
