"""``python -m attnoracle.oracle``, the same as the command ``attnoracle``."""

from .cli.app import program

if __name__ == "__main__":
    program()
