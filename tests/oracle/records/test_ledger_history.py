"""Known findings, history and pages: what they accept, show, refuse and escape."""

import re
import struct
import zlib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.records import history, ledger
from attnoracle.oracle.reports.json_report import check_document, document, dumps
from attnoracle.oracle.reports.markdown import markdown
from attnoracle.oracle.reports.page import Attached, page
from attnoracle.oracle.reports.png import encode
from attnoracle.oracle.reports.summary import Summary
from attnoracle.oracle.verdict import Finding

ENTRY = """[[finding]]
implementation = "sparse_mqa/*"
case = "sparse_mqa:*"
checks = ["element", "bias"]
link = "https://github.com/me/kernels/issues/7"
expires = 2027-03-01
"""
BEFORE, AFTER = date(2027, 3, 1), date(2027, 3, 2)
MACHINE = {"date": "2026-11-29T10:00:00+00:00", "git": "a" * 40, "device": {"name": "cpu"}, "torch": "2.13"}
EVIL = "</script><img src=x onerror=alert(1)>|`@me`"


@pytest.fixture
def entries(tmp_path):
    def entries(text=ENTRY):
        path = tmp_path / "known.toml"
        path.write_text(text)
        return ledger.read(str(path))

    return entries


def test_a_known_failure_is_accepted_until_its_day(entries, failure, make_verdict):
    verdicts = [failure, make_verdict("PASS", "dense_mha/x")]
    found = ledger.apply(entries(), verdicts, BEFORE)
    assert list(found.known) == [0] and Summary.of(verdicts, 1.0, found).exit_code == 0
    late = ledger.apply(entries(), verdicts, AFTER)
    assert not late.known and "expired on 2027-03-01" in late.notes[0]
    assert Summary.of(verdicts, 1.0, late).exit_code == 1


def test_a_new_failure_and_a_new_check_fail(entries, failure):
    more = replace(failure, findings=(*failure.findings, Finding("lse", "off", True)))
    assert not ledger.apply(entries(), [more], BEFORE).known
    other = replace(failure, implementation="dense_mha/x")
    found = ledger.apply(entries(), [failure, other], BEFORE)
    assert Summary.of([failure, other], 1.0, found).exit_code == 1


def test_an_unexpected_pass_fails(entries, make_verdict):
    verdicts = [make_verdict("PASS")]
    found = ledger.apply(entries(), verdicts, BEFORE)
    assert "known finding passes" in found.problems[0] and Summary.of(verdicts, 1.0, found).exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[finding]\n", "at line 1"),
        (ENTRY.replace("2027-03-01", '"soon"'), "expected a day"),
        (ENTRY.replace("https://github.com/me/kernels/issues/7", "#7"), "address of an issue"),
        (ENTRY.replace("checks", "chekcs"), "nearest: checks"),
        ("[finding]\n", "expected"),
    ],
)
def test_a_ledger_that_is_none(entries, text, words):
    with pytest.raises(BadInput, match=words):
        entries(text)


def test_history_shows_where_a_ratio_moved_and_files_merge(tmp_path, failure, make_verdict, capsys):
    paths = [str(tmp_path / name) for name in ("a.db", "b.db", "all.db")]
    slow = replace(failure, status="PASS", findings=(), measures={"element": 0.2}, worst=())
    for day, path, verdict in ((1, paths[0], slow), (2, paths[1], slow), (3, paths[0], failure)):
        facts = MACHINE | {"date": f"2026-11-0{day}T10:00:00+00:00"}
        history.add(
            path, facts, [verdict, make_verdict("PASS", "dense_mha/x"), make_verdict("UNSUPPORTED", "dense_mha/y")]
        )
    assert history.merge(paths[2], paths[:2]) == 3 and history.merge(paths[2], paths[:2]) == 0
    cells = history.cells([paths[2]])
    assert [len(cell.points) for cell in cells] == [3, 3] and cells[0].implementation == failure.implementation
    assert [[a.status, b.status] for a, b in cells[0].moves] == [["PASS", "FAIL"]]
    assert main(["history", *paths[:2]]) == 0
    out = capsys.readouterr().out
    assert "was PASS" in out and "2 cells over 3 runs: 1 moved" in out


def test_a_corrupt_history_is_refused_and_kept(tmp_path, make_verdict):
    import sqlite3

    text = tmp_path / "text"
    text.write_text("not a database, and long enough to be looked at as one\n" * 40)
    other = tmp_path / "other"
    with sqlite3.connect(other) as base:
        base.execute("CREATE TABLE mine (x)")
    base.close()
    for path, words in ((text, "damaged or no history"), (other, "a database of something else")):
        before = path.read_bytes()
        with pytest.raises(BadInput, match=words):
            history.add(str(path), MACHINE, [make_verdict()])
        assert path.read_bytes() == before
    with pytest.raises(BadInput, match="no such file"):
        history.cells([str(tmp_path / "absent")])


