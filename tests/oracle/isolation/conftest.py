"""A zoo of kernels that do to their process what real ones have done, each right in its numbers as far as it gets."""

import os

import pytest

from attnoracle.oracle.guests import known
from attnoracle.oracle.guests.external import external

ZOO = """
import ctypes, math, os, random, sys, threading, time
import torch


def right(out_a, lse_a, out_b, lse_b):
    lse = torch.logaddexp(lse_a.float(), lse_b.float())
    safe = torch.where(lse.isinf(), 0.0, lse)
    out = 0.0
    for side, part in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.where(part.isinf(), 0.0, (part.float() - safe).exp())[..., None]
        out = out + torch.where(weight > 0, side.float(), 0.0) * weight
    return out.to(out_a.dtype), lse


def merge(name):
    def wrap(act):
        def kernel(out_a, lse_a, out_b, lse_b):
            return act(lambda: right(out_a, lse_a, out_b, lse_b), out_a, lse_a, out_b, lse_b)
        kernel.__name__ = name
        globals()[name] = kernel
        return kernel
    return wrap


@merge("fine")
def _(answer, *inputs):
    return answer()


@merge("segfault")
def _(answer, *inputs):
    ctypes.string_at(0)


@merge("loop")
def _(answer, *inputs):
    while True:
        pass


@merge("greedy")
def _(answer, *inputs):
    torch.empty(100 << 30, dtype=torch.uint8)
    return answer()


@merge("swollen")
def _(answer, *inputs):
    hoard = [bytearray(b"x" * (8 << 20)) for _ in range(180)]
    time.sleep(3)
    return answer()


@merge("leaves")
def _(answer, *inputs):
    os._exit(0)


@merge("closes")
def _(answer, *inputs):
    os.closerange(3, 256)
    return answer()


@merge("aborts")
def _(answer, *inputs):
    os.write(2, b"some kernel: Assertion `i < n` failed.\\n")
    os.abort()


@merge("threads")
def _(answer, *inputs):
    threading.Thread(target=time.sleep, args=(30,), name="spinner", daemon=True).start()
    return answer()


@merge("writes")
def _(answer, out_a, *others):
    found = answer()
    out_a += 1
    return found


@merge("shrinks")
def _(answer, out_a, *others):
    found = answer()
    out_a.untyped_storage().resize_(0)
    return found


@merge("prints")
def _(answer, *inputs):
    os.write(1, b"straight to the descriptor\\n")
    for i in range(1_000_000 // 5):  # five calls are a verdict
        sys.stdout.write("a line of a million\\n")
    return answer()


@merge("patches")
def _(answer, *inputs):
    found = answer()
    torch.isfinite = lambda x: torch.ones_like(x, dtype=torch.bool)
    time.perf_counter = lambda: 0.0
    return found


@merge("views")
def _(answer, out_a, lse_a, *others):
    return out_a.view_as(out_a), lse_a.float()


calls = []


@merge("remembers")
def _(answer, *inputs):
    calls.append(answer())
    return calls[0]


@merge("draws")
def _(answer, *inputs):
    torch.rand(1), random.random()
    return answer()


@merge("dtype")
def _(answer, *inputs):
    found = answer()
    torch.set_default_dtype(torch.float64)
    return found


@merge("switches")
def _(answer, *inputs):
    found = answer()
    torch.set_float32_matmul_precision("medium")
    torch.use_deterministic_algorithms(True)
    torch.set_default_device("meta")
    torch.autocast("cpu").__enter__()
    return found


@merge("moves")
def _(answer, *inputs):
    os.chdir("/")
    return answer()


@merge("raises")
def _(answer, *inputs):
    raise SystemExit(3)
"""


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """Admit kernels of the zoo by name; returns their full names."""
    (tmp_path / "users_zoo.py").write_text(ZOO)
    (tmp_path / "zoo.toml").write_text('[contract]\nprobabilities = "fp32"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def admit(*names):
        return [
            known.admit(external(f"users_zoo:{name}", "merge_lse", contract=os.path.abspath("zoo.toml"))).name
            for name in names
        ]

    yield admit
    known.forget()
