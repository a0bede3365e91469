"""The attention of Otter, a made-up sparse-MLA model, as a porter would write it. It knows nothing of attnoracle.

One reading of the config is wrong, on purpose: the indexer rotates halves, although the config says interleaved pairs.
"""

import math

import torch
import torch.nn.functional as F


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def frequencies(config):
    rope, dim = config["rope_parameters"], config["qk_rope_head_dim"]
    base = rope["rope_theta"]
    plain = base ** (-torch.arange(0, dim, 2).double() / dim)
    if rope["rope_type"] != "yarn":
        return plain

    def turns(count):
        return dim * math.log(rope["original_max_position_embeddings"] / (count * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(turns(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(turns(rope.get("beta_slow", 1))), dim - 1)
    ramp = ((torch.arange(dim // 2).double() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - ramp) + plain / rope["factor"] * ramp


class OtterAttention:
    def __init__(self, config, weights):
        self.w = weights
        self.heads = config["num_attention_heads"]
        self.nope, self.rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.v, self.latent = config["v_head_dim"], config["kv_lora_rank"]
        self.eps = config["rms_norm_eps"]
        self.index_heads, self.index_dim = config["index_n_heads"], config["index_head_dim"]
        self.topk = config["index_topk"]
        self.inv_freq = frequencies(config)
        rope = config["rope_parameters"]
        mscale = 0.1 * rope.get("mscale_all_dim", 0) * math.log(rope.get("factor", 1)) + 1
        self.scale = (self.nope + self.rope) ** -0.5 * mscale**2
        self.layers, self.freq = config["num_hidden_layers"], config["index_topk_freq"]
        self.offset = config["index_skip_topk_offset"]

    def angles(self, positions, x):
        angle = positions.double()[:, None] * self.inv_freq
        shape = (len(positions), *[1] * (x.dim() - 2), self.rope // 2)
        return angle.cos().to(x.dtype).view(shape), angle.sin().to(x.dtype).view(shape)

    def rotate_pairs(self, x, positions):
        cos, sin = self.angles(positions, x)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

    def rotate_halves(self, x, positions):
        cos, sin = self.angles(positions, x)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def q_latent(self, hidden):
        return rms_norm(hidden @ self.w["q_a_proj.weight"].T, self.w["q_a_layernorm.weight"], self.eps)

    def query(self, q_c):
        return (q_c @ self.w["q_b_proj.weight"].T).view(len(q_c), self.heads, self.nope + self.rope)

    def kv_latent(self, hidden):
        both = hidden @ self.w["kv_a_proj_with_mqa.weight"].T
        kv_c, k_pe = both.split((self.latent, self.rope), -1)
        return rms_norm(kv_c, self.w["kv_a_layernorm.weight"], self.eps), k_pe

    def rotate_query(self, q, positions):
        nope, pe = q.split((self.nope, self.rope), -1)
        return torch.cat((nope, self.rotate_pairs(pe, positions)), -1)

    def rotate_key(self, k_pe, positions):
        return self.rotate_pairs(k_pe, positions)

    def rotate_index(self, x, positions):
        pe, nope = x.split((self.rope, self.index_dim - self.rope), -1)
        return torch.cat((self.rotate_halves(pe, positions), nope), -1)

    def index_query(self, q_c, positions):
        q = (q_c @ self.w["indexer.wq_b.weight"].T).view(len(q_c), self.index_heads, self.index_dim)
        return self.rotate_index(q, positions)

    def index_key(self, hidden, positions):
        k = hidden @ self.w["indexer.wk.weight"].T
        k = F.layer_norm(k, (self.index_dim,), self.w["indexer.k_norm.weight"], self.w["indexer.k_norm.bias"], 1e-6)
        return self.rotate_index(k, positions)

    def index_weights(self, hidden):
        return hidden @ self.w["indexer.weights_proj.weight"].T * self.index_dim**-0.5 * self.index_heads**-0.5

    def index_scores(self, q, k, weights):
        scores = (weights[..., None] * torch.relu(torch.einsum("qhd,kd->qhk", q, k))).sum(1)
        new, total = scores.shape
        behind = torch.arange(total)[None] > torch.arange(total - new, total)[:, None]
        return scores.masked_fill(behind, -torch.inf)

    def select(self, scores):
        count = min(self.topk, scores.shape[1])
        best, keys = scores.topk(count, -1)
        keys = keys.masked_fill(best == -torch.inf, -1)
        return F.pad(keys, (0, self.topk - count), value=-1)

    def attention(self, q, kv_c, k_pe, indices):
        kv_b = self.w["kv_b_proj.weight"].view(self.heads, self.nope + self.v, self.latent)
        w_uk, w_uv = kv_b.split((self.nope, self.v), 1)
        q_nope, q_pe = q.split((self.nope, self.rope), -1)
        absorbed = torch.einsum("qhp,hpc->qhc", q_nope, w_uk)
        rows, ropes = kv_c[indices.clamp(min=0)], k_pe[indices.clamp(min=0)]  # [q, k, c], [q, k, r]
        scores = torch.einsum("qhc,qkc->qhk", absorbed, rows) + torch.einsum("qhr,qkr->qhk", q_pe, ropes)
        scores = (scores * self.scale).masked_fill((indices < 0)[:, None], -torch.inf)
        latent = torch.einsum("qhk,qkc->qhc", scores.softmax(-1), rows)
        return torch.einsum("qhc,hvc->qhv", latent, w_uv)

    def draft_input(self, previous, embedded):
        e = rms_norm(embedded, self.w["enorm.weight"], self.eps)
        h = rms_norm(previous, self.w["hnorm.weight"], self.eps)
        return torch.cat((e, h), -1) @ self.w["eh_proj.weight"].T

    def rank_attention(self, q, kv_c, k_pe, indices, ranks, interleave):
        kv_b = self.w["kv_b_proj.weight"].view(self.heads, self.nope + self.v, self.latent)
        k_up, v_up = kv_b[:, : self.nope], kv_b[:, self.nope :]
        k = torch.cat((torch.einsum("tc,hpc->thp", kv_c, k_up), k_pe[:, None].expand(-1, self.heads, -1)), -1)
        chosen = torch.zeros(len(q), len(k) + 1, dtype=torch.bool)
        chosen = chosen.scatter(1, indices.masked_fill(indices < 0, len(k)), True)[:, : len(k)]
        rank_of = torch.arange(len(k)) // interleave % ranks
        scores = torch.einsum("qhd,thd->qht", q, k) * self.scale
        outs, lses = [], []
        for rank in range(ranks):
            here = scores.masked_fill(~(chosen & (rank_of == rank))[:, None], -torch.inf)
            lses.append(here.logsumexp(-1))
            latent = torch.einsum("qht,tc->qhc", here.softmax(-1).nan_to_num(0.0), kv_c)
            outs.append(torch.einsum("qhc,hvc->qhv", latent, v_up))
        return torch.stack(outs), torch.stack(lses)

    def merge_ranks(self, outs, lses):
        share = lses.softmax(0).nan_to_num(0.0)
        return (share[..., None] * outs).sum(0)

    def output(self, attended):
        return attended.flatten(1) @ self.w["o_proj.weight"].T

    def full_layers(self):
        return [layer for layer in range(self.layers) if max(layer - self.offset + 1, 0) % self.freq == 0]


E4M3_MAX = 448.0


def write_latent(kv_c, k_pe):
    """fp8_ds_mla: codes, one power-of-two scale a tile of 128, k_pe in bf16."""
    kv_c = kv_c.float()
    tiles = kv_c.view(len(kv_c), -1, min(128, kv_c.shape[1]))
    scale = torch.exp2(torch.ceil(torch.log2((tiles.abs().amax(-1) / E4M3_MAX).clamp(min=1e-4))))
    codes = (tiles / scale[..., None]).to(torch.float8_e4m3fn).flatten(1)
    parts = (codes.view(torch.uint8), scale.view(torch.uint8), k_pe.bfloat16().contiguous().view(torch.uint8))
    return torch.cat(parts, 1)


def read_latent(rows, latent):
    tile = min(128, latent)
    end = latent + 4 * (latent // tile)
    codes = rows[:, :latent].contiguous().view(torch.float8_e4m3fn).float()
    scale = rows[:, latent:end].contiguous().view(torch.float32)
    pe = rows[:, end:].contiguous().view(torch.bfloat16).float()
    return torch.cat(((codes.view(len(rows), -1, tile) * scale[..., None]).flatten(1), pe), 1)


def write_index(k):
    scale = torch.exp2(torch.ceil(torch.log2(k.float().abs().amax(-1).clamp(min=1e-4) / E4M3_MAX)))
    return (k.float() / scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8), scale


def read_index(codes, scales):
    return codes.view(torch.float8_e4m3fn).float() * scales[:, None]
