"""The axis of releases, on a package that a test makes and an index that is a folder: no network."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

from attnoracle.oracle.bisect.packages import Packages, interpreter
from attnoracle.oracle.bisect.probe import Probe
from attnoracle.oracle.cli import released
from attnoracle.oracle.cli.app import main
from attnoracle.oracle.errors import BadInput

NAME = "madeupscale"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Three releases: the scale is wrong in 1.0, right from 1.1 on; 1.2 needs a package that nobody has."""
    folder = tmp_path_factory.mktemp("index")
    for version, scale, needs in (("1.0", 2, ""), ("1.1", 1, ""), ("1.2", 1, "Requires-Dist: madeupnowhere==9\n")):
        info = f"{NAME}-{version}.dist-info"
        files = {
            f"{NAME}.py": f"SCALE = {scale}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n{needs}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
        with zipfile.ZipFile(folder / f"{NAME}-{version}-py3-none-any.whl", "w") as wheel:
            for name, text in {**files, f"{info}/RECORD": record}.items():
                wheel.writestr(name, text)
    return folder


@pytest.fixture
def no_network(index, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("environments")


def test_a_release_is_looked_at_in_its_own_environment_and_one_that_cannot_be_installed_is_skipped(
    no_network, cache, tmp_path
):
    probe = Probe(command=f"python -c 'import {NAME}; raise SystemExit({NAME}.SCALE != 1)'")
    axis = Packages(NAME, "1.2", "1.0", probe, cache=cache)
    assert axis.points == ["1.0", "1.1", "1.2"]
    looked = axis.look("1.0", lambda name: str(tmp_path / name))
    assert (looked.label, looked.signature) == ("bad", "exit code 1")
    assert f"pip install {NAME}==1.0" in axis.command("1.0")
    # Its environment has that release and shares everything else.
    python = interpreter(cache, {NAME: "1.0"})
    command = [python, "-c", f"import {NAME}, packaging; print({NAME}.SCALE, packaging.__file__)"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "2" and str(cache) not in told[1]
    skipped = axis.look("1.2", lambda name: str(tmp_path / name))
    assert skipped.label == "skip" and "cannot be installed" in skipped.detail
    assert "madeupnowhere" in (tmp_path / "install-1.2").read_text()


def test_a_release_that_cannot_be_installed_is_bad_input(monkeypatch, tmp_path):
    monkeypatch.setattr("attnoracle.oracle.bisect.packages.environment", lambda *given: (None, "no such release"))
    with pytest.raises(BadInput, match=f"{NAME} 7 cannot be installed: no such release"):
        interpreter(tmp_path, {NAME: "7"})


def test_diagnose_with_a_release_runs_the_same_command_there(monkeypatch, cache):
    ran = []
    monkeypatch.setattr("attnoracle.oracle.bisect.packages.environment", lambda *given: (cache / "python", str(given)))
    monkeypatch.setattr(released.subprocess, "run", lambda command, **_: ran.append(command) or _Done())
    case = "indexer_scores:tiny:h1:q1:k2:fp32:randn:contiguous:-:s0"
    arguments = ["diagnose", case, "-i", "x", "--with", f"{NAME}==1.0", f"--cache={cache}", "--with=torch==2"]
    assert main(arguments) == 1
    assert ran == [[str(cache / "python"), "-m", "attnoracle.oracle", "diagnose", case, "-i", "x"]]


class _Done:
    returncode = 1
