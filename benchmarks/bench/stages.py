"""One prefill request as the stages of each route, on tensors of their own: what a layer pays from hidden states on.

    common        q_b projection, o_proj
    index         q, k and weights of the indexer, its scores, the top-k
    dense_mha     up-projection of the latents, attention
    masked_mha    up-projection, bit mask of the selection, attention
    sparse_mqa    absorbed query, attention over the selection, restored values

Weights are random, activations standard normal; every stage reads what the one before would leave, but not its result,
so that each can be timed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...optimized.implementation import Implementation
from ...oracle.case import Case
from ...oracle.errors import Unsupported
from ...oracle.facts import facts
from ...oracle.geometry import Geometry
from ...oracle.guests.known import find
from ...oracle.inputs import rng

Stage = Callable[[], Any]
ROUTES = ("dense_mha", "masked_mha", "sparse_mqa")
#: Every stage, in the order in which a layer comes to it.
ORDER = (
    "q_b", "index q, k", "scores", "top-k", "up-projection", "mask", "absorb", "attention", "restore", "o_proj",
)  # fmt: skip
#: The first that runs there is taken.
KERNELS: Mapping[str, tuple[str, ...]] = {
    "dense_mha": ("hopper", "triton", "sdpa-math"),
    "masked_mha": ("hopper", "triton", "sdpa-math"),
    "sparse_mqa": ("hopper", "triton", "gather"),
    "indexer_scores": ("hopper", "triton", "torch"),
    "topk_select": ("hopper", "triton", "sort"),
    "build_mask": ("triton", "torch"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One request on one rank: ``query`` new tokens in ``seq``, ``heads`` of the model's."""

    geometry: Geometry
    heads: int
    query: int
    seq: int
    device: str = "cuda"

    def case(self, operator: str) -> Case:
        """The operator of this shape as a case, by which implementations say what they support."""
        model, indexer = self.geometry, operator == "indexer_scores"
        return Case(
            operator=operator,
            geometry=model.name,
            heads={"topk_select": 1, "indexer_scores": model.index_n_heads or 1}.get(operator, self.heads),
            q_lens=(self.query,),
            k_lens=(self.seq,),
            topk=0 if operator in ("dense_mha", "indexer_scores") else model.index_topk,
            dtype="e4m3" if indexer else "bf16",
            kind="randn",
            options=(),
            seed=0,
        )


def kernel(shape: Shape, operator: str, only: Sequence[str] = ()) -> Implementation:
    """The implementation that is timed. Raises Unsupported with the reason of the last candidate."""
    seen, reason = facts(shape.case(operator), shape.geometry, shape.device), None
    for backend in only or KERNELS[operator]:
        one = find(f"{operator}/{backend}")
        reason = one.supports(seen)
        # The portable kernels are interpreted without a GPU: hours for a prompt.
        if reason is None and not (seen["interpreted"] and backend == "triton"):
            return one
    raise Unsupported(f"{operator} at {shape.heads} heads and {shape.seq} keys: {reason or 'only interpreted here'}")


