"""What runs under the tool: one implementation, called twice on one case. ``python -m … CASE IMPLEMENTATION``.

Every tensor is an allocation of its own and of its own size, without red zones: a byte too far is outside of it. The
tool sees that only where torch asks the driver for each (``PYTORCH_NO_CUDA_MEMORY_CACHING``); ``tool`` sees to that.
"""

from __future__ import annotations

import sys

#: Printed last: the program came to its end.
DONE = "attnoracle: the target is done"


def main(text: str, name: str) -> None:
    """Raises what the implementation raises."""
    import torch

    from ..case import Case
    from ..config import load
    from ..guests import known
    from ..inputs import make
    from .meetings import watch

    case = Case.parse(text)
    given = make(case, load(case.geometry), "cuda").kwargs()
    tight = {key: x.clone() if isinstance(x, torch.Tensor) else x for key, x in given.items()}
    del given
    implementation = known.find(name)
    implementation.prepare(**tight)
    if "triton" in sys.modules:
        watch()
    for _ in range(2):  # the first call compiles
        implementation.prepare(**tight)()
    torch.cuda.synchronize()
    print(DONE, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
