"""Launch constants: which block sizes, warps and stages a kernel gets, from its dims and the device.

Every table lists candidates from the fastest down; the first whose tiles fit the shared memory of one program is
taken. To tune a kernel, edit its table. Sizes never depend on the number of queries, keys or requests, so a row is
computed alike alone and in a batch (top-k is exact whatever its step). ``room`` is the shared memory of one program in
bytes; None stands for Triton's interpreter, which has no such limit and prefers few, large programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from .. import triton_runtime


@dataclass(frozen=True, slots=True)
class Launch:
    """One program works on ``rows`` (queries, or heads in sparse_mqa) and steps over ``columns`` (keys)."""

    rows: int
    columns: int
    warps: int
    stages: int


#: Shared memory a block may use, in bytes, by compute capability (CUDA C++ Programming Guide, table of technical
#: specifications). A device that is not listed gets the least of them.
ROOM = {
    (8, 0): 163 * 1024,
    (8, 6): 99 * 1024,
    (8, 7): 163 * 1024,
    (8, 9): 99 * 1024,
    (9, 0): 227 * 1024,
    (10, 0): 227 * 1024,
    (10, 3): 227 * 1024,
    (12, 0): 99 * 1024,
}

#: Kept free for the compiler's own needs: row reductions, layout conversions, barriers.
_SCRATCH = 4096

_DENSE: tuple[Launch, ...] = (
    Launch(128, 128, 8, 2),
    Launch(128, 64, 8, 3),
    Launch(128, 64, 8, 2),
    Launch(64, 64, 4, 2),
    Launch(64, 32, 4, 2),
    Launch(32, 32, 4, 1),
    Launch(16, 32, 4, 1),
)
#: Full fp32 products run outside the tensor cores and hold whole rows in registers.
_DENSE_FP32: tuple[Launch, ...] = (Launch(32, 32, 8, 1), Launch(16, 32, 4, 1))
_DENSE_INTERPRETED: tuple[Launch, ...] = (Launch(64, 64, 4, 1),)

_SPARSE = (
    Launch(64, 64, 8, 2),
    Launch(32, 64, 8, 2),
    Launch(16, 64, 4, 2),
    Launch(16, 32, 4, 2),
    Launch(16, 16, 4, 2),
    Launch(16, 16, 4, 1),
)
_SPARSE_INTERPRETED = (Launch(128, 64, 4, 1), Launch(64, 64, 4, 1), Launch(32, 64, 4, 1), Launch(16, 64, 4, 1))

_INDEXER = (
    Launch(128, 128, 8, 3),
    Launch(64, 128, 8, 2),
    Launch(64, 64, 4, 2),
    Launch(32, 32, 4, 1),
)
_INDEXER_INTERPRETED = (Launch(64, 256, 4, 1),)

#: Heads are rows here; a program visits every query of its request with the same keys.
_PAGED_INDEXER = (Launch(64, 128, 4, 2), Launch(64, 64, 4, 1), Launch(64, 32, 4, 1))
_PAGED_INDEXER_INTERPRETED = (Launch(64, 256, 4, 1),)


def dense(d: int, v: int, itemsize: int, room: int | None) -> Launch:
    """Query rows and keys (a multiple of 32) of one step of dense_mha and masked_mha, for padded dims d and v."""

    def shared(launch: Launch) -> int:
        return itemsize * (launch.rows * d + launch.stages * launch.columns * (d + v))

    if room is None:
        table = _DENSE_INTERPRETED
    elif itemsize == 4:
        table = _DENSE_FP32
    else:
        # The registers of 8 warps hold 256 fp32 columns of scores and output together, not more.
        table = tuple(launch for launch in _DENSE if launch.columns <= max(64, 256 - v))
    return _first(table, shared, room, f"head dims {d}/{v}")


def sparse(h: int, c: int, r: int, itemsize: int, room: int | None) -> Launch:
    """Heads and gathered keys of one step of sparse_mqa, for padded latent and rope dims c and r."""

    def shared(launch: Launch) -> int:
        return itemsize * (c + r) * (launch.rows + launch.stages * launch.columns)

    heads = max(16, 1 << (h - 1).bit_length())
    table = _SPARSE_INTERPRETED if room is None else _SPARSE
    return _first((launch for launch in table if launch.rows <= heads), shared, room, f"latent and rope dims {c}+{r}")


def indexer(e: int, itemsize: int, room: int | None) -> Launch:
    """Query rows and keys of one program of indexer_scores, for a padded head dim e."""

    def shared(launch: Launch) -> int:
        return itemsize * e * (launch.columns + launch.stages * launch.rows)

    return _first(_INDEXER_INTERPRETED if room is None else _INDEXER, shared, room, f"indexer head dim {e}")


def paged_indexer(i: int, e: int, room: int | None) -> Launch:
    """Keys of one program of paged_indexer_scores, for padded indexer heads and head dim; values are fp16 by then."""

    def shared(launch: Launch) -> int:
        return 2 * e * (launch.columns + launch.stages * i)

    table = _PAGED_INDEXER_INTERPRETED if room is None else _PAGED_INDEXER
    return _first(table, shared, room, f"indexer heads and head dim {i}x{e}")


def topk(t: int) -> Launch:
    """Columns of one step of topk_select; one program a row."""
    return Launch(1, min(4096, max(64, 1 << (t - 1).bit_length())), 8, 1)


def rows(width: int, room: int | None) -> Launch:
    """Rows of one program that works on rows of ``width`` (padded) values without stepping over anything."""
    return Launch(max(1, (2048 if room is not None else 65536) // width), width, 4, 1)


def merge(v: int, room: int | None) -> Launch:
    """Rows (a query's heads) of one program of merge_lse, for a padded value dim v."""
    return rows(v, room)


def room(device: torch.device) -> int | None:
    """Shared memory of one program on this device in bytes; None in Triton's interpreter."""
    return None if triton_runtime.interpreted() else room_of(torch.cuda.get_device_capability(device))


def room_of(capability: tuple[int, int]) -> int:
    """Shared memory of one program on a device of this compute capability, in bytes."""
    return ROOM.get(capability, min(ROOM.values()))


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _first(candidates: Iterable[Launch], shared: Callable[[Launch], int], room: int | None, what: str) -> Launch:
    """The first candidate that fits. Raises ValueError if none does."""
    least = 0
    for launch in candidates:
        least = shared(launch) + _SCRATCH
        if room is None or least <= room:
            return launch
    raise ValueError(f"{what}: expected tiles that fit {room} bytes of shared memory, the smallest take {least}")
