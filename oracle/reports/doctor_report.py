"""An examination of this machine for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..doctor import Examination
from ..records.verdict_json import case_record
from . import json_report
from .plain import line, plural

_MEMORY_UNIT = 2**30


def document(command: Sequence[str], examination: Examination) -> dict[str, Any]:
    """``attnoracle.doctor``, version 1."""
    return json_report.document(
        "doctor",
        command,
        examination.environment,
        examination.summary,
        device=examination.device,
        features=examination.features,
        implementations=[
            {
                "implementation": prospect.implementation,
                "supported": prospect.supported,
                "reason": prospect.reason,
                "case": case_record(prospect.case),
            }
            for prospect in examination.prospects
        ],
    )


def print_examination(console: Console, examination: Examination) -> None:
    """Machine, libraries and features, then every implementation."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim", min_width=11)
    grid.add_column(overflow="fold")
    for name, told in (*_machine(examination), *_features(examination.features)):
        grid.add_row(name, Text(line(told)))
    console.print(grid)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("implementation", overflow="fold")
    table.add_column("runs", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for prospect in examination.prospects:
        runs = Text("yes", "green") if prospect.supported else Text("no", "yellow")
        table.add_row(Text(line(prospect.implementation)), runs, Text(line(prospect.reason)))
    console.print()
    console.print(table)
    summary = examination.summary
    console.print(
        Text(f"\n{summary['supported']} of {plural(summary['implementations'], 'implementation')} can run here")
    )


def _machine(examination: Examination) -> list[tuple[str, str]]:
    facts = examination.environment
    rows = [
        ("attnoracle", f"{facts['attnoracle']}" + (f" at {facts['git']}" if facts["git"] else "")),
        ("python", f"{facts['python']} on {facts['platform']}, {plural(facts['cpus'], 'CPU')}"),
        ("device", f"{examination.device}: {_device(facts['device'])}"),
        ("torch", facts["torch"] or "not installed"),
        ("numpy", facts["numpy"] or "not installed"),
    ]
    return rows


def _device(device: dict[str, Any]) -> str:
    if device["type"] == "cpu":
        return str(device["name"])
    major, minor = device["capability"]
    memory = f"{device['memory_bytes'] / _MEMORY_UNIT:.0f} GiB"
    return (
        f"{device['count']} x {device['name']}, compute capability {major}.{minor}, {memory}, "
        f"CUDA {device['cuda']}, driver {device['driver'] or 'unknown'}"
    )


def _features(features: dict[str, Any]) -> list[tuple[str, str]]:
    triton, flashinfer, compiler = features["triton"], features["flashinfer"], features["compiler"]
    rows = [("triton", triton["reason"] or f"{triton['version']}, {triton['mode']}")]
    for backend, refusal in features["sdpa"].items():
        rows.append((f"sdpa {_short(backend)}", f"no: {refusal}" if refusal else "yes"))
    rows.append(("flashinfer", flashinfer["reason"] or flashinfer["version"]))
    rows += [("", f"{label}: {'yes' if there else 'no'}") for label, there in flashinfer["features"].items()]
    for name, peer in features["peers"].items():
        rows.append((_shorter(name), peer["reason"] or f"{peer['version']}, {peer['found']}"))
        rows += [("", f"{label}: {answer}") for label, answer in peer["features"].items()]
    rows.append(("compiler", compiler["reason"] or f"{compiler['path']}: {compiler['version']}"))
    return rows


def _shorter(peer: str) -> str:
    return peer.replace("FlashAttention 4", "FA4")


def _short(backend: str) -> str:
    return backend.removesuffix("_attention").replace("_", " ")
