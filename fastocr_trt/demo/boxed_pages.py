"""Generated pages whose words' boxes are known: what a provenance box is measured against."""

from __future__ import annotations

from typing import NamedTuple

from PIL import Image

from .pages import draw_page
from .word_boxes import WordBox, word_boxes


class BoxedPage(NamedTuple):
    """As `pages.GeneratedPage`, and the words that are printed on it, in the text's order."""

    image: Image.Image
    text: str
    words: list[WordBox]


def generate_boxed_page(seed: int, layout: str = "mono", visual_tokens: int = 768) -> BoxedPage:
    """`generate_page`'s page, with the boxes of its words. FastOCRError as there."""
    drawn = draw_page(seed, layout, visual_tokens)
    return BoxedPage(drawn.image, drawn.text, word_boxes(drawn.text, drawn.places))
