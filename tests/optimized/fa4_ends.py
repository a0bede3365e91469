"""Checks the sources of one FlashAttention 4 against what is called of it, without its compiler and without a GPU.

    PYTHONPATH=typings python tests/optimized/fa4_ends.py FOLDER      FOLDER holds flash_attn

Exit status 1 and a line for each thing that is missing.
"""

import sys
from pathlib import Path

from attnoracle.optimized.peer_kernels import fa4


def main(folder: Path) -> int:
    version = next((path.name for path in folder.glob("flash_attn_4-*.dist-info")), "flash_attn/cute")
    found = fa4.missing(folder / "flash_attn" / "cute")
    print("\n".join(found) or f"{version}: everything that is called is there")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
