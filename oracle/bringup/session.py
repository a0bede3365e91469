"""The suite as pytest runs it: adapters from a file, stages that are left out, and what each check says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BadInput
from .capability import probe
from .chain import chain, chain_stages
from .suite import DTYPES, StageCase, Suite


class LeftOut(Exception):
    """A stage without an adapter."""


def load_adapters(path: Path) -> ModuleType:
    """The module in a file, its folder first on the path. Raises BadInput where there is none."""
    spec = importlib.util.spec_from_file_location(f"_adapters_{abs(hash(path))}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadInput(f"no adapters at {path}: expected the file that attnoracle bringup --write makes")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


class Session:
    """One folder. Checks raise AssertionError with what was found; under pytest a stage that is left out is skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suite = Suite.read(folder)
        self.cases = self.suite.cases

    @cached_property
    def adapters(self) -> ModuleType:
        module = load_adapters(self.folder / "adapters.py")
        if getattr(module, "HADAMARD", False):
            self.suite.model = replace(self.suite.model, hadamard=True)
        return module

    @property
    def chains(self) -> tuple[StageCase, ...]:
        """A fresh prompt, a chunk and a decode step through all stages, each fed by the one before."""
        shapes = ("prefill", "chunk", "decode")
        return tuple(replace(c, stage="chain") for c in self.cases if c.stage == "output" and c.name in shapes)

    @cached_property
    def mine(self) -> Any:
        return self.adapters.build(dict(self.suite.config), self.suite.state(DTYPES[self.dtype]))

    @property
    def dtype(self) -> str:
        dtype = getattr(self.adapters, "DTYPE", "float32")
        if dtype not in DTYPES:
            raise BadInput(f"adapters.DTYPE: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        return str(dtype)

    def check(self, case: StageCase) -> None:
        __tracebackhide__ = True
        try:
            found = self.suite.judge(case, self._adapter(case.stage), self.dtype)
        except (LeftOut, NotImplementedError):
            import pytest

            pytest.skip(f"no adapter for the stage {case.stage}")
        if found is not None:
            raise AssertionError(str(found))

    def check_chain(self, case: StageCase) -> None:
        """Our stages on what our own stages gave; those that are left out are taken from the reference."""
        __tracebackhide__ = True
        names = {stage.name for stage in chain_stages(self.suite) if not self._left_out(stage.name)}
        if not names:
            import pytest

            pytest.skip("no stage has an adapter")
        links = chain(self.suite, case, {name: self._adapter(name) for name in names}, self.dtype)
        if any(link.found for link in links):
            raise AssertionError("\n".join(map(str, links)))

    def check_capability(self) -> None:
        """Declared against executed: a dense-routed batch is offered, and the operator that ran is seen."""
        __tracebackhide__ = True
        declared = getattr(self.adapters, "SUPPORTS_DENSE_MHA_PREFILL", None)
        if declared not in (True, False):
            raise AssertionError("SUPPORTS_DENSE_MHA_PREFILL: expected True or False, got none: it has to be declared")
        make = getattr(self.adapters, "make_layer", None)
        try:
            if make is None:
                raise NotImplementedError
            found = probe(self.suite.model, make, declared=declared)
        except NotImplementedError:
            import pytest

            pytest.skip(f"declared {declared}, and no make_layer to see what runs")
        if not found.agrees:
            raise AssertionError(str(found))

    def check_coverage(self) -> None:
        """Skips with the stages that have no adapter; fails where none has one."""
        import pytest

        __tracebackhide__ = True
        stages = list(dict.fromkeys(case.stage for case in self.cases))
        left = [stage for stage in stages if self._left_out(stage)]
        if len(left) == len(stages):
            raise AssertionError(f"none of {len(stages)} stages has an adapter: nothing was judged")
        if left:
            pytest.skip(f"{len(left)} of {len(stages)} stages left out: {', '.join(left)}")

    def _left_out(self, stage: str) -> bool:
        case = next(case for case in self.cases if case.stage == stage)
        try:
            self.suite.judge(case, self._adapter(stage), self.dtype)
        except (LeftOut, NotImplementedError):
            return True
        except Exception:  # it is there, and its own test says what is wrong with it
            return False
        return False

    def _adapter(self, stage: str) -> Callable[..., Any]:
        function = getattr(self.adapters, stage, None)
        if function is None:
            raise LeftOut(stage)
        return partial(function, self.mine)
