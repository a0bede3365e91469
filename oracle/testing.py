"""For the tests of kernel authors: ``assert_matches_reference`` and the cases behind the mark ``differential``.

::

    from attnoracle.oracle.testing import assert_matches_reference

    def test_my_kernel():
        assert_matches_reference(my_sparse_mqa, operator="sparse_mqa", geometry="glm-5", contract="contract.toml")

A failure reads as on the command line, with the command that runs it again. Strategies for Hypothesis are in
``attnoracle.oracle.strategies``: they draw cases, ``assert_matches_reference(fn, case=case)`` judges them.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..optimized import triton_runtime
from ..optimized.contract import Contract
from ..optimized.implementation import Facts, Implementation
from .case import Case
from .check import check
from .config import names, register
from .device import settle
from .errors import BadInput, Unsupported, unknown
from .guests import contract_file
from .guests.contract_file import Limits
from .guests.external import default_contract, refused_by
from .guests.fit import Fitted, fit, refusal
from .operators import operator as operator_named
from .reports.summary import Summary
from .reports.table import closing, print_block
from .suites import geometry_cases, suite
from .verdict import Verdict

#: Failures shown in full; a broken kernel fails everywhere in the same way.
SHOWN = 3
#: Columns of a failure: pytest puts a margin before it.
WIDTH = 100


def cases(
    operator: str, geometry: str | Path | None = None, suite: str = "quick", seed: int = 0, dtype: str | None = None
) -> tuple[Case, ...]:
    """The cases of a suite for one operator, in order; ``geometry`` is a shipped name or a path of a config.json.

    Raises BadInput for unknown names, and where nothing is left.
    """
    operator_named(operator)
    found = _cases(suite, geometry, seed)
    found = tuple(case for case in found if case.operator == operator and dtype in (None, case.dtype))
    if not found:
        raise BadInput(f"no case of suite {suite} is one of {operator} with geometry {geometry} and dtype {dtype}")
    return found


def _cases(name: str, geometry: str | Path | None, seed: int) -> tuple[Case, ...]:
    every = suite(name, seed)
    if geometry is None:
        return every
    text = str(geometry)
    if isinstance(geometry, Path) or text.endswith(".json") or "/" in text:
        text = register(geometry)
    if text not in names():
        raise unknown("geometry", text, names())
    return tuple(case for case in every if case.geometry == text) or geometry_cases(name, text, seed)


def assert_matches_reference(
    fn: Callable[..., Any],
    *,
    operator: str | None = None,
    geometry: str | Path | None = None,
    case: Case | str | None = None,
    contract: Contract | str | Path | None = None,
    adapter: str = "",
    suite: str = "quick",
    seed: int = 0,
    device: str = "auto",
) -> tuple[Verdict, ...]:
    """Judge a kernel on one case, or on all cases of a suite; returns the verdicts.

    ``fn`` takes the reference's keywords, or those of an adapter. ``contract`` is a Contract or a contract file;
    without one nothing is excused (``guests.external.default_contract``). Raises AssertionError with the failures as
    the command line shows them, Unsupported where no case could be judged, BadInput for what cannot be. A case that
    the kernel does not support skips the test under pytest.
    """
    __tracebackhide__ = True
    if case is None and operator is None:
        raise BadInput("assert_matches_reference: expected an operator or a case, got neither")
    wanted = (Case.parse(case) if isinstance(case, str) else case,) if case is not None else ()
    chosen = tuple(one for one in wanted if one is not None)
    if not chosen:
        assert operator is not None
        chosen = cases(operator, geometry, suite, seed)
    of = chosen[0].operator
    if operator not in (None, of):
        raise BadInput(f"assert_matches_reference: operator {operator!r}, but the case is one of {of}")
    where = _device(device)
    mine = _implementation(fn, of, contract, adapter)
    verdicts = tuple(check(one, mine, device=where) for one in chosen)
    bad = [verdict for verdict in verdicts if verdict.bad]
    if bad:
        raise AssertionError(_told(verdicts, bad))
    if all(verdict.status == "UNSUPPORTED" for verdict in verdicts):
        reason = f"{mine.name}: {verdicts[0].reason}"
        if "PYTEST_CURRENT_TEST" in os.environ:
            import pytest

            pytest.skip(reason)
        raise Unsupported(reason)
    return verdicts


def _told(verdicts: Sequence[Verdict], bad: Sequence[Verdict]) -> str:
    """The failures as the command line shows them."""
    text = io.StringIO()
    screen = Console(file=text, width=WIDTH, highlight=False, markup=False, emoji=False, color_system=None)
    screen.print()
    for verdict in bad[:SHOWN]:
        print_block(screen, verdict)
        screen.print()
    if len(bad) > SHOWN:
        screen.print(f"{len(bad) - SHOWN} more like these")
    if len(verdicts) > 1:
        screen.print(closing(Summary.of(verdicts, sum(verdict.seconds for verdict in verdicts))))
    return text.getvalue().rstrip()


def _device(wanted: str) -> str:
    """The device, one GPU for each worker of xdist in turn."""
    where = settle(wanted) if wanted in ("auto", "cpu", "cuda") else wanted
    if where == "cpu":
        triton_runtime.prepare_if_available()  # a kernel may import Triton when it is first called
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if where != "cuda" or not worker.startswith("gw"):
        return where
    import torch

    return f"cuda:{int(worker[2:]) % torch.cuda.device_count()}"


def _implementation(
    fn: Callable[..., Any], operator: str, contract: Contract | str | Path | None, adapter: str
) -> Implementation:
    name = getattr(fn, "__name__", type(fn).__name__)
    fitted = fit(fn, operator, adapter, what=name)
    limits, path = Limits(), ""
    if isinstance(contract, str | Path):
        path = str(Path(contract).absolute())
        declared = contract_file.read(path, default_contract(operator))
        held, limits = declared.contract, declared.limits
    else:
        held = contract or default_contract(operator)

    def supports(facts: Facts) -> str | None:
        return refusal(fitted, facts) or limits.refusal(facts) or refused_by(held, facts)

    origin = _origin(fn, operator, fitted, path)
    return Implementation(f"{operator}/{name}", held, supports, lambda: fitted.function, origin=origin)


def _origin(fn: Callable[..., Any], operator: str, fitted: Fitted, contract: str) -> str:
    """Options of the command that runs it again, where the kernel can be named; see ``Verdict.origin``."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if not module or module == "__main__" or not name or "<" in name:
        return ""
    words = ["--impl", f"{module}:{name}", "--operator", operator]
    words += ["--adapter", fitted.adapter] if fitted.adapter else []
    words += ["--contract", contract] if contract else []
    return shlex.join(words)
