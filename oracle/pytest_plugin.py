"""The pytest plugin: does nothing and imports nothing of ours until a test is marked ``differential``.

::

    @pytest.mark.differential(operator="sparse_mqa", geometry="glm-5")
    def test_my_kernel(case):
        assert_matches_reference(my_sparse_mqa, case=case, contract="contract.toml")

Without a GPU Triton's kernels are interpreted, which has to be said before anything imports Triton: so a file that
holds the mark, or calls ``assert_matches_reference``, is prepared for before it is imported.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_MARK = "differential"
#: What a test file holds that uses this plugin.
_WORDS = (b"mark.differential", b"assert_matches_reference")
_KEYWORDS = ("operator", "geometry", "suite", "seed", "dtype")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(operator, geometry=None, suite='quick', seed=0, dtype=None): run the test once for each case of "
        "attnoracle's suite; the test takes the case as its argument `case`",
    )


@pytest.hookimpl(tryfirst=True)  # of test files alone, and before pytest makes the module
def pytest_pycollect_makemodule(module_path: Path) -> None:
    try:
        text = module_path.read_bytes()
    except OSError:  # pytest tells of it
        return
    if any(word in text for word in _WORDS):
        _interpret()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(_MARK)
    if mark is None:
        return
    if "case" not in metafunc.fixturenames:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: a test marked {_MARK} takes the argument `case`")
    unknown = sorted(set(mark.kwargs) - set(_KEYWORDS))
    if mark.args or unknown or "operator" not in mark.kwargs:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: expected {_MARK}(operator=…) with keywords of {', '.join(_KEYWORDS)}, "
            f"got {mark.args or unknown or 'no operator'}"
        )
    _interpret()
    from .errors import OracleError
    from .testing import cases

    try:
        found = cases(**mark.kwargs)
    except OracleError as error:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: {error}") from None
    metafunc.parametrize("case", found, ids=[case.id.partition(":")[2] for case in found])


def _interpret() -> None:
    """On a machine without a GPU Triton is to interpret; that has to be said before anything imports it."""
    from .device import settle
    from .errors import Unsupported

    try:
        settle("auto")
    except Unsupported as error:
        raise pytest.UsageError(str(error)) from None
