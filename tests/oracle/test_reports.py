"""What people and machines read: table, failure block, progress, JSON, JUnit, with hostile text in them."""

import io
import json
import math
from xml.etree import ElementTree

import pytest
from rich.console import Console

from attnoracle.oracle.reports import json_report, plain
from attnoracle.oracle.reports.junit import junit
from attnoracle.oracle.reports.progress import progress
from attnoracle.oracle.reports.summary import Summary
from attnoracle.oracle.reports.table import print_block, report
from attnoracle.oracle.verdict import STATUSES, Finding, Worst

HOSTILE = "[red]boom[/red] [/] <&>\"' \x1b[31mescape\x1b[0m \x00\x07\x7f\x9b \ud800 \ufffe ‮evil\nsecond line\r\n\tend"


@pytest.fixture
def render():
    def render(show, width=80, **options) -> str:
        # The width leaves no doubt: what rich wraps here, it wraps on a terminal of that width.
        text = io.StringIO()
        show(Console(file=text, width=width, markup=False, highlight=False, **options))
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())

    return render


@pytest.fixture
def mixed(make_verdict, failure):
    return [
        make_verdict("PASS", "dense_mha/sdpa-math", seconds=1.25, worst=(Worst("out", (0, 0, 0), 1.0, 1.001, 0.0025),)),
        *[make_verdict("PASS", seconds=0.5, measures={"element": 0.31}) for _ in range(120)],
        failure,
        make_verdict("WEAK", reason="the mean of V would pass"),
        make_verdict("ERROR", "sparse_mqa/flashinfer-trtllm", reason="RuntimeError: no kernel image"),
        make_verdict("UNSUPPORTED", "indexer_scores/torch-compile", reason="needs a C++ compiler"),
        make_verdict("UNSUPPORTED", "dense_mha/sdpa-cudnn", reason="needs CUDA"),
        make_verdict("UNSUPPORTED", "dense_mha/sdpa-flash", reason="needs CUDA"),
        make_verdict("SUSPECT", "topk_select/torch", reason="recall", findings=(Finding("bias", "low", False, 1e-5),)),
    ]


def rows(text: str) -> dict[str, list[str]]:
    """Cells of each row by its first cell."""
    return {cells[0]: cells for cells in map(str.split, text.splitlines()) if cells}


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_counts_every_status_and_fits(render, mixed, width):
    text = render(lambda console: report(console, mixed, Summary.of(mixed, 61.4)), width=width)
    lines = text.splitlines()
    assert lines[0].split() == [
        "operator", "implementation", "pass", "fail", "weak", "susp", "err", "unsup", "worst", "time",
    ]  # fmt: skip
    found = rows(text[: text.index("\nunsupported")])
    assert found["dense_mha"] == ["dense_mha", "sdpa-math", "1", "-", "-", "-", "-", "-", "0.4", "1.2s"]
    assert found["sdpa-cudnn"] == ["sdpa-cudnn", "-", "-", "-", "-", "-", "1", "-", "0ms"]
    assert found["sparse_mqa"] == ["sparse_mqa", "triton", "120", "1", "1", "-", "-", "-", "inf", "1m00s"]
    assert found["indexer_scores"][1] == "torch-compile"
    too_long = [line for line in lines if len(line.rstrip()) > width]
    assert all(line.startswith(("  case  ", "  repro  ")) for line in too_long)
    assert " ".join(text.split()).endswith(
        "128 verdicts in 1m01s: 121 pass, 1 fail, 1 suspect, 1 weak, 3 unsupported, 1 error"
    )


def test_reasons_are_given_once_with_all_they_hold_for(render, mixed):
    text = render(lambda console: report(console, mixed, Summary.of(mixed, 1.0)))
    assert "  2 x needs CUDA  dense_mha/sdpa-cudnn, dense_mha/sdpa-flash\n" in text
    assert "  1 x needs a C++ compiler  indexer_scores/torch-compile\n" in text
    assert "\nweak\n  1 x the mean of V would pass  sparse_mqa/triton\n" in text


def test_many_reasons_and_failures_are_cut_with_notice(render, make_verdict, failure):
    verdicts = [failure] * 10 + [make_verdict("UNSUPPORTED", reason=f"reason {i}") for i in range(9)]
    text = render(lambda console: report(console, verdicts, Summary.of(verdicts, 1.0)))
    assert text.count("FAIL  sparse_mqa/triton") == 3
    assert "sparse_mqa/triton: 7 more like these; --json FILE has them all" in text
    assert "and 3 other reasons; --json FILE has them all" in text


