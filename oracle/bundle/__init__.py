"""A failure on disk: everything that somebody elsewhere needs to see it again, and nothing that runs by being read.

::

    bundle.json           schema, case, implementation, signature, options of the call, sha256 of every other file
    verdict.json          contract.json          environment.json
    inputs.safetensors    outputs.safetensors    what the kernel was given and what it returned
    steps.json            of a sequence of batches, in place of contract and tensors: what each step did and broke
    repro.py              runs it against the installed package
"""

from .kernel import kernel
from .read import Bundle, read
from .replay import Replay, replay
from .write import SCHEMA, VERSION, write

__all__ = ("SCHEMA", "VERSION", "Bundle", "Replay", "kernel", "read", "replay", "write")
