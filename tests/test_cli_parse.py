"""fastocr-parse with a stand-in for the engine: what is delivered, where, and what is said when things go wrong."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import threading

import pytest
from cli_helpers import FakeEngine, blank, result, tiff

from fastocr_trt.cli import parse
from fastocr_trt.errors import PageError


@pytest.fixture
def use(monkeypatch, tmp_path):
    """`use(outcome, max_batch)` puts a stand-in in the engine's place and gives it back."""

    def install(outcome, max_batch: int = 1) -> FakeEngine:
        engine = FakeEngine(outcome, max_batch)
        monkeypatch.setattr(parse, "find_engine", lambda *_: tmp_path)
        monkeypatch.setattr(parse, "load_engine", lambda *_: engine)
        return engine

    return install


def numbered(number: int):
    return result(f"text {number}")


def run(*argv) -> int:
    return parse.main([str(each) for each in argv])


def test_text_goes_to_stdout_and_the_rest_to_stderr(use, tmp_path, capsys):
    use(numbered)
    assert run(blank(tmp_path / "a.png")) == 0
    shown = capsys.readouterr()
    assert shown.out == "text 0\n"
    assert "1 page in" in shown.err and "9 tokens" in shown.err and "64 visual tokens" in shown.err
    assert "read 50.0% of them" in shown.err and "finished by 1 stop" in shown.err
    assert "\x1b" not in shown.err