@pytest.mark.parametrize("width", [80, 140])
def test_the_failure_block_says_everything(render, failure, width):
    text = render(lambda console: print_block(console, failure), width=width)
    flat = " ".join(text.split())
    assert text.startswith("FAIL  sparse_mqa/triton\n")
    assert f"\n  case       {failure.case.id}\n" in text, "an id must stay on one line to be pasted"
    assert "37 of 33280 elements outside their budget, worst ratio 11.3 (proved)" in flat
    assert "at 37 of 33280 elements; queries 12; heads = 3 mod 16; columns 475-511" in flat
    assert "output too small by 0.81% of its size (statistical, p = 3.2e-11)" in flat
    assert "out[12, 3, 511] 0.1234 0.12 0.0003 11.3" in flat
    assert "out[12, 3, 510] nan -0.25 0.0005 nan" in flat
    assert text.endswith(f"  repro      {failure.repro}\n"), "the command must stay on one line to be pasted"
    assert "element = 11.3" not in text
    assert all(len(line) <= width for line in text.splitlines()[2:-1])


def test_measures_are_shown_when_asked_for(render, make_verdict):
    verdict = make_verdict("PASS", measures={"row": 4.25, "element": math.nan}, seconds=0.25)
    text = render(lambda console: print_block(console, verdict, measures=True))
    assert "measures   element = nan\n" in text
    assert "row = 4.25\n" in text
    assert "0.2s on cpu" in text


def test_quiet_reports_only_failures_and_the_last_line(render, mixed):
    text = render(lambda console: report(console, mixed, Summary.of(mixed, 1.0), failures_only=True))
    assert text.startswith("\nFAIL  sparse_mqa/triton\n")
    assert "needs CUDA" not in text
    assert "ERROR  sparse_mqa/flashinfer-trtllm" in text


def test_hostile_text_is_shown_as_it_is_and_harmless(render, make_verdict):
    verdicts = [
        make_verdict("ERROR", reason=HOSTILE),
        make_verdict("UNSUPPORTED", reason=HOSTILE),
        make_verdict("FAIL", findings=(Finding(HOSTILE, HOSTILE, True, None, HOSTILE),)),
    ]
    text = render(lambda console: report(console, verdicts, Summary.of(verdicts, 1.0)))
    assert "[red]boom[/red] [/]" in text
    assert "\\x1b[31mescape" in text
    assert not set(text) & set("\x1b\x00\x07\x7f\x9b\u202e\ud800")
    text.encode("utf-8")


def test_colour_only_where_wanted(render, failure, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in render(
        lambda console: print_block(console, failure), force_terminal=True, color_system="standard"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    coloured = render(lambda console: print_block(console, failure), force_terminal=True)
    assert "\x1b[31m" not in coloured and "\x1b[1;31m" not in coloured


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["PASS", "WEAK", "UNSUPPORTED"], 0),
        (["PASS", "FAIL"], 1),
        (["PASS", "ERROR"], 1),
        (["UNSUPPORTED", "ERROR"], 1),
        (["UNSUPPORTED"], 2),
        (["WEAK", "UNSUPPORTED"], 2),
        (["SUSPECT"], 0),
        ([], 2),
    ],
    ids=lambda value: "-".join(value) or "none" if isinstance(value, list) else str(value),
)
def test_exit_codes(make_verdict, statuses, code):
    summary = Summary.of([make_verdict(status) for status in statuses], 1.0)
    assert summary.exit_code == code
    assert summary.total == len(statuses)


def test_worst_ratio_takes_nan_for_infinite(make_verdict):
    assert make_verdict().worst_ratio is None
    assert make_verdict(measures={"element": 0.5, "row": 9.0}).worst_ratio == 0.5
    assert make_verdict(worst=(Worst("out", (0,), math.nan, 0.0, 1.0),)).worst_ratio == math.inf


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.0941, "94ms"), (0.097, "0.1s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m00s"), (3723, "62m03s")],
)
def test_durations(seconds, text):
    assert plain.duration(seconds) == text


def test_lines_are_lines_and_numbers_short():
    assert plain.line(" a\n\tb \r\n c ") == "a b c"
    assert [plain.number(x) for x in (1.0, -1.23456e-300, math.inf, math.nan)] == ["1", "-1.23456e-300", "inf", "nan"]
    assert [plain.plural(n, "case") for n in (0, 1, 2)] == ["0 cases", "1 case", "2 cases"]


