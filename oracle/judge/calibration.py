"""Calibration: how far plain low-precision attention lies from the truth on the same input.

Reported beside a verdict and never part of it: a kernel far better than eager is not right for that, and one as bad as
eager is not wrong for that (pytorch#135590 tells how such yardsticks rot).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...reference.chunks import Chunk
from .moments import Moments

#: Most scores of a chunk that is calibrated; a larger chunk would pay for a figure that only informs.
LIMIT = 2**20


def eager_error(chunk: Chunk, m: Moments, scale: float, dtype: torch.dtype) -> Tensor | None:
    """Largest error of scores, softmax and sum taken in ``dtype`` throughout; None where it is not worth the time.

    A sink scales the eager answer as it does the exact one.
    """
    scores = m.lse.numel() * chunk.keys.shape[1]
    if not 0 < scores <= LIMIT or dtype.itemsize < 2:
        return None
    q, k, v = (torch.nan_to_num(side, 0.0, 0.0, 0.0).to(dtype) for side in (chunk.queries, chunk.keys, chunk.values))
    hidden = ~chunk.allowed
    p = ((q @ k.mT) * scale).masked_fill(hidden, -torch.inf).softmax(-1).masked_fill(hidden, 0.0)
    error = ((p @ v).to(torch.float64) * m.gain - m.out).abs()
    return torch.where(torch.isfinite(error), error, 0.0).max()
