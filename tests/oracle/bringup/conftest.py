"""A made-up model as one file."""

import json
from pathlib import Path

import pytest

from attnoracle.oracle import config

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
