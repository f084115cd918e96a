"""What a terminal shows while pages are read, and that nothing else does."""

import io
from dataclasses import replace

import pytest
from cli_helpers import FakeEngine, blank, result
from rich.console import Console

from fastocr_trt.cli import _engines, parse
from fastocr_trt.cli._progress import PageProgress


def shown(streams: bool, terminal: bool = True, wanted: bool = True, name: str = "scan.pdf page 2") -> str:
    """All that is written for one page."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    with PageProgress(console, 3, wanted, streams) as progress:
        progress.page_begins(name)
        progress._bar.refresh()
        if progress._status:
            progress._status._live.refresh()
        progress.prompt(256, 1024)
        progress._bar.refresh()
        if progress._status:
            progress._status._live.refresh()
        progress.text_begins()
        progress.tokens(42)
        progress._bar.refresh()
        progress.advance(1)
        progress._bar.refresh()
    return file.getvalue()


@pytest.mark.parametrize("streams", [True, False])
def test_a_name_is_shown_as_text_whatever_it_holds(streams):
    text = shown(streams, name="[/red] \x1b[31m\n\u202e é頁.png")
    assert r"[/red] \x1b[31m\n\u202e é頁.png: looking at the page" in text


def test_a_bar_tells_pages_prompt_and_tokens():
    text = shown(streams=False)
    assert "prompt 25% of 1,024 tokens" in text
    assert "42 tokens written" in text
    assert "1/3" in text


def test_before_text_streams_a_line_tells_the_prompt_and_then_makes_way():
    text = shown(streams=True)
    assert "prompt 25% of 1,024 tokens" in text
    assert "tokens written" not in text
    assert "0/3" not in text


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("terminal", "wanted"), [(False, True), (True, False)])
def test_nothing_where_nobody_looks(streams, terminal, wanted):
    assert shown(streams, terminal, wanted).strip() == ""


@pytest.mark.parametrize("quiet", [True, False])
def test_the_demo_reader_is_not_taken_for_an_ocr_model(monkeypatch, tmp_path, capsys, quiet):
    (tmp_path / "engines" / "demo").mkdir(parents=True)
    (tmp_path / "engines" / "demo" / "manifest.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parse, "load_engine", lambda *_: FakeEngine(lambda n: result()))
    page = str(blank(tmp_path / "a.png"))
    assert parse.main([page, *["--quiet"][: int(quiet)]]) == 0
    assert ("note: no --engine: the demo reader reads" in capsys.readouterr().err) is not quiet


def test_one_of_each_is_no_plural(monkeypatch, tmp_path, capsys):
    read = replace(result(finish_reason="length"), token_ids=[7], visual_tokens=1)
    monkeypatch.setattr(parse, "load_engine", lambda *_: FakeEngine(lambda n: read))
    page = blank(tmp_path / "a.png")
    assert parse.main([str(page), "--engine", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert f"{page}: cut off after 1 token; raise" in told
    assert "1 page in" in told and ": 1 token, " in told and ", 1 visual token, " in told


def test_a_named_engine_needs_no_note(tmp_path, capsys):
    assert _engines.find_engine(tmp_path) == tmp_path
    assert capsys.readouterr().err == ""


def test_help_tells_defaults_of_values_and_not_of_switches(capsys):
    with pytest.raises(SystemExit):
        parse.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "0 is greedy (default: 0.0)" in text
    assert "of sampling (default: 0)" in text
    assert "(default: True)" not in text
    assert "(default: False)" not in text
