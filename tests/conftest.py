"""Hypothesis draws the same examples every time unless HYPOTHESIS_PROFILE=nightly asks for others."""

from importlib.metadata import entry_points

import pytest

from attnoracle.oracle.strategies import use_profile

use_profile()


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
