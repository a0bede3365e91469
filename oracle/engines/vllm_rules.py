"""vLLM's own routing decisions, taken out of its sources, behind one function a decision.

Taken out: the decode threshold of each backend's builder, the split of a batch, ``use_dense_mha``, the chunk plan and
its workspace, the static gate, the policy table, the mask's shape, the workspace guard, ``_use_sparse_mha``, and the
indexer's skip and its binding. Standing in: the platform (device family), the version of flash-attention, the logger,
and plain namespaces for configs and metadata, with the fields that these functions read.

Source: vLLM 0.33.0; files in ``FILES``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from types import SimpleNamespace as Namespace
from typing import Any

import torch

from ...reference.routing import Batch, Deployment, Mode
from .source import Sources

FILES = {
    "mla": "model_executor/layers/attention/mla_attention.py",
    "sparse": "model_executor/layers/attention/sparse_mla_attention.py",
    "indexer": "model_executor/layers/sparse_attn_indexer.py",
    "split": "v1/attention/backends/utils.py",
    "builder": "v1/attention/backend.py",
    "cache": "v1/kv_cache_interface.py",
    "numbers": "utils/math_utils.py",
}
#: Builder of each backend: file, class, and the one whose __init__ sets the threshold.
BUILDERS = {
    "FLASHMLA_SPARSE": ("v1/attention/backends/mla/flashmla_sparse.py", "FlashMLASparseMetadataBuilder"),
    "FLASHINFER_MLA_SPARSE": (
        "v1/attention/backends/mla/flashinfer_mla_sparse.py",
        "FlashInferMLASparseMetadataBuilder",
    ),
    "FLASH_ATTN_MLA_SPARSE_FA4": (
        "v1/attention/backends/mla/flashinfer_mla_sparse.py",
        "FlashInferMLASparseMetadataBuilder",
    ),
    "FLASH_ATTN_MLA_SPARSE": ("v1/attention/backends/mla/flashattn_mla_sparse.py", "FlashAttnMLASparseMetadataBuilder"),
}
CACHE_NAMES = {"model": "auto", "e4m3": "fp8_e4m3", "fp8_ds_mla": "fp8_ds_mla"}

_PRELUDE = """
from __future__ import annotations
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from math import lcm
from types import SimpleNamespace
import torch
"""
_STANDINS = """
FACTS = SimpleNamespace(family=100, flash_attention=4, capturing=False)


class current_platform:
    @staticmethod
    def is_device_capability_family(family):
        return FACTS.family == family

    @staticmethod
    def is_cuda():
        return True


def get_kv_cache_dtype_handler(name):
    return None


def get_flash_attn_version(**dims):
    return FACTS.flash_attention


class logger:
    @staticmethod
    def warning_once(*words):
        pass


