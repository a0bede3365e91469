"""The axis of a git repository: its commits along first parents, each built in a work tree of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import BadInput
from .look import Look
from .probe import Probe, run, shell


class Commits:
    """Commits from one end to the other, oldest first.

    A look checks the commit out into ``workdir``, runs the build command there and then the probe, with that work
    tree first on PYTHONPATH. A build that fails is a skip and its log is kept. The repository's own is not touched.
    Raises BadInput for what is no repository, an unknown revision, or ends of which neither precedes the other.
    """

    name = "commits"

    def __init__(
        self,
        repository: Path,
        good: str,
        bad: str,
        probe: Probe,
        *,
        workdir: Path,
        build: str = "",
        build_timeout: float = 3600.0,
        pythonpath: Sequence[str] = (".",),
        first_parent: bool = True,
    ) -> None:
        self._git_folder, self._probe, self._workdir = repository, probe, workdir
        self._build, self._build_timeout, self._pythonpath = build, build_timeout, pythonpath
        self.good, self.bad = self._commit(good), self._commit(bad)
        older, newer = self._ordered()
        flags = ["--first-parent"] if first_parent else ["--ancestry-path"]
        listed = self._git("rev-list", "--reverse", *flags, f"{older}..{newer}").split()
        self.points: list[str] = [older, *listed]
        if first_parent and older not in self._git("rev-list", "--first-parent", newer).split():
            raise BadInput(
                f"{older[:12]} is not on the first-parent line of {newer[:12]}; name a commit of that line, "
                "or leave out first parents with --all-parents"
            )
        if self._git("worktree", "list", "--porcelain").find(f"worktree {workdir}\n") < 0:
            self._git("worktree", "add", "--detach", "--force", str(workdir), older)

    def look(self, point: str, log: Callable[[str], str]) -> Look:
        self._git("checkout", "--quiet", "--force", "--detach", point, at=self._workdir)
        self._git("clean", "--quiet", "-ffdx", at=self._workdir)
        env = self._environment()
        if self._build:
            file = log(f"build-{point[:12]}")
            built = run(self._build, cwd=self._workdir, env=env, timeout=self._build_timeout, log=file)
            if built.code != 0:
                told = "ran into its time limit" if built.code is None else f"exit code {built.code}"
                return Look("skip", detail=f"the build failed: {told}", seconds=built.seconds, log=file)
        return self._probe.look(cwd=self._workdir, env=env, log=log(point[:12]))

    def command(self, point: str) -> str:
        steps = [shell(["git", "-C", str(self._git_folder), "checkout", point[:12]]), *filter(None, [self._build])]
        check = self._probe.command or shell(["attnoracle", *self._probe.arguments()])
        return " && ".join((*steps, check))

    def title(self, point: str) -> str:
        """Date, author's name and subject of a commit."""
        return self._git("show", "--no-patch", "--format=%as %an: %s", point).strip()

    def close(self) -> None:
        """Take the work tree away."""
        self._git("worktree", "remove", "--force", str(self._workdir))

    def _environment(self) -> dict[str, str]:
        paths = [str(self._workdir / path) for path in self._pythonpath]
        # Where the oracle itself comes from must outlive the change of folder.
        paths += [str(Path(path).absolute()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}

    def _commit(self, revision: str) -> str:
        try:
            return self._git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").strip()
        except BadInput:
            raise BadInput(f"{self._git_folder}: expected a commit, tag or branch, got {revision!r}") from None

    def _ordered(self) -> tuple[str, str]:
        for older, newer in ((self.good, self.bad), (self.bad, self.good)):
            if self._git("merge-base", older, newer).strip() == older:
                return older, newer
        raise BadInput(f"neither {self.good[:12]} nor {self.bad[:12]} precedes the other: no line of commits between")

    def _git(self, *arguments: str, at: Path | None = None) -> str:
        command = ["git", "-C", str(at or self._git_folder), *arguments]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout
        except FileNotFoundError:
            raise BadInput("bisect commits: expected git on the PATH, found none") from None
        except subprocess.CalledProcessError as error:
            told = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
            raise BadInput(f"{self._git_folder}: git {arguments[0]}: {told[0]}") from None
