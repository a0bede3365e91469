"""``attnoracle campaign`` as people use it, with kernels made up."""

import json
from contextlib import contextmanager

import pytest

from attnoracle.oracle.fleet.choose import Place

LEDGER = """
[[finding]]
implementation = "dense_mha/*"
case = "dense_mha:*"
link = "https://github.com/me/kernels/issues/7"
expires = 2999-01-01
"""


@pytest.fixture
def campaign(attnoracle, monkeypatch, tmp_path, engine, aside):
    """Runs the command with the engine of these tests; ``stop_after`` interrupts it."""

    def campaign(*arguments, stop_after=None):
        @contextmanager
        def here(self, judge, **options):
            yield engine(stop_after=stop_after)

        monkeypatch.setattr(Place, "engine", here)
        monkeypatch.setattr(Place, "aside", lambda self: aside())
        place = ("--corpus", str(tmp_path / "corpus"), "--device", "cpu", "--geometry", "tiny")
        return attnoracle("campaign", "-i", "dense_mha/sdpa-math", *place, *arguments)

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return campaign


def test_a_finding_has_one_block_and_the_run_fails(campaign, tmp_path):
    report = tmp_path / "report.json"
    code, out, err = campaign("--cases", "60", "--json", str(report), "--html", str(tmp_path / "page.html"))
    assert code == 1 and err == ""
    assert out.count("FAIL  dense_mha/sdpa-math") == 1 and "made up" in out and "closest calls" in out
    assert out.splitlines()[-2].startswith("60 cases in ") or out.splitlines()[-1].startswith("60 cases in ")
    commands = ("  case", "  repro", "  bundle", "  what")
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith(commands))
    told = json.loads(report.read_text())
    assert told["schema"] == {"name": "attnoracle.campaign", "version": 1}
    assert {"command", "environment", "summary", "findings", "coverage", "closest"} <= set(told)
    (finding,) = told["findings"]
    assert finding["occurrences"] == told["summary"]["fail"] == told["summary"]["failures"] > 3
    assert finding["state"] == "new" and finding["repro"].startswith("attnoracle repro 'dense_mha:tiny:")
    assert told["summary"]["cases"] == told["summary"]["corpus"]["cases"] == 60
    assert {entry["group"] for entry in told["coverage"]} >= {"lengths", "meets", "pairs"}
    assert all(0 < entry["seen"] <= entry["drawn"] for entry in told["coverage"])
    assert told["closest"][0]["measure"] == "ratio"
    assert "dense_mha/sdpa-math" in (tmp_path / "page.html").read_text()


def test_a_known_finding_does_not_fail_the_run_and_a_cured_one_is_gone(campaign, tmp_path):
    (tmp_path / "known.toml").write_text(LEDGER)
    code, out, _ = campaign("--cases", "30", "--known", str(tmp_path / "known.toml"))
    assert code == 0 and "issues/7 until 2999-01-01" in out and "0 findings, 1 known" in out.replace("\n", " ")
    code, out, _ = campaign("--cases", "5")
    assert code == 1 and "times, again" in out


def test_ctrl_c_reports_what_there_is_and_the_same_command_goes_on(campaign):
    code, out, _ = campaign("--cases", "60", stop_after=20)
    assert code == 130 and "20 cases in " in out
    code, out, _ = campaign("--cases", "40")
    assert code == 1 and "corpus: 60 cases, 2 nights" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --minutes N or --cases N, got neither"),
        (["--cases", "5", "-i", "hidden:merge-bas"], "nearest: hidden:merge-base"),
        (["--cases", "5", "-i", "dense_mha/tritn"], "nearest: dense_mha/triton"),
        (["--cases", "5", "--geometry", "tiyn"], "nearest: tiny"),
        (["--cases", "5", "--known", "no.toml"], "--known no.toml: cannot be read"),
        (["--cases", "5", "--json", "no/folder/x.json"], "no folder"),
        (["--cases", "5", "--address", "10.0.0.1:1"], "goes with --engine ray"),
    ],
    ids=lambda value: " ".join(value)[-24:] if isinstance(value, list) else "",
)
def test_bad_input_is_said_before_anything_runs(campaign, tmp_path, arguments, message):
    code, out, err = campaign(*arguments)
    assert (code, out) == (2, "") and message in " ".join(err.split())
    assert not (tmp_path / "corpus").exists()


def test_a_kernel_that_needs_a_gpu_is_said_at_once(attnoracle, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    corpus = tmp_path / "corpus"
    code, _, err = attnoracle(
        "campaign", "--cases", "1", "-i", "sparse_mqa/hopper", "--device", "cpu", "--corpus", str(corpus)
    )
    assert code == 2 and "nothing can run here: sparse_mqa/hopper: " in err and not corpus.exists()


def test_a_corpus_that_is_none_is_kept(campaign, tmp_path):
    (tmp_path / "corpus").mkdir()
    file = tmp_path / "corpus" / "corpus.jsonl"
    file.write_text("the notes of somebody")
    code, _, err = campaign("--cases", "5")
    assert code == 2 and str(file) in err and file.read_text() == "the notes of somebody"
