"""A user's folder with kernels in it, and a command that runs there."""

import sys

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.guests import known

KERNELS = '''
import torch


def mine(q, kv, indices, *, scale, value_dim, lengths=None, sink=None):
    """Right, in fp32."""
    used = (indices >= 0) & (indices < len(kv))
    if lengths is not None:
        used &= torch.arange(indices.shape[1]) < lengths[:, None]
    rows = torch.where(used[..., None], kv[indices.long().clamp(0, len(kv) - 1)].float(), 0.0)
    scores = (torch.einsum("shd,skd->shk", q.float(), rows) * scale).masked_fill(~used[:, None], float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - torch.where(lse.isinf(), 0.0, lse)[..., None]).exp()
    out = torch.einsum("shk,skc->shc", weights, rows[..., :value_dim])
    if sink is not None:
        out = out * torch.where(lse.isinf(), 0.0, torch.sigmoid(lse - sink))[..., None]
    return out.to(q.dtype), lse


def scaled(q, kv, indices, *, scale, value_dim, lengths=None, sink=None):
    """A softmax scale 1 % off."""
    return mine(q, kv, indices, scale=scale * 1.01, value_dim=value_dim, lengths=lengths, sink=sink)


def base2(q, kv, indices, *, scale, value_dim):
    """The LSE in base 2."""
    out, lse = mine(q, kv, indices, scale=scale, value_dim=value_dim)
    return out, lse / 0.6931471805599453


def bare(q, kv, indices, *, scale, value_dim):
    return mine(q, kv, indices, scale=scale, value_dim=value_dim)[0]


def odd(queries, cache):
    return queries


CONSTANT = 7


class Calls:
    def __call__(self, **inputs):
        return mine(**inputs)


called = Calls()
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of the user's that holds kernels.py, and a reference.py and an oracle.py of their own."""
    (tmp_path / "users_kernels.py").write_text(KERNELS)
    for name in ("reference", "oracle"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('this is the {name} of the user')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("users_kernels", None)
    known.forget()
    from attnoracle.oracle.guests import external

    external._fitted.cache_clear()


@pytest.fixture
def attnoracle(home, capsys):
    """Exit code, stdout and stderr of one command in that folder."""

    def attnoracle(*arguments):
        code = main(arguments)
        return code, *capsys.readouterr()

    return attnoracle
