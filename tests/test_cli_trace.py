"""fastocr-parse --trace and fastocr-trace: what is written, and what is said where it cannot be."""

from __future__ import annotations

import io
import json
import os
import stat
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageSequence
from trace_helpers import CELL, at, image, trace_of

from fastocr_trt.cli import parse
from fastocr_trt.cli import trace as command
from fastocr_trt.cli._traces import TraceFolder
from fastocr_trt.demo.pages import generate_page
from fastocr_trt.runtime.trace import Trace
from fastocr_trt.tracing.browser import shown
from fastocr_trt.tracing.heat import heat_map
from fastocr_trt.tracing.legend import DOUBT_ITEM, HEAT_ITEM, WORD_ITEM, outline_box, with_legend

LEGEND = (HEAT_ITEM, WORD_ITEM, DOUBT_ITEM)
TEXT = "hello <b>world</b> \N{GRINNING FACE} end"


def made_up() -> Trace:
    gazes = [[at(0.25 * i, 3)] for i in range(len(TEXT))]
    return replace(trace_of(TEXT, gazes), source="scan.pdf", page=2)


@pytest.fixture
def traced(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    made_up().save(folder / "scan.p2.npz")
    return folder


def run(*argv) -> int:
    return command.main([str(each) for each in argv])


@pytest.fixture(scope="module")
def read(demo_engine_dir, tmp_path_factory):
    """Three pages read in batches of two with --trace; the folder, and the JSON output."""
    folder = tmp_path_factory.mktemp("read")
    for name, seed in (("a", 1_320), ("b", 1_321)):
        (folder / name).mkdir()
        generate_page(seed, visual_tokens=64).image.save(folder / name / "page.png")
    pages = [generate_page(seed, visual_tokens=64).image for seed in (1_322, 1_323)]
    pages[0].save(folder / "two.tif", save_all=True, append_images=pages[1:])
    inputs = [folder / "a" / "page.png", folder / "b" / "page.png", folder / "two.tif"]
    argv = [*inputs, "--engine", demo_engine_dir, "--trace", folder / "traces", "--format", "json"]
    argv += ["-o", folder / "out.json", "--batch", 3, "--threads", 1, "--quiet"]
    assert parse.main([str(each) for each in argv]) == 0
    return folder, json.loads((folder / "out.json").read_text(encoding="utf-8"))


def test_every_page_has_a_file_of_its_own(read):
    folder, output = read
    names = ["page.p1.npz", "page-2.p1.npz", "two.p1.npz", "two.p2.npz"]
    assert [page["trace"] for page in output["pages"]] == [str(folder / "traces" / name) for name in names]
    assert sorted(each.name for each in (folder / "traces").iterdir()) == sorted(names)
    for page in output["pages"]:
        trace = Trace.load(page["trace"])
        assert (trace.text, trace.source, trace.page) == (page["text"], page["source"], page["page"])


def test_words_have_boxes_on_their_page(read):
    _, output = read
    for page in output["pages"]:
        assert [word["text"] for word in page["words"]] == page["text"].split()
        for word in page["words"]:
            assert page["text"][word["start"] : word["end"]] == word["text"] and word["image"] == 1
            left, top, right, bottom = word["box"]
            assert 0 <= left < right <= 224 and 0 <= top < bottom <= 224
            assert 0 <= word["confidence"] <= 1 and 0 < word["probability"] <= 1
            assert word["doubtful"] is (word["confidence"] < 0.5)


def test_boxes_lie_on_ink(read):
    folder, output = read
    grey = np.asarray(Image.open(folder / "a" / "page.png").convert("L"))
    for word in output["pages"][0]["words"]:
        left, top, right, bottom = (round(edge) for edge in word["box"])
        assert grey[max(top - CELL // 2, 0) : bottom + CELL // 2, left:right].min() < 128


def test_without_trace_there_are_no_fields_of_it(demo_engine_dir, read, capsys):
    page = read[0] / "a" / "page.png"
    argv = [page, "--engine", demo_engine_dir, "--format", "json", "--threads", 1, "--quiet"]
    assert parse.main([str(each) for each in argv]) == 0
    plain = json.loads(capsys.readouterr().out)["pages"][0]
    assert not {"trace", "words"} & set(plain)
    assert plain["text"] == read[1]["pages"][0]["text"]


def test_a_trace_folder_that_cannot_be_written_is_told_before_the_work(demo_engine_dir, read, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    page = read[0] / "a" / "page.png"
    argv = [page, "--engine", demo_engine_dir, "--trace", tmp_path / "file" / "traces"]
    assert parse.main([str(each) for each in argv]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "is a file, not a folder; choose another place with --trace" in shown.err
    assert parse.main([*map(str, argv[:-1]), str(tmp_path / "file")]) == 2
    assert f"cannot write {tmp_path / 'file'}: {tmp_path / 'file'} is a file" in capsys.readouterr().err


def test_names_that_are_too_long_for_a_file_are_cut(tmp_path):
    folder = TraceFolder(tmp_path)
    names = [f"{'n' * 250}{end}.png" for end in "ab"]
    paths = [folder.save(made_up(), name, 1) for name in names]
    assert [path.name for path in paths] == ["n" * 200 + ".p1.npz", "n" * 200 + "-2.p1.npz"]
    assert [Trace.load(path).source for path in paths] == names


def test_png_is_the_page_with_heat_and_boxes(traced, tmp_path):
    assert run(traced, "-o", tmp_path / "out.png") == 0
    picture = np.asarray(Image.open(tmp_path / "out.png"))
    assert picture.shape[0] > 8 * CELL and picture.shape[1:] == (8 * CELL, 3)
    assert len(np.unique(picture[8 * CELL :].reshape(-1, 3), axis=0)) > 10  # the legend
    picture = picture[: 8 * CELL]
    row = picture[3 * CELL : 4 * CELL]
    assert (row[..., 0].astype(int) - row[..., 2] > 60).mean() > 0.5  # the row that was looked at is red
    assert (picture[6 * CELL :] == 255).all()  # what was not looked at is bare


@pytest.mark.parametrize("dark", [False, True])
def test_letters_keep_their_contrast_under_the_heat(dark):
    trace = made_up()
    page = Image.new("L", trace.images[0].resized, 20 if dark else 235)
    pen = ImageDraw.Draw(page)
    for x in range(2, page.width, 9):
        pen.rectangle((x, 3 * CELL + 8, x + 3, 3 * CELL + 20), fill=255 if dark else 0)
    letters = np.asarray(page)[3 * CELL + 10 : 3 * CELL + 18] == (255 if dark else 0)
    painted = np.asarray(heat_map(replace(trace, pictures=(page.convert("RGB"),))).convert("L"), int)
    painted = painted[3 * CELL + 10 : 3 * CELL + 18]
    assert abs(painted[letters].mean() - painted[~letters].mean()) > 80


def test_doubtful_words_are_dashed():
    picture = Image.new("RGB", (100, 60), "white")
    outline_box(ImageDraw.Draw(picture), (10, 10, 90, 50), (0, 0, 0), dashed=False)
    solid = (np.asarray(picture)[10, 10:90, 0] == 0).mean()
    picture = Image.new("RGB", (100, 60), "white")
    outline_box(ImageDraw.Draw(picture), (10, 10, 90, 50), (0, 0, 0), dashed=True)
    assert solid == 1 and 0.3 < (np.asarray(picture)[10, 10:90, 0] == 0).mean() < 0.8


def test_the_legend_fits_narrow_pages():
    narrow, wide = (with_legend(Image.new("RGB", (width, 50)), LEGEND) for width in (300, 900))
    assert (narrow.width, wide.width) == (300, 900) and narrow.height > wide.height > 50


@pytest.mark.parametrize(
    "share, text",
    [(0.996, "0.996"), (0.99999, "0.999"), (1.0, "1"), (0.85, "0.85"), (0.994, "0.99"), (0.0123, "0.012")],
)
def test_what_is_less_than_one_is_never_shown_as_one(share, text):
    assert shown(share) == text


def test_html_has_no_folders_of_the_users(tmp_path):
    replace(made_up(), source="/home/somebody/secret/scan.pdf").save(tmp_path / "a.npz")
    assert run(tmp_path / "a.npz", "-o", tmp_path / "out.html") == 0
    written = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "scan.pdf, page 2" in written and "secret" not in written


def test_gif_moves_along_the_line(traced, tmp_path):
    assert run(traced / "scan.p2.npz", "-o", tmp_path / "out.gif") == 0
    frames = [np.asarray(f.convert("RGB"), int) for f in ImageSequence.Iterator(Image.open(tmp_path / "out.gif"))]
    assert len(frames) > 10
    centres = []
    for frame in frames:
        heat = np.clip(frame[3 * CELL : 4 * CELL, :, 0] - frame[3 * CELL : 4 * CELL, :, 2], 0, None).sum(0)
        centres.append((heat * np.arange(heat.size)).sum() / heat.sum())
    assert centres[-1] - centres[0] > 4 * CELL
    assert all(later > earlier - CELL for earlier, later in pairwise(centres))


def test_html_needs_no_network_and_keeps_the_text_harmless(traced, tmp_path):
    assert run(traced, "-o", tmp_path / "out.html") == 0
    written = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in written and "<b>world" not in written
    data = json.loads(written.split('id="data">')[1].split("</script>")[0])
    assert data[0]["text"] == TEXT and data[0]["name"] == "scan.pdf, page 2"
    urls = [part for part in written.replace('"http://www.w3.org/2000/svg"', "").split() if "://" in part]
    assert urls == []


def test_html_takes_names_and_texts_that_look_like_its_places(tmp_path):
    text = r"{{title}}\d {{data}}"
    trace = replace(trace_of(text, [[at(0, 0)] for _ in text]), source='{{data}} "<script>.png')
    trace.save(tmp_path / "a.npz")
    assert run(tmp_path / "a.npz", "-o", tmp_path / "out.html") == 0
    written = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<title>{{data}} &quot;&lt;script&gt;.png</title>" in written
    data = json.loads(written.split('id="data">')[1].split("</script>")[0])
    assert (data[0]["text"], data[0]["name"]) == (text, trace.source)


def test_what_was_drawn_is_said(traced, tmp_path, capsys):
    replace(made_up(), page=3).save(traced / "scan.p3.npz")
    assert run(traced, "-o", tmp_path / "out.png") == 0
    shown = capsys.readouterr()
    assert shown.out == "" and f"out-2.png shows {traced / 'scan.p3.npz'}" in shown.err


def test_a_trace_that_cannot_be_drawn_is_named_and_the_others_are_drawn(traced, tmp_path, capsys):
    replace(trace_of("", []), source="empty.png", page=1).save(traced / "empty.p1.npz")
    (traced / "foreign.npz").write_bytes(b"text")
    assert run(traced, "-o", tmp_path / "out.gif") == 1
    shown = capsys.readouterr().err
    assert f"error: {traced / 'empty.p1.npz'}: the trace has no tokens" in shown and "foreign.npz is not" in shown
    assert [p.name for p in tmp_path.glob("*.gif")] == ["out-3.gif"]
    assert run(traced / "empty.p1.npz", "-o", tmp_path / "out.gif") == 2
    assert run(traced / "empty.p1.npz", "-o", tmp_path / "out.png") == 0


def shown_in(page) -> list[str]:
    written = page.read_text(encoding="utf-8")
    return [each["name"] for each in json.loads(written.split('id="data">')[1].split("</script>")[0])]


def test_html_shows_the_traces_that_can_be_read(traced, tmp_path, capsys):
    np.savez(traced / "policy.record.npz", kept=np.zeros(3))
    (traced / "broken.npz").write_bytes((traced / "scan.p2.npz").read_bytes()[:900])
    assert run(traced, "-o", tmp_path / "out.html") == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["error", "error", "note"]
    assert "broken.npz is not a trace" in said[0] and "policy.record.npz is not a trace" in said[1]
    assert said[2].endswith(f"out.html shows {traced / 'scan.p2.npz'}")
    assert shown_in(tmp_path / "out.html") == ["scan.pdf, page 2"]


@pytest.mark.parametrize("form", command.FORMS)
def test_where_nothing_can_be_drawn_nothing_is_written(tmp_path, capsys, form):
    traces = tmp_path / "traces"
    traces.mkdir()
    for name in "ab":
        (traces / f"{name}.npz").write_bytes(b"text")
    assert run(traces, "-o", tmp_path / f"out{form}") == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and said[2] == "error: none of 2 traces could be drawn, so nothing was written"
    assert list(tmp_path.iterdir()) == [traces]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs mkfifo")
@pytest.mark.parametrize(("form", "begins"), [(".html", b"<!DOCTYPE html>"), (".png", b"\x89PNG"), (".gif", b"GIF89a")])
def test_a_fifo_is_written_to_and_stays(traced, tmp_path, form, begins):
    fifo, got = tmp_path / f"out{form}", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()), daemon=True)
    reader.start()
    assert run(traced, "-o", fifo) == 0
    reader.join(timeout=10)
    assert got and got[0].lower().startswith(begins.lower()) and stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_is_written_to_and_stays(traced, tmp_path, capsys):
    (tmp_path / "null.png").symlink_to(os.devnull)
    assert run(traced, "-o", tmp_path / "null.png") == 0
    (tmp_path / "full.png").symlink_to("/dev/full")
    assert run(traced, "-o", tmp_path / "full.png") == 2
    assert f"cannot write {tmp_path / 'full.png'}: No space left" in capsys.readouterr().err
    assert all(stat.S_ISCHR((tmp_path / name).stat().st_mode) for name in ("null.png", "full.png"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs mkfifo")
def test_a_fifo_is_no_trace(traced, tmp_path, capsys):
    os.mkfifo(traced / "pipe.npz")
    assert run(traced, "-o", tmp_path / "out.html") == 1
    assert f"error: {traced / 'pipe.npz'} is not a trace" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["", "-o", "out.html"], ["traces", "", "-o", "out.html"], ["traces", "-o", ""]])
def test_an_empty_name_is_not_the_current_folder(traced, monkeypatch, capsys, arguments):
    monkeypatch.chdir(traced)
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2 and "the name is empty; give a file or a folder" in capsys.readouterr().err
    assert [each.name for each in traced.iterdir()] == ["scan.p2.npz"]


def test_a_name_that_is_not_utf8_is_escaped_in_its_trace(tmp_path):
    replace(made_up(), source="a\udcffb.png").save(tmp_path / "a.npz")
    assert Trace.load(tmp_path / "a.npz").source == "a\\udcffb.png"
    assert run(tmp_path / "a.npz", "-o", tmp_path / "out.html") == 0


def test_several_traces_make_numbered_pictures_or_one_html(traced, tmp_path):
    for page in (10, 9):
        trace = replace(made_up(), page=page)
        trace.save(traced / f"scan.p{page}.npz")
    assert run(traced, "-o", tmp_path / "out.png") == 0
    assert sorted(p.name for p in tmp_path.glob("*.png")) == ["out-1.png", "out-2.png", "out-3.png"]
    assert run(traced, "-o", tmp_path / "out.html") == 0
    written = (tmp_path / "out.html").read_text(encoding="utf-8")
    places = [written.rindex(f'page {page}"') for page in (2, 9, 10)]
    assert places == sorted(places)


def test_a_page_of_two_images_is_drawn_whole(tmp_path):
    images = (image(), image(16, 4, first_row=64))
    trace = trace_of("ab", [[at(1, 1)], [at(2, 1, 16, 64)]], images)
    trace.save(tmp_path / "a.npz")
    for form in ("png", "gif", "html"):
        assert run(tmp_path / "a.npz", "-o", tmp_path / f"out.{form}") == 0
    both = Image.new("RGB", (16 * CELL, 12 * CELL + 8))
    assert Image.open(tmp_path / "out.png").size == with_legend(both, LEGEND).size


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["traces", "-o", "out.pdf"], ".html, .png, .gif"),
        (["traces", "-o", "out"], ".html, .png, .gif"),
        (["nowhere.npz", "-o", "out.png"], "there is no trace at"),
        (["empty", "-o", "out.png"], "has no traces"),
        (["page.png", "-o", "out.png"], "is not a trace"),
        (["traces", "-o", "page.png/out.png"], "is a file, not a folder"),
        (["traces", "-o", "folder.png"], "is a directory"),
        (["wordless.npz", "-o", "out.gif"], "no tokens"),
        (["traces/scan.p2.npz", "-o", "trace.html"], "trace.html: it is a trace to draw"),
    ],
)
def test_mistakes_are_told_in_one_line(traced, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.png").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "page.png")
    trace_of("", []).save(tmp_path / "wordless.npz")
    (tmp_path / "trace.html").symlink_to(traced / "scan.p2.npz")
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith((".", "out"))]


def test_a_trace_without_text_is_drawn_all_the_same(tmp_path):
    trace_of("", []).save(tmp_path / "a.npz")
    assert run(tmp_path / "a.npz", "-o", tmp_path / "out.png") == 0
    assert run(tmp_path / "a.npz", "-o", tmp_path / "out.html") == 0
    assert Image.open(io.BytesIO((tmp_path / "out.png").read_bytes())).width == 224
