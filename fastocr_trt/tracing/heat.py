"""The page with what was looked at in colour."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from ..runtime.provenance import Gaze, ReadWord, read_words
from ..runtime.trace import Trace

HOT = (230, 60, 0)
BOX = (0, 90, 200)
DOUBT = (200, 0, 120)
_FADED = 0.45  # how much of the page's contrast is left under the heat


def heat_map(trace: Trace) -> Image.Image:
    """All tokens' attention over each image of the page, one image below the other, and the words' boxes; RGB."""
    gaze = Gaze(trace)
    whole = np.zeros(trace.visual_tokens)
    for first in range(0, len(trace.token_ids), 64):
        whole += gaze.mass(np.arange(first, min(first + 64, len(trace.token_ids)))).sum(0)
    words = read_words(trace)
    pictures = []
    for number, heat in enumerate(grids(trace, whole)):
        painted = paint(fade(trace.pictures[number]), np.sqrt(heat))
        draw_boxes(painted, trace, [word for word in words if word.image == number])
        pictures.append(painted)
    return stack(pictures)


def grids(trace: Trace, mass: np.ndarray) -> list[np.ndarray]:
    """mass [visual tokens of the page] as [rows,columns] of each image; the largest of all becomes 1."""
    mass = mass / (mass.max() or 1.0)
    return [
        mass[image.first_row : image.first_row + image.visual_tokens].reshape(image.rows, image.columns)
        for image in trace.images
    ]


def fade(picture: Image.Image) -> Image.Image:
    """Paler, so that colour shows on it."""
    return Image.blend(Image.new("RGB", picture.size, "white"), picture, _FADED)


def paint(picture: Image.Image, heat: np.ndarray) -> Image.Image:
    """picture with heat [rows,columns] of 0 to 1 over it in one colour, deeper where it is more."""
    levels = Image.fromarray((heat.clip(0, 1) * 210).astype(np.uint8)).resize(picture.size, Image.Resampling.BILINEAR)
    painted = picture.copy()
    painted.paste(HOT, (0, 0, *picture.size), levels)
    return painted


def draw_boxes(picture: Image.Image, trace: Trace, words: list[ReadWord]) -> None:
    """Outline the words' boxes on the resized picture they lie in; doubtful ones in another colour."""
    pen = ImageDraw.Draw(picture)
    for word in words:
        if word.box is not None:
            pen.rectangle(resized_box(trace, word), outline=DOUBT if word.doubtful else BOX)


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
