"""Lightning-indexer scores by DeepGEMM's fp8 MQA logits."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from torch import Tensor

from . import locate


@cache
def module() -> ModuleType:
    """The package ``deep_gemm``, wherever it is; a copy inside vLLM is loaded under its own name, without vLLM."""
    if "deep_gemm" in sys.modules:
        return sys.modules["deep_gemm"]
    found = locate.DEEPGEMM.find()
    if found is None:
        raise ImportError(locate.DEEPGEMM.missing())
    spec = importlib.util.spec_from_file_location(
        "deep_gemm", found.path / "__init__.py", submodule_search_locations=[str(found.path)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["deep_gemm"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["deep_gemm"]
        raise
    return package


def indexer_scores(q: Tensor, k: Tensor, k_scale: Tensor, weights: Tensor, ks: Tensor, ke: Tensor) -> tuple[Tensor]:
    """q e4m3 [s,i,e], k e4m3 [t,e], k_scale fp32 [t], weights fp32 [s,i], ks, ke int32 [s] -> scores fp32 [s,t].

    ``clean_logits``: -inf is written outside the windows.
    """
    return (module().fp8_mqa_logits(q, (k, k_scale), weights, ks, ke, clean_logits=True),)
