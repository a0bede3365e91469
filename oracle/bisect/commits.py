"""The axis of a git repository: its commits along first parents, each built in a work tree of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path

from ..errors import BadInput
from .look import Look
from .probe import Probe, run, shell


class Commits:
    """Commits from one end to the other, oldest first.

    A look checks the commit out into ``workdir`` (one that is made beside it into ``workdir-1`` and so on), runs the
    build command there and then the probe, with that work tree first on PYTHONPATH. A build that fails is a skip and
    its log is kept. The work tree and branches of the repository itself are not touched.
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
        self._git_folder, self._probe = repository.absolute(), probe
        self._trees: _Trees | None
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
        self._trees = _Trees(self._git, workdir, older)
        self._trees.give(self._trees.take())

    def look(self, point: str, log: Callable[[str], str]) -> Look:
        if self._trees is None:
            with tempfile.TemporaryDirectory(prefix="attnoracle-commit-") as folder:
                tree = Path(folder).resolve() / "tree"
                self._git("clone", "--quiet", "--shared", "--no-checkout", str(self._git_folder), str(tree))
                return self._look(point, tree, log)
        tree = self._trees.take()
        try:
            return self._look(point, tree, log)
        finally:
            self._trees.give(tree)

    def _look(self, point: str, tree: Path, log: Callable[[str], str]) -> Look:
        self._git("checkout", "--quiet", "--force", "--detach", point, at=tree)
        self._git("clean", "--quiet", "-ffdx", at=tree)
        env = self._environment(tree)
        if self._build:
            file = log(f"build-{point[:12]}")
            built = run(self._build, cwd=tree, env=env, timeout=self._build_timeout, log=file)
            if built.code != 0:
                told = "ran into its time limit" if built.code is None else f"exit code {built.code}"
                return Look("skip", detail=f"the build failed: {told}", seconds=built.seconds, log=file)
        return self._probe.look(cwd=tree, env=env, log=log(point[:12]))

    def away(self) -> Commits:
        """Every look clones the repository, which has to lie at the same path there, and takes the clone away."""
        other = copy(self)
        other._trees = None
        return other

    def command(self, point: str) -> str:
        # In a shell of its own, and there: what is checked is imported from the folder that it lies in.
        folder = shell(["cd", str(self._git_folder)])
        steps = [folder, shell(["git", "checkout", point[:12]]), *filter(None, [_whole(self._build)])]
        if self._pythonpath != (".",):
            steps.append(f"export PYTHONPATH={shell([os.pathsep.join(self._pythonpath)])}")
        steps.append(_whole(self._probe.command) or shell(["attnoracle", *self._probe.arguments()]))
        return f"({' && '.join(steps)})"

    def title(self, point: str) -> str:
        """Date, author's name and subject of a commit."""
        return self._git("show", "--no-patch", "--format=%as %an: %s", point).strip()

    def close(self) -> None:
        """Take the work trees away."""
        if self._trees is not None:
            self._trees.close()

    def _environment(self, tree: Path) -> dict[str, str]:
        paths = [str(tree / path) for path in self._pythonpath]
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


def _whole(command: str) -> str:
    """A command of the user's so that what comes before it decides about all of it."""
    return shell(["sh", "-c", command]) if set(command) & set(";|&#\n") else command


class _Trees:
    """Work trees of a repository, one for each look that is made at once; lent out and taken back."""

    def __init__(self, git: Callable[..., str], folder: Path, commit: str) -> None:
        self._git, self._folder, self._commit = git, folder, commit
        self._lock = threading.Lock()
        self._every: list[Path] = []
        self._free: list[Path] = []

    def take(self) -> Path:
        with self._lock:
            if self._free:
                return self._free.pop()
            number = len(self._every)
            tree = self._folder.with_name(f"{self._folder.name}-{number}") if number else self._folder
            self._git("worktree", "add", "--detach", "--force", str(tree), self._commit)
            self._every.append(tree)
            return tree

    def give(self, tree: Path) -> None:
        with self._lock:
            self._free.append(tree)

    def close(self) -> None:
        for tree in self._every:
            self._git("worktree", "remove", "--force", str(tree))
        self._every.clear()
