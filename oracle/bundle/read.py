"""Reads a bundle that came from elsewhere, and trusts nothing in it.

JSON and safetensors hold data alone; ``repro.py`` is hashed and never run. A file that is named outside the folder, is
a link, is missing, is none of those a bundle has, or has another hash makes the whole bundle refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from ...optimized.contract import Contract
from ..campaign.scenes import KINDS
from ..case import Case
from ..cause.signature import Signature, from_list
from ..check import drawn
from ..config import load
from ..errors import BadInput
from ..inputs import Inputs
from ..inputs.arena import Arena

MANIFEST = "bundle.json"
FILES = (
    "verdict.json",
    "contract.json",
    "environment.json",
    "steps.json",
    "inputs.safetensors",
    "outputs.safetensors",
    "repro.py",
)
#: Keys of the manifest and their types.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "schema": dict,
    "case": dict,
    "original": str,
    "implementation": str,
    "device": str,
    "sequence": bool,
    "signature": list,
    "options": dict,
    "files": dict,
}


#: Fields that only the bundle of a user's kernel has, and what they may hold: they end in a command that is shown.
_NAMES = {"target": re.compile(r"[\w./\\ -]+:[A-Za-z_][\w.]*"), "adapter": re.compile(r"[\w.:/\\ -]+")}


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle holds, its hashes checked."""

    folder: Path
    case: Case
    original: str
    implementation: str
    device: str
    sequence: bool
    signature: Signature
    options: dict[str, Any]
    tensors: dict[str, Tensor]
    """Inputs; empty where the bundle left them to the case id."""
    outputs: dict[str, Tensor]
    verdict: dict[str, Any]
    contract: dict[str, Any]
    environment: dict[str, Any]
    target: str = ""
    """``module:name`` of a user's kernel, which is never imported by itself; empty of a shipped one."""
    adapter: str = ""
    """Adapter that its signature needs."""

    @property
    def contract_path(self) -> Path:
        """The file of the contract, as ``--contract`` takes it."""
        return self.folder / "contract.json"

    def promised(self) -> Contract:
        """The contract that the kernel was held against. Raises BadInput for one of another version."""
        try:
            return Contract(**self.contract)
        except (TypeError, ValueError) as error:
            raise BadInput(f"bundle {self.folder}: its contract is none of this version: {error}") from None

    def inputs(self, device: str) -> Inputs:
        """The inputs of the failing call: made from the case, or those stored where this version draws others."""
        if not self.drifted(device):
            return drawn(self.case, device)
        arena = Arena(self.case.layout, device)
        for name, tensor in self.tensors.items():
            arena.place(name, tensor.to(arena.device))
        tensors = {name: guarded.tensor for name, guarded in arena.tensors.items()}
        return Inputs(self.case, load(self.case.geometry), tensors, dict(self.options), arena)

    def drifted(self, device: str) -> bool:
        """Whether the case stands for other tensors or options by now than those stored, bit for bit."""
        return bool(self.tensors) and not self._matches(drawn(self.case, device))

    def _matches(self, made: Inputs) -> bool:
        if set(made.tensors) != set(self.tensors) or made.options != self.options:
            return False
        return all(_equal_bits(made.tensors[name], stored) for name, stored in self.tensors.items())


def read(folder: Path) -> Bundle:
    """The bundle in ``folder``. Raises BadInput with the reason why it is refused."""
    from .write import SCHEMA, VERSION

    record = _json((folder / MANIFEST), _bytes(folder, MANIFEST))
    schema = record.get("schema")
    if not isinstance(schema, dict) or schema.get("name") != SCHEMA:
        raise _refused(folder, f"{MANIFEST} is no {SCHEMA}: its schema is {schema!r}")
    version = schema.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise _refused(
            folder, f"its schema has version {version!r}; this attnoracle reads up to {VERSION}: install a newer one"
        )
    for field, kind in _FIELDS.items():
        if not isinstance(record.get(field), kind):
            raise _refused(folder, f"{MANIFEST} field {field!r} is missing or of another type")
    content = {name: _checked(folder, name, digest) for name, digest in record["files"].items()}
    case = _case(folder, record["case"])
    # A sequence of batches promises what its contract says, which is not data.
    own = "steps.json" if case.operator in KINDS else "contract.json"
    needed = ("verdict.json", own, "environment.json")
    missing = set(needed) - set(content)
    if missing:
        raise _refused(folder, f"it lacks {', '.join(sorted(missing))}")
    texts = {name: _json(folder / name, content[name]) for name in needed}
    return Bundle(
        folder=folder,
        case=case,
        original=record["original"],
        implementation=record["implementation"],
        device=record["device"],
        sequence=record["sequence"],
        signature=_signature(folder, record["signature"]),
        options=record["options"],
        tensors=_tensors(folder, content.get("inputs.safetensors")),
        outputs=_tensors(folder, content.get("outputs.safetensors")),
        verdict=texts["verdict.json"],
        contract=texts.get("contract.json", {}),
        environment=texts["environment.json"],
        **{field: _name(folder, field, record.get(field, "")) for field in _NAMES},
    )


def _name(folder: Path, field: str, value: Any) -> str:
    if not isinstance(value, str) or (value and not _NAMES[field].fullmatch(value)):
        raise _refused(folder, f"{MANIFEST} field {field!r} names no kernel or adapter")
    return value


def _refused(folder: Path, reason: str) -> BadInput:
    return BadInput(f"bundle {folder}: refused, for {reason}")


def _bytes(folder: Path, name: str) -> bytes:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise _refused(folder, f"{name} is {'a link' if path.is_symlink() else 'missing'}")
    return path.read_bytes()


def _checked(folder: Path, name: Any, digest: Any) -> bytes:
    if Path(str(name)).name != name or name in ("", ".", ".."):
        raise _refused(folder, f"it names a file outside itself: {name!r}")
    if name not in FILES:
        raise _refused(folder, f"it names a file that no bundle has: {name!r}")
    content = _bytes(folder, name)
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise _refused(folder, f"{name} has another hash than {MANIFEST} says: it was changed or is broken")
    return content


def _json(path: Path, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"bundle file {path}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"bundle file {path}: expected an object, got {type(value).__name__}")
    return value


def _case(folder: Path, record: dict[str, Any]) -> Case:
    try:
        return Case.parse(str(record.get("id")))
    except BadInput as error:
        raise _refused(folder, f"its case does not parse: {error}") from None


def _signature(folder: Path, marks: list[Any]) -> Signature:
    if not all(isinstance(mark, list) and len(mark) == 3 and all(isinstance(x, str) for x in mark) for mark in marks):
        raise _refused(folder, "its signature is no list of (check, output, pattern)")
    return from_list(marks)


def _tensors(folder: Path, content: bytes | None) -> dict[str, Tensor]:
    if content is None:
        return {}
    try:
        return dict(load_tensors(content))
    except SafetensorError as error:
        raise _refused(folder, f"its tensors cannot be read: {error}") from None


def _equal_bits(made: Tensor, stored: Tensor) -> bool:
    if made.shape != stored.shape or made.dtype != stored.dtype:
        return False
    return torch.equal(made.cpu().contiguous().view(torch.uint8), stored.contiguous().view(torch.uint8))
