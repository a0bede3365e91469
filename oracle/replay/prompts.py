"""Prompts that can only be continued by looking far back.

    filler … passage … filler and other words … the passage's first two words

The passage stands once, near the beginning; the right continuation is the rest of it. More than half of the words are
the filler, word 0, which is also what a model says that attended to nothing.
"""

from __future__ import annotations

from random import Random

VOCABULARY = 256
FILLER = 0
#: Words of a passage; its first two are the cue at the end.
PASSAGE, CUE = 16, 2
_LEAD = 8


def prompt(length: int, seed: int = 0) -> tuple[list[int], list[int]]:
    """A prompt of ``length`` words and its right continuation. The same at every call."""
    random = Random(1_000_003 * seed + length)
    words = random.sample(range(1, VOCABULARY), VOCABULARY - 1)
    passage, others = words[:PASSAGE], words[PASSAGE:]
    between = length - _LEAD - PASSAGE - CUE
    if between < 1:
        raise ValueError(f"prompt: expected at least {_LEAD + PASSAGE + CUE + 1} words, got {length}")
    noise = [random.choice(others) if random.random() < 0.3 else FILLER for _ in range(between)]
    return [*[FILLER] * _LEAD, *passage, *noise, *passage[:CUE]], passage[CUE:]
