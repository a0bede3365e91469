"""Calling an implementation: the only lines in which its code runs."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import torch

from ..optimized.implementation import Implementation


class Raised(Exception):
    """What an implementation raised, in one line."""


def called(implementation: Implementation, device: torch.device, arguments: Mapping[str, Any]) -> Any:
    """Prepare and run once, and wait for the device. Raises ``Raised`` for whatever the implementation raises."""
    try:
        outputs = implementation.prepare(**arguments)()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:
        line = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        raise Raised(line) from error
    return outputs
