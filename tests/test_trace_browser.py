"""The HTML of a trace in a real browser: it shows the page, and pointing at a word shows where it was read."""

from __future__ import annotations

import numpy as np
import pytest
from headless_browser import Browser, find_browser
from PIL import Image
from trace_helpers import at, trace_of

from fastocr_trt.tracing.browser import page_of

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium or another Chrome, which is not installed")

TEXT = "hello world \N{GRINNING FACE} last"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    gazes = [[at(0.5 + 0.3 * i, 2)] for i in range(12)] + [[at(0.5 + 0.3 * i, 5)] for i in range(len(TEXT) - 12)]
    trace = trace_of(TEXT, gazes)
    page = Image.new("RGB", trace.images[0].resized, (30, 120, 60))
    path = tmp_path_factory.mktemp("html") / "trace.html"
    path.write_text(page_of([trace.__class__(**{**trace.__dict__, "pictures": (page,)})]), encoding="utf-8")
    with Browser(BROWSER) as browser:
        browser.open(path)
        yield browser


def middle(browser: Browser, selector: str, number: int) -> tuple[float, float]:
    node = f"document.querySelectorAll('{selector}')[{number}]"
    return tuple(browser.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({node}.getBoundingClientRect())"))


def lit(browser: Browser, selector: str) -> list[int]:
    return browser.evaluate(
        f"[...document.querySelectorAll('{selector}')].flatMap((n, i) => n.classList.contains('on') ? [i] : [])"
    )


def test_it_shows_the_page_and_its_text(browser):
    shown = browser.screenshot()
    green = (shown[..., 1].astype(int) - shown[..., 0] > 50).mean()
    assert green > 0.1 and shown.std() > 20
    assert browser.evaluate("document.querySelector('.text').textContent") == TEXT
    words = browser.evaluate("[...document.querySelectorAll('.text span')].map(n => n.textContent)")
    assert words == TEXT.split()
    assert browser.evaluate("document.querySelectorAll('rect').length") == 4


@pytest.mark.parametrize("side", [".text span", "rect"])
def test_pointing_at_a_word_or_its_box_lights_both(browser, side):
    browser.point(1, 1)
    before = browser.screenshot()
    assert lit(browser, "rect") == []
    browser.point(*middle(browser, side, 1))
    after = browser.screenshot()
    assert lit(browser, ".text span") == [1] and lit(browser, "rect") == [1]
    said = browser.evaluate("document.querySelector('.says').textContent")
    assert "\u201cworld\u201d at " in said and "probability of the word 0.5" in said
    assert (before != after).any(-1).mean() > 0.002
    browser.point(1, 1)
    assert lit(browser, "rect") == []
    assert np.array_equal(browser.screenshot(), before)


def test_the_gaze_goes_where_the_slider_says(browser):
    def go(token: int) -> None:
        browser.evaluate(
            f"(s => {{ s.value = {token}; s.dispatchEvent(new Event('input')); }})(document.querySelector('input'))"
        )

    go(3)
    assert lit(browser, ".text span") == [0]
    early = browser.screenshot()
    go(len(TEXT))
    assert lit(browser, ".text span") == [3]
    assert (early != browser.screenshot()).any()


def test_play_writes_the_text_to_its_end(browser):
    browser.evaluate("document.querySelector('button').click()")
    assert browser.evaluate("document.querySelector('button').textContent") == "Pause"
    browser.evaluate(
        "new Promise(done => { const wait = () => document.querySelector('button').textContent == 'Play' ? done() : "
        "setTimeout(wait, 20); wait(); })"
    )
    assert browser.evaluate("document.querySelector('input').value") == str(len(TEXT))
    assert lit(browser, "rect") == []
