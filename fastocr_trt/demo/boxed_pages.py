"""Generated pages whose words' boxes are known: what a provenance box is measured against."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image

from . import layout_mono, layouts, layouts_variants
from .pages import SIZES, generate_page
from .word_boxes import Box, WordBox, word_boxes

DrawPlaces = Callable[[random.Random, int, int], tuple[Image.Image, str, list[Box | None]]]

BOXED_LAYOUTS: dict[str, DrawPlaces] = {
    "mono": layout_mono.draw_places,
    **layouts.DRAW_PLACES,
    **layouts_variants.DRAW_PLACES,
}
"""`pages.LAYOUTS`, telling where their characters are."""


class BoxedPage(NamedTuple):
    """As `pages.GeneratedPage`, and the words that are printed on it, in the text's order."""

    image: Image.Image
    text: str
    words: list[WordBox]


def generate_boxed_page(seed: int, layout: str = "mono", visual_tokens: int = 768) -> BoxedPage:
    """`generate_page`'s page, with the boxes of its words. FastOCRError as there."""
    page = generate_page(seed, layout, visual_tokens)
    # The same stream once more: what a layout draws from it must not depend on whether boxes are asked for.
    source = random.Random(f"{layout} {visual_tokens} {seed}")
    _, text, places = BOXED_LAYOUTS[layout](source, *SIZES[visual_tokens])
    return BoxedPage(page.image, page.text, word_boxes(text, places))
