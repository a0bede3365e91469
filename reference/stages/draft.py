"""Multi-token prediction: what the draft layer is given in place of hidden states.

    x'[i] = W cat(norm_e(embedding of token i+1), norm_h(x[i]))

The layer itself is a full one with weights of its own; its selection is never skipped. At position 0 an engine may put
zeros for the embedding (vLLM does), since no draft is read there.

Source: DeepSeek-V3 report (arXiv:2412.19437) eq. 21, whose W takes the halves the other way round; the checkpoints'
``eh_proj`` takes the embedding first (vLLM 0.33.0 ``deepseek_mtp.py``, ``enorm``, ``hnorm``, ``eh_proj``).

Shapes:
    previous: [t, x] hidden states of the main model    embedded: [t, x] embeddings of the next tokens
"""

from __future__ import annotations

import torch
from torch import Tensor

from .latent import rms_norm
from .model import Model, Weights


def draft_input(m: Model, w: Weights, *, previous: Tensor, embedded: Tensor, positions: Tensor) -> Tensor:
    """[t, x]; ``positions`` [t] are for code that leaves out the first."""
    embedding = rms_norm(embedded, w.need("draft_embed_norm"), m.eps)
    hidden = rms_norm(previous, w.need("draft_hidden_norm"), m.eps)
    return torch.cat((embedding, hidden), -1) @ w.need("draft_proj").T