def test_quiet_says_nothing_where_all_is_well(use, tmp_path, capsys):
    use(numbered)
    assert run(blank(tmp_path / "a.png"), "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_a_form_feed_stands_between_pages(use, tmp_path, capsys):
    use(numbered)
    assert run(tiff(tmp_path / "a.tif", 3)) == 0
    assert capsys.readouterr().out == "text 0\n\ftext 1\n\ftext 2\n"


def test_options_reach_the_engine(use, tmp_path):
    engine = use(numbered)
    options = (
        "--mode dense --keep 0.1 --max-new-tokens 7 --temperature 0.5 --top-p 0.9 --seed 3 --no-resize --prompt Read"
    )
    assert run(blank(tmp_path / "a.png"), *options.split()) == 0
    assert engine.calls == [
        {
            "prompt": "Read",
            "mode": "dense",
            "keep": 0.1,
            "max_new_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 3,
            "resize_to_fit": False,
        }
    ]


def test_pages_are_chosen(use, tmp_path, capsys):
    engine = use(numbered)
    assert run(tiff(tmp_path / "a.tif", 5), "--pages", "2-3,5", "--format", "json") == 0
    assert [page["page"] for page in json.loads(capsys.readouterr().out)["pages"]] == [2, 3, 5]
    assert engine.pages == 3


def test_json_is_what_the_documentation_says(use, tmp_path, capsys):
    use(numbered)
    page = blank(tmp_path / "a.png")
    assert run(page, "--format", "json") == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["schema", "fastocr_version", "engine", "options", "pages", "summary"]
    assert data["schema"] == "fastocr-parse/1"
    assert data["options"] == {
        "mode": "fast",
        "keep": 0.05,
        "prompt": "OCR:\n",
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": 0,
    }
    assert data["pages"] == [
        {
            "source": str(page),
            "page": 1,
            "text": "text 0",
            "finish_reason": "stop",
            "error": None,
            "resized_to_fit": False,
            "visual_tokens": 64,
            "mean_visual_reads": 0.5,
            "tokens": 9,
            "mean_probability": None,
            "timings": {
                "preprocess": 0.1,
                "vision": 0.2,
                "prefill": 0.3,
                "first_token": 0.6,
                "decode": 2.0,
                "total": 2.6,
                "decode_steps": 8,
                "decode_tokens_per_second": 4.0,
            },
        }
    ]
    assert data["summary"] == {
        "complete": True,
        "pages": 1,
        "failed": 0,
        "tokens": 9,
        "tokens_per_second": 4.0,
        "visual_tokens": 64,
        "mean_visual_reads": 0.5,
        "finish_reasons": {"stop": 1},
        "unsure": 0,
    }


def test_a_batch_counts_its_decode_time_once(use, tmp_path, capsys):
    engine = use(numbered, max_batch=2)
    assert run(tiff(tmp_path / "a.tif", 3), "--batch", "2", "--format", "json") == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert engine.batches == [2]
    # Two pages of 8 steps in 2 s together, one page of 8 steps in 2 s alone.
    assert summary["tokens_per_second"] == 6.0


def test_a_batch_beyond_the_engine_is_refused(use, tmp_path, capsys):
    use(numbered, max_batch=2)
    assert run(blank(tmp_path / "a.png"), "--batch", "3") == 2
    assert capsys.readouterr().err == "error: --batch 3 exceeds this engine's 2; export it with --max-batch\n"


@pytest.mark.parametrize("reason", ["length", "loop"])
def test_an_unfinished_page_is_never_hidden(use, tmp_path, capsys, reason):
    use(lambda _: result(finish_reason=reason))
    page = blank(tmp_path / "a.png")
    assert run(page, "--quiet") == 0
    warning = capsys.readouterr().err
    assert warning.startswith(f"warning: {page}: ")
    assert ("cut off after 9 tokens" if reason == "length" else "repeated itself") in warning


def test_a_page_that_was_guessed_at_is_said(use, tmp_path, capsys):
    use(lambda number: result(sure=(0.28, 0.8, None)[number]))
    page = tiff(tmp_path / "a.tif", 3)
    assert run(page, "--format", "json") == 0
    shown = capsys.readouterr()
    warnings = [line for line in shown.err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1 and f"{page}, page 1: the reader is unsure of what it wrote" in warnings[0]
    assert "(mean probability 0.28)" in warnings[0]
    assert shown.err.splitlines()[-1].endswith("finished by 3 stop; the reader is unsure of 1 page")
    output = json.loads(shown.out)
    assert [each["mean_probability"] for each in output["pages"]] == [0.28, 0.8, None]
    assert output["summary"]["unsure"] == 1


def test_a_page_made_smaller_is_said(use, tmp_path, capsys):
    use(lambda _: result(resized=True))
    assert run(blank(tmp_path / "a.png"), "--quiet") == 0
    warning = capsys.readouterr().err
    assert "made smaller to fit the engine's 768 visual tokens" in warning and "--no-resize" in warning


class TestFailures:
    def test_a_bad_page_among_others(self, use, tmp_path, capsys):
        use(numbered)
        good, bad = blank(tmp_path / "a.png"), tmp_path / "b.png"
        bad.write_bytes(b"not an image")
        assert run(good, bad, blank(tmp_path / "c.png"), "--format", "json") == 1
        shown = capsys.readouterr()
        pages = json.loads(shown.out)["pages"]
        assert [page["text"] for page in pages] == ["text 0", None, "text 1"]
        assert pages[1]["source"] == str(bad) and pages[1]["error"] and pages[1]["timings"] is None
        assert shown.err.startswith(f"error: {bad}") and "2 pages, 1 failed" in shown.err

    def test_a_page_the_engine_refuses_in_a_batch(self, use, tmp_path, capsys):
        engine = use(lambda n: PageError("too many visual tokens") if n == 1 else numbered(n), max_batch=3)
        assert run(tiff(tmp_path / "a.tif", 3), "--batch", "3") == 1
        shown = capsys.readouterr()
        assert shown.out == "text 0\n\ftext 2\n"
        assert f"error: {tmp_path / 'a.tif'}, page 2: too many visual tokens" in shown.err
        assert engine.batches == [3]

    def test_nothing_read_is_a_mistake_and_leaves_nothing(self, use, tmp_path, capsys):
        use(numbered)
        bad = tmp_path / "b.png"
        bad.write_bytes(b"")
        out = tmp_path / "out" / "text.json"
        assert run(bad, "--format", "json", "-o", out) == 2
        assert list(out.parent.iterdir()) == []
        assert run(bad, "--format", "json") == 2
        shown = capsys.readouterr()
        assert shown.out == "" and "0 pages, 1 failed" in shown.err

    def test_ctrl_c_keeps_the_finished_pages(self, use, tmp_path, capsys):
        use(lambda n: KeyboardInterrupt() if n == 2 else numbered(n))
        out = tmp_path / "out.json"
        assert run(tiff(tmp_path / "a.tif", 4), "--format", "json", "-o", out) == 130
        data = json.loads(out.read_text())
        assert [page["text"] for page in data["pages"]] == ["text 0", "text 1"]
        assert data["summary"]["complete"] is False
        assert capsys.readouterr().err.endswith("error: stopped by Ctrl-C\n")

    def test_sigterm_keeps_them_too(self, use, tmp_path, capsys):
        def outcome(number):
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return numbered(number)

        use(outcome)
        out = tmp_path / "out.json"
        assert run(tiff(tmp_path / "a.tif", 4), "--format", "json", "-o", out) == 143
        data = json.loads(out.read_text())
        assert len(data["pages"]) == data["summary"]["pages"] == 2 and data["summary"]["complete"] is False
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tif", "out.json"]
        assert capsys.readouterr().err.endswith("error: stopped by SIGTERM\n")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_ctrl_c_before_the_first_page_leaves_the_old_file(self, use, tmp_path):
        use(lambda n: KeyboardInterrupt())
        out = tmp_path / "out.txt"
        out.write_text("old")
        assert run(blank(tmp_path / "a.png"), "-o", out) == 130
        assert out.read_text() == "old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "out.txt"]

    def test_a_defect_keeps_the_finished_pages_too(self, use, tmp_path, capsys):
        use(lambda n: RuntimeError("boom") if n == 1 else numbered(n))
        out = tmp_path / "out.txt"
        assert run(tiff(tmp_path / "a.tif", 3), "-o", out) == 2
        assert out.read_text() == "text 0\n"
        assert "this is a defect" in capsys.readouterr().err


class TestFiles:
    def test_a_file_appears_when_it_is_whole(self, use, tmp_path):
        out = tmp_path / "texts" / "out.txt"
        seen = []

        def outcome(number):
            seen.append(out.exists())
            return numbered(number)

        use(outcome)
        assert run(tiff(tmp_path / "a.tif", 2), "-o", out) == 0
        assert seen == [False, False]
        assert out.read_text() == "text 0\n\ftext 1\n"
        assert [p.name for p in out.parent.iterdir()] == ["out.txt"]

    def test_a_folder_gets_a_file_per_input(self, use, tmp_path):
        use(numbered)
        inputs = [blank(tmp_path / "x" / "a.png"), tiff(tmp_path / "b.tif", 2), blank(tmp_path / "y" / "a.png")]
        assert run(*inputs, "-o", f"{tmp_path}/texts/") == 0
        files = {p.name: p.read_text() for p in (tmp_path / "texts").iterdir()}
        assert files == {"a.txt": "text 0\n", "b.txt": "text 1\n\ftext 2\n", "a-2.txt": "text 3\n"}

    def test_a_folder_of_json_has_its_own_totals(self, use, tmp_path):
        use(numbered)
        folder = tmp_path / "texts"
        folder.mkdir()
        assert run(tiff(tmp_path / "b.tif", 2), blank(tmp_path / "a.png"), "--format", "json", "-o", folder) == 0
        assert json.loads((folder / "b.json").read_text())["summary"]["pages"] == 2
        assert json.loads((folder / "a.json").read_text())["summary"]["pages"] == 1

    def test_a_failed_input_gets_no_file(self, use, tmp_path):
        use(numbered)
        bad = tmp_path / "b.png"
        bad.write_bytes(b"")
        assert run(bad, blank(tmp_path / "a.png"), "-o", f"{tmp_path}/texts/") == 1
        assert [p.name for p in (tmp_path / "texts").iterdir()] == ["a.txt"]

    def test_a_link_stays_and_its_file_is_written(self, use, tmp_path):
        use(numbered)
        (tmp_path / "real").mkdir()
        link = tmp_path / "link.txt"
        link.symlink_to(tmp_path / "real" / "text.txt")
        for _ in range(2):  # the file is not there, then it is
            assert run(blank(tmp_path / "a.png"), "-o", link) == 0
            assert link.is_symlink()
        assert [(p.name, p.read_text()) for p in (tmp_path / "real").iterdir()] == [("text.txt", "text 1\n")]

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_a_fifo_is_written_through(self, use, tmp_path, form):
        use(numbered)
        fifo, read = tmp_path / "fifo", []
        os.mkfifo(fifo)
        reader = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
        reader.start()
        assert run(tiff(tmp_path / "a.tif", 2), "-o", fifo, "--format", form) == 0
        reader.join(10)
        assert fifo.is_fifo() and sorted(p.name for p in tmp_path.iterdir()) == ["a.tif", "fifo"]
        if form == "text":
            assert read == ["text 0\n\ftext 1\n"]
        else:
            assert json.loads(read[0])["summary"]["pages"] == 2

    @pytest.mark.parametrize("name", ["a.png", "link.png", "hard.png"])
    def test_a_page_is_never_overwritten(self, use, tmp_path, capsys, name):
        engine = use(numbered)
        page = blank(tmp_path / "a.png")
        (tmp_path / "link.png").symlink_to(page)
        os.link(page, tmp_path / "hard.png")
        before = page.read_bytes()
        for inputs in (page, tmp_path):  # named, and in a folder
            assert run(inputs, "-o", tmp_path / name) == 2
            told = f"error: cannot write {tmp_path / name}: it is a page to read; choose another place with -o\n"
            assert capsys.readouterr().err == told
        assert page.read_bytes() == before and engine.pages == 0

    def test_a_folder_overwrites_no_page_either(self, use, tmp_path, capsys):
        engine = use(numbered)
        page = blank(tmp_path / "a.png").rename(tmp_path / "a.txt")  # judged by its content
        assert run(page, "-o", tmp_path) == 2
        assert f"cannot write {page}: it is a page to read" in capsys.readouterr().err
        assert engine.pages == 0

    def test_names_that_are_not_utf_8(self, use, tmp_path, capsys):
        use(numbered)
        pages = [blank(tmp_path / "a.png"), blank(tmp_path / "\udcff.png"), tmp_path / "bad\udcff.png"]
        pages[2].write_bytes(b"not an image")
        assert run(*pages, "--format", "json", "-o", tmp_path / "out.json") == 1
        data = json.loads((tmp_path / "out.json").read_text())
        assert [page["source"] for page in data["pages"]] == [str(page) for page in pages]
        assert run(*pages, "--format", "json", "--quiet") == 1
        assert json.loads(capsys.readouterr().out)["pages"][1]["source"] == str(pages[1])

    def test_json_on_a_stream_of_ascii(self, use, tmp_path, monkeypatch):
        use(lambda _: result("\u00e9"))
        with (tmp_path / "out").open("w", encoding="ascii") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            assert run(blank(tmp_path / "\u00e9.png"), "--format", "json") == 0
        (page,) = json.loads((tmp_path / "out").read_text())["pages"]
        assert page["text"] == "\u00e9" and page["source"] == str(tmp_path / "\u00e9.png")

    def test_a_closed_standard_output_is_told_before_the_work(self, use, tmp_path, capsys, monkeypatch):
        engine = use(numbered)
        monkeypatch.setattr("sys.stdout", None)
        assert run(blank(tmp_path / "a.png")) == 2
        assert capsys.readouterr().err == "error: standard output is closed; name a file with -o\n"
        assert engine.pages == 0
        assert run(blank(tmp_path / "a.png"), "-o", tmp_path / "out.txt") == 0

    @pytest.mark.parametrize(
        ("number", "code", "told"),
        [(errno.EPIPE, 1, ""), (errno.ENOSPC, 2, "error: full; make room, or write elsewhere\n")],
    )
    def test_standard_output_that_fails_gets_no_summary(self, use, tmp_path, capsys, monkeypatch, number, code, told):
        use(numbered)

        def fail(*_):
            raise OSError(number, "full")

        monkeypatch.setattr("fastocr_trt.cli._output.JsonWriter.page", fail)
        assert run(blank(tmp_path / "a.png"), "--format", "json") == code
        assert capsys.readouterr() == ("", told)

    def test_a_name_too_long(self, use, tmp_path, capsys):
        use(numbered)
        assert run(blank(tmp_path / "a.png"), "-o", tmp_path / ("x" * 300)) == 2
        assert capsys.readouterr().err.endswith(": File name too long; choose a shorter name with -o\n")

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_an_output_that_cannot_be_written_is_told_before_the_work(self, use, tmp_path, capsys, slash):
        engine = use(numbered)
        (tmp_path / "file").write_text("in the way")
        assert run(blank(tmp_path / "a.png"), "-o", f"{tmp_path}/file/out{slash}") == 2
        shown = capsys.readouterr().err
        assert shown.startswith("error: cannot write") and shown.count("\n") == 1
        assert f"{tmp_path / 'file'} is a file, not a folder; choose another place with -o" in shown
        assert engine.pages == 0

    @pytest.mark.parametrize("form", ["text", "json"])
    def test_a_disk_that_fills_up_leaves_nothing_half_written(self, use, tmp_path, capsys, form):
        use(lambda n: result("text " * 40))
        out = tmp_path / "out.txt"
        out.write_text("old")
        page = tiff(tmp_path / "a.tif", 3)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))  # bytes: a file may not grow beyond
        try:
            assert run(page, "-o", out, "--format", form, "--quiet") == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert capsys.readouterr().err == f"error: cannot write {out}: File too large; choose another place with -o\n"
        assert out.read_text() == "old"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tif", "out.txt"]
