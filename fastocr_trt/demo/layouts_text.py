"""What pages say: words, numbers, a few strings; sentences, headings and table cells made of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from .words import random_word, words


def prose(source: Random) -> Iterator[str]:
    """Endless words of sentences, capitals and punctuation with them. About 80% dictionary words, 12% numbers, 8%
    strings that no language model can guess; one text in twelve is as a form, a quarter of it strings."""
    left = 0
    wild = 1.0 if source.random() < 0.08 else 0.25
    while True:
        first = left <= 0
        if first:
            left = source.randint(4, 14)
        left -= 1
        if source.random() < wild:
            yield random_word(source)
            continue
        word = number(source) if source.random() < 0.08 else source.choice(words())
        if first or source.random() < 0.05:
            word = word.capitalize()
        if left <= 0:
            word += source.choice("....?!")
        elif source.random() < 0.1:
            word += source.choice(",,,;:")
        elif source.random() < 0.02:
            word = source.choice(("({})", '"{}"', "'{}'")).format(word)
        yield word


def number(source: Random) -> str:
    """An amount, a date, a percentage, a code."""
    kind = source.randrange(8)
    if kind < 2:
        return str(source.randrange(10 ** source.randint(1, 5)))
    if kind == 2:
        return f"{source.uniform(0, 10 ** source.randint(1, 4)):.2f}"
    if kind == 3:
        return f"${source.randrange(1, 100)},{source.randrange(1000):03d}"
    if kind == 4:
        return f"{source.randrange(1990, 2030)}-{source.randrange(1, 13):02d}-{source.randrange(1, 29):02d}"
    if kind == 5:
        return f"{source.uniform(0, 100):.1f}%"
    if kind == 6:
        return f"{source.choice('ABCDEFGHKLMNPRSTXZ')}{source.choice('-./')}{source.randrange(10, 1000)}"
    return f"{source.randrange(24):02d}:{source.randrange(60):02d}"


def title(source: Random) -> list[str]:
    """Words of a heading."""
    count = source.randint(1, 4)
    heading = [source.choice(words()) for _ in range(count)]
    style = source.random()
    if style < 0.4:
        heading = [word.capitalize() for word in heading]
    elif style < 0.55:
        heading = [word.upper() for word in heading]
    else:
        heading[0] = heading[0].capitalize()
    if source.random() < 0.2:
        heading.insert(0, f"{source.randint(1, 12)}.{source.randint(1, 9)}")
    return heading


def cell(source: Random, numeric: bool) -> str:
    """One cell of a table."""
    if numeric:
        return number(source)
    text = source.choice(words())
    return text.capitalize() if source.random() < 0.4 else text
