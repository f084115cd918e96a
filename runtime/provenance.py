"""From what the model looked at to where on the page a word stands.

A word's tokens look, one after the other, at the visual tokens that hold it. So a word's box lies in the row of visual
tokens that they look at most, at the height of the ink there, and is as wide as a straight line through the places of
its tokens says. Heads differ in how much they tell: each is weighed by how far its heaviest place rises above what it
looks at all the time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .ink import line_band
from .trace import Trace, TracedImage

DOUBTFUL_BELOW = 0.5
"""Confidence under which a word is doubtful: half of what its tokens looked at lies elsewhere."""

_NEAR, _REACH = 3, 6  # tokens; nearer pairs are often in one visual token, farther ones on two lines
_FEW = 5  # tokens; fewer tell no pitch of their own, and as many count as much as the page
_SLACK = 0.25  # visual tokens that a box may reach into its neighbours and still count their mass


@dataclass(frozen=True)
class ReadWord:
    """trace.text[start:end], between white space, and where it was read.

    image: number of the page's image, from 0. box: (left, top, right, bottom) in pixels of that image as it was given,
    None where the model looked at nothing. confidence: share of its tokens' attention, in the heads that read, that
    lies on the visual tokens that the box was found in. doubtful: that share is small. probability: the model's own,
    the mean (geometric) of its tokens'.
    """

    text: str
    start: int
    end: int
    image: int
    box: tuple[float, float, float, float] | None
    confidence: float
    doubtful: bool
    probability: float


def read_words(trace: Trace) -> list[ReadWord]:
    """The words of the page's text, in its order."""
    gaze = Gaze(trace)
    words = []
    for found in re.finditer(r"\S+", trace.text):
        start, end = found.span()
        tokens = np.flatnonzero((trace.spans[:, 0] < end) & (trace.spans[:, 1] > start))
        if not len(tokens):  # text that the tokenizer's decoder added by itself
            words.append(ReadWord(found.group(), start, end, 0, None, 0.0, True, 0.0))
            continue
        image, box, confidence = _locate(gaze, tokens, start, end)
        probability = float(np.exp(trace.log_probabilities[tokens].astype(np.float64).mean()))
        doubtful = confidence < DOUBTFUL_BELOW
        words.append(ReadWord(found.group(), start, end, image, box, confidence, doubtful, probability))
    return words


class Gaze:
    """Where each token looked. weights [F,KV]: how much each head counts, all together 1.

    grey: the images as the model saw them, [height,width] uint8.
    image [T]: the image of the heaviest visual token; row [T], column [T] float64: its place there, column as the
    centre of mass with its two neighbours. pitch: visual tokens that one character moves the gaze to the right.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.weights = head_weights(trace)
        self.grey = [np.asarray(picture.convert("L")) for picture in trace.pictures]
        tokens = len(trace.token_ids)
        self.image = np.zeros(tokens, np.int64)
        self.row, self.column = np.zeros(tokens, np.int64), np.zeros(tokens)
        for first in range(0, tokens, 64):  # the whole page at once would take a lot of memory
            for number, mass in enumerate(self.mass(np.arange(first, min(first + 64, tokens))), first):
                self.image[number], self.row[number], self.column[number] = _place(mass, trace.images)
        self.pitch = self._pitch()

    def mass(self, tokens: np.ndarray) -> np.ndarray:
        """[len(tokens), visual tokens of the page]: the weighed heads' mass together, at most 1 in a token."""
        rows, mass = self.trace.rows[tokens], self.trace.mass[tokens] * self.weights[None, :, :, None]
        whole = np.zeros((len(tokens), self.trace.visual_tokens))
        at = np.broadcast_to(np.arange(len(tokens))[:, None, None, None], rows.shape)
        seen = rows >= 0
        np.add.at(whole, (at[seen], rows[seen]), mass[seen])
        return whole

    def _pitch(self) -> float:
        """Median over pairs of tokens nearby, on one row of an image; a guess of half a visual token without any."""
        middle = self.trace.spans.mean(1)
        steps = []
        for apart in range(_NEAR, _REACH + 1):
            near, far = slice(None, -apart), slice(apart, None)
            same = (self.image[near] == self.image[far]) & (self.row[near] == self.row[far])
            characters = middle[far] - middle[near]
            moved = self.column[far] - self.column[near]
            good = same & (characters > 0) & (moved > 0)
            steps.append(moved[good] / characters[good])
        together = np.concatenate(steps)
        return float(np.median(together)) if len(together) else 0.5


