"""What a result depends on: versions, machine, commit and date."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = {"torch": "torch", "triton": "triton", "numpy": "numpy", "flashinfer": "flashinfer-python"}


def environment() -> dict[str, Any]:
    """JSON-ready facts about this process: attnoracle, git, date, python, packages, platform, cpus and device.

    A package that is not installed has the version None. Imports torch, and no other of the packages.
    """
    return {
        "attnoracle": version(),
        "git": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        **{name: installed(package) for name, package in _PACKAGES.items()},
        "platform": platform.platform(),
        "cpus": cpu_count(),
        "device": _device(),
    }


def version() -> str:
    """Version of attnoracle: of this checkout if it is one, else of the installed package."""
    project = _ROOT / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    return installed("attnoracle") or "unknown"


def installed(package: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Commit of the checkout this runs from, with ``-dirty`` if tracked files differ; None if it is none."""
    if not (_ROOT / ".git").exists():
        return None
    described = _output("git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described or None


def cpu_count() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int:
    """Bytes of main memory that this process may use: the machine's, or its control group's limit."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found = min(found, int(Path(path).read_text()))
        except (OSError, ValueError):  # absent, or "max"
            continue
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found = min(found, limit) if limit != resource.RLIM_INFINITY else found
    return found


def _device() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"type": "cpu", "name": _cpu_name()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "type": "cuda",
        "name": properties.name,
        "capability": [properties.major, properties.minor],
        "memory_bytes": properties.total_memory,
        "count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return found.group(1) if found else platform.processor() or platform.machine()


def _driver() -> str | None:
    lines = (_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") or "").splitlines()
    return lines[0].strip() if lines else None


def _output(*command: str) -> str | None:
    """What a command prints; None where it is missing, fails, or takes longer than ten seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
