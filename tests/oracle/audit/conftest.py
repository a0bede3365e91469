"""What the tests of the audit share: small audits in this process, and a fault that is none."""

import dataclasses

import pytest

from attnoracle.oracle import faults
from attnoracle.oracle.audit import plan, result
from attnoracle.oracle.audit.journal import Journal
from attnoracle.oracle.audit.plan import Settings
from attnoracle.oracle.audit.run import run
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.faults.simulated import KERNELS


@pytest.fixture(scope="package")
def small() -> Settings:
    """Three faults that different checks kill, and sixteen good runs."""
    return Settings(faults=("relu-missing", "selection-cached-by-shape", "causal-off-by-one"), good_runs=16)


@pytest.fixture(scope="package")
def audit():
    """A function from settings and the path of a state file to the audit, run in this process."""

    def audit(settings, path=None, on_done=lambda verdict: None):
        with Journal(path, settings) as journal:
            return run(plan.plan(settings), settings, journal, workers=1, on_done=on_done)

    return audit


@pytest.fixture(scope="package")
def whole(audit, small):
    """The small audit, run once."""
    return audit(small)


@pytest.fixture
def command(capsys, monkeypatch):
    """Exit code, stdout and stderr of ``attnoracle audit`` with one job."""
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments):
        code = main(["audit", "--jobs", "1", *arguments])
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def harmless(monkeypatch):
    """A fault of the catalogue that does nothing, under the name ``nothing-at-all``."""
    made = dataclasses.replace(
        faults.FAULTS[0],
        name="nothing-at-all",
        operator="merge_lse",
        description="Computes what it should.",
        expected_check="element",
        plant=lambda: KERNELS["merge_lse"],
        options=(),
        escapes=("cosine",),
        host=None,
    )
    monkeypatch.setitem(faults._BY_NAME, made.name, made)
    for module in (plan, result):
        monkeypatch.setattr(module, "FAULTS", (*faults.FAULTS, made))
    return made