def test_progress_is_plain_lines_off_a_terminal(make_verdict, monkeypatch):
    clock = iter([0.0, 29.0, 31.0, 60.0, 100.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    text = io.StringIO()
    with progress(Console(file=text, width=80), 4) as advance:
        for status in ("PASS", "FAIL", "PASS", "ERROR"):
            advance(make_verdict(status))
    assert text.getvalue() == "checked 2 of 4 in 31s: 1 fail\nchecked 4 of 4 in 1m40s: 1 fail, 1 error\n"


def test_progress_is_a_bar_on_a_terminal_and_nothing_when_quiet(make_verdict):
    text = io.StringIO()
    with progress(Console(file=text, width=80, force_terminal=True), 2) as advance:
        advance(make_verdict("FAIL"))
        advance(make_verdict("PASS"))
    assert "2/2" in text.getvalue() and "1 fail" in text.getvalue()
    text = io.StringIO()
    with progress(Console(file=text, force_terminal=True), 2, quiet=True) as advance:
        advance(make_verdict("FAIL"))
    assert text.getvalue() == ""


def test_json_has_the_schema_and_survives_odd_floats_and_text(failure, make_verdict):
    bad = make_verdict(
        "ERROR", reason=HOSTILE, measures={"element": math.inf, "row": -math.inf, "lse": math.nan}, seconds=0.5
    )
    verdicts = [failure, bad]
    text = json_report.dumps(
        json_report.check_document(["attnoracle", "check"], {"torch": None}, Summary.of(verdicts, 2.0), verdicts)
    )
    text.encode("ascii")
    read = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert list(read) == ["schema", "command", "environment", "summary", "verdicts"]
    assert read["schema"] == {"name": "attnoracle.check", "version": 1}
    assert read["summary"]["total"] == 2 and read["summary"]["fail"] == 1 and read["summary"]["exit_code"] == 1
    assert {status.lower() for status in STATUSES} <= set(read["summary"])
    first, second = read["verdicts"]
    assert first["case"] == {
        "id": failure.case.id, "operator": "sparse_mqa", "geometry": "glm-5.2", "heads": 16,
        "lengths": {"q": [64, 1], "k": [300, 1]}, "topk": 64, "dtype": "bf16", "kind": "randn",
        "layout": "contiguous", "options": [], "seed": 0,
    }  # fmt: skip
    assert first["proved"] is True
    assert first["findings"][1] == {
        "check": "bias", "message": "output too small by 0.81% of its size", "proved": False, "p_value": 3.2e-11,
        "where": "", "convention": "",
    }  # fmt: skip
    assert first["worst"][1]["observed"] == "nan" and first["worst_ratio"] == "inf"
    assert first["repro"] == failure.repro
    assert second["measures"] == {"element": "inf", "row": "-inf", "lse": "nan"}
    assert second["reason"] == HOSTILE


def test_junit_maps_statuses_and_escapes_everything(mixed, make_verdict):
    bad = make_verdict("FAIL", "dense_mha/sdpa-math", reason=HOSTILE, findings=(Finding("row", HOSTILE, True),))
    text = junit([*mixed, bad], {"torch": "2.13", "odd\x00": HOSTILE})
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert (root.tag, root.get("tests"), root.get("failures"), root.get("errors")) == ("testsuites", "129", "3", "1")
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {verdict.implementation for verdict in mixed}
    counts = {key: suites["sparse_mqa/triton"].get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "122", "failures": "1", "errors": "0", "skipped": "1"}
    skipped = suites["dense_mha/sdpa-cudnn"].find("testcase/skipped")
    assert skipped.get("message") == "UNSUPPORTED: needs CUDA"
    assert suites["topk_select/torch"].find("testcase/failure").get("type") == "SUSPECT"
    assert suites["sparse_mqa/flashinfer-trtllm"].find("testcase/error").get("type") == "ERROR"
    failed = suites["dense_mha/sdpa-math"].find("testcase/failure")
    assert "[red]boom[/red] [/] <&>\"' \\x1b[31mescape" in failed.get("message")
    assert "\\x00" in failed.text and "second line" in failed.text and bad.repro in failed.text
    passed = suites["sparse_mqa/triton"].find("testcase")
    assert passed.get("name") == mixed[1].case.id and len(passed) == 0 and passed.get("time") == "0.500"
