"""Where the optional peers are: pointed at by an environment variable, importable, or inside an installed vLLM.

Nothing is imported to find them, vLLM above all: its FlashMLA extension and its copy of DeepGEMM work without it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Found:
    """One peer on this machine."""

    path: Path
    """Shared library, or folder of the package."""
    origin: str
    """How it was found, in words."""
    version: str


@dataclass(frozen=True, slots=True)
class Peer:
    """A library that may be there."""

    name: str
    variable: str
    """Environment variable that points at it."""
    expects: str
    """What the variable must name."""
    search: Callable[[], Found | None]

    def find(self) -> Found | None:
        """Where it is. Raises FileNotFoundError if the variable names something else."""
        return self.search()

    def missing(self) -> str:
        """How to have it, in words."""
        return f"{self.name} was not found; install it, or set {self.variable} to {self.expects}"


def _pointed(variable: str, expects: str, accept: Callable[[Path], Path | None]) -> Found | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = accept(Path(value))
    if path is None:
        raise FileNotFoundError(f"{variable}: expected {expects}, got {value!r}")
    return Found(path, variable, fingerprint(path))


def folder_of(package: str) -> Path | None:
    """Folder of an importable top-level package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@cache
def fingerprint(path: Path) -> str:
    """``sha256:`` and twelve digits of a library, or of the compiled files of a package, or of its sources where it has
    none: which build it is."""
    files = [path] if path.is_file() else sorted(path.glob("*.so")) or sorted(path.rglob("*.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return f"sha256:{digest.hexdigest()[:12]}"


def _library(pattern: str) -> Callable[[Path], Path | None]:
    def accept(path: Path) -> Path | None:
        if path.is_file():
            return path
        return next(iter(sorted(path.glob(pattern))), None)

    return accept


def _package(name: str, file: str = "__init__.py") -> Callable[[Path], Path | None]:
    """A folder of that name, or below the one given, that has ``file``."""

    def accept(path: Path) -> Path | None:
        folder = path if path.name == name else path / name
        return folder if (folder / file).is_file() else None

    return accept


def _inside_vllm(relative: str, accept: Callable[[Path], Path | None]) -> Found | None:
    vllm = folder_of("vllm")
    path = accept(vllm / relative) if vllm else None
    return Found(path, "inside vLLM", f"vllm {version_of('vllm') or 'unknown'}, {fingerprint(path)}") if path else None


def _flashmla() -> Found | None:
    accept = _library("_flashmla_C*.so")
    return _pointed(FLASHMLA_VARIABLE, FLASHMLA_EXPECTS, accept) or _inside_vllm("", accept)


def _deepgemm() -> Found | None:
    accept = _package("deep_gemm")
    pointed = _pointed(DEEPGEMM_VARIABLE, DEEPGEMM_EXPECTS, accept)
    if pointed is not None:
        return pointed
    folder = folder_of("deep_gemm")
    if folder is not None:
        return Found(folder, "importable", version_of("deep_gemm") or fingerprint(folder))
    return _inside_vllm("third_party", accept)


def _fa4() -> Found | None:
    """``flash_attn.cute``, of which older releases of flash-attn know nothing."""
    pointed = _pointed(FA4_VARIABLE, FA4_EXPECTS, _package("cute"))
    if pointed is not None:
        return pointed
    for parent, distribution in (("flash_attn", "flash-attn-4"), ("vllm", "vllm")):
        folder = folder_of(parent)
        inner = "cute" if parent == "flash_attn" else "vllm_flash_attn/cute"
        if folder is not None and (folder / inner / "interface.py").is_file():
            known = version_of(distribution)
            return Found(folder / inner, f"inside {parent}", f"{distribution} {known}" if known else "unknown version")
    return None


def _vllm() -> Found | None:
    pointed = _pointed(VLLM_VARIABLE, VLLM_EXPECTS, _package("vllm", VLLM_HELPERS))
    if pointed is not None:
        return pointed
    folder = folder_of("vllm")
    return Found(folder, "importable", version_of("vllm") or "unknown version") if folder else None


FLASHMLA_VARIABLE = "ATTNORACLE_FLASHMLA"
FLASHMLA_EXPECTS = "its extension _flashmla_C*.so, or the folder that holds it"
DEEPGEMM_VARIABLE = "ATTNORACLE_DEEPGEMM"
DEEPGEMM_EXPECTS = "its package deep_gemm, or the folder that holds it"
FA4_VARIABLE = "ATTNORACLE_FA4"
FA4_EXPECTS = "the folder flash_attn/cute"
VLLM_VARIABLE = "ATTNORACLE_VLLM"
VLLM_EXPECTS = "its package vllm, or the folder that holds it; the helpers below v1/attention/ops are enough"
#: What a folder must have to be taken for vLLM.
VLLM_HELPERS = "v1/attention/ops/triton_merge_attn_states.py"

FLASHMLA = Peer("FlashMLA", FLASHMLA_VARIABLE, FLASHMLA_EXPECTS, _flashmla)
DEEPGEMM = Peer("DeepGEMM", DEEPGEMM_VARIABLE, DEEPGEMM_EXPECTS, _deepgemm)
FA4 = Peer("FlashAttention 4", FA4_VARIABLE, FA4_EXPECTS, _fa4)
VLLM = Peer("vLLM", VLLM_VARIABLE, VLLM_EXPECTS, _vllm)
PEERS: tuple[Peer, ...] = (FLASHMLA, DEEPGEMM, FA4, VLLM)
