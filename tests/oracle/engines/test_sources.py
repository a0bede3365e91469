"""Functions cut out of a package that is never imported: a small one stands in for an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.engines.source import Sources, locate
from attnoracle.oracle.errors import BadInput, Unsupported

RULES = """
import compiled_extension  # would fail

LIMIT: int = 3


def short(length):
    return length <= LIMIT


class Builder:
    def __init__(self, heads, config):
        super().__init__()
        threshold = {8: 128}.get(heads, 256)
        self.other = connect(config)
        self.settle(threshold, varlen=config.varlen)

    @staticmethod
    def rows(config):
        wanted = 2 * config.rows
        plans = [wanted]
        send(plans)
        return make(dense=(short(wanted) and not config.forced))
"""


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    package = tmp_path / "engine"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError\n")
    (package / "_version.py").write_text("__version__ = version = '1.2.3'\n")
    (package / "rules.py").write_text(RULES)
    return Sources(locate("engine", str(tmp_path)))


def test_a_version_is_read_without_importing(sources: Sources) -> None:
    assert sources.engine.version == "1.2.3"


def test_functions_methods_and_constants(sources: Sources) -> None:
    module = sources.load("all", *(sources.define("rules.py", name) for name in ("LIMIT", "short", "Builder.rows")))
    assert (module.short(3), module.short(4)) == (True, False)
    assert "staticmethod" not in sources.define("rules.py", "Builder.rows")


def test_pieces_of_a_body(sources: Sources) -> None:
    assert sources.statements("rules.py", "Builder.__init__", "threshold").splitlines() == [
        "threshold = {8: 128}.get(heads, 256)",
        "self.settle(threshold, varlen=config.varlen)",
    ]
    assert sources.until("rules.py", "Builder.rows", "plans").splitlines()[-1] == "plans = [wanted]"
    assert sources.keyword("rules.py", "Builder.rows", "dense") == "(short(wanted) and not config.forced)"


@pytest.mark.parametrize(
    "ask",
    [
        lambda sources: sources.define("rules.py", "long"),
        lambda sources: sources.define("rules.py", "Builder.columns"),
        lambda sources: sources.define("none.py", "short"),
        lambda sources: sources.until("rules.py", "Builder.rows", "nothing"),
        lambda sources: sources.keyword("rules.py", "Builder.rows", "sparse"),
        lambda sources: sources.statements("rules.py", "Builder.rows", "nothing"),
    ],
)
def test_what_a_version_lacks_is_said(sources: Sources, ask) -> None:
    with pytest.raises(Unsupported, match=r"engine 1\.2\.3"):
        ask(sources)


def test_no_engine_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unsupported, match="not installed"):
        locate("an_engine_that_nobody_has")
    with pytest.raises(BadInput, match="expected a folder"):
        locate("vllm", str(tmp_path))
    assert main(["engine", "vllm", "--source", str(tmp_path)]) == 2
    assert "expected a folder vllm/" in capsys.readouterr().err
