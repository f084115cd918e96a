"""What benchmarks/provenance.py counts: words aligned with true ones, overlaps, areas under the ROC curve."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from fastocr_trt.demo.boxed_pages import generate_boxed_page
from fastocr_trt.errors import FastOCRError

pytest.importorskip("rapidfuzz", reason="words are aligned with rapidfuzz, of the extra `test`")


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("provenance")


def test_words_are_aligned_through_mistakes(benchmark):
    page = generate_boxed_page(1_330, "mono", 64)
    words = page.text.split()
    assert benchmark.true_words(page.text, page.text, page.words) == page.words
    # The first word misread, the second lost, one made up at the end.
    read = " ".join([words[0][:-1] + "~", *words[2:], "@@@@@@@@"])
    found = benchmark.true_words(read, page.text, page.words)
    assert found == [page.words[0], *page.words[2:], None]


def test_overlap_of_boxes(benchmark):
    box = (0, 0, 10, 4)
    assert benchmark.overlap(box, box) == 1
    assert benchmark.overlap(box, (5, 0, 15, 4)) == pytest.approx(1 / 3)
    assert benchmark.overlap(box, (0, 4, 10, 8)) == 0
    assert benchmark.overlap(box, (2, 1, 4, 3)) == pytest.approx(0.1)


def test_area_under_the_curve(benchmark):
    wrong = np.array([1, 1, 0, 0, 0], float)
    assert benchmark.roc_area(np.array([9, 8, 1, 2, 3.0]), wrong) == 1
    assert benchmark.roc_area(np.array([0, 1, 7, 8, 9.0]), wrong) == 0
    assert benchmark.roc_area(np.full(5, 3.0), wrong) == 0.5
    assert benchmark.roc_area(np.array([5, 1, 0, 2, 5.0]), wrong) == pytest.approx((2.5 + 1) / 6)
    assert np.isnan(benchmark.roc_area(np.ones(3), np.zeros(3)))


def test_an_interval_holds_its_value(benchmark):
    pages = [np.full((3, 1), value) for value in (0.2, 0.4, 0.9)]
    text = benchmark.interval(pages, lambda rows: float(rows.mean()))
    value, low, high = (float(part.strip("()")) for part in text.replace("to ", "").split())
    assert value == 0.5 and 0.2 <= low < value < high <= 0.9


def test_it_runs_and_the_demo_reads_where_it_looks(benchmark, demo_engine_dir, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["provenance", "--quick", "--engine", str(demo_engine_dir), "--modes", "fast"])
    benchmark.main()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| fast"))
    in_line, in_word = (float(cell.split()[0]) for cell in line.strip("|").split("|")[2:4])
    assert in_line >= 0.8 and in_word >= 0.7


def test_pages_that_there_are_no_seeds_for_are_refused(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["provenance.py", "--pages", "100000"])
    with pytest.raises(FastOCRError, match="--pages is 100000"):
        benchmark.main()
    monkeypatch.setattr(sys, "argv", ["provenance.py", "--pages", "0"])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert "0 is too small; it must be at least 1" in capsys.readouterr().err
