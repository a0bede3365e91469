"""SGLang's own routing decisions, taken out of its sources, behind one function a decision.

Taken out: the backend's choice of dense MHA and of the prefill kernel, the space of selections, the indexer's skip, the
default kernels, and ``ForwardMode``. Standing in: the device, the environment, parallel sizes, and plain namespaces for
the backend, the batch and the arguments. Imports inside the functions are left out, since what they bring stands in.

Source: SGLang 0.5.23; files in ``FILES``.
"""

from __future__ import annotations

import re
from types import SimpleNamespace as Namespace
from typing import Any

import torch

from ...reference.routing.one_shot import OneShotStep
from .source import Sources

FILES = {
    "backend": "srt/layers/attention/dsa_backend.py",
    "indexer": "srt/layers/attention/dsa/dsa_indexer.py",
    "defaults": "srt/arg_groups/overrides.py",
    "modes": "srt/model_executor/forward_batch_info.py",
}
_PRELUDE = """
from __future__ import annotations
from enum import IntEnum, auto
from types import SimpleNamespace
import torch as real

FACTS = SimpleNamespace(capability=90, dense_limit=2048, prefill_cp=False, captured="", model=None)
torch = SimpleNamespace(
    bfloat16=real.bfloat16,
    float8_e4m3fn=real.float8_e4m3fn,
    cuda=SimpleNamespace(get_device_capability=lambda: divmod(FACTS.capability, 10)),
)
envs = SimpleNamespace(
    SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD=SimpleNamespace(get=lambda: FACTS.dense_limit)
)
_IS_GFX95 = _is_hip = False
DSA_DENSE = "dense"
get_is_capture_mode = lambda: bool(FACTS.captured)
get_capture_attention_variant = lambda: FACTS.captured
is_dsa_enable_prefill_cp = lambda: FACTS.prefill_cp
is_deepseek_dsa = lambda config: True
model_config_of = lambda view: FACTS.model
get_platform = lambda: SimpleNamespace(is_npu=False, is_xpu=False, is_hip=False)
register_post_process = lambda function: function


class logger:
    @staticmethod
    def warning(*words):
        pass


class TopkTransformMethod(IntEnum):
    PAGED = auto()
    RAGGED = auto()
"""
_IMPORT = re.compile(r"^[ \t]+(?:from sglang[\w.]* import (?:\([^)]*\)|[^\n]*)|import torch)\n", re.MULTILINE)


class SglangRules:
    """The decisions of one version. Raises Unsupported where its sources lack one."""

    def __init__(self, sources: Sources) -> None:
        backend = "DeepseekSparseAttnBackend"
        pieces = (
            (FILES["modes"], "ForwardMode"),
            (FILES["backend"], f"{backend}.set_dsa_prefill_impl"),
            (FILES["backend"], f"{backend}.get_topk_transform_method"),
            (FILES["indexer"], "Indexer._should_skip_logits_computation"),
            (FILES["defaults"], "_check_dsa_backend_constraints"),
            (FILES["defaults"], "_DEEPSEEK_FAMILY_ARCHS"),
            (FILES["defaults"], "_dsa_split_backend_resolution"),
        )
        able = sources.statements(FILES["backend"], f"{backend}.__init__", r"^self\.supports_mha_one_shot: bool")
        indented = able.replace("\n", "\n    ")
        texts = [_IMPORT.sub("", sources.define(*piece)) for piece in pieces]
        self.module: Any = sources.load("routing", _PRELUDE, *texts, f"def capability(self):\n    {indented}")

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(self.module.ForwardMode.__members__)

    def answers(self, step: OneShotStep) -> dict[str, Any]:
        """``dense``, ``kernel``, ``space`` and ``skip`` of one step."""
        facts = self.module.FACTS
        facts.capability, facts.dense_limit, facts.prefill_cp = step.capability, step.dense_limit, step.prefill_cp
        facts.captured = step.captured
        quantised = step.cache != "model"
        backend = Namespace(
            dcp_size=step.dcp,
            _kv_shard_pool=object() if step.sharded_pool else None,
            use_mha=True,  # as a step before may have left it
            enable_auto_select_prefill_impl=step.prefill_kernel == "flashmla_auto",
            dsa_prefill_impl=step.prefill_kernel,
            dsa_kv_cache_store_fp8=quantised,
            token_to_kv_pool=Namespace(dtype=torch.float8_e4m3fn if quantised else torch.bfloat16),
            hisparse_coordinator=object() if step.hisparse else None,
            _is_in_breakable_cuda_graph=lambda: step.in_graph,
            _is_in_tc_piecewise_cuda_graph=lambda: False,
            _get_device_sm=lambda: step.capability,
            _is_blackwell=lambda: step.capability >= 100,
        )
        lengths = torch.tensor(step.seq_lens)
        mode = self.module.ForwardMode[step.mode]
        batch = Namespace(
            forward_mode=mode,
            seq_lens_cpu=lengths,
            seq_lens=lengths,
            seq_lens_sum=sum(step.seq_lens),
            extend_num_tokens=step.queries,
            get_max_chunk_capacity=lambda: CHUNK_CAPACITY,
        )
        self.module.capability(backend)
        self.module.set_dsa_prefill_impl(backend, batch)
        space = self.module.get_topk_transform_method(backend, mode).name
        skip = self.module._should_skip_logits_computation(Namespace(index_topk=step.index_topk), batch)
        return {"dense": bool(backend.use_mha), "kernel": backend.dsa_prefill_impl, "space": space, "skip": bool(skip)}

    def default_kernels(self, capability: int, cache: str) -> tuple[str, str]:
        """Prefill and decode kernel of a GLM-5 where none is named."""
        self.module.FACTS.capability = capability
        config = Namespace(architectures=["GlmMoeDsaForCausalLM"])
        self.module.FACTS.model = Namespace(hf_config=config)
        view = Namespace(
            dsa_prefill_backend=None,
            dsa_decode_backend=None,
            dsa_topk_backend=None,
            enable_hisparse=False,
            dcp_size=1,
            kv_cache_dtype="fp8_e4m3" if cache == "e4m3" else "bfloat16",
        )
        found = self.module._dsa_split_backend_resolution(view)
        return found["dsa_prefill_backend"], found["dsa_decode_backend"]


#: Default of SGLANG_MAX_KV_CHUNK_CAPACITY, which a batch answers with.
CHUNK_CAPACITY = 128 * 1024