def test_a_picture_is_a_png_of_its_matrix():
    data = encode([[0.0, 1.0, float("inf")], [50.0, 1e9, float("nan")]])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (3, 2)
    start = data.index(b"IDAT")
    raw = zlib.decompress(data[start + 4 : start + 4 + struct.unpack(">I", data[start - 4 : start])[0]])
    assert len(raw) == 2 * (1 + 3 * 3) and raw[1:4] == bytes((247, 247, 247)) and raw[7:10] == raw[17:20]


@pytest.fixture
def evil(failure):
    finding = Finding("element", EVIL, True, None, EVIL)
    error = replace(
        failure, status="ERROR", reason=EVIL + "\x1b[31m", findings=(), worst=(), implementation=f"sparse_mqa/{EVIL}"
    )
    return [replace(failure, findings=(finding,), error_map=((0.5, 7.0),)), error]


def test_whatever_a_kernel_is_called_or_prints_is_escaped(evil):
    summary = Summary.of(evil, 1.0)
    idea = {"words": EVIL, "stage": EVIL, "explained": 0.999999, "fits": True, "same_here": [{"words": EVIL}]}
    why = {"case": {"id": evil[0].case.id}, "implementation": evil[0].implementation, "conclusion": EVIL}
    step = {"name": EVIL, "answer": EVIL, "reasons": [EVIL], "steps": []}
    attached = Attached(
        audit={"faults": [{"name": EVIL, "checks": []}]},
        diagnoses=[why | {"hypotheses": [idea], "stage": {"stage": EVIL, "why": EVIL}}],
        routes=[{"batch": EVIL, "runs": EVIL, "skip": False, "hazards": [EVIL], "steps": [step]}],
    )
    html = page(evil, summary, MACHINE | {"torch": EVIL}, command=[EVIL], attached=attached)
    assert "99.99%" in html, "all of it is said of the whole only"
    assert "<img src=x" not in html and html.count("</script>") == 1 and "\x1b" not in html
    assert "data:image/png;base64," in html and not re.search(r'(src|href)="(?!data:|#)', html)
    told = markdown(evil, summary, MACHINE)
    outside = re.sub(r"```text\n.*?\n```", "", told, flags=re.DOTALL)
    assert "<img" not in outside and "|`" not in outside and "@me" not in outside


def test_report_puts_runs_together(tmp_path, failure, make_verdict, capsys):
    for name, verdict in (("a.json", failure), ("b.json", make_verdict("PASS", "dense_mha/x"))):
        document = check_document(["attnoracle", "check"], MACHINE, Summary.of([verdict], 1.0), [verdict])
        (tmp_path / name).write_text(dumps(document))
    names = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert main(["report", *names, "--html", str(tmp_path / "p.html"), "--markdown", "-"]) == 1
    out = capsys.readouterr().out
    assert "attnoracle **fails**: 2 verdicts" in out and "<code>dense_mha/x</code>" in out
    assert "A fault was found" in (tmp_path / "p.html").read_text()
    (tmp_path / "a.json").write_text("{}")
    assert main(["report", names[0]]) == 2


@pytest.fixture
def documents(tmp_path, failure):
    """A run with a failure, its diagnosis, and a route, as commands write them; returns their paths."""
    case = {"id": failure.case.id}
    diagnosis = {"case": case, "implementation": failure.implementation, "conclusion": "a tile", "hypotheses": []}
    route = {"batch": "2q1s9", "runs": "dense_mha", "skip": False, "steps": [], "hazards": []}
    found = {
        "run": check_document(["attnoracle", "check"], MACHINE, Summary.of([failure], 1.0), [failure]),
        "why": document("diagnose", [], {}, {}, diagnoses=[diagnosis | {"stage": None}], verdicts=[]),
        "route": document("route", [], {}, {}, routes=[route]),
    }
    for name, one in found.items():
        (tmp_path / name).write_text(dumps(one))
    return {name: str(tmp_path / name) for name in found}


def test_what_other_commands_found_joins_the_page_of_a_run(documents, tmp_path, capsys):
    assert main(["report", *documents.values(), "--html", str(tmp_path / "p.html")]) == 1
    html = (tmp_path / "p.html").read_text()
    assert "Diagnosis: a tile" in html and "2q1s9" in html and "Kill matrix" not in html
    assert main(["report", documents["route"]]) == 2
    assert "at least one document of attnoracle check" in capsys.readouterr().err
    Path(documents["why"]).write_text(Path(documents["why"]).read_text().replace(":s0", ":s7"))
    assert main(["report", *documents.values(), "--html", str(tmp_path / "p.html")]) == 2
    assert "which is no failure of the run" in capsys.readouterr().err
    Path(documents["route"]).write_text(dumps(document("route", [], {}, {}, routes=[{}])))
    assert main(["report", documents["run"], documents["route"], "--html", str(tmp_path / "p.html")]) == 2
    assert "as --json writes them" in capsys.readouterr().err
