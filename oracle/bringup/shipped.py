"""The model that transformers ships against the reference: each stage is given the module's own intermediates."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...reference.stages import STAGES
from ..errors import BadInput, Unsupported
from .subject import Subject
from .suite import SMALL, Found, StageCase, Suite
from .written import small

#: (mode, tokens in front, kept in the cache; new tokens), in multiples of the top-k; hidden states times the last.
MODES = (("prefill", 0, 3, 1.0), ("chunk", 2, 1, 1.0), ("decode", 3, 0, 1.0), ("small", 0, 1, SMALL))


@dataclass(frozen=True, slots=True)
class StageResult:
    """``status``: PASS, FAIL, or UNSEEN where the module does not show the stage."""

    mode: str
    stage: str
    status: str
    message: str = ""


def version() -> str:
    """Of the transformers that is installed. Raises Unsupported without one."""
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        raise Unsupported("transformers is not installed; pip install 'attnoracle[bringup]'") from None


def compare(subject: Subject, suite: Suite) -> tuple[StageResult, ...]:
    """Every stage in every mode. Raises Unsupported where this release has no such model, BadInput for others."""
    from ...optimized.transformers_kernels.stages import FAMILIES, Shipped

    kind = subject.config.raw("model_type")
    if kind not in FAMILIES:
        raise BadInput(f"--transformers: expected a model_type of {', '.join(FAMILIES)}, got {kind!r}")
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3 * suite.model.topk + 1, suite.model.hidden, generator=generator)
    found: list[StageResult] = []
    for mode, front, new, size in MODES:
        hidden, start, count = drawn * size, front * suite.model.topk, max(1, new * suite.model.topk)
        try:
            shipped = Shipped(suite.config, suite.state())
        except ImportError as error:
            if (error.name or "").startswith("transformers.models."):
                raise Unsupported(f"transformers {version()} has no {kind}") from None
            # One of its own needs is missing or does not fit: that says nothing of the model.
            raise Unsupported(f"transformers {version()} cannot be imported: {error}") from None
        spans = ((0, start), (start, start + count)) if start else ((0, count),)
        runs: list[dict[str, Tensor]] = []
        try:
            for begin, end in spans:
                runs.append(shipped.run(hidden[begin:end], begin, cached=bool(start)))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            found.append(StageResult(mode, "forward", "FAIL", f"raised {type(error).__name__}: {error}"))
            continue
        found += _judged(suite, mode, hidden[: start + count], count, runs)
    return tuple(found)


def _judged(suite: Suite, mode: str, hidden: Tensor, queries: int, runs: list[dict[str, Tensor]]) -> list[StageResult]:
    known = dict(runs[-1])
    known |= {name: torch.cat([run[name] for run in runs]) for name in ("kv_c", "k_pe") if name in known}
    positions = torch.arange(len(hidden))
    known |= {"hidden": hidden, "new": hidden[-queries:]}
    known |= {"positions": positions, "new_positions": positions[-queries:]}
    found = []
    for stage in STAGES:
        names = (*stage.inputs.values(), *stage.outputs)
        if any(name not in known for name in names):
            found.append(StageResult(mode, stage.name, "UNSEEN", "the module does not show it"))
            continue
        case = StageCase(mode, stage.name, len(hidden), queries)
        inputs = {keyword: known[name] for keyword, name in stage.inputs.items()}
        result = _stage(suite, case, inputs, tuple(known[name] for name in stage.outputs))
        found.append(StageResult(mode, stage.name, "FAIL" if result else "PASS", str(result or "")))
    return found


def _stage(suite: Suite, case: StageCase, inputs: Mapping[str, Any], outputs: tuple[Tensor, ...]) -> Found | None:
    try:
        return suite.judged(case, inputs, outputs)
    except (RuntimeError, ValueError, IndexError) as error:  # its inputs do not even fit together
        return Found(case, f"intermediates do not fit together: {str(error).splitlines()[0]}")


def compare_small(subject: Subject) -> tuple[StageResult, ...]:
    """As ``compare``, on the config with small dims. Raises BadInput for one without the fields of the stages."""
    subject.model()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.json"
        path.write_text(json.dumps(small(subject)), encoding="utf-8")
        return compare(subject, Suite.of(path))
