"""What Gluon calls differently between Triton 3.6 and 3.9."""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, tma

#: All threads of the partition meet here.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
#: Global to shared memory, one vector a thread; and one tile by the tensor copy engine.
copy_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
load_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
#: Whether a view of shared memory in another shape has a private name.
RESHAPES_PRIVATELY = gl.constexpr(hasattr(gl.shared_memory_descriptor, "_reinterpret"))
