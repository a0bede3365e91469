"""Text from outside made harmless for a terminal, a table cell or an XML file."""

from __future__ import annotations

import re

# C0 and C1 controls but tab and newline, lone surrogates, bidirectional overrides, and what XML 1.0 forbids besides.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """Control characters spelt as escapes; newlines and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n"))


def line(text: str) -> str:
    """``printable``, on one line."""
    return " ".join(printable(text).split())


def number(value: float) -> str:
    """A number of at most twelve characters, for reading and comparing, not for computing."""
    return f"{value:.6g}"


def duration(seconds: float) -> str:
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds >= 0.095 else f"{1000 * seconds:.0f}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def share(part: float) -> str:
    """A part of one in percent; 100 % is said of the whole only."""
    text = f"{part:.2%}"
    return "99.99%" if text == "100.00%" and part < 1.0 else text.replace("100.00%", "100%")
