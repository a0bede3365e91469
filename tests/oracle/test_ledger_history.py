"""Known findings, history and pages: what they accept, show, refuse and escape."""

import re
import struct
import zlib
from dataclasses import replace
from datetime import date

import pytest

from attnoracle.oracle import history, ledger
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.reports.json_report import check_document, dumps
from attnoracle.oracle.reports.markdown import markdown
from attnoracle.oracle.reports.page import page
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
    html = page(
        evil, summary, MACHINE | {"torch": EVIL}, command=[EVIL], audit={"faults": [{"name": EVIL, "checks": []}]}
    )
    assert "<img src=x" not in html and html.count("</script>") == 1 and "\x1b" not in html
    assert "data:image/png;base64," in html and not re.search(r'(src|href)="(?!data:|#)', html)
    told = markdown(evil, summary, MACHINE)
    outside = re.sub(r"```text\n.*?\n```", "", told, flags=re.DOTALL)
    assert "<img" not in outside and "|`" not in outside and "@me" not in outside


def test_a_page_of_two_thousand_verdicts_is_small(failure, make_verdict, make_case):
    rough = tuple(tuple(0.37 * ((7 * x + 3 * y) % 11) for x in range(32)) for y in range(32))
    bad = replace(failure, error_map=rough)
    verdicts = [bad if seed % 4 == 0 else make_verdict("PASS", case=make_case(seed=seed)) for seed in range(2000)]
    assert len(page(verdicts, Summary.of(verdicts, 60.0), MACHINE).encode()) < 3_000_000


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
