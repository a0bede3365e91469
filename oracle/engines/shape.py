"""The names under which a live sparse-MLA layer keeps what is watched; ``VLLM`` has those of vLLM.

A layer is any object (a ``torch.nn.Module`` as a rule) with these attributes; dots reach into attributes::

    layer_name            its name in the model
    indexer               called once a forward where the layer has one; arguments and result do not matter
    topk_indices_buffer   int32 [rows, k], shared by the layers of a model: request-local positions, -1 for none
    impl.forward_mqa      called with (q, kv_cache, metadata, layer); q [s, h, c+r] or the pair (latent, rope); returns
                          (out [s, h, c], lse or None)
    impl.forward_mha      called with the prefill tokens; its arguments are not looked at beyond the first, q [s, h, d]
    scale, kv_lora_rank   of the softmax, and the width of the values

and metadata, an object a step, given by the caller's function of a layer and handed to ``forward_mqa`` third::

    query_start_loc [b+1], seq_lens [b]                     of every step
    block_table [b, pages], req_id_per_token [s], block_size   where calls are saved; s: the tokens of forward_mqa

What else it holds is the layer's own affair: vLLM's has num_decodes, num_decode_tokens, num_prefills,
prefill_max_seq_len and prefill, which its layers read and a watch does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Attribute names of a layer; those of the metadata are fixed."""

    name: str = "layer_name"
    indexer: str = "indexer"
    buffer: str = "topk_indices_buffer"
    mqa: str = "impl.forward_mqa"
    mha: str = "impl.forward_mha"
    scale: str = "scale"
    rank: str = "kv_lora_rank"
    shares: str = ""
    """True in layers that have an indexer and reuse an earlier selection all the same; empty: there are none."""


#: vLLM 0.33.0 ``MultiHeadLatentAttentionWrapper``: it calls the indexer, its ``mla_attn`` attends.
VLLM = Shape(
    name="mla_attn.layer_name",
    buffer="mla_attn.impl.topk_indices_buffer",
    mqa="mla_attn.impl.forward_mqa",
    mha="mla_attn.impl.forward_mha",
    scale="mla_attn.scale",
    shares="skip_topk",
)


def reach(thing: Any, path: str) -> Any:
    """The attribute at a dotted path; None where one on the way is missing."""
    for part in path.split("."):
        thing = getattr(thing, part, None)
    return thing


def need(thing: Any, path: str) -> Any:
    """As ``reach``. Raises BadInput naming the attribute that a layer lacks."""
    found = reach(thing, path)
    if found is None:
        raise BadInput(
            f"{type(thing).__name__}: expected an attribute {path}, found none; name where it is with a Shape "
            "(see oracle/engines/shape.py)"
        )
    return found


def need_of_step(metadata: Any, name: str) -> Any:
    """A field of a step's metadata. Raises BadInput naming the one that it lacks; these names are fixed."""
    found = getattr(metadata, name, None)
    if found is None:
        raise BadInput(f"{type(metadata).__name__}: expected a field {name} of the step's metadata, found none")
    return found


def replace_at(thing: Any, path: str, value: Any) -> None:
    """Set the attribute at a dotted path, on the instance."""
    *owners, last = path.split(".")
    owner = reach(thing, ".".join(owners)) if owners else thing
    # A module refuses a plain function in place of a submodule.
    vars(owner)[last] = value


def restore_at(thing: Any, path: str, before: Any) -> None:
    """Undo ``replace_at``: ``before`` is what the instance itself held, or None where its class did."""
    *owners, last = path.split(".")
    owner = reach(thing, ".".join(owners)) if owners else thing
    del vars(owner)[last]
    if before is not None:
        vars(owner)[last] = before
