"""``python -m attnoracle.oracle``, the same as the command ``attnoracle``."""

import sys

from .cli.app import main

if __name__ == "__main__":
    sys.exit(main())
