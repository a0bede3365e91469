"""A worker uses no more threads than it was given, numpy's BLAS among them."""

import subprocess
import sys

CODE = """
from attnoracle.oracle.fleet.threads import limit_threads
limit_threads(1)
import torch
from threadpoolctl import threadpool_info
found = threadpool_info()
assert any(one["user_api"] == "blas" for one in found), found
print(sorted({one["num_threads"] for one in found}), torch.get_num_threads())
"""


def test_torch_and_blas_keep_to_the_limit(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[1] 1"
