"""Counts: checked where a caller gives them, and put into words."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .errors import FastOCRError


def check_count(value: Any, name: str, least: int = 1, most: int | None = None) -> int:
    """`value` as an int (numpy's are taken too), or FastOCRError where it is no whole number from `least` to `most`."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise FastOCRError(f"{name} is {value!r}; it must be a whole number {limit}")
    return int(value)


def plural(count: int, noun: str) -> str:
    """For people: `1 page`, `2 pages`, `1,024 visual tokens`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
