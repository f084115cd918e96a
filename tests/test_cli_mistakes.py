"""What fastocr-parse can tell without an engine is told before one is looked for, exported or loaded."""

from __future__ import annotations

import pytest
from cli_helpers import blank, tiff

from fastocr_trt.cli import parse
from fastocr_trt.errors import EngineError


@pytest.fixture
def never(monkeypatch):
    def find_engine(*_):
        raise AssertionError("looked for an engine")

    monkeypatch.setattr(parse, "find_engine", find_engine)


def run(*argv) -> int:
    return parse.main([str(each) for each in argv])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--top-p", 0], "top_p is 0.0"),
        (["--pages", "3-1"], "--pages is '3-1'"),
        (["--pages", "2-"], "has 1 page, and --pages asks for page 2"),
        (["--dpi", 0], "dpi is 0"),
        (["--backend", "tensorrt", "--provider", "cpu"], "--provider cpu is ONNX Runtime's"),
        (["--backend", "tensorrt-rtx", "--trace", "traces"], "leave --backend tensorrt-rtx out"),
        (["--provider", "cuda", "--trace", "traces"], "leave --provider cuda out"),
        (["absent.png"], "absent.png does not exist"),
        (["-o", "page.png"], "cannot write page.png: it is a page to read"),
        (["-o", "page.png/texts/"], "page.png is a file, not a folder"),
        (["--trace", "page.png/traces"], "page.png is a file, not a folder"),
    ],
)
def test_mistakes_in_options_and_paths(never, tmp_path, monkeypatch, capsys, argv, told):
    blank(tmp_path / "page.png")
    monkeypatch.chdir(tmp_path)
    assert run("page.png", *argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and told in shown.err and shown.out == ""


def test_a_provider_that_is_not_here(never, tmp_path, monkeypatch, capsys):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert run(blank(tmp_path / "page.png"), "--provider", "cuda") == 2
    assert "install onnxruntime-gpu" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_inputs_of_which_none_is_a_page(never, tmp_path, capsys, form):
    """Each is told, as it is where others can be read, and nothing is left behind."""
    (tmp_path / "notes.md").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    inputs = [tmp_path / "notes.md", tmp_path / "empty.png", tmp_path / "folder"]
    assert run(*inputs, "--format", form, "-o", tmp_path / "out") == 2
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in shown[:3]] == [["error:", str(path)] for path in inputs]
    assert shown[3].startswith("0 pages, 3 failed in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.png", "folder", "notes.md"]
    assert run(*inputs, "--format", form) == 2
    assert capsys.readouterr().out == ""


def test_one_good_page_is_worth_an_engine(tmp_path, monkeypatch, capsys):
    looked = []
    monkeypatch.setattr(parse, "find_engine", lambda *_: looked.append(1) or tmp_path)
    out = tmp_path / "out.txt"
    out.write_text("old")
    assert run(tiff(tmp_path / "a.tif", 2), "--pages", "2-9", "-o", out) == 2  # the folder is no engine
    assert looked == [1] and "manifest.json" in capsys.readouterr().err
    assert out.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["a.tif", "out.txt"]


def test_an_unusable_engine(monkeypatch, tmp_path, capsys):
    def load(*_):
        raise EngineError("no engine there")

    monkeypatch.setattr(parse, "load_engine", load)
    assert run(blank(tmp_path / "a.png"), "--engine", tmp_path) == 2
    assert capsys.readouterr().err == "error: no engine there\n"


def test_stopped_while_the_engine_is_made(tmp_path, monkeypatch, capsys):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(parse, "find_engine", stop)
    assert run(blank(tmp_path / "a.png"), "-o", tmp_path / "out.txt") == 130
    assert capsys.readouterr().err == "error: stopped by Ctrl-C\n"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
