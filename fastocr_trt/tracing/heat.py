"""The page with what was looked at in colour."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from ..runtime.provenance import Gaze, ReadWord, read_words
from ..runtime.trace import Trace
from .legend import BOX, DOUBT, DOUBT_ITEM, HEAT_ITEM, HOT, WORD_ITEM, outline_box, with_legend

_DARK = 110  # of 255, mean; on darker pages the colour is added to, where it is taken away from a light one


def heat_map(trace: Trace) -> Image.Image:
    """All tokens' attention over each image of the page, one image below the other, the words' boxes, a legend; RGB."""
    gaze = Gaze(trace)
    whole = np.zeros(trace.visual_tokens)
    for first in range(0, len(trace.token_ids), 64):
        whole += gaze.mass(np.arange(first, min(first + 64, len(trace.token_ids)))).sum(0)
    words = read_words(trace)
    pictures = []
    for number, heat in enumerate(grids(trace, whole)):
        painted = paint(trace.pictures[number], np.sqrt(heat))
        draw_boxes(painted, trace, [word for word in words if word.image == number])
        pictures.append(painted)
    return with_legend(stack(pictures), (HEAT_ITEM, WORD_ITEM, DOUBT_ITEM))


def grids(trace: Trace, mass: np.ndarray) -> list[np.ndarray]:
    """mass [visual tokens of the page] as [rows,columns] of each image; the largest of all becomes 1."""
    mass = mass / (mass.max() or 1.0)
    return [
        mass[image.first_row : image.first_row + image.visual_tokens].reshape(image.rows, image.columns)
        for image in trace.images
    ]


def is_dark(picture: Image.Image) -> bool:
    """Whether it shows light letters on dark paper."""
    return bool(np.asarray(picture.convert("L")).mean() < _DARK)


def paint(picture: Image.Image, heat: np.ndarray) -> Image.Image:
    """picture with heat [rows,columns] of 0 to 1 as the colour of its paper, deeper where it is more; letters stay."""
    levels = Image.fromarray((heat.clip(0, 1) * 255).astype(np.uint8)).resize(picture.size, Image.Resampling.BILINEAR)
    dark = is_dark(picture)
    tint = Image.new("RGB", picture.size, "black" if dark else "white")
    tint.paste(HOT, (0, 0, *picture.size), levels)
    return (ImageChops.screen if dark else ImageChops.multiply)(picture, tint)


def draw_boxes(picture: Image.Image, trace: Trace, words: list[ReadWord]) -> None:
    """Outline the words' boxes on the resized picture they lie in; doubtful ones dashed, in another colour."""
    pen = ImageDraw.Draw(picture)
    for word in words:
        if word.box is not None:
            outline_box(pen, resized_box(trace, word), DOUBT if word.doubtful else BOX, dashed=word.doubtful)


def resized_box(trace: Trace, word: ReadWord) -> tuple[float, float, float, float]:
    """word.box, which is in pixels of the image as given, in pixels of the image as the model saw it."""
    image = trace.images[word.image]
    across, down = (image.resized[i] / image.size[i] for i in (0, 1))
    left, top, right, bottom = word.box
    return left * across, top * down, right * across, bottom * down


def stack(pictures: list[Image.Image]) -> Image.Image:
    """One below the other, on white."""
    if len(pictures) == 1:
        return pictures[0]
    gap = 8
    size = max(p.width for p in pictures), sum(p.height for p in pictures) + gap * (len(pictures) - 1)
    whole, top = Image.new("RGB", size, "white"), 0
    for picture in pictures:
        whole.paste(picture, (0, top))
        top += picture.height + gap
    return whole
