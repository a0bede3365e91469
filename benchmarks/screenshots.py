"""Makes the pictures of docs/pictures: the page of a run with failures, in headless Chromium.

python -m attnoracle.benchmarks.screenshots      two minutes on two cores; needs chromium on the PATH, and Pillow
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path

from ..oracle.cli.app import main as attnoracle
from .browser import Browser

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
#: A kernel as users write them, with a bug as users write them: what is left after the last whole tile is never read.
KERNEL = """import torch


def tiled(q, kv, indices, *, scale, value_dim, lengths=None, sink=None):
    whole = indices.shape[1] // 64 * 64 or indices.shape[1]
    indices = indices[:, :whole]
    used = (indices >= 0) & (indices < len(kv))
    if lengths is not None:
        used &= torch.arange(whole) < lengths[:, None]
    rows = torch.where(used[..., None], kv[indices.long().clamp(0, len(kv) - 1)].float(), 0.0)
    scores = (torch.einsum("shd,skd->shk", q.float(), rows) * scale).masked_fill(~used[:, None], float("-inf"))
    lse = scores.logsumexp(-1)
    weights = (scores - torch.where(lse.isinf(), 0.0, lse)[..., None]).exp()
    out = torch.einsum("shk,skc->shc", weights, rows[..., :value_dim])
    if sink is not None:
        out = out * torch.where(lse.isinf(), 0.0, torch.sigmoid(lse - sink))[..., None]
    return out.to(q.dtype), lse
"""
CONTRACT = 'operator = "sparse_mqa"\n\n[contract]\nprobabilities = "fp32"\n'
CHECK = (
    "check --impl my_kernels.py:tiled --operator sparse_mqa --contract contract.toml -i sparse_mqa/gather "
    "-i sparse_mqa/triton --geometry tiny --device cpu --diagnose --json run.json --quiet"
)
#: What attnoracle is asked, in order, and the exit code of each.
COMMANDS = (
    (CHECK, 1),
    ("route 8q1s2k_2q512s4k --json route.json", 0),
    ("report run.json route.json --html page.html", 1),
)
#: Name of the picture, width and height in CSS pixels, and how it is seen.
PICTURES = (
    ("page-light", 1100, 1560, {"dark": False}),
    ("page-dark", 1100, 1560, {"dark": True}),
    ("page-phone", 390, 844, {"dark": True, "phone": True}),
)
#: Colours of a picture; text on a plain ground needs few, and a file a third as large.
COLOURS = 128


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    os.environ.setdefault("TRITON_INTERPRET", "1")
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("my_kernels.py").write_text(KERNEL)
            Path("contract.toml").write_text(CONTRACT)
            for words, code in COMMANDS:
                if attnoracle(shlex.split(words)) != code:
                    print(f"attnoracle {words}: expected exit code {code}", file=sys.stderr)
                    return 3
            page = Path("page.html")
            # Where the folder lay says nothing to anybody.
            page.write_text(page.read_text().replace(f"{Path(folder).resolve()}/", ""))
            _take(page)
        finally:
            os.chdir(here)
    return 0


def _take(page: Path) -> None:
    from PIL import Image

    with Browser() as browser:
        for name, width, height, seen in PICTURES:
            target = FOLDER / f"{name}.png"
            opened = browser.open(page, width=width, height=height, **seen)
            opened.screenshot(target)
            with Image.open(target) as picture:
                small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size / 1e3:.0f} kB, page usable after {opened.seconds:.2f} s")


if __name__ == "__main__":
    sys.exit(main())
