"""Types of options for argparse, which shows their ArgumentTypeError as one line and exits with 2."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from .counts import plural
from .errors import FastOCRError
from .fixation import check_keep

LARGEST_COUNT = 2**63 - 1
"""No graph and no library takes a larger one."""


def keep(text: str) -> float:
    """A share from 0 to 1."""
    try:
        return check_keep(float(text))
    except (ValueError, FastOCRError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share of the visual tokens from 0 to 1 (5% is 0.05)"
        ) from None


def at_least(lowest: int) -> Callable[[str], int]:
    """A whole number of at least `lowest`, and no larger than graphs and libraries take."""

    def whole_number(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{value} is too small; it must be at least {lowest}")
        if value > LARGEST_COUNT:
            raise argparse.ArgumentTypeError(
                f"a number of {len(text)} digits is too large; give at most {LARGEST_COUNT}"
            )
        return value

    return whole_number


def threads(text: str) -> int:
    """A number of threads that this machine can start: far beyond its cores, starting them takes for ever."""
    value, cores = at_least(1)(text), os.cpu_count() or 1
    if value > 4 * cores:
        raise argparse.ArgumentTypeError(
            f"{value} is too large; this machine has {plural(cores, 'core')}: give at most {4 * cores}"
        )
    return value


def real(lowest: float, highest: float) -> Callable[[str], float]:
    """A number from `lowest` to `highest`."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{text} lies outside {lowest:g} to {highest:g}")
        return value

    return number


def layer_list(text: str) -> tuple[int, ...]:
    """Layer numbers with commas between: 2,5."""
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layer numbers, for example 2,5") from None
    if any(layer < 0 for layer in layers) or len(set(layers)) != len(layers):
        raise argparse.ArgumentTypeError(f"{text!r}: layers are numbered from 0 and each is named once")
    return layers