class Prefill:
    """The tensors of one shape, and its stages by route. Raises Unsupported for a model whose indexer is not known."""

    def __init__(self, shape: Shape) -> None:
        if not shape.geometry.index_n_heads or not shape.geometry.index_head_dim:
            raise Unsupported(f"{shape.geometry.name}: its indexer is not known, so no whole route can be timed")
        self.shape, self.device = shape, torch.device(shape.device)
        model = shape.geometry
        nope, value, rank = model.qk_nope_head_dim, model.v_head_dim, model.kv_lora_rank
        self.latent = self._random(shape.seq, model.latent_dim)
        self.q = self._random(shape.query, shape.heads, model.qk_head_dim)
        up = self._random(rank, shape.heads, nope + value) * rank**-0.5
        self.up = up.view(rank, -1)
        self.absorb = up[..., :nope].permute(1, 2, 0).contiguous()
        self.restore = up[..., nope:].permute(1, 0, 2).contiguous()
        self.cu_q, self.cu_k = (
            torch.tensor([0, count], dtype=torch.int32, device=self.device) for count in (shape.query, shape.seq)
        )

    def _random(self, *size: int) -> Tensor:
        return torch.randn(size, device=self.device, dtype=torch.bfloat16)

    @cached_property
    def ends(self) -> Tensor:
        """[query]: how many keys each new token sees."""
        first = self.shape.seq - self.shape.query + 1
        return torch.arange(first, self.shape.seq + 1, device=self.device)

    @cached_property
    def indices(self) -> Tensor:
        """[query, top-k] int32: uniform draws among the keys that a token sees, -1 where it sees fewer."""
        topk = self.shape.geometry.index_topk
        drawn = rng.distinct(rng.key(0, "crossover"), topk, self.ends, self.ends - self.ends[0])
        return drawn[:, torch.randperm(topk, device=self.device)].to(torch.int32).contiguous()

    def common(self) -> dict[str, Stage]:
        """What every route pays: the query's second projection and the output's; none where the config lacks them."""
        model, shape = self.shape.geometry, self.shape
        if not model.q_lora_rank or not model.hidden_size:
            return {}
        down = self._random(shape.query, model.q_lora_rank)
        w_q = self._random(model.q_lora_rank, shape.heads * model.qk_head_dim) * model.q_lora_rank**-0.5
        out = self._random(shape.query, shape.heads * model.v_head_dim)
        w_o = self._random(shape.heads * model.v_head_dim, model.hidden_size)
        return {"q_b": lambda: down @ w_q, "o_proj": lambda: out @ w_o}

    def index(self) -> dict[str, Stage]:
        """The indexer: its own projections, scores, and the selection."""
        model, shape = self.shape.geometry, self.shape
        heads, dim = model.index_n_heads or 0, model.index_head_dim or 0
        eight = torch.float8_e4m3fn
        q, k = self._random(shape.query, heads, dim).to(eight), self._random(shape.seq, dim).to(eight)
        weights = torch.randn(shape.query, heads, device=self.device)
        k_scale = torch.full((shape.seq,), 0.01, device=self.device)
        ks, ke = torch.zeros_like(self.ends, dtype=torch.int32), self.ends.to(torch.int32)
        score, select = kernel(shape, "indexer_scores").load(), kernel(shape, "topk_select").load()
        (scores,) = score(q, k, k_scale, weights, ks, ke)
        found: dict[str, Stage] = {}
        if model.q_lora_rank and model.hidden_size:
            down, hidden = self._random(shape.query, model.q_lora_rank), self._random(shape.query, model.hidden_size)
            w_q = self._random(model.q_lora_rank, heads * dim)
            w_k = self._random(model.hidden_size, dim + heads)
            found["index q, k"] = lambda: ((down @ w_q).to(eight), hidden @ w_k)
        found["scores"] = lambda: score(q, k, k_scale, weights, ks, ke)
        found["top-k"] = lambda: select(scores, ks, ke, k=model.index_topk)
        return found

    def route(self, name: str, backend: str = "") -> dict[str, Stage]:
        """The stages of a route after the selection, with the named backend or the first that runs here."""
        run = kernel(self.shape, name, (backend,) if backend else ()).load()
        return self._mqa(run) if name == "sparse_mqa" else self._mha(run, masked=name == "masked_mha")

    def _mha(self, run: Callable[..., Any], *, masked: bool) -> dict[str, Stage]:
        model, shape = self.shape.geometry, self.shape
        nope, rank, rope = model.qk_nope_head_dim, model.kv_lora_rank, model.qk_rope_head_dim

        def raised() -> tuple[Tensor, Tensor]:
            both = (self.latent[:, :rank] @ self.up).view(shape.seq, shape.heads, -1)
            shared = self.latent[:, None, rank:].expand(shape.seq, shape.heads, rope)
            return torch.cat([both[..., :nope], shared], -1), both[..., nope:]

        k, v = raised()
        ends = {"cu_q": self.cu_q, "cu_k": self.cu_k, "scale": model.softmax_scale}
        if not masked:
            return {"up-projection": raised, "attention": lambda: run(self.q, k, v, **ends)}
        build = kernel(shape, "build_mask").load()
        start, length = self.cu_q[:1], self.cu_k[1:]
        rows, words = -(-shape.query // 256) * 256, -(-shape.seq // 128) * 4

        def mask() -> Any:
            return build(self.indices, self.cu_q, start, length, rows=rows, words=words)

        (made,) = mask()
        return {"up-projection": raised, "mask": mask, "attention": lambda: run(self.q, k, v, made, **ends)}

    def _mqa(self, run: Callable[..., Any]) -> dict[str, Stage]:
        model, shape = self.shape.geometry, self.shape
        nope, rank = model.qk_nope_head_dim, model.kv_lora_rank

        def absorbed() -> Tensor:
            made = torch.empty(shape.query, shape.heads, model.latent_dim, device=self.device, dtype=torch.bfloat16)
            made[..., :rank] = torch.bmm(self.q[..., :nope].transpose(0, 1), self.absorb).transpose(0, 1)
            made[..., rank:] = self.q[..., nope:]
            return made

        query = absorbed()

        def attention() -> Any:
            return run(query, self.latent, self.indices, scale=model.softmax_scale, value_dim=rank)

        (out, *_) = attention()
        return {
            "absorb": absorbed,
            "attention": attention,
            "restore": lambda: torch.bmm(out.transpose(0, 1), self.restore).transpose(0, 1),
        }


def together(stages: Mapping[str, Stage]) -> Stage:
    """All stages, one after the other."""

    def run() -> None:
        for stage in stages.values():
            stage()

    return run
