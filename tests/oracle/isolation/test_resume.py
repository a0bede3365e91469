"""A run that was killed goes on: same table, nothing lost, nothing run twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attnoracle.oracle.cli.app import main
from attnoracle.oracle.cli.journal import Journal
from attnoracle.oracle.errors import BadInput

CASES = [f"merge_lse:tiny:h2:q5:k5:bf16:wide:contiguous:-:s{seed}" for seed in range(6)]


def command(*arguments):
    cases = [word for case in CASES for word in ("--case", case)]
    words = ["check", "--impl", "users_zoo:fine", "--operator", "merge_lse", "--contract", "zoo.toml", *cases]
    return [*words, "--device", "cpu", "-j", "1", "--isolate", "--resume", "state", *arguments]


def test_killed_in_the_middle_and_resumed(zoo, tmp_path, capsys):
    """The kernel notes every call; after the fourth one the first run is killed."""
    noted = tmp_path / "noted"
    text = (tmp_path / "users_zoo.py").read_text()
    slow = '@merge("fine")\ndef _(answer, *inputs):\n    open("noted", "a").write("x")\n    time.sleep(0.2)\n'
    (tmp_path / "users_zoo.py").write_text(text.replace('@merge("fine")\ndef _(answer, *inputs):\n', slow))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = [sys.executable, "-m", "attnoracle.oracle"]
    quiet = {"stderr": subprocess.DEVNULL, "start_new_session": True}
    first = subprocess.Popen([*run, *command()], env=env, cwd=tmp_path, **quiet)
    state = tmp_path / "state"
    while first.poll() is None and not (state.exists() and len(state.read_bytes().splitlines()) >= 3):
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = len(state.read_bytes().splitlines()) - 1
    assert 2 <= done < len(CASES)
    with state.open("ab") as file:
        file.write(b'{"case": {"id": "merge')  # as a kill in the middle of a line leaves it
    before = len(noted.read_text())
    subprocess.run([*run, *command("--json", "o.json")], env=env, cwd=tmp_path, check=True, capture_output=True)
    calls = (len(noted.read_text()) - before) / (len(CASES) - done)
    assert calls == int(calls), "every case that was left ran once, and no other"
    verdicts = json.loads((tmp_path / "o.json").read_text())["verdicts"]
    assert [verdict["case"]["id"] for verdict in verdicts] == CASES
    assert {verdict["status"] for verdict in verdicts} <= {"PASS", "WEAK"}
    assert len(state.read_text().splitlines()) == 1 + len(CASES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("something else\n", "line 1: expected the state of a check"),
        ('{"schema": "attnoracle.check-state/1", "device": "cuda"}\n', "the state of another run"),
        (None, "line 2: expected a verdict"),
    ],
)
def test_a_state_that_is_none_is_refused_and_kept(tmp_path, text, words):
    path = tmp_path / "state"
    if text is None:
        with Journal(str(path), {"device": "cpu"}):
            pass
        text = path.read_text() + '{"status": "GOOD"}\n'
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        Journal(str(path), {"device": "cpu"})
    assert path.read_text() == text


def test_options_of_isolation_that_cannot_be(capsys):
    assert main(["check", "--memory", "4"]) == 2
    assert "goes with --isolate" in capsys.readouterr().err
    assert main(["check", "--timeout", "nan"]) == 2
