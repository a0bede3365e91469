"""Which kernels hand shared memory over at mbarriers, by the code that they were compiled to.

racecheck follows an mbarrier for the threads that arrive at it. Where a group of warps meets first and one thread of it
then arrives for all, or where warps of one program run different code and meet at ``barrier.sync``, it sees accesses
that are in order as racing: a race that it reports in such a kernel shows nothing by itself (docs/sanitize.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: The words that a kernel's name follows.
MEETS = "attnoracle: waits at mbarriers: "
_WAIT = "mbarrier.try_wait"


def watch() -> None:
    """From now on print a line for each kernel that Triton compiles or finds compiled and that waits at an mbarrier."""
    from triton import knobs

    knobs.compilation.listener = _listen


def _listen(*, metadata: dict[str, Any], metadata_group: dict[str, str], **_: Any) -> None:
    for name, path in metadata_group.items():
        if name.endswith(".ptx") and _WAIT in Path(path).read_text():
            print(f"{MEETS}{metadata['name']}", flush=True)


def meeting(printed: str) -> frozenset[str]:
    """The kernels that were named in what a program printed."""
    return frozenset(line.removeprefix(MEETS).strip() for line in printed.splitlines() if line.startswith(MEETS))
