"""Hypothesis draws the same examples every time unless HYPOTHESIS_PROFILE=nightly asks for others."""

import os
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for every core; torch and numpy read it when they are imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from attnoracle.oracle.strategies import use_profile

use_profile()


def pytest_collection_modifyitems(items):
    """Slow tests first, so that no worker is left with one when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


SERVED = Path(__file__).with_name("served.py")


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The start of a command line that runs ``attnoracle``, ``pytest`` or a script in a fork: none imports torch again.

    For tests of what a command does. Those of how a process starts, is interrupted or ends start one of their own.
    """
    path = tmp_path_factory.mktemp("server") / "socket"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env.pop("TRITON_INTERPRET", None)
    process = subprocess.Popen([sys.executable, SERVED, path], env=env)
    while not path.exists():
        assert process.poll() is None, "the server did not start"
        time.sleep(0.05)
    yield [sys.executable, "-I", "-S", str(SERVED), str(path)]
    path.unlink()
    process.wait(60.0)


@pytest.fixture(scope="session")
def plugin_words():
    """What a pytest of a test's own needs on its command line to have the plugin.

    Nothing where the project is installed: pytest refuses a plugin that it is given twice. A checkout that is only on
    the path has no entry points, and names it.
    """
    plugin = "attnoracle.oracle.pytest_plugin"
    if any(entry.value == plugin for entry in entry_points(group="pytest11")):
        return []
    return ["-p", plugin]
