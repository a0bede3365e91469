"""The adapter of transformers' indexer and what diagnosis says of it, on a module that is one in miniature.

No download.
The miniature is written from the definition of the score and keeps the names that the adapter replaces: with the ReLU,
as in releases from 5.4.0 on, and without it, as in 5.2.0 and 5.3.0 (transformers#44690).
"""

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from attnoracle.oracle.case import Case
from attnoracle.oracle.cause.named import named
from attnoracle.oracle.check import check
from attnoracle.oracle.diagnose import diagnose

CASE = Case.parse("indexer_scores:tiny:h4:q6,3:k30,20:bf16:randn:contiguous:-:s0")
NAME = "indexer_scores/transformers"


class Indexer(nn.Module):
    """hidden states and the query's latent -> q, k, weights -> scores -> the selection."""

    relu = True

    def __init__(self, config, layer_idx):
        super().__init__()
        self.shape = (1, -1, config.index_n_heads, config.index_head_dim)
        self.wq_b = self.wk = self.weights_proj = self.k_norm = None

    def forward(self, hidden_states, q_resid, position_embeddings, attention_mask):
        q, k = self.wq_b(q_resid).view(self.shape), self.k_norm(self.wk(hidden_states))
        products = (q @ k.transpose(-1, -2)[:, None]) * self.shape[3] ** -0.5
        products = products.relu() if self.relu else products
        weights = self.weights_proj(hidden_states) * self.shape[2] ** -0.5
        scores = (products * weights[..., None]).sum(2) + attention_mask
        return scores.topk(1).indices


@pytest.fixture
def transformers(monkeypatch):
    """Puts a transformers in miniature in place of whatever is installed."""
    base = "transformers.models.glm_moe_dsa"
    modules = {name: ModuleType(name) for name in ("transformers", "transformers.models", base)}
    modules[f"{base}.configuration_glm_moe_dsa"] = ModuleType("configuration")
    modules[f"{base}.configuration_glm_moe_dsa"].GlmMoeDsaConfig = SimpleNamespace
    modules[f"{base}.modeling_glm_moe_dsa"] = ModuleType("modeling")
    modules[f"{base}.modeling_glm_moe_dsa"].GlmMoeDsaIndexer = Indexer
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    plain = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.2.0" if name == "transformers" else plain(name))


def test_the_scores_of_the_module_are_caught_and_right(transformers):
    verdict = check(CASE, named(NAME, CASE.operator)())
    assert verdict.status == "PASS", verdict.reason


def test_a_module_without_the_relu_is_named_for_it_first(transformers, monkeypatch):
    monkeypatch.setattr(Indexer, "relu", False)
    found = diagnose(CASE, named(NAME, CASE.operator))
    assert found.ranked[0].hypothesis.name == "relu-missing" and found.ranked[0].fits
    assert found.ranked[0].hypothesis.stage == "logits" and found.conclusion.startswith("The ReLU is missing")
