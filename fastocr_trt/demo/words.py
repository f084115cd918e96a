"""Random text as on forms and invoices: 60% words, 15% numbers, 25% strings that no language model can guess.

words.txt is a sorted list of common English words of 2 to 10 letters, those that occur more than once in the texts
of the usual free-software licences.
"""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from random import Random

_SIGNS = "".join(c for c in map(chr, range(33, 127)) if not c.isalnum())


@cache
def words() -> tuple[str, ...]:
    """The word list, sorted."""
    return tuple(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split())


def random_line(source: Random, width: int) -> str:
    """Words as they fit in `width` characters; three lines in ten are meant to be shorter."""
    target = width * (1.0 if source.random() < 0.7 else source.uniform(0.15, 1))
    line = ""
    while True:
        word = random_word(source)
        longer = f"{line} {word}" if line else word
        if len(longer) > target:
            return line or longer[:width]
        line = longer


def random_word(source: Random) -> str:
    """A word, number or string, at times with punctuation; printable ASCII without spaces."""
    kind = source.random()
    if kind < 0.60:
        word = _dictionary_word(source)
    elif kind < 0.75:
        word = _number(source)
    else:
        word = _string(source)
    if source.random() < 0.12:
        return word + source.choice(".,;:!?")
    return f"({word})" if source.random() < 0.03 else word


def _dictionary_word(source: Random) -> str:
    word = source.choice(words())
    case = source.random()
    if case < 0.15:
        return word.capitalize()
    return word.upper() if case < 0.22 else word


def _number(source: Random) -> str:
    kind = source.random()
    if kind < 0.5:
        return str(source.randrange(0, 10 ** source.randint(1, 6)))
    if kind < 0.75:
        return f"{source.random() * 10 ** source.randint(1, 4):.2f}"
    if kind < 0.87:
        return f"${source.randrange(1, 100)},{source.randrange(1000):03d}"
    return f"{source.randrange(1, 13):02d}/{source.randrange(1, 29):02d}/{source.randrange(1950, 2030)}"


def _string(source: Random) -> str:
    length = source.randint(2, 8)
    alphabet = string.ascii_lowercase
    if source.random() >= 0.5:
        alphabet = string.ascii_letters + string.digits + (_SIGNS if source.random() < 0.3 else "")
    return "".join(source.choice(alphabet) for _ in range(length))
