"""The boxes of a generated page's words hold the ink of these words, and change nothing about the page."""

from __future__ import annotations

import numpy as np
import pytest

from fastocr_trt.demo.boxed_pages import generate_boxed_page
from fastocr_trt.demo.pages import LAYOUTS, generate_page
from fastocr_trt.demo.word_boxes import Box, word_boxes
from fastocr_trt.errors import FastOCRError


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_it_is_the_page_of_the_seed(layout):
    plain, boxed = generate_page(1_200, layout, 128), generate_boxed_page(1_200, layout, 128)
    assert boxed.text == plain.text
    assert np.array_equal(np.asarray(boxed.image), np.asarray(plain.image))
    assert [boxed.text[word.start : word.end] for word in boxed.words] == [word.text for word in boxed.words]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_every_box_holds_ink(layout):
    for seed in range(1_200, 1_204):
        page = generate_boxed_page(seed, layout, 384)
        grey = np.asarray(page.image.convert("L"), np.float32)
        assert page.words
        for word in page.words:
            left, top, right, bottom = (round(edge) for edge in word.box)
            inside = grey[top:bottom, max(left, 0) : right]
            assert inside.size and inside.min() < np.median(grey) - 40, (seed, word)
            assert word.line.left <= word.box.left and word.box.right <= word.line.right
            assert word.line.top <= word.box.top and word.box.bottom <= word.line.bottom


def test_all_ink_of_a_clean_page_lies_in_some_box():
    page = generate_boxed_page(1_205, "mono", 384)
    dark = np.asarray(page.image.convert("L")) < 128
    for left, top, right, bottom in (word.box for word in page.words):
        dark[int(top) : int(bottom), max(int(left) - 2, 0) : int(right) + 2] = False  # a letter may overhang
    assert not dark.any()


def test_signs_that_are_not_printed_have_no_box():
    places = [None, None, Box(10, 2, 20, 9), Box(20, 2, 30, 9), None, Box(4, 12, 9, 20)]
    words = word_boxes("# ab\nc", places)
    assert [(word.text, word.box) for word in words] == [("ab", Box(10, 2, 30, 9)), ("c", Box(4, 12, 9, 20))]


def test_a_layout_that_is_not_there_is_refused():
    with pytest.raises(FastOCRError, match="there is no layout 'poster'"):
        generate_boxed_page(1_200, "poster", 64)