class triton:
    cdiv = staticmethod(lambda a, b: -(a // -b))
"""
#: Formats that plugins register: there are none.
_HANDLERS = "from vllm.config.cache import get_kv_cache_dtype_handler"


@dataclass(frozen=True, slots=True)
class EngineChunk:
    """Context rows gathered at once, of the requests from ``first`` to before ``stop``."""

    first: int
    stop: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    continues: bool
    """Whether the first of them began in an earlier chunk."""


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """What vLLM decides about one batch."""

    threshold: int
    num_decodes: int
    num_decode_tokens: int
    dense: bool | None
    """``use_dense_mha``; None without prefill metadata, as for all below that have it."""
    gate: bool
    chunks: tuple[EngineChunk, ...] | None
    guard: bool | None
    mha: bool
    """``_use_sparse_mha``."""
    skip: bool


class VllmRules:
    """The decisions of one installed version. Raises Unsupported where its sources lack one."""

    def __init__(self, sources: Sources) -> None:
        self.module = _module(sources)
        self.uniform = {backend: _uniform(sources, *BUILDERS[backend]) for backend in BUILDERS}

    def route(
        self,
        deployment: Deployment,
        batch: Batch,
        *,
        layer_flag: bool = True,
        mode: Mode = "NONE",
        kind: str = "full",
        capturing: bool = False,
        padding: int = 0,
    ) -> EngineRoute:
        """All decisions about an arranged batch. ``layer_flag``: the layer's own ``supports_dense_mha_prefill``.

        ``padding``: requests without a token behind it.
        """
        m, config = self.module, _config(deployment)
        m.FACTS.capturing = capturing
        m.FACTS.family, m.FACTS.flash_attention = deployment.device_family, deployment.flash_attention
        threshold = self.threshold(deployment, config)
        decodes, prefills, decode_tokens, _ = m.split_decodes_and_prefills(
            _common(batch, padding),
            decode_threshold=threshold,
            require_uniform=self.uniform[deployment.backend],
            treat_short_extends_as_decodes=deployment.pcp == 1,
        )
        backend = deployment.implementation_supports_dense and layer_flag and deployment.prefill_backend_usable
        gate = m._is_masked_mha_available(
            deployment.total_heads,
            deployment.kv_lora_rank,
            deployment.qk_nope_head_dim,
            deployment.qk_rope_head_dim,
            deployment.v_head_dim,
            CACHE_NAMES[deployment.cache],
        )
        spans = [(one.query_len, one.context_len) for one in batch.requests] + [(0, 0)] * padding
        queries, contexts = map(list, zip(*spans[decodes:], strict=True)) if spans[decodes:] else ([], [])
        longest = max((sum(span) for span in spans[decodes:]), default=0)
        prefill = dense = chunks = guard = None
        if prefills and backend:
            builder = Namespace(
                vllm_config=config,
                topk_tokens=deployment.index_topk,
                use_pcp=deployment.pcp > 1,
                dcp_world_size=deployment.dcp,
            )
            dense = bool(m.use_dense_mha(builder, longest))
            chunks = self.chunks(deployment, contexts, config)
            prefill = Namespace(
                use_dense_mha=dense,
                max_query_len=max(queries),
                query_lens_cpu=torch.tensor(queries),
                chunked_context=_chunked(chunks),
                topk_mask_workspace=_workspace(m.GLOBAL_TOPK_MASK_MAX_BYTES) if gate else None,
            )
            guard = bool(m.masked_mha_workspace_fits(prefill))
        metadata = Namespace(prefill=prefill, prefill_max_seq_len=longest, num_decode_tokens=decode_tokens)
        name = self.binding(deployment, layer_flag, kind)
        return EngineRoute(
            threshold=threshold,
            num_decodes=decodes,
            num_decode_tokens=decode_tokens,
            dense=dense,
            gate=gate,
            chunks=chunks,
            guard=guard,
            mha=bool(m._use_sparse_mha(_layer(deployment, config, gate, bool(backend), m), metadata)),
            skip=bool(m.skips(name, {"layer": metadata}, Namespace(cudagraph_runtime_mode=mode))),
        )

    def threshold(self, deployment: Deployment, config: Any) -> int:
        builder = Namespace(vllm_config=config, dcp_world_size=deployment.dcp, reorder_batch_threshold=None)
        builder._init_reorder_batch_threshold = partial(self.module._sparse_threshold, builder)
        getattr(self.module, f"threshold_{deployment.backend}")(builder, deployment.local_heads, config)
        return int(builder.reorder_batch_threshold)

    def workspace_rows(self, deployment: Deployment, config: Any | None = None) -> int:
        """Rows of the chunked-context workspace."""
        return int(self.module.determine_chunked_prefill_workspace_size(config or _config(deployment)))

    def chunks(self, deployment: Deployment, contexts: list[int], config: Any | None = None) -> tuple[EngineChunk, ...]:
        plans = self.module.plan_chunks(
            context_lens_cpu=torch.tensor(contexts),
            prefill_query_start_loc_cpu=None,
            chunked_prefill_workspace=None,
            chunked_prefill_workspace_size=self.workspace_rows(deployment, config),
            block_size=deployment.block_size,
            align_chunk_to_block=True,
            device=None,
            dcp_world_size=deployment.dcp,
            dcp_local_block_size=deployment.cp_interleave,
            dcp_virtual_block_size=deployment.cp_interleave * deployment.dcp,
        )
        return tuple(
            EngineChunk(p.request_start, p.request_end, tuple(p.starts), tuple(p.seq_lens), bool(p.is_continuation))
            for p in plans or ()
        )

    def binding(self, deployment: Deployment, layer_flag: bool, kind: str) -> str:
        """The layer name that the indexer of the fused layer is given."""
        layer = Namespace(
            use_pcp=deployment.pcp > 1, supports_dense_mha_prefill=layer_flag, layer_name="layer", skip_topk=False
        )
        return str(self.module.binding(layer, kind == "mtp", kind == "shared"))

    def mask_shape(self, requests: int, queries: int, keys: int, reserve: bool) -> tuple[int, int, int]:
        shape = self.module._topk_mask_shape(requests, queries, keys, reserve_key_starts_word=reserve)
        return shape[0], shape[1], shape[2]


def _module(sources: Sources) -> ModuleType:
    define = sources.define
    parts = [
        _PRELUDE,
        _STANDINS,
        *(define(FILES["numbers"], name) for name in ("cdiv", "round_up", "round_down")),
        define(FILES["cache"], "KVQuantMode"),
        define(FILES["cache"], "get_kv_quant_mode").replace(_HANDLERS, ""),
        define(FILES["cache"], "is_quantized_kv_cache"),
        define(FILES["builder"], "max_decode_query_len"),
        define(FILES["builder"], "AttentionMetadataBuilder._init_reorder_batch_threshold"),
        define(FILES["sparse"], "SparseMLACommonMetadataBuilder._init_reorder_batch_threshold")
        .replace("def _init_reorder_batch_threshold", "def _sparse_threshold")
        .replace("super()._init_reorder_batch_threshold(", "_init_reorder_batch_threshold(self, "),
        define(FILES["split"], "split_decodes_and_prefills"),
        *(
            define(FILES["sparse"], name)
            for name in (
                "GLOBAL_TOPK_MASK_MAX_BYTES",
                "_topk_mask_shape",
                "_masked_mha_workspace_fits",
                "_is_masked_mha_available",
                "_use_dense_mha_prefill",
                "SparseMLACommonMetadataBuilder.determine_chunked_prefill_workspace_size",
                "SparseMLACommonImpl.masked_mha_workspace_fits",
            )
        ),
        *(
            define(FILES["mla"], name)
            for name in (
                "_MaskedMHARanges",
                "_MASKED_MHA_THRESHOLDS",
                "_use_masked_mha",
                "_ContextChunkPlan",
                "plan_mla_context_chunks",
                "align_mla_chunked_context_workspace_size",
                "MLAAttention._use_sparse_mha",
            )
        ),
        "def use_dense_mha(self, prefill_max_seq_len):\n    return "
        + sources.keyword(FILES["sparse"], "SparseMLACommonMetadataBuilder.build", "use_dense_mha"),
        _function(
            "plan_chunks(*, context_lens_cpu, prefill_query_start_loc_cpu, chunked_prefill_workspace, "
            "chunked_prefill_workspace_size, block_size, align_chunk_to_block, device, dcp_world_size, "
            "dcp_local_block_size, dcp_virtual_block_size)",
            sources.until(FILES["mla"], "build_mla_chunked_context_metadata", "plans"),
            "plans",
        ),
        _function(
            "skips(dense_mha_metadata_layer_name, attn_metadata, forward_context)",
            "CUDAGraphMode = SimpleNamespace(FULL='FULL')\n_resolve_layer_name = str\ntopk_indices_buffer = True\n"
            "torch = SimpleNamespace(cuda=SimpleNamespace(is_current_stream_capturing=lambda: FACTS.capturing))\n"
            + sources.statements(
                FILES["indexer"], "sparse_attn_indexer", r"^if forward_context\.cudagraph_runtime_mode"
            ),
            "False",
        ),
        _function(
            "binding(self, is_mtp_layer, skip_topk)",
            sources.statements(
                "models/deepseek_v32/attention.py",
                f"{_fused_layer(sources)}.__init__",
                r"^(enable_short_prefill_scoring_skip|self\._dense_mha_metadata_layer_name) =",
            ),
            "self._dense_mha_metadata_layer_name",
        ),
    ]
    for backend, (file, builder) in BUILDERS.items():
        body = sources.statements(file, f"{builder}.__init__", r"^(if .*|self\.use_hisparse.*|)[\s\S]*\bthreshold\b")
        hisparse = "self.use_hisparse = vllm_config.attention_config.hisparse_config is not None\n"
        header = f"threshold_{backend}(self, num_q_heads, vllm_config)"
        parts.append(_function(header, "parallel_config = vllm_config.parallel_config\n" + hisparse + body, "None"))
    return sources.load("rules", *parts)


def _fused_layer(sources: Sources) -> str:
    """Name of the class of the fused layer: the one that sets the opt-in to the skip."""
    import ast

    for node in sources.tree("models/deepseek_v32/attention.py").body:
        if isinstance(node, ast.ClassDef) and "_dense_mha_metadata_layer_name" in ast.dump(node):
            return node.name
    raise sources.lacks("a layer that opts in to the skip", "models/deepseek_v32/attention.py")


def _function(header: str, body: str, result: str) -> str:
    lines = [f"def {header}:", *(f"    {line}" for line in body.splitlines()), f"    return {result}"]
    return "\n".join(lines)


def _uniform(sources: Sources, file: str, builder: str) -> bool:
    """Whether a builder asks for decodes of one length."""
    from ..errors import Unsupported

    try:
        return "= True" in sources.define(file, f"{builder}.require_uniform_decodes")
    except Unsupported:
        return False


def _config(deployment: Deployment) -> Namespace:
    """The fields of a VllmConfig that the decisions read."""
    tokens = deployment.speculative_tokens
    return Namespace(
        attention_config=Namespace(
            hisparse_config=True if deployment.hisparse else None, sparse_mla_force_mqa=deployment.force_mqa
        ),
        parallel_config=Namespace(
            tensor_parallel_size=deployment.tensor_parallel,
            decode_context_parallel_size=deployment.dcp,
            prefill_context_parallel_size=deployment.pcp,
            cp_kv_cache_interleave_size=deployment.cp_interleave,
        ),
        scheduler_config=Namespace(max_num_seqs=deployment.max_num_seqs),
        cache_config=Namespace(block_size=deployment.block_size),
        model_config=Namespace(
            max_model_len=deployment.max_model_len, hf_text_config=Namespace(index_topk=deployment.index_topk)
        ),
        speculative_config=Namespace(num_speculative_tokens=tokens, parallel_drafting=False) if tokens else None,
        use_v2_model_runner=True,
    )


def _common(batch: Batch, padding: int) -> Namespace:
    lengths = [*(request.query_len for request in batch.requests), *[0] * padding]
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return Namespace(
        max_query_len=max(lengths),
        num_reqs=len(lengths),
        num_actual_tokens=sum(lengths),
        query_start_loc_cpu=starts,
        is_prefilling=torch.tensor([*(request.is_prefilling for request in batch.requests), *[False] * padding]),
    )


def _chunked(chunks: tuple[EngineChunk, ...]) -> Namespace | None:
    if not chunks:
        return None
    return Namespace(chunks=[Namespace(max_seq_len=max(chunk.lengths)) for chunk in chunks])


def _workspace(size: int) -> Namespace:
    return Namespace(numel=lambda: size // torch.int32.itemsize)


def _layer(deployment: Deployment, config: Any, gate: bool, backend: bool, module: ModuleType) -> Namespace:
    """The fields of an MLAAttention that ``_use_sparse_mha`` reads."""
    return Namespace(
        hisparse_cache=True if deployment.hisparse else None,
        prefill_backend=True if backend else None,
        impl=Namespace(
            masked_mha_available=gate,
            dcp_world_size=deployment.dcp,
            masked_mha_workspace_fits=module.masked_mha_workspace_fits,
        ),
        attn_backend=Namespace(get_name=lambda: deployment.backend),
        _vllm_config=config,
        qk_nope_head_dim=deployment.qk_nope_head_dim,
        qk_rope_head_dim=deployment.qk_rope_head_dim,
        v_head_dim=deployment.v_head_dim,
    )
