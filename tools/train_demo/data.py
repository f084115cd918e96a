"""Batches of generated pages. All of a step follows from (seed, step), so that a resumed run sees the same pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastocr_trt.demo import layouts
from fastocr_trt.demo.layouts_fonts import BUNDLED, Family, installed_families
from fastocr_trt.demo.pages import SEEDS, SIZES

from .characters import BLANK, END, ID, NEWLINE, PADDING, PROMPT

IGNORED = -100
SHARDS = 2  # parts of a step that processes may share
SLOTS = 6  # characters under one visual token that the auxiliary head is asked for


class Batch(NamedTuple):
    """Pages of one size.

    pages [B,height,width] uint8. input_ids, labels [B,T] int64: the prompt and the text; labels are IGNORED where
    nothing is asked. places [B,T,2] int64: visual tokens at which the label is found. under [B,N,SLOTS] int64: the
    characters printed on each visual token, in reading order, BLANK after them. texts: what the pages say.
    """

    pages: Tensor
    input_ids: Tensor
    labels: Tensor
    places: Tensor
    under: Tensor
    texts: list[str]
    columns: int
    rows: int


class Task(NamedTuple):
    """One kind of step. visual_tokens: a key of SIZES. layout: a name of layouts.NAMES. pages: in a step. reading:
    False for steps that train the vision tower alone, by its auxiliary head."""

    visual_tokens: int
    layout: str
    pages: int
    reading: bool = True


@cache
def families() -> tuple[Family, ...]:
    """Faces to train on, in their shares: about five pages in six are set in those of the package, which is what the
    reader is measured on; the others, where they are installed, keep it from learning three faces by heart."""
    others = installed_families()
    return (*BUNDLED * max(1, round(5 * len(others) / len(BUNDLED))), *others)


def batches(task: Task, seed: int, step: int, shard: int, noise: float, rows_at_once: int = 3000) -> list[Batch]:
    """Half of the pages of a step (shard 0 or 1), sorted by length and cut into batches of about `rows_at_once` visual
    and text rows: small ones stay in the caches."""
    source = Random(f"training {SEEDS['training'].start + seed} {step} {shard}")
    columns, rows = SIZES[task.visual_tokens]
    count = (task.pages + 1 - shard) // SHARDS
    # Shards of alike pages take equally long: processes do not wait for each other.
    alike = Random(f"alike {seed} {step}")
    pages = [_page(source, columns, rows, task, _type_size(alike), layouts.some_fill(alike)) for _ in range(count)]
    pages.sort(key=lambda page: len(page.text))
    found, waiting = [], []
    for page in pages:
        longest = len(page.text) + len(PROMPT) if task.reading else 0
        if waiting and (len(waiting) + 1) * (columns * rows + longest) > rows_at_once:
            found.append(collate(waiting, columns, rows, source, noise))
            waiting = []
        waiting.append(page)
    return [*found, collate(waiting, columns, rows, source, noise)]


def _type_size(source: Random) -> int:
    """Two pages in five are of any size alike: the smallest and the largest type is rare among pages as they come, and
    takes longest to learn."""
    return source.randint(*layouts.FONT_SIZES) if source.random() < 0.4 else layouts.some_size(source)


def _page(source: Random, columns: int, rows: int, task: Task, size: int, fill: float) -> layouts.PrintedPage:
    """Pages to see alone are fuller than any that is read."""
    most = layouts.most_characters(columns * rows) * (1 if task.reading else 4)
    return layouts.compose(source, columns, rows, task.layout, families(), most, size, fill)


def collate(pages: Sequence[layouts.PrintedPage], columns: int, rows: int, source: Random, noise: float = 0.0) -> Batch:
    """noise: share of input characters that are wrong, missing or too many, and of input words that are others, on four
    pages of five: a reader that only ever sees its own text right does not learn to find its way back, and finds the
    next line by what it has written instead of where it is."""
    examples = [_example(page, source, noise if source.random() < 0.8 else 0.0) for page in pages]
    longest = max(len(ids) for ids, _, _ in examples)
    input_ids = np.full((len(pages), longest), PADDING, np.int64)
    labels = np.full((len(pages), longest), IGNORED, np.int64)
    places = np.zeros((len(pages), longest, 2), np.int64)
    under = np.full((len(pages), columns * rows, SLOTS), BLANK, np.int64)
    for number, (page, (ids, targets, found)) in enumerate(zip(pages, examples, strict=True)):
        input_ids[number, : len(ids)] = ids
        labels[number, : len(ids)] = targets
        places[number, : len(ids)] = found
        _fill_under(under[number], page)
    grey = np.stack([page.grey for page in pages])
    tensors = map(torch.from_numpy, (grey, input_ids, labels, places, under))
    return Batch(*tensors, [page.text for page in pages], columns, rows)


def _fill_under(under: np.ndarray, page: layouts.PrintedPage) -> None:
    used = np.zeros(len(under), np.int64)
    for character, place in page.drawn:
        if used[place] < SLOTS:
            under[place, used[place]] = ID[character]
            used[place] += 1


def _example(page: layouts.PrintedPage, source: Random, noise: float) -> tuple[list, list, list]:
    """(input ids, labels, places) of one page, of equal length."""
    targets = [*(ID[character] for character in page.text), END]
    ids = list(PROMPT)
    labels = [IGNORED] * (len(PROMPT) - 1) + [targets[0]]
    places = [(0, 0)] * (len(PROMPT) - 1) + [tuple(page.places[0])]
    for number, character in enumerate(_other_words(targets[:-1], source, noise)):
        chance = source.random() if noise else 1.0
        if chance < noise * 0.25 and 0 < number < len(targets) - 2:
            continue  # a character was left out; never the last, after which the end is asked for
        following = (targets[number + 1], tuple(page.places[number + 1]))
        wrong = source.randrange(95)
        written = [wrong if noise * 0.25 <= chance < noise * 0.75 else character]
        if noise * 0.75 <= chance < noise:
            written.append(character if source.random() < 0.5 else wrong)
        for one in written:
            ids.append(one)
            labels.append(following[0])
            places.append(following[1])
    return ids, labels, places


def _other_words(ids: Sequence[int], source: Random, share: float) -> list[int]:
    """The text with a share of its words replaced by others of the page, cut or repeated to the same length."""
    found = list(ids)
    if not share:
        return found
    spaces = [number for number, one in enumerate(ids) if one in (ID[" "], NEWLINE)]
    bounds = zip([-1, *spaces], [*spaces, len(ids)], strict=True)
    words = [(before + 1, after) for before, after in bounds if after > before + 1]
    for start, end in words:
        if source.random() < share:
            other = source.choice(words)
            letters = list(ids[slice(*other)])
            found[start:end] = (letters * (end - start))[: end - start]
    return found
