"""Misreadings planted in the worked example's model as changes of its text: each is found in its stage and named.

Rows are (name, stage, old text, new text, what has to be told).
"""

import pytest

PLANTS = (
    ("q-eps", "q_latent", '"q_a_layernorm.weight"], self.eps)', '"q_a_layernorm.weight"], 1e-6)', "query-norm-eps"),
    ("kv-eps", "kv_latent", '"kv_a_layernorm.weight"], self.eps)', '"kv_a_layernorm.weight"], 1e-6)', "kv-norm-eps"),
    ("no-kv-norm", "kv_latent", 'rms_norm(kv_c, self.w["kv_a_layernorm.weight"], self.eps), k_pe', "kv_c, k_pe",
     "kv-not-normalised"),
    ("latent-order", "kv_latent", "kv_c, k_pe = both.split((self.latent, self.rope), -1)",
     "k_pe, kv_c = both.split((self.rope, self.latent), -1)", "latent-rope-first"),
    ("head-order", "query", ".view(len(q_c), self.heads, self.nope + self.rope)",
     ".view(len(q_c), self.nope + self.rope, self.heads).transpose(1, 2)", "query-heads-last"),
    ("rope-style-q", "rotate_query", "torch.cat((nope, self.rotate_pairs(pe, positions)), -1)",
     "torch.cat((nope, self.rotate_halves(pe, positions)), -1)", "rope-style"),
    ("rope-style-k", "rotate_key", "return self.rotate_pairs(k_pe, positions)",
     "return self.rotate_halves(k_pe, positions)", "rope-style"),
    ("rope-first", "rotate_query", "nope, pe = q.split((self.nope, self.rope), -1)\n        return torch.cat((nope, "
     "self.rotate_pairs(pe, positions)), -1)", "pe, nope = q.split((self.rope, self.nope), -1)\n        return "
     "torch.cat((self.rotate_pairs(pe, positions), nope), -1)", "query-rope-first"),
    ("theta", "rotate_query", 'base = rope["rope_theta"]', 'base = config.get("rope_theta", 10000)', "theta-default"),
    ("no-yarn", "rotate_query", 'if rope["rope_type"] != "yarn":', "if True:", "yarn-left-out"),
    ("chunk-positions", "rotate_key", "return self.rotate_pairs(k_pe, positions)",
     "return self.rotate_pairs(k_pe, positions - positions[0])", "positions-from-zero"),
    ("index-style", "index_query", "self.rotate_pairs(pe, positions), nope", "self.rotate_halves(pe, positions), nope",
     "index-rope-style"),
    ("index-order", "index_query",
     "pe, nope = x.split((self.rope, self.index_dim - self.rope), -1)\n        return torch.cat((self.rotate_pairs(pe, "
     "positions), nope), -1)",
     "nope, pe = x.split((self.index_dim - self.rope, self.rope), -1)\n        return torch.cat((nope, "
     "self.rotate_pairs(pe, positions)), -1)", "index-rope-last"),
    ("index-eps", "index_key", '"indexer.k_norm.bias"], 1e-6)', '"indexer.k_norm.bias"], 1e-5)', "index-norm-eps"),
    ("index-bias", "index_key", 'self.w["indexer.k_norm.bias"], 1e-6)', "None, 1e-6)", "index-no-bias"),
    ("index-rms", "index_key", "k = F.layer_norm(k, (self.index_dim,), self.w[\"indexer.k_norm.weight\"], "
     "self.w[\"indexer.k_norm.bias\"], 1e-6)", 'k = rms_norm(k, self.w["indexer.k_norm.weight"], 1e-6)',
     "index-rms-norm"),
    ("head-factor", "index_weights", " * self.index_heads**-0.5", "", "weights-no-head-factor"),
    ("dim-factor", "index_weights", " * self.index_dim**-0.5", "", "weights-no-dim-factor"),
    ("relu", "index_scores", 'torch.relu(torch.einsum("qhd,kd->qhk", q, k))', 'torch.einsum("qhd,kd->qhk", q, k)',
     "scores-no-relu"),
    ("causal", "index_scores", "scores.masked_fill(behind, -torch.inf)", "scores", "scores-not-causal"),
    ("self", "index_scores", "[None] > torch.arange(total - new", "[None] >= torch.arange(total - new",
     "scores-without-self"),
    ("last-chunk", "index_scores", "return scores.masked_fill(behind, -torch.inf)",
     "behind |= torch.arange(total) < total - new\n        return scores.masked_fill(behind, -torch.inf)",
     "scores-last-chunk"),
    ("topk", "select", "count = min(self.topk, scores.shape[1])", "count = min(self.topk - 1, scores.shape[1])",
     "selects 7, expected 8"),
    ("smallest", "select", "scores.topk(count, -1)",
     "scores.nan_to_num(neginf=-1e30).neg().topk(count, -1)", "selects"),
    ("select-in-half", "select", "scores.topk(count, -1)", "scores.half().topk(count, -1)", "leaves out key"),
    ("select-in-bf16", "select", "scores.topk(count, -1)", "scores.bfloat16().topk(count, -1)", "leaves out key"),
    ("scale", "attention", "self.scale = (self.nope + self.rope) ** -0.5 * mscale**2",
     "self.scale = (self.latent + self.rope) ** -0.5", "scale-of-latent-dim"),
    ("mscale", "attention", "* mscale**2", "", "mscale-left-out"),
    ("mscale-once", "attention", "mscale**2", "mscale", "mscale-once"),
    ("k-as-v", "attention", 'return torch.einsum("qhc,hvc->qhv", latent, w_uv)',
     'return F.pad(torch.einsum("qhc,hvc->qhv", latent, w_uk), (0, self.v - self.nope))', "keys-as-values"),
    ("v-first", "attention", "w_uk, w_uv = kv_b.split((self.nope, self.v), 1)",
     "w_uv, w_uk = kv_b.split((self.v, self.nope), 1)", "kv-b-values-first"),
    ("heads-mixed", "output", "attended.flatten(1)", "attended.transpose(1, 2).flatten(1)", "output-heads-mixed"),
    ("draft-order", "draft_input", "torch.cat((e, h), -1)", "torch.cat((h, e), -1)", "draft-hidden-first"),
    ("draft-norms", "draft_input", 'rms_norm(embedded, self.w["enorm.weight"], self.eps)\n        '
     'h = rms_norm(previous, self.w["hnorm.weight"]', 'rms_norm(embedded, self.w["hnorm.weight"], self.eps)\n        '
     'h = rms_norm(previous, self.w["enorm.weight"]', "draft-norms-exchanged"),
    ("draft-plain", "draft_input", 'h = rms_norm(previous, self.w["hnorm.weight"], self.eps)', "h = previous",
     "draft-not-normalised"),
    ("draft-token", "draft_input", "e = rms_norm(embedded,", "e = rms_norm(torch.cat((embedded[:1], embedded[:-1])),",
     "draft-embedding-late"),
    ("rank-runs", "rank_attention", "// interleave % ranks", "// -(-len(k) // ranks)", "rank-of-blocks"),
    ("rank-single", "rank_attention", "// interleave % ranks", "% ranks", "rank-without-interleave"),
    ("rank-lse", "rank_attention", "here.logsumexp(-1)", "here.logsumexp(-1) / math.log(2)", "rank-lse-in-base-2"),
    ("merge-base", "merge_ranks", "lses.softmax(0)", "(lses * math.log(2)).softmax(0)", "ranks-in-base-2"),
    ("merge-mean", "merge_ranks", "share = lses.softmax(0).nan_to_num(0.0)",
     "share = torch.full_like(lses, 1 / len(lses))", "ranks-averaged"),
    ("merge-empty", "merge_ranks", "lses.softmax(0)", "lses.nan_to_num(neginf=0.0).softmax(0)", "empty-rank-counts"),
    ("scales", "write_latent", "scale = torch.exp2(torch.ceil(torch.log2((tiles.abs().amax(-1) / E4M3_MAX)"
     ".clamp(min=1e-4))))", "scale = (tiles.abs().amax(-1) / E4M3_MAX).clamp(min=1e-4)", "fp32-scales"),
    ("floor-of-row", "write_latent", "(tiles.abs().amax(-1) / E4M3_MAX).clamp(min=1e-4)",
     "(tiles.abs().amax(-1).clamp(min=1e-4) / E4M3_MAX)", "floor-on-amax"),
    ("floor-of-key", "write_index", "k.float().abs().amax(-1).clamp(min=1e-4) / E4M3_MAX",
     "(k.float().abs().amax(-1) / E4M3_MAX).clamp(min=1e-4)", "floor-on-scale"),
    ("row-order", "write_latent", "parts = (codes.view(torch.uint8), scale.view(torch.uint8)",
     "parts = (scale.view(torch.uint8), codes.view(torch.uint8)", "differ"),
    ("fnuz", "read_index", "codes.view(torch.float8_e4m3fn)", "codes.view(torch.float8_e4m3fnuz)", "read-as-fnuz"),
    ("fnuz-rows", "read_latent", ".view(torch.float8_e4m3fn).float()\n    scale",
     ".view(torch.float8_e4m3fnuz).float()\n    scale", "read-as-fnuz"),
    ("offset", "full_layers", "layer - self.offset + 1", "layer - self.offset + 2", "layers"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "stage", "old", "new", "told"), PLANTS, ids=[plant[0] for plant in PLANTS])
def test_a_misreading_is_found_in_its_stage_and_named(found_by, example_model, name, stage, old, new, told):
    assert example_model.count(old) == 1
    first = next(found_by(example_model.replace(old, new)))
    assert first.case.stage == stage, "another stage fails first"
    assert told in str(first)


def test_at_least_twenty_misreadings_are_planted():
    assert len(PLANTS) >= 20 and len({plant[0] for plant in PLANTS}) == len(PLANTS)
