"""What ``bringup --write`` leaves in a folder: a small model of the same kind, cases, tests, adapters, policy stub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ...reference.routing import Rules
from ...reference.stages import stages_of
from ..errors import BadInput
from . import cache_bytes
from .routes import SIZES
from .subject import Subject
from .suite import Suite

_TEST = '''"""Every stage of our model against the specification, on a small model of the same kind.

Made by ``attnoracle bringup --write``, which may write it again. What it calls is in adapters.py, which is ours.
"""

from pathlib import Path

import pytest

from attnoracle.oracle.bringup.session import Session

SESSION = Session(Path(__file__).parent)


@pytest.mark.parametrize("case", SESSION.cases, ids=str)
def test_stage(case):
    SESSION.check(case)


@pytest.mark.parametrize("case", SESSION.chains, ids=str)
def test_chain(case):
    SESSION.check_chain(case)


def test_dense_mha_capability():
    SESSION.check_capability()


def test_no_stage_is_left_out():
    SESSION.check_coverage()
'''

_HEAD = '''"""Hands our stages to the suite. Whatever raises NotImplementedError is skipped and counted.

Every argument and result is a tensor of one request: s new tokens, t tokens with the cached ones.
"""

#: What the code computes in: float32 or float64.
DTYPE = "float32"
#: Whether both sides of the indexer are rotated by a Hadamard matrix.
HADAMARD = False
#: Whether dense prefills run as MHA: True or False. It has to be said; make_layer shows whether it is so.
SUPPORTS_DENSE_MHA_PREFILL = None


def build(config, weights):
    """``config``: fields of tiny.json. ``weights``: tensors under their checkpoint names. The result is ``mine``."""
    return None
'''
_MORE = (
    ("full_layers", "mine", "Numbers of the layers that have an indexer of their own."),
    ("make_layer", "parts", "A layer for reference.layer's parts: forward(inputs, metadata) -> output and trace."),
)
_DIMS = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "v_head_dim": 16,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
}
_ROPE = 8


def small(subject: Subject) -> dict[str, Any]:
    """The config with small dims: all that decides a convention stays, and what was equal stays equal."""
    fields = {key: value for key, value in subject.config.fields.items() if not key.startswith("_")}
    g = subject.geometry
    fields |= {key: value for key, value in _DIMS.items() if key in fields}
    fields["qk_nope_head_dim"] = 16 if g.qk_nope_head_dim == g.v_head_dim else 12
    fields["qk_rope_head_dim"] = _ROPE if g.qk_rope_head_dim else 0
    same = {
        "num_key_value_heads": fields["num_attention_heads"],
        "qk_head_dim": fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"],
        "head_dim": fields["qk_rope_head_dim"],
    }
    return fields | {key: value for key, value in same.items() if key in fields}


def adapters(suite: Suite) -> str:
    """The stub of the adapters that a model needs."""
    told = [_HEAD]
    for stage in stages_of(suite.model):
        told.append(_function(stage.name, f"mine, *, {', '.join(stage.inputs)}", f"Gives {', '.join(stage.outputs)}."))
    keywords: Mapping[str, str] = {
        "write_latent": "kv_c, k_pe",
        "read_latent": "rows",
        "write_index": "index_k",
        "read_index": "codes, scales",
    }
    for name in cache_bytes.names(suite.model):
        told.append(
            _function(name, f"mine, *, {keywords[name]}", "Bytes; see attnoracle's oracle/bringup/cache_bytes.py.")
        )
    told += [_function(*one) for one in _MORE if one[0] != "full_layers" or suite.full_layers]
    return "\n\n".join(told)


def _function(name: str, arguments: str, told: str) -> str:
    return f'def {name}({arguments}):\n    """{told}"""\n    raise NotImplementedError\n'


def policy(subject: Subject, rules: Rules) -> str:
    """Routing rules for these head dims that never take masked MHA, to be filled in from measurements."""
    g = subject.geometry
    rows = [
        f'name = "{g.name}"\ndate = "{date.today().isoformat()}"\n'
        f'source = "a stub: nothing was measured"\nbased_on = "{rules.name}"\n',
        "# [longest sequence, shortest query] of masked MHA, without and with cached context; [] is never.",
    ]
    for backend in sorted({key[2] for key in rules.tables}):
        for tp in SIZES:
            if g.heads % tp == 0:
                rows.append(
                    f'[[tables]]\nhead_dims = [{g.qk_head_dim}, {g.v_head_dim}]\nbackend = "{backend}"\n'
                    f"tensor_parallel = {tp}\npure = []\ncontext = []\n"
                )
    return "\n".join(rows)


def write(subject: Subject, rules: Rules, folder: Path) -> tuple[str, ...]:
    """Names of the files that were written. ``adapters.py`` and ``policy.toml`` are left alone where they exist.

    Raises BadInput for a config without the fields that the stages need, and for a folder that cannot be written.
    """
    subject.model()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tiny.json").write_text(json.dumps(small(subject), indent=2) + "\n", encoding="utf-8")
        suite = Suite.of(folder / "tiny.json")
        texts = {
            "cases.json": json.dumps(suite.cases_json(), indent=1) + "\n",
            "test_bringup.py": _TEST,
            "adapters.py": adapters(suite),
            "policy.toml": policy(subject, rules),
        }
        written = ["tiny.json"]
        for name, text in texts.items():
            path = folder / name
            if name in ("adapters.py", "policy.toml") and path.exists():
                continue
            path.write_text(text, encoding="utf-8")
            written.append(name)
    except OSError as error:
        raise BadInput(f"--write {folder}: expected a folder that can be written: {error.strerror}") from None
    return tuple(written)
