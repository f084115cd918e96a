"""Bands of text found on drawn pages whose letters are where the test put them."""

from __future__ import annotations

import numpy as np
import pytest

from fastocr_trt.runtime.ink import line_band

CELL = 28


def page(rows: int = 8, columns: int = 8, paper: int = 250) -> np.ndarray:
    return np.full((rows * CELL, columns * CELL), paper, np.uint8)


def write(grey: np.ndarray, top: int, height: int = 16, left: int = 30, right: int = 150, ink: int = 20) -> None:
    """Letters as strokes of 3 pixels, 5 apart."""
    for x in range(left, right, 8):
        grey[top : top + height, x : x + 3] = ink


@pytest.mark.parametrize("top", [84, 90, 96, 100, 76])
@pytest.mark.parametrize("paper, ink", [(250, 20), (20, 240), (250, 215)])
def test_the_band_lies_on_the_letters_wherever_the_row_of_visual_tokens_lies(top, paper, ink):
    grey = page(paper=paper)
    write(grey, top, ink=ink)
    found = line_band(grey, 3, 1.2, 5.1, CELL)
    assert found == pytest.approx((top / CELL + 8 / CELL - 0.5, top / CELL + 8 / CELL + 0.5), abs=1 / CELL)


def test_of_two_lines_it_is_the_one_that_was_looked_at():
    grey = page()
    for top in (74, 102):
        write(grey, top)
    assert line_band(grey, 2, 1.2, 5.1, CELL)[0] == pytest.approx(82 / CELL - 0.5, abs=1 / CELL)
    assert line_band(grey, 3, 1.2, 5.1, CELL)[0] == pytest.approx(110 / CELL - 0.5, abs=1 / CELL)


def test_large_type_gets_a_band_of_its_height():
    grey = page()
    write(grey, 80, height=40)
    assert line_band(grey, 3, 1.2, 5.1, CELL) == pytest.approx((80 / CELL, 120 / CELL), abs=1 / CELL)


def test_rules_and_bands_of_colour_are_no_text():
    grey = page()
    write(grey, 90)
    plain = line_band(grey, 3, 1.2, 5.1, CELL)
    grey[110:113] = 0
    grey[:86] = 60
    assert line_band(grey, 3, 1.2, 5.1, CELL) == plain


def test_the_dot_of_an_i_belongs_to_its_line():
    grey = page()
    write(grey, 94, height=14)
    write(grey, 90, height=2)
    assert line_band(grey, 3, 1.2, 5.1, CELL)[0] == pytest.approx(99.5 / CELL - 0.5, abs=1 / CELL)


def test_blank_paper_and_pictures_have_no_band():
    assert line_band(page(), 3, 1.2, 5.1, CELL) is None
    faint = page()
    write(faint, 90, ink=240)
    assert line_band(faint, 3, 1.2, 5.1, CELL) is None
    picture = np.random.default_rng(0).integers(0, 256, (8 * CELL, 8 * CELL)).astype(np.uint8)
    assert line_band(picture, 3, 1.2, 5.1, CELL) is None
    assert line_band(page(), 3, 5.0, 5.0, CELL) is None


@pytest.mark.parametrize("row, top", [(0, 0), (7, 8 * CELL - 10)])
def test_the_band_stays_on_the_page(row, top):
    grey = page()
    write(grey, top, height=10)
    first, last = line_band(grey, row, 1.2, 5.1, CELL)
    assert (first, last) == ((0, 1) if row == 0 else (7, 8))
