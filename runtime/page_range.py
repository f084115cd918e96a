"""Which pages of a file are wanted: "1-3,7"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import FastOCRError

_PART = re.compile(r"(\d+)?\s*(-)?\s*(\d+)?", re.ASCII)
_HELP = 'give pages from 1 as in "1-3,7" or "5-"'


@dataclass(frozen=True)
class PageRange:
    """Ranges (first, last) of pages from 1, both included; a last of None is the end. No range is every page."""

    ranges: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> PageRange:
        """`text` as "1-3,7", "5-", "-3"; None is every page. Raises FastOCRError for anything else."""
        if text is None:
            return cls()
        ranges = []
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if not match or not (match[1] or match[3]) or len(part) > 40:
                raise FastOCRError(f"--pages is {text!r}, and {part.strip()!r} is no page: {_HELP}")
            first = int(match[1] or 1)
            last = int(match[3]) if match[3] else None if match[2] else first
            if first < 1 or last == 0:
                raise FastOCRError(f"--pages is {text!r}, and pages are counted from 1: {_HELP}")
            if last is not None and last < first:
                raise FastOCRError(f"--pages is {text!r}, and {part.strip()!r} runs backwards: {_HELP}")
            ranges.append((first, last))
        return cls(tuple(ranges))

    def select(self, count: int) -> tuple[Sequence[int], Sequence[int]]:
        """Of a file of `count` pages: the wanted pages, rising and each once, and what was asked beyond the end.

        The second is the first such page and the last, or empty. An open range asks for nothing it lacks,
        unless it starts beyond the end.
        """
        if not self.ranges:
            return range(1, count + 1), ()
        found: set[int] = set()
        beyond: list[int] = []
        for first, last in self.ranges:
            stop = count if last is None else min(last, count)
            found.update(range(first, stop + 1))
            if first > count or (last or 0) > count:
                beyond += [max(first, count + 1), last or first]
        return sorted(found), tuple(sorted({min(beyond), max(beyond)})) if beyond else ()
