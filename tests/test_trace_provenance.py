"""Boxes of words from made-up gazes whose places are known, and from the demo's own."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import ImageDraw
from trace_helpers import CELL, at, image, trace_of

from fastocr_trt.runtime.provenance import head_weights, read_words


def reading(text: str, start: float, row: int, pitch: float = 0.5, **more) -> list[dict[int, float]]:
    """The gaze of a reader: a character of `text` after the other, from visual token `start` of `row` on."""
    return [at(start + pitch * (i + 0.5) - 0.5, row, **more) for i in range(len(text))]


def test_a_word_is_where_its_characters_were_looked_at():
    text = "hello world"
    words = read_words(trace_of(text, [[gaze] for gaze in reading(text, 1.0, 3)]))
    assert [(w.text, w.start, w.end, w.image) for w in words] == [("hello", 0, 5, 0), ("world", 6, 11, 0)]
    for word, left in zip(words, (1.0, 4.0), strict=True):
        box = np.array([left, 3, left + 2.5, 4]) * CELL
        np.testing.assert_allclose(word.box, box, atol=0.15 * CELL)
        assert word.confidence > 0.95 and not word.doubtful
        assert word.probability == pytest.approx(0.5, abs=0.001)


def test_boxes_are_in_pixels_of_the_image_as_it_was_given():
    text = "hello"
    gazes = [[gaze] for gaze in reading(text, 1.0, 3)]
    small = read_words(trace_of(text, gazes))[0].box
    large = read_words(trace_of(text, gazes, (image(scale=2.5),)))[0].box
    np.testing.assert_allclose(large, np.array(small) * 2.5)


def test_a_head_that_looks_at_one_place_all_the_time_has_no_say():
    text = "hello world"
    gazes = [[{63: 1.0}, gaze] for gaze in reading(text, 1.0, 3, mass=0.4)]
    trace = trace_of(text, gazes)
    assert head_weights(trace)[0, 0] < 0.01
    assert read_words(trace)[0].box[1] == 3 * CELL


def test_a_token_that_looked_elsewhere_does_not_move_the_box():
    text = "straight"
    gazes = reading(text, 1.0, 3)
    before = read_words(trace_of(text, [[gaze] for gaze in gazes]))[0]
    gazes[4] = at(7, 6)
    after = read_words(trace_of(text, [[gaze] for gaze in gazes]))[0]
    np.testing.assert_allclose(after.box, before.box, atol=0.25 * CELL)
    assert after.confidence < before.confidence


def test_a_scattered_gaze_is_doubtful_and_a_weak_one_too():
    text = "hello doubt"
    steady = reading(text, 1.0, 3)
    source = np.random.default_rng(0)
    scattered = [{int(row): 0.125 for row in source.permutation(64)[:8]} for _ in range(5)]
    words = read_words(trace_of(text, [[gaze] for gaze in [*steady[:6], *scattered]]))
    assert [word.doubtful for word in words] == [False, True]
    weak = [{row: mass * 0.3 for row, mass in gaze.items()} for gaze in steady[6:]]
    words = read_words(trace_of(text, [[gaze] for gaze in [*steady[:6], *weak]]))
    assert [word.doubtful for word in words] == [False, True]


def test_words_of_two_images_lie_in_their_own():
    images = (image(), image(16, 8, first_row=64))
    text = "first other"
    gazes = reading("first ", 1.0, 3) + reading("other", 9.0, 5, columns=16, first_row=64)
    words = read_words(trace_of(text, [[gaze] for gaze in gazes], images))
    assert [word.image for word in words] == [0, 1]
    np.testing.assert_allclose(words[1].box, np.array([9, 5, 11.5, 6]) * CELL, atol=0.15 * CELL)


def test_the_box_is_at_the_height_of_the_ink():
    """A line that straddles two rows of visual tokens, of which the model looked at the upper."""
    text = "hello"
    trace = trace_of(text, [[gaze] for gaze in reading(text, 1.0, 3)], (image(scale=2.0),))
    pen = ImageDraw.Draw(trace.pictures[0])
    for x in range(30, 96, 8):
        pen.rectangle((x, 100, x + 2, 119), fill="black")
    (word,) = read_words(trace)
    assert word.box[1::2] == pytest.approx((2 * (110 - CELL / 2), 2 * (110 + CELL / 2)), abs=2)
    assert word.confidence > 0.95


def test_a_word_of_one_token_is_as_wide_as_its_characters():
    """Tokens of whole words, as large vocabularies have: the page's pitch gives the width."""
    spans = [(0, 4), (4, 10), (10, 15), (15, 20), (20, 26)]
    text = "some words that stand here"
    gazes = [[at(np.mean(span) * 0.25, 2)] for span in spans]
    words = read_words(trace_of(text, gazes, spans=spans))
    assert [word.text for word in words] == text.split()
    widths = [(word.box[2] - word.box[0]) / CELL / len(word.text) for word in words[:-1]]
    assert widths == pytest.approx([0.25] * 4, rel=0.25)


def test_a_page_without_words_or_without_a_gaze_has_no_boxes():
    assert read_words(trace_of("", [])) == []
    assert read_words(trace_of(" \n ", [[at(1, 1)]] * 3)) == []
    (word,) = read_words(trace_of("ab", [[{}], [{}]]))
    assert word.box is None and word.doubtful and word.confidence == 0


def test_boxes_stay_on_the_page():
    text = "edge"
    (word,) = read_words(trace_of(text, [[gaze] for gaze in reading(text, 5.7, 7)]))
    left, top, right, bottom = word.box
    assert 0 <= left < right <= 8 * CELL and 0 <= top < bottom <= 8 * CELL


def test_most_words_of_the_demo_are_found(demo_engine_dir):
    from fastocr_trt.demo.boxed_pages import generate_boxed_page
    from fastocr_trt.runtime import Engine

    pages = [generate_boxed_page(seed, "mono", 64) for seed in range(1_310, 1_318)]
    results = Engine.load(demo_engine_dir, threads=1, trace=True).parse_batch([page.image for page in pages])
    inside = total = 0
    heights = []
    for page, result in zip(pages, results, strict=True):
        true = {word.text: word.box for word in page.words}
        for word in read_words(result.trace):
            if word.text in true and page.text.split().count(word.text) == 1:
                x, y = (word.box[0] + word.box[2]) / 2, (word.box[1] + word.box[3]) / 2
                box = true[word.text]
                heights.append(
                    max(0, min(word.box[3], box.bottom) - max(word.box[1], box.top)) / (box.bottom - box.top)
                )
                inside += box.left <= x <= box.right and box.top <= y <= box.bottom
                total += 1
    assert total >= 30 and inside >= 0.85 * total
    assert np.mean(heights) >= 0.85  # of a line's height lies in the box; in the rows of visual tokens, 0.75 did
