"""What fits: the mask workspace of masked MHA and the rows of the chunked-context workspace.

The guard is independent of the policy table: the table says what is faster, the guard what fits.
"""

from __future__ import annotations

from math import lcm, prod

from .decision import Decision
from .deployment import Deployment
from .rules import MaskWorkspace, Rules

WORD_BYTES = 4
WORD_BITS = 32


def mask_shape(
    workspace: MaskWorkspace, requests: int, query_len: int, key_len: int, *, reserve: bool = False
) -> tuple[int, int, int]:
    """Shape [requests, padded queries, words] of a bit-packed mask; ``reserve`` keeps one word for key starts.

    Queries are padded to tiles of 128, or 256 beyond 128, and to the longest request of the batch.
    """
    tile = 128 if query_len <= 128 else 256
    words = -(-key_len // WORD_BITS) + int(reserve)
    multiple = workspace.word_multiple
    return requests, -(-query_len // tile) * tile, -(-words // multiple) * multiple


def mask_bytes(workspace: MaskWorkspace, requests: int, query_len: int, key_len: int, *, reserve: bool = False) -> int:
    return WORD_BYTES * prod(mask_shape(workspace, requests, query_len, key_len, reserve=reserve))


def workspace_guard(
    rules: Rules,
    requests: int,
    query_len: int,
    longest_chunk: int = 0,
    *,
    query_lens_on_host: bool = True,
) -> Decision[bool]:
    """Whether the suffix mask and the mask of every context chunk fit.

    ``requests``: prefills. ``query_len``: the longest of their queries. ``longest_chunk``: most context rows of one
    request in one chunk. A version without the guard says yes and names what it overruns.
    """
    workspace = rules.mask_workspace
    if workspace is None:
        return Decision(False, ("no mask workspace is allocated",))
    if not query_lens_on_host:
        return Decision(False, ("the query lengths are not on the host",))
    need = mask_bytes(workspace, requests, query_len, max(query_len, longest_chunk))
    room = workspace.max_bytes
    if need <= room:
        return Decision(True, (f"mask of {need} bytes fits {room}",))
    if not workspace.guarded:
        return Decision(True, (f"{rules.name} does not ask: a mask of {need} bytes overruns {room}",))
    return Decision(False, (f"mask of {need} bytes exceeds {room}",))


def global_mask_fits(rules: Rules, requests: int, query_len: int, seq_len: int) -> Decision[bool]:
    """Whether one mask over all keys fits; if not, indices are remapped chunk by chunk."""
    workspace = rules.mask_workspace
    if workspace is None:
        return Decision(False, ("no mask workspace is allocated",))
    need = mask_bytes(workspace, requests, query_len, seq_len, reserve=True)
    fits = need <= workspace.max_bytes
    return Decision(fits, (f"global mask of {need} bytes {'fits' if fits else 'exceeds'} {workspace.max_bytes}",))


def max_requests(workspace: MaskWorkspace, length: int) -> int:
    """Most pure prefills of ``length`` tokens whose masks fit at once."""
    return workspace.max_bytes // mask_bytes(workspace, 1, length, length)


def context_rows(rules: Rules, deployment: Deployment) -> Decision[int]:
    """Rows of the chunked-context workspace, each ``kv_lora_rank + qk_rope_head_dim`` wide.

    min(max(8 max_model_len, 4 max_num_seqs block_size), 65536, max_num_seqs index_topk), raised to a floor that
    depends on the version (vllm#47327: max_num_seqs block_size, which may override the cap; 0.33: block_size).
    """
    seqs, block = deployment.max_num_seqs, deployment.block_size
    wanted = max(8 * deployment.max_model_len, 4 * seqs * block)
    rows = min(wanted, 65536, seqs * deployment.index_topk)
    reasons = [f"min({wanted}, 65536, {seqs} * {deployment.index_topk}) = {rows}"]
    floor = seqs * block if rules.context_rows_floor == "max_num_seqs*block_size" else block
    if floor > rows:
        rows = floor
        reasons.append(f"raised to {rules.context_rows_floor} = {floor}")
    if deployment.dcp > 1:
        unit = lcm(block, deployment.dcp * deployment.cp_interleave)
        rows = -(-rows // unit) * unit
        reasons.append(f"rounded up to a multiple of {unit} for DCP {deployment.dcp}")
    return Decision(rows, tuple(reasons))


def context_buffer_rows(rows: int, dcp: int) -> int:
    """Rows to allocate: under DCP the gathered shard of one rank needs 1/DCP more."""
    return rows + rows // dcp if dcp > 1 else rows
