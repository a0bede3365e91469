"""FlashMLA's ``sparse_decode_fwd`` as its source describes it, in PyTorch: what stands behind the adapter in tests."""

from types import SimpleNamespace

import torch

ARGUMENTS = 13


def forward(read=torch.bfloat16):
    """The operator, with the dtype in which stored scales are read."""

    def sparse_decode_fwd(
        q, pages, indices, lengths, sink, schedule, splits, extra, extra_indices, extra_lengths, value_dim, scale, out
    ):
        assert all(x is None for x in (lengths, extra, extra_indices, extra_lengths, out))
        b, s_q, h, _ = q.shape
        assert h in (64, 128) and q.dtype == torch.bfloat16 and indices.dtype == torch.int32
        assert indices.shape[2] % 64 == 0 and pages.shape[2:] == (1, 656) and pages.stride(1) == 656
        assert (schedule is None) == (splits is None)
        rows = pages.flatten(0, 2)
        scales = rows[:, 512:528].contiguous().view(torch.float32).to(read).float().repeat_interleave(128, 1)
        latent = (rows[:, :512].contiguous().view(torch.float8_e4m3fn).float() * scales).bfloat16()
        rope = rows[:, 528:].contiguous().view(torch.bfloat16)
        answer, logs = q.new_zeros(b, s_q, h, value_dim), torch.full((b, s_q, h), torch.inf)
        for i in range(b):
            for j in range(s_q):
                picked = indices[i, j][indices[i, j] != -1].long()
                assert bool((picked >= 0).all()) and bool((picked < len(rows)).all()), "an illegal read"
                if not len(picked):
                    continue
                scores = q[i, j].float() @ torch.cat((latent[picked], rope[picked]), 1).float().T * scale
                top = scores.amax(1, keepdim=True)
                p = (scores - top).exp()
                total = p.sum(1)
                logs[i, j] = total.log() + top[:, 0]
                share = 1.0 if sink is None else torch.sigmoid(logs[i, j] - sink)[:, None]
                answer[i, j] = (p.bfloat16().float() @ latent[picked].float() / total[:, None] * share).bfloat16()
        schedule = torch.zeros(4, 8, dtype=torch.int32) if schedule is None else schedule
        splits = torch.zeros(b + 1, dtype=torch.int32) if splits is None else splits
        assert splits.shape == (b + 1,)
        return answer, logs.transpose(1, 2), schedule, splits

    schema = SimpleNamespace(arguments=[None] * ARGUMENTS)
    sparse_decode_fwd.default = SimpleNamespace(_schema=schema)
    return sparse_decode_fwd
