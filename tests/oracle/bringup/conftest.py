"""A made-up model as one file, and the worked example with its suite."""

import json
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from attnoracle.oracle import config
from attnoracle.oracle.bringup.subject import open_subject
from attnoracle.oracle.bringup.suite import Suite
from attnoracle.oracle.bringup.written import write
from attnoracle.oracle.policies import load_rules

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "bringup"
#: The example's one misreading, and the right reading.
MISREAD = "self.rotate_halves(pe, positions), nope", "self.rotate_pairs(pe, positions), nope"

MADE_UP = {
    "architectures": ["MadeUpForCausalLM"],
    "model_type": "made_up",
    "hidden_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "q_lora_rank": 40,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 32,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 64,
    "index_topk_freq": 3,
    "index_skip_topk_offset": 1,
    "indexer_rope_interleave": True,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000},
    "max_position_embeddings": 4096,
}


@pytest.fixture
def made_up(tmp_path):
    """Writes the made-up config, with changes, and gives its path."""
    yield lambda changes=(), without=(): _write(tmp_path / "made-up.json", dict(changes), without)
    config.forget()


def _write(path: Path, changes, without) -> Path:
    fields = {key: value for key, value in (MADE_UP | changes).items() if key not in without}
    path.write_text(json.dumps(fields))
    return path


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """What ``bringup --write`` makes of the example."""
    folder = tmp_path_factory.mktemp("written")
    write(open_subject(str(EXAMPLE / "config.json")), load_rules("vllm-0.33"), folder)
    return folder


@pytest.fixture(scope="session")
def suite(folder):
    return Suite.read(folder)


@pytest.fixture(scope="session")
def example_model():
    """The text of the example's model without its misreading."""
    return (EXAMPLE / "model.py").read_text().replace(*MISREAD)


@pytest.fixture
def found_by(suite):
    """What the suite finds in a model of some text, through the example's adapters, one after the other."""

    def found_by(text, dtype="float32"):
        model, adapters = ModuleType("model"), ModuleType("adapters")
        exec(compile(text, "model.py", "exec"), model.__dict__)
        adapters.model = model
        source = (EXAMPLE / "adapters.py").read_text().replace("import model\n", "")
        exec(compile(source, "adapters.py", "exec"), adapters.__dict__)
        mine = adapters.build(dict(suite.config), suite.state(getattr(torch, dtype)))
        found = (suite.judge(case, partial(getattr(adapters, case.stage), mine), dtype) for case in suite.cases)
        return (each for each in found if each is not None)

    return found_by
