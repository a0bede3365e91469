"""Dense MHA in Triton with three planted faults, each switched on by a constant; with none of them it is right.

Loaded by path, after ``triton_runtime.prepare()``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 32


@triton.jit
def _kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, scale, h, q_s, q_h, k_s, k_h, v_s, v_h,
    D: tl.constexpr, D_BLOCK: tl.constexpr, V: tl.constexpr, V_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
    CAUSAL: tl.constexpr, SCALE_OFF: tl.constexpr, KEY_DROPPED: tl.constexpr, CAUSAL_OFF: tl.constexpr,
):  # fmt: skip
    request, head = tl.program_id(1), tl.program_id(2).to(tl.int64)
    q_start, k_start = tl.load(cu_q_ptr + request), tl.load(cu_k_ptr + request)
    q_len, k_len = tl.load(cu_q_ptr + request + 1) - q_start, tl.load(cu_k_ptr + request + 1) - k_start
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d, c = tl.arange(0, D_BLOCK), tl.arange(0, V_BLOCK)
    live = rows < q_len
    q_rows, in_d, in_v = (q_start + rows).to(tl.int64), (d < D)[None, :], (c < V)[None, :]
    q = tl.load(q_ptr + q_rows[:, None] * q_s + head * q_h + d[None, :], mask=live[:, None] & in_d, other=0.0)
    if SCALE_OFF:
        scale *= 1.01
    acc = tl.zeros([BLOCK, V_BLOCK], tl.float32)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, k_len, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        there = keys < k_len
        k_rows = (k_start + keys).to(tl.int64)[:, None]
        k = tl.load(k_ptr + k_rows * k_s + head * k_h + d[None, :], mask=there[:, None] & in_d, other=0.0)
        v = tl.load(v_ptr + k_rows * v_s + head * v_h + c[None, :], mask=there[:, None] & in_v, other=0.0)
        seen = there[None, :] & live[:, None]
        if KEY_DROPPED:
            seen = seen & (keys != BLOCK - 1)[None, :]  # the last key of the first tile
        if CAUSAL:
            diagonal = rows[:, None] + (k_len - q_len)
            if CAUSAL_OFF:
                diagonal -= 1
            seen = seen & (keys[None, :] <= diagonal)
        scores = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        p, shrink = tl.exp(scores - base[:, None]), tl.exp(top - base)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    total = tl.where(total == 0.0, 1.0, total)
    place = q_rows * h + head
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place[:, None] * V + c[None, :], out, mask=live[:, None] & in_v)
    tl.store(lse_ptr + place, top + tl.log(total), mask=live)


def dense_mha(q, k, v, cu_q, cu_k, *, scale, causal=True, fault=""):
    """The operator ``dense_mha``; ``fault`` is one of "", SCALE_OFF, KEY_DROPPED, CAUSAL_OFF."""
    (s, h, d), value_dim, b = q.shape, v.shape[2], len(cu_q) - 1
    out = torch.empty((s, h, value_dim), dtype=q.dtype, device=q.device)
    lse = torch.empty((s, h), dtype=torch.float32, device=q.device)
    faults = {name: name == fault for name in ("SCALE_OFF", "KEY_DROPPED", "CAUSAL_OFF")}
    _kernel[(triton.cdiv(max(1, s), BLOCK), b, h)](
        q, k, v, out, lse, cu_q, cu_k, scale, h, *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        D=d, D_BLOCK=triton.next_power_of_2(d), V=value_dim, V_BLOCK=triton.next_power_of_2(value_dim), BLOCK=BLOCK,
        CAUSAL=causal, **faults,
    )  # fmt: skip
    return out, lse
