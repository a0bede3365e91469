"""The axis of a package: its releases, each in a virtual environment of its own that shares everything else."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from ..errors import BadInput
from .delta import smallest
from .look import Label, Look
from .probe import Probe, run, shell

_INSTALL_SECONDS = 1800


class Packages:
    """Releases of ``package`` that pip finds, oldest first, from one end to the other.

    ``held`` are further packages at fixed versions, installed beside each. An environment has its own folder with the
    packages that differ and takes torch and all the rest from the interpreter that runs this. It is kept under
    ``cache`` and made once. A release that cannot be installed is a skip and pip's output is kept.
    """

    def __init__(
        self, package: str, good: str, bad: str, probe: Probe, *, cache: Path, held: Mapping[str, str] | None = None
    ) -> None:
        self.name = f"releases of {package}"
        self._package, self._probe, self._cache, self._held = package, probe, cache, dict(held or {})
        self.good, self.bad = _version(good), _version(bad)
        low, high = sorted((self.good, self.bad))
        wanted = {self.good, self.bad}
        released = releases(package, pre=low.is_prerelease or high.is_prerelease)
        inside = [version for version in released if low <= version <= high]
        self.points = [str(version) for version in sorted({*inside, *wanted})]

    def look(self, point: str, log: Callable[[str], str]) -> Look:
        file = log(f"install-{point}")
        python, told = environment(self._cache, {**self._held, self._package: point}, file)
        if python is None:
            return Look("skip", detail=f"{self._package} {point} cannot be installed: {told}", log=file)
        return _probed(self._probe, python, log(point))

    def command(self, point: str) -> str:
        wanted = [f"{name}=={version}" for name, version in {**self._held, self._package: point}.items()]
        check = self._probe.command or shell(["attnoracle", *self._probe.arguments()])
        return f"{shell(['pip', 'install', *wanted])} && {check}"

    def away(self) -> Packages:
        return self


def releases(package: str, *, pre: bool) -> list[Version]:
    """What pip could install here, oldest first. Raises BadInput where there is nothing of that name."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, *(["--pre"] if pre else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or listed is None:
        told = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise BadInput(f"bisect packages: pip lists no releases of {package!r}: {told}")
    return sorted(_version(text) for text in listed[1].split(", "))


def environment(cache: Path, wanted: Mapping[str, str], log: str) -> tuple[Path | None, str]:
    """The interpreter of the environment with these versions, made if it is not there; or None and why not.

    Whoever comes while another makes the same waits for it.
    """
    key = "+".join(f"{name}-{version}" for name, version in sorted(wanted.items()))
    folder = cache / f"py{sys.version_info.major}{sys.version_info.minor}-{key}"
    ready = folder / "attnoracle.json"
    if ready.is_file():
        return folder / "bin" / "python", ""
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, also by a process that dies
        return (folder / "bin" / "python", "") if ready.is_file() else _made(folder, ready, wanted, log)


def _made(folder: Path, ready: Path, wanted: Mapping[str, str], log: str) -> tuple[Path | None, str]:
    python = folder / "bin" / "python"
    venv.EnvBuilder(clear=True, symlinks=True).create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    # Everything that is not installed there comes from here, its .pth files included.
    shared = sysconfig.get_paths()["purelib"]
    (site / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n", encoding="utf-8")
    requirements = [f"{name}=={version}" for name, version in sorted(wanted.items())]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *requirements]
    done = run(command, cwd=None, env=os.environ, timeout=_INSTALL_SECONDS, log="")
    if log:
        Path(log).write_text(f"{shell(command)}\n{done.tail}", encoding="utf-8")
    if done.code != 0:
        return None, (done.tail.strip().splitlines() or ["no output"])[-1]
    ready.write_text(json.dumps({"versions": dict(wanted)}), encoding="utf-8")
    return python, ""


def interpreter(cache: Path, wanted: Mapping[str, str]) -> Path:
    """The interpreter of the environment with these versions. Raises BadInput where they cannot be installed."""
    found, told = environment(cache, wanted, "")
    if found is None:
        pins = " ".join(f"{name} {version}" for name, version in wanted.items())
        raise BadInput(f"{pins} cannot be installed: {told}")
    return found


def parse_pin(text: str) -> tuple[str, str]:
    """``name==version`` as a pair. Raises BadInput for anything else."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        requirement = None
    pins = [clause for clause in requirement.specifier if clause.operator == "=="] if requirement else []
    if requirement is None or len(pins) != 1 or len(requirement.specifier) != 1:
        raise BadInput(f"expected NAME==VERSION, got {text!r}")
    return requirement.name, pins[0].version


def _version(text: str) -> Version:
    try:
        return Version(text.strip())
    except InvalidVersion:
        raise BadInput(f"expected a version such as 5.4.0, got {text!r}") from None


def culprits(
    ends: Mapping[str, tuple[str, str]],
    held: Mapping[str, str],
    probe: Probe,
    cache: Path,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[str, ...]:
    """Which packages must be at their bad version for the failure, the others being good.

    ``ends`` gives the good and the bad version of each. Raises BadInput where all good fails or all bad passes.
    """

    def look(bad: frozenset[str]) -> Label:
        wanted = {**held, **{name: versions[name in bad] for name, versions in ends.items()}}
        python, told = environment(cache, wanted, "")
        found = Look("skip", detail=told) if python is None else _probed(probe, python, "")
        say(f"{', '.join(f'{name} {version}' for name, version in wanted.items())}: {found.label} {found.signature}")
        return found.label

    for expected, names in (("good", frozenset[str]()), ("bad", frozenset(ends))):
        if (label := look(names)) != expected:
            raise BadInput(f"bisect packages: with every package at its {expected} version the verdict is {label}")
    return smallest(list(ends), look)


def default_cache() -> Path:
    """Where environments are kept between runs: the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "attnoracle" / "environments"


def _probed(probe: Probe, python: Path, log: str) -> Look:
    env = os.environ | {"PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", "")))}
    return probe.look(python=str(python), cwd=None, env=env, log=log)
