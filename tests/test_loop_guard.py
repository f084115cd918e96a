"""Loops are noticed within a bounded number of turns; what pages legitimately repeat is not taken for one."""

from __future__ import annotations

import random

import numpy as np
import pytest
from byte_level_tokenizer import byte_level_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.errors import FastOCRError
from fastocr_trt.runtime.loop_guard import LoopGuard, LoopThresholds

TOKENIZER = byte_level_tokenizer()
PROSE = (
    "The committee met on Tuesday to review the annual report.\nMembers asked for the figures of the last quarter, "
    "which the treasurer will send by Friday.\n"
)


def characters(text: str) -> list[int]:
    """A token a character, as the demo model has."""
    return [ord(c) for c in text]


def spell(ids) -> str:
    return "".join(map(chr, ids))


def pieces(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


WAYS = pytest.mark.parametrize(
    ("encode", "decode"), [(characters, spell), (pieces, TOKENIZER.decode)], ids=["characters", "pieces"]
)
DEFAULT = LoopThresholds()


def run(ids, decode=spell, thresholds=DEFAULT) -> tuple[int, int] | None:
    """(tokens read, tokens to keep) where a loop was noticed."""
    guard = LoopGuard(decode, thresholds)
    for count, token in enumerate(ids, 1):
        if (keep := guard.push(token)) is not None:
            return count, keep
    return None


LONG = PROSE + "The next meeting is planned for the first week of May; rooms and travel are still to be booked.\n"


@WAYS
@pytest.mark.parametrize("turn", ["See the attached page for the exact terms of this offer.\n", PROSE, LONG])
def test_loop_of_words_is_noticed_and_cut_after_its_first_turn(encode, decode, turn):
    start, cycle = encode("INVOICE 4711: "), encode(turn)
    found = run(start + cycle * 20, decode)
    assert found is not None
    read, keep = found
    assert decode((start + cycle * 20)[:keep]) == "INVOICE 4711: " + turn
    assert read <= len(start) + max(6 * len(cycle), 512 + len(cycle))


@given(
    st.lists(st.integers(0, 500), max_size=40),
    st.lists(st.integers(1000, 1500), min_size=5, max_size=300, unique=True),
)
@settings(max_examples=40)
def test_cycle_is_noticed_at_its_threshold_exactly(before, turn):
    """Whatever came before, without a decoder: many different tokens are words."""
    needed = int(DEFAULT.word_run(np.array(len(turn))))
    assert run(before + turn * 20, None) == (len(before) + needed, len(before) + len(turn))


@pytest.mark.parametrize("filler", ["-", "0 ", "the ", "| N/A ", "\n", "0.00 | 0.00 | 0.00 |\n"])
def test_loop_of_filler_is_noticed_later(filler):
    period = len(filler)
    found = run(characters("Total:" + filler * 2000))
    assert found == (len("Total:") + max(64 * period, 512), len("Total:") + period)


def test_turn_that_starts_within_a_word():
    """The text before the loop ends as the loop's turn does: the cycle starts early, and the text reads on."""
    turn = "one two three four five six\n"
    text = "This is about six\n" + turn * 30
    read, keep = run(characters(text))
    assert text[:keep] == "This is about six\n" + turn[: -len(" six\n")] and read < 18 * len(turn)
    assert (text[:keep] + " six\n").startswith("This is about six\n" + turn)


ROW = "| {} | 0.00 | 0.00 | 0.00 | N/A | 0.00 |\n"
LEGITIMATE = {
    "table rule": "+" + "-" * 150 + "+\n",
    "markdown rule": "|" + "----------|" * 24 + "\n",
    "dotted leaders": "".join(f"Chapter {n} {'.' * 100} {n * 7}\n" for n in range(1, 30)),
    "spaced leaders": "".join(f"Section {n} {'. ' * 60}{n * 7}\n" for n in range(1, 30)),
    "row of zeros": "0 " * 100 + "\n",
    "zeros in a table": "".join(ROW.format(n) for n in range(40)),
    "empty rows": "|   |   |   |   |\n" * 60,
    "cells": "| yes | no | yes | no |\n" * 40,
    "cells of one word": "N/A | " * 40 + "\n",
    "blank lines": "Title\n" + "\n" * 80 + "Footer\n",
    "form": "Name: ________ Date: ________\n" * 25,
    "underscores": ("_" * 100 + "\n") * 4,
    "chorus": "We all live by the sea and sing of it\n" * 6,
    "labels": "Anna Smith\n12 Main Street\nSpringfield IL\n\n" * 12,
    "repeated header": "".join(f"Annual report of the company limited {n}\n{PROSE[n:]}" for n in range(20)),
    "numbered list": "".join(f"{n}. See the item above for the details of it\n" for n in range(60)),
    "spaces": " " * 300 + "x",
    "html table": "<tr>" + "<td></td>" * 20 + "</tr>\n" + "<tr><td>1</td><td>2</td></tr>\n" * 20,
}


@WAYS
@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_pages_repeat_is_no_loop(encode, decode, name):
    assert run(encode(PROSE + LEGITIMATE[name] + PROSE), decode) is None


@given(st.integers(0, 10**6), st.integers(2, 60))
@settings(max_examples=30)
def test_random_text_is_no_loop(seed, alphabet):
    rng = random.Random(seed)
    assert run([97 + rng.randrange(alphabet) for _ in range(3000)]) is None


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(5, 60))
@settings(max_examples=30)
def test_random_table_is_no_loop(seed, columns, rows):
    """Cells drawn from few values, so that neighbours often agree."""
    rng = random.Random(seed)
    values = rng.sample(["0", "0.00", "N/A", "-", "yes", "", "100"], 3)
    table = ["| " + " | ".join(rng.choice(values) for _ in range(columns)) + " |" for _ in range(rows)]
    numbered = "\n".join(f"{n} {row}" for n, row in enumerate(table))
    assert run(characters(numbered)) is None


@given(st.integers(2, 200), st.integers(0, 10**6))
@settings(max_examples=25)
def test_loop_that_breaks_off_is_no_loop(period, seed):
    rng = random.Random(seed)
    turn = [rng.randrange(1000) for _ in range(period)]
    needed = int(DEFAULT.word_run(np.array(period)))
    ids = []
    for _ in range(3):  # a token short, again and again
        ids += [*(turn * 20)[: needed - 1], 2000 + len(ids)]
    assert run(ids, None) is None


def test_long_text_costs_no_more_and_forgets_nothing():
    thresholds = LoopThresholds(max_period=64)
    rng = random.Random(1)
    before = [rng.randrange(5000) for _ in range(5000)]
    turn = list(range(6000, 6064))
    assert run(before + turn * 20, None, thresholds) == (5000 + 8 * 64, 5000 + 64)
    too_long = list(range(6000, 6065))
    assert run(before + too_long * 20, None, thresholds) is None


def test_thresholds_can_be_set():
    ids = characters("no more than this and that\n" * 50)
    period = len("no more than this and that\n")
    eager = LoopThresholds(word_turns=3, least_turns=2, word_tokens=1)
    assert run(ids, thresholds=eager) == (2 * period, period)
    rules = LoopThresholds(filler_turns=10, filler_tokens=10)
    assert run(characters("-" * 50), thresholds=rules) == (16, 1), "looked at first when words would be a loop"
    assert run(ids, thresholds=LoopThresholds(different_words=7)) is None


@pytest.mark.parametrize("name", ["max_period", "word_turns", "least_turns", "filler_turns", "filler_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_thresholds_out_of_range(name, value):
    with pytest.raises(FastOCRError, match=name):
        LoopThresholds(**{name: value})
