"""Every command of every page runs as it stands.

The blocks of one page run in order in one empty folder. The info string of a block says what it is:

    sh                    commands that start with attnoracle, python or pytest, and exit with 0
    sh exit=1             the last command ends with this code instead
    sh gpu, sh network    not run here, for this reason
    python name.py        a file of that name; so for toml, json and whatever else has a name
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMANDS = ("attnoracle", "python", "pytest")
_ELSEWHERE = {"gpu": "needs a GPU", "network": "needs a network"}
#: Seconds for one block; on a quiet machine none takes more than 20.
_PATIENCE = 600


@dataclass(frozen=True)
class Block:
    info: tuple[str, ...]
    text: str
    line: int


def blocks(text: str) -> list[Block]:
    return [
        Block(tuple(match[1].split()), match[2], text[: match.start()].count("\n") + 1)
        for match in _BLOCK.finditer(text)
    ]


@pytest.fixture
def shell(tmp_path, plugin_words, served):
    """Runs a block in the page's folder, where the three commands are those of this checkout and this Python."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    commands = {
        "attnoracle": [*served, "attnoracle"],
        "python": [sys.executable],
        "pytest": [*served, "pytest", *plugin_words, "-p", "no:randomly"],
    }
    for name, words in commands.items():
        (bin_ / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (bin_ / name).chmod(0o755)
    folder = tmp_path / "page"
    folder.mkdir()
    path = os.pathsep.join(filter(None, [str(folder), *sys.path]))
    env = os.environ | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path, "COLUMNS": "80"}
    env.pop("TRITON_INTERPRET", None)
    env.pop("PYTEST_CURRENT_TEST", None)

    def shell(block: Block) -> None:
        expected = next((int(word[5:]) for word in block.info if word.startswith("exit=")), 0)
        told = subprocess.run(
            ["bash", "-e", "-c", block.text],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        assert told.returncode == expected, f"line {block.line}: {told.stdout[-3000:]}\n{told.stderr[-3000:]}"

    shell.folder = folder
    return shell


@pytest.mark.slow  # each command is a process
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_commands_of_a_page_run(page, shell):
    for block in blocks(page.read_text(encoding="utf-8")):
        if not block.info:
            continue
        if block.info[0] == "sh":
            if not set(block.info) & set(_ELSEWHERE):
                shell(block)
        elif len(block.info) == 2 and "." in block.info[1]:
            (shell.folder / block.info[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_blocks_of_commands_are_what_they_say(page):
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.info[:1] != ("sh",):
            continue
        text = block.text.replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        assert lines and all(line.split()[0] in _COMMANDS for line in lines), f"line {block.line}: {lines}"
        extra = [word for word in block.info[1:] if word not in _ELSEWHERE and not re.fullmatch(r"exit=\d", word)]
        assert not extra, f"line {block.line}: {extra}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_a_block_is_found_with_its_line_and_a_failing_one_fails(shell):
    found = blocks("text\n\n```sh exit=2\nattnoracle chekc\n```\n\n```python a.py\nx = 1\n```\n")
    assert [(block.info, block.line) for block in found] == [(("sh", "exit=2"), 3), (("python", "a.py"), 7)]
    shell(found[0])
    with pytest.raises(AssertionError, match="line 3"):
        shell(Block(("sh",), found[0].text, 3))
