"""Files that a killed run goes on from: refused ones stay as they are, to the byte."""

import json

import pytest

from attnoracle.oracle.audit.journal import Journal as AuditJournal
from attnoracle.oracle.audit.plan import Settings
from attnoracle.oracle.bisect.journal import Journal as BisectJournal
from attnoracle.oracle.cli.journal import Journal as CheckJournal
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.records.state_file import StateFile

FOREIGN = b'{"schema": "somebody.else/1"}\n{"a": 1}\n{"its last line has no end'


@pytest.mark.parametrize("kind", ["check", "audit", "bisect"])
def test_a_foreign_file_whose_last_line_has_no_end_is_refused_and_kept(tmp_path, kind):
    path = tmp_path / ("journal.jsonl" if kind == "bisect" else "state")
    path.write_bytes(FOREIGN)
    with pytest.raises(BadInput, match=r"expected the state|another bisection"):
        if kind == "check":
            CheckJournal(str(path), {"device": "cpu"})
        elif kind == "audit":
            AuditJournal(str(path), Settings())
        else:
            BisectJournal(tmp_path, {"axis": "sizes"})
    assert path.read_bytes() == FOREIGN


def test_a_line_of_ones_own_that_was_cut_off_goes_when_the_run_goes_on(tmp_path):
    path = tmp_path / "state"
    path.write_text('{"head": 1}\n{"result": 1}\n{"resu')
    state = StateFile(str(path))
    assert state.text == '{"head": 1}\n{"result": 1}\n' and path.read_text().endswith('{"resu')
    with state:
        state.begin({"head": 1})
        state.line({"result": 2})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"head": 1}, {"result": 1}, {"result": 2}]
