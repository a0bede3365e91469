"""What stands against a peer here, in words. Imports none of them."""

from __future__ import annotations

from ..implementation import Facts
from .locate import DEEPGEMM, FLASHMLA, Peer

HOPPER = (9, 0)


def _there(facts: Facts, peer: Peer) -> str | None:
    if facts["device"] != "cuda":
        return f"{peer.name} needs a CUDA device, got {facts['device']}"
    try:
        found = peer.find()
    except FileNotFoundError as error:
        return str(error)
    return None if found else peer.missing()


def flashmla(facts: Facts) -> str | None:
    reason = _there(facts, FLASHMLA)
    if reason is not None:
        return reason
    if facts["capability"] != HOPPER:
        return f"the adapter pads as the kernel for compute capability 9.0 asks, got {facts['capability']}"
    if facts["dtype"] != "bf16":
        return f"expected dtype bf16, got {facts['dtype']}"
    if facts["c"] != 512 or facts["r"] not in (0, 64):
        return f"expected a cache row of 512 or 512+64, got {facts['c']}+{facts['r']}"
    if facts["heads"] > 128:
        return f"expected at most 128 heads, got {facts['heads']}"
    return None


def deepgemm(facts: Facts) -> str | None:
    reason = _there(facts, DEEPGEMM)
    if reason is not None:
        return reason
    if facts["capability"] < HOPPER:
        return f"DeepGEMM needs compute capability 9.0, got {facts['capability']}"
    if facts["dtype"] != "e4m3":
        return f"expected dtype e4m3, got {facts['dtype']}"
    if facts["heads"] not in (32, 64) or facts["e"] not in (32, 64, 128):
        return f"expected 32 or 64 heads of 32, 64 or 128 dims, got {facts['heads']} of {facts['e']}"
    if facts["layout"] == "strided":
        return "DeepGEMM needs contiguous tensors, got layout strided"
    if 0 in (sum(facts["q_lens"]), sum(facts["k_lens"])):
        return "DeepGEMM needs at least one query and one key"
    return None
