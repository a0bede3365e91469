"""Calling an implementation: the only lines in which its code runs."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...optimized.implementation import Implementation
from ...optimized.triton_runtime import keep_mended
from .place import place


class Raised(Exception):
    """What an implementation raised, in one line."""


def called(implementation: Implementation, device: torch.device, arguments: Mapping[str, Any]) -> Any:
    """Prepare and run once, and wait for the device.

    The implementation gets aliases: giving one other data, another shape or another dtype changes nothing that the
    judge reads. Raises ``Raised`` for whatever it raises, ``SystemExit`` included; only Ctrl-C passes through.
    """
    aliases = {name: value.detach() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    try:
        run = implementation.prepare(**aliases)
        keep_mended()  # what was just imported may be a kernel of a user's, and Triton with it
        outputs = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            settled(device)
        return plain(outputs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        usable(device)  # reads away what CUDA still holds of this call, which has told of it in its own words
        raise Raised(told(error, implementation)) from error


def usable(device: torch.device) -> bool:
    """Waits for the device and reads away the error that it holds; whether there was none.

    What reads or writes astray on a GPU ends its context: then there is one each time.
    """
    if device.type != "cuda":
        return True
    clean = True
    for step in (torch.cuda.synchronize, settled):
        try:
            step(device)
        except RuntimeError:
            clean = False
    return clean


def settled(device: torch.device) -> None:
    """Raises the error that CUDA still holds of what ran.

    One that a library left unread, as FlashInfer's top_k does, would be told of the next launch, whoever made it.
    """
    torch.zeros(1, device=device)


def plain(outputs: Any) -> Any:
    """Tensor subclasses as tensors, for what they override must not judge them, and tensors that autograd follows as
    numbers."""
    if not isinstance(outputs, tuple):
        return outputs
    return tuple(_plain(value) if isinstance(value, Tensor) else value for value in outputs)


def _plain(value: Tensor) -> Tensor:
    found = value if type(value) is Tensor else value.as_subclass(Tensor)
    return found.detach() if found.requires_grad else found


def told(error: BaseException, of: Implementation | None = None) -> str:
    """An exception in one line; ``of`` a kernel of the user's with the place in their file."""
    lines = traceback.format_exception_only(error)[-1].strip().splitlines()
    where = place(error) if of is not None and of.origin else ""
    return f"{lines[0] if lines else type(error).__name__}{where}"
