"""The axis of commits, on repositories that a test makes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
from rich.console import Console

from attnoracle.oracle.bisect.bisection import bisect
from attnoracle.oracle.bisect.commits import Commits
from attnoracle.oracle.bisect.journal import Journal
from attnoracle.oracle.bisect.look import Settings
from attnoracle.oracle.bisect.probe import Probe
from attnoracle.oracle.cli.bisect_options import Search
from attnoracle.oracle.errors import BadInput
from attnoracle.oracle.fleet.calls import ThreadCalls
from attnoracle.oracle.reports.bisect_report import report

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _import(folder, commits):
    """A repository whose commits, oldest first, have these files; by git fast-import."""
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(folder)], check=True)
    stream = []
    for number, files in enumerate(commits, 1):
        stream += ["commit refs/heads/main", f"mark :{number}", f"committer Ada <a@b> {1700000000 + number} +0000"]
        stream += [f"data {len(f'change {number}')}", f"change {number}", "deleteall"]
        for name, text in files.items():
            stream += [f"M 644 inline {name}", f"data {len(text)}", text]
    command = ["git", "-C", str(folder), "fast-import", "--quiet"]
    subprocess.run(command, input="\n".join(stream) + "\n", text=True, check=True)
    listed = subprocess.run(
        ["git", "-C", str(folder), "rev-list", "--reverse", "main"], capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def _bisect(repository, ids, tmp_path, *, run, build="", good=0, bad=-1, jobs=None, **settings):
    axis = Commits(
        repository, ids[good], ids[bad], Probe(command=run, timeout=20), workdir=tmp_path / "tree", build=build
    )
    try:
        journal = Journal(tmp_path / f"journal-{jobs}" if jobs else tmp_path / "journal", {})
        hands = ThreadCalls(jobs) if jobs else None
        return bisect(axis, axis.good, axis.bad, journal, Settings(**settings), hands=hands)
    finally:
        axis.close()


def test_one_bad_commit_of_200_with_an_unbuildable_stretch_and_flaky_verdicts(tmp_path):
    """A verdict is the wrong one three times in ten; commits 91 to 110 do not build; 138 broke it."""
    files = [
        {"answer": "1" if number >= 138 else "0", "ok": "no" if 91 <= number <= 110 else "yes"}
        for number in range(1, 201)
    ]
    ids = _import(tmp_path / "repo", files)
    counter = tmp_path / "counter"
    counter.write_text("0")
    # A hash of how often it ran decides whether it lies.
    run = (
        f"n=$(($(cat {counter}) + 1)); echo $n > {counter}; read answer < answer; "
        "lie=$(( (n * 2654435761 / 65536) % 10 < 3 )); exit $(( answer ^ lie ))"
    )
    found = _bisect(tmp_path / "repo", ids, tmp_path, run=run, build="read ok < ok; test $ok = yes", flaky=True)
    assert ids.index(found.first) + 1 == 138
    assert found.confidence >= 0.99
    assert found.flaky
    assert found.looks < 400
    assert (found.skipped > 0) == any(look.label == "skip" for _, look in found.evidence)


def test_a_change_inside_a_stretch_that_does_not_build_names_the_stretch(tmp_path):
    files = [{"answer": "1" if n >= 15 else "0", "ok": "no" if 13 <= n <= 17 else "yes"} for n in range(1, 31)]
    ids = _import(tmp_path / "repo", files)
    found = _bisect(tmp_path / "repo", ids, tmp_path, run='exit "$(cat answer)"', build='test "$(cat ok)" = yes')
    assert (ids.index(found.last) + 1, ids.index(found.first) + 1) == (12, 18)
    assert [ids.index(commit) + 1 for commit in found.between] == [13, 14, 15, 16, 17]
    assert found.skipped == 5
    logs = list((tmp_path / "journal" / "logs").glob("*-build-*"))
    assert logs, "the logs of builds are kept"
    assert found.last[:12] in found.commands[0] and found.first[:12] in found.commands[1]


def test_the_commands_at_the_end_work_in_any_folder_and_what_the_bad_side_printed_is_told(tmp_path, capsys):
    ids = _import(tmp_path / "repo", [{"answer": "1" if n >= 2 else "0"} for n in range(3)])
    run = 'read answer < answer; echo "answer is $answer"; exit $answer'
    found = _bisect(tmp_path / "repo", ids, tmp_path, run=run)
    ended = [subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True) for command in found.commands]
    assert [one.returncode for one in ended] == [0, 1]
    shutil.move(tmp_path / "repo", tmp_path / "gone")
    ended = subprocess.run(found.commands[1], shell=True, cwd=tmp_path, capture_output=True)
    assert ended.stdout == b"", "nothing runs where the commit is not there"
    shutil.move(tmp_path / "gone", tmp_path / "repo")
    report(Console(width=80), found)
    assert "exit code 1: answer is 1" in capsys.readouterr().out
    source = Commits(
        tmp_path / "repo", *ids[:2], Probe(command="true"), workdir=tmp_path / "tree", pythonpath=("src", "a b")
    )
    source.close()
    assert "&& export PYTHONPATH='src:a b' && true)" in source.command(ids[0])


def test_a_contract_is_found_where_the_command_was_typed(tmp_path, monkeypatch):
    (tmp_path / "c.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    search = Search(case="merge_lse:tiny:h2:q1:k1:bf16:randn:contiguous:-:s0", impl="k:mine", contract="c.toml")
    assert str(tmp_path / "c.toml") in search.probe().target
    with pytest.raises(BadInput, match=r"--contract d\.toml: expected a file"):
        replace(search, contract="d.toml").probe()


def test_three_looks_at_once_each_in_a_work_tree_of_its_own_find_the_same(tmp_path):
    """A look that shared its tree with another would read the other's commit."""
    files = [{"answer": "1" if n >= 15 else "0", "ok": "no" if 9 <= n <= 12 else "yes", "n": str(n)} for n in range(30)]
    ids = _import(tmp_path / "repo", files)
    steps = {"run": 'test "$(cat n)" = "$(cat built)" || exit 125; exit "$(cat answer)"'}
    steps["build"] = 'cp n built; sleep 0.05; test "$(cat ok)" = yes'
    alone = _bisect(tmp_path / "repo", ids, tmp_path, **steps)
    several = _bisect(tmp_path / "repo", ids, tmp_path, **steps, jobs=3)
    assert ids.index(several.first) == 15
    assert [(point, look.label) for point, look in several.evidence] == [
        (point, look.label) for point, look in alone.evidence
    ]
    assert (several.last, several.first, several.skipped) == (alone.last, alone.first, alone.skipped)
    told = subprocess.run(
        ["git", "-C", str(tmp_path / "repo"), "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert len(told.stdout.splitlines()) == 1


def test_the_fix_is_found_where_good_is_newer(tmp_path):
    ids = _import(tmp_path / "repo", [{"answer": "1" if n < 9 else "0"} for n in range(1, 21)])
    found = _bisect(tmp_path / "repo", ids, tmp_path, run='exit "$(cat answer)"', good=-1, bad=0)
    assert (found.direction, ids.index(found.first) + 1) == ("fix", 9)


def test_the_work_tree_and_branch_of_the_repository_stay_as_they_are(tmp_path):
    ids = _import(tmp_path / "repo", [{"answer": "1" if n >= 3 else "0"} for n in range(1, 6)])
    (tmp_path / "repo" / "mine").write_text("kept")
    _bisect(tmp_path / "repo", ids, tmp_path, run='exit "$(cat answer)"')
    assert (tmp_path / "repo" / "mine").read_text() == "kept"
    told = subprocess.run(
        ["git", "-C", str(tmp_path / "repo"), "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert len(told.stdout.splitlines()) == 1


def test_a_run_that_hangs_is_stopped_with_what_it_started_and_skipped(tmp_path):
    files = [{"answer": "1" if n >= 4 else "0", "sleep": "60" if n == 3 else "0"} for n in range(1, 6)]
    ids = _import(tmp_path / "repo", files)
    axis = Commits(
        tmp_path / "repo",
        ids[0],
        ids[-1],
        Probe(command='sleep "$(cat sleep)"; exit "$(cat answer)"', timeout=1),
        workdir=tmp_path / "tree",
    )
    found = bisect(axis, axis.good, axis.bad, Journal(None, {}), Settings(runs=1))
    axis.close()
    assert found.between == (ids[2],)
    assert any("time limit" in look.detail for _, look in found.evidence)


def test_revisions_that_cannot_be_are_refused(tmp_path):
    ids = _import(tmp_path / "repo", [{"answer": str(n)} for n in range(3)])
    git = ["git", "-C", str(tmp_path / "repo")]
    probe = Probe(command="true")

    def axis(good, bad, repository=tmp_path / "repo"):
        return Commits(repository, good, bad, probe, workdir=tmp_path / "tree")

    with pytest.raises(BadInput, match="expected a commit, tag or branch, got 'v9'"):
        axis("v9", ids[-1])
    with pytest.raises(BadInput, match="expected a commit, tag or branch"):
        axis(ids[0], ids[1], tmp_path)
    subprocess.run([*git, "checkout", "--quiet", "--orphan", "other"], check=True)
    author = ["-c", "user.name=Ada", "-c", "user.email=a@b"]
    subprocess.run([*git[:1], *author, *git[1:], "commit", "--quiet", "-m", "alone"], check=True)
    with pytest.raises(BadInput, match=r"git merge-base|neither"):
        axis(ids[0], "other")
