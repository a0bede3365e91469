"""Writes a bundle."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ...optimized.implementation import Implementation
from ..calling.call import Raised
from ..calling.once import answer_of, run_once
from ..cause.signature import signature
from ..check import drawn
from ..environment import environment
from ..errors import BadInput
from ..inputs import Inputs
from ..operators import operator
from ..records.verdict_json import case_record, verdict_record
from ..reports.json_report import dumps
from ..verdict import Verdict
from .script import script

SCHEMA, VERSION = "attnoracle.bundle", 1
#: Larger inputs or outputs are left out: the case id makes the ones again, and running it the others.
MOST_BYTES = 2**28


def write(
    folder: Path, verdict: Verdict, implementation: Implementation, *, sequence: bool = False, original: str = ""
) -> Path:
    """Write a bundle of ``verdict`` into ``folder``, which must not exist or be empty; returns the folder.

    ``original``: id of the case before it shrank. Raises BadInput for a verdict that is no failure.
    """
    if not verdict.bad:
        raise BadInput(f"a bundle holds a failure; {verdict.implementation} on {verdict.case.id} is {verdict.status}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"bundle {folder}: expected a new or empty folder; name another or clear it")
    folder.mkdir(parents=True, exist_ok=True)  # a folder that cannot be made is told before anything runs
    inputs = drawn(verdict.case, device_of(verdict))
    # Copied before the kernel runs: one that changes its inputs must not change the record of them.
    tensors = _packed(inputs.tensors) if _fits(inputs.tensors) else {}
    files: dict[str, bytes] = {
        "verdict.json": dumps(verdict_record(verdict)).encode(),
        "contract.json": dumps(implementation.contract.as_dict()).encode(),
        "environment.json": dumps(environment()).encode(),
    }
    if tensors:
        files["inputs.safetensors"] = save(tensors)
    outputs = _outputs(verdict, implementation, inputs)
    if outputs:
        files["outputs.safetensors"] = save(outputs)
    files["repro.py"] = script(verdict, verdict.implementation, sequence=sequence).encode()
    named, options = _names(implementation), inputs.options
    return store(folder, verdict, files, original=original, sequence=sequence, names=named, options=options)


def device_of(verdict: Verdict) -> str:
    """``cpu`` or ``cuda``: where a verdict was given, without the name of the GPU."""
    return "cpu" if verdict.device == "cpu" else "cuda"


def store(
    folder: Path,
    verdict: Verdict,
    files: Mapping[str, bytes],
    *,
    original: str,
    sequence: bool,
    names: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> Path:
    """Write the files of a bundle and ``bundle.json``, which describes them; returns the folder.

    ``names``: what a user has to name again; ``options``: those of the call.
    """
    record = {
        "schema": {"name": SCHEMA, "version": VERSION},
        "case": case_record(verdict.case),
        "original": original or verdict.case.id,
        "implementation": verdict.implementation,
        **(names or {}),
        "device": device_of(verdict),
        "sequence": sequence,
        "signature": signature(verdict).as_list(),
        "options": options or {},
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "bundle.json").write_text(dumps(record), encoding="utf-8")
    return folder


def folder_name(verdict: Verdict) -> str:
    """A name for the bundle of a verdict: the implementation, and eight letters that follow from case and name."""
    digest = hashlib.sha256(f"{verdict.implementation} {verdict.case.id}".encode()).hexdigest()[:8]
    plain = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in verdict.implementation)
    return f"{plain}-{digest}"


def _names(implementation: Implementation) -> dict[str, str]:
    """What a user has to name again: target and adapter of a kernel that is not shipped."""
    words = shlex.split(implementation.origin)
    given = dict(zip(words[::2], words[1::2], strict=True))
    named = {"target": given.get("--impl", ""), "adapter": given.get("--adapter", "")}
    return {field: value for field, value in named.items() if value}


def _fits(tensors: Mapping[str, Tensor]) -> bool:
    return sum(one.numel() * one.element_size() for one in tensors.values()) <= MOST_BYTES


def _packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _outputs(verdict: Verdict, implementation: Implementation, inputs: Inputs) -> dict[str, Tensor]:
    """What the kernel returns or writes to, as far as it is tensors; empty where it raises."""
    if verdict.status == "ERROR":
        return {}
    try:
        outputs = run_once(implementation, inputs.arena.device, "nan", inputs.kwargs()).outputs
        outputs = answer_of(operator(verdict.case.operator), inputs, outputs)
    except Raised:
        return {}
    if not isinstance(outputs, tuple):
        return {}
    named = zip(operator(verdict.case.operator).outputs, outputs, strict=False)
    found = {name: value for name, value in named if isinstance(value, Tensor)}
    return _packed(found) if _fits(found) else {}
