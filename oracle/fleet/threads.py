"""How many threads the libraries of this process may use."""

from __future__ import annotations

from contextlib import suppress


def limit_threads(count: int) -> None:
    """At most ``count`` threads for torch and for numpy's BLAS.

    Several workers whose every small product asks for all cores wait for each other: interpreted kernels took twice the
    time for it on two cores.
    """
    import numpy  # noqa: F401 - only libraries that are loaded are limited
    import torch

    # A checkout that runs without being installed may lack it: slower, not wrong.
    with suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(limits=count)
    torch.set_num_threads(count)