def head_weights(trace: Trace) -> np.ndarray:
    """[F,KV] float64, sum 1: squares of how far a head's heaviest place rises, mean over tokens, above what that place
    gets on average. A head that looks at one place all the time (a sink), or everywhere, weighs next to nothing."""
    tokens, layers, kv_heads, _ = trace.rows.shape
    rises = np.full((layers, kv_heads), 1e-9)
    for f, g in np.ndindex(layers, kv_heads):
        rows, mass = trace.rows[:, f, g], trace.mass[:, f, g].astype(np.float64)
        usual = np.bincount(rows[rows >= 0], mass[rows >= 0], minlength=trace.visual_tokens) / max(tokens, 1)
        above = np.where(rows >= 0, mass - usual[rows], 0.0)
        if above.size:
            rises[f, g] += np.maximum(above, 0).max(1).mean() + 1e-3 * mass.sum(1).mean()  # one token rises nowhere
    return rises**2 / (rises**2).sum()


def _place(mass: np.ndarray, images: tuple[TracedImage, ...]) -> tuple[int, int, float]:
    """(image, row, column) of the heaviest visual token of mass [visual tokens of the page]."""
    heaviest = int(mass.argmax())
    number = max(i for i, image in enumerate(images) if image.first_row <= heaviest)
    row, column = divmod(heaviest - images[number].first_row, images[number].columns)
    first, last = max(column - 1, 0), min(column + 2, images[number].columns)
    start = images[number].first_row + row * images[number].columns
    near = mass[start + first : start + last]
    total = near.sum()
    return number, row, float(near @ np.arange(first, last) / total) if total > 0 else float(column)


def _locate(gaze: Gaze, tokens: np.ndarray, start: int, end: int):
    """(image, box in its own pixels or None, confidence) of the word text[start:end], which `tokens` wrote."""
    mass = gaze.mass(tokens)
    total = mass.sum(0)
    if not total.any():
        return 0, None, 0.0
    images = gaze.trace.images
    shares = [total[i.first_row : i.first_row + i.visual_tokens].sum() for i in images]
    number = int(np.argmax(shares))
    image = images[number]
    grid = total[image.first_row : image.first_row + image.visual_tokens].reshape(image.rows, image.columns)
    row = int(grid.sum(1).argmax())
    here = (gaze.image[tokens] == number) & (gaze.row[tokens] == row)
    if not here.any():
        here = gaze.image[tokens] == number
    columns = gaze.column[tokens][here] if here.any() else np.array([float(grid[row].argmax())])
    spans = gaze.trace.spans[tokens[here]] if here.any() else np.array([[start, end]])
    middles = spans.clip(start, end).mean(1) - start
    left, right = _extent(columns, middles, end - start, gaze.pitch)
    left, right = max(0.0, left), min(float(image.columns), right)
    first, last = int(max(left - _SLACK, 0)), int(np.ceil(min(right + _SLACK, image.columns)))
    confidence = float(grid[row, first:last].sum() / len(tokens))
    scale_x, scale_y = (image.size[i] / image.resized[i] * image.cell for i in (0, 1))
    top, bottom = line_band(gaze.grey[number], row, left, right, image.cell) or (row, row + 1)
    box = (left * scale_x, top * scale_y, right * scale_x, bottom * scale_y)
    return number, box, min(confidence, 1.0)


def _extent(columns: np.ndarray, middles: np.ndarray, characters: int, pitch: float) -> tuple[float, float]:
    """Left and right edge, in visual tokens, of a word of `characters`.

    columns: where its tokens looked; middles: where in the word they stand, in characters. pitch: the page's; a longer
    word has a say in it. Medians of slopes and of what is left bear a token that looked elsewhere.
    """
    if len(columns) >= _FEW:
        one, two = np.triu_indices(len(columns), 1)
        apart = middles[two] - middles[one]
        slopes = (columns[two] - columns[one])[apart > 0] / apart[apart > 0]
        if len(slopes) and np.median(slopes) > 0:
            own = len(columns) / (len(columns) + _FEW)
            pitch = float((own * np.median(slopes) + (1 - own) * pitch).clip(pitch / 2, pitch * 2))
    origin = float(np.median(columns + 0.5 - pitch * middles))
    return origin, origin + pitch * characters
