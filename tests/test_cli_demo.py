"""The commands on the demo engine and real pages, as a user runs them."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from fastocr_trt.cli import doctor, parity, parse
from fastocr_trt.demo.pages import generate_page
from fastocr_trt.manifest import MANIFEST_NAME, Manifest

EXAMPLES = Path(__file__).parents[1] / "examples"
PAGE = EXAMPLES / "page-3.png"


def text_of(number: int) -> str:
    return (EXAMPLES / f"page-{number}.txt").read_text(encoding="utf-8")


def run(main, *argv) -> int:
    return main([str(each) for each in argv])


@pytest.mark.parametrize(("number", "visual_tokens"), [(1, 768), (2, 384), (3, 128)])
def test_the_examples_are_what_their_script_draws(number, visual_tokens):
    page = generate_page(number, visual_tokens=visual_tokens)
    assert text_of(number) == page.text + "\n"
    stored = Image.open(EXAMPLES / f"page-{number}.png")
    assert stored.size == page.image.size and stored.mode == "RGB"


@pytest.mark.parametrize("mode", ["fast", "dense"])
def test_the_sample_page_is_read(demo_engine_dir, capsys, mode):
    assert run(parse.main, PAGE, "--engine", demo_engine_dir, "--mode", mode, "--threads", "2") == 0
    shown = capsys.readouterr()
    assert shown.out == text_of(3)
    policy = Manifest.read(demo_engine_dir).policy
    share = 1 if mode == "dense" else policy.mean_visual_reads(128, Manifest.read(demo_engine_dir).decoder.num_layers)
    assert shown.err.endswith(f"128 visual tokens, a step read {share:.1%} of them; finished by 1 stop\n")
    assert "unsure" not in shown.err


def test_a_page_that_it_cannot_read_is_not_passed_off_as_read(demo_engine_dir, tmp_path, capsys):
    page = Image.open(PAGE)
    page.resize((page.width * 2, page.height * 2)).save(tmp_path / "large.png")
    assert run(parse.main, tmp_path / "large.png", "--engine", demo_engine_dir, "--threads", "1") == 0
    shown = capsys.readouterr()
    assert shown.out.strip() != text_of(3).strip()
    assert "large.png: the reader is unsure of what it wrote (mean probability 0." in shown.err


class Terminal(io.StringIO):
    """Standard output that says it is a terminal, and remembers its writes."""

    def __init__(self):
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


def test_text_is_streamed_to_a_terminal(demo_engine_dir, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert run(parse.main, PAGE, PAGE, "--engine", demo_engine_dir, "--max-new-tokens", "12", "--quiet") == 0
    assert terminal.getvalue() == f"{text_of(3)[:12]}\n\n{text_of(3)[:12]}\n"
    assert len(terminal.writes) > 20


def test_parity_with_transformers(demo_engine_dir, capsys):
    pytest.importorskip("transformers")
    assert run(parity.main, demo_engine_dir, PAGE, "--json", "--threads", "2") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["within"] and report["failed"] == 0
    tokens = len(text_of(3).removesuffix("\n"))  # one for each character
    for pair in ("dense", "fast"):
        assert report[pair]["character_error_rate"] == 0
        assert report[pair]["equal_pages"] == 1
        assert report[pair]["pages"][str(PAGE)] == {
            "reference_tokens": tokens,
            "hypothesis_tokens": tokens,
            "agreed": tokens,
            "first_difference": None,
            "character_error_rate": 0.0,
        }


def test_parity_beyond_the_tolerance(demo_engine_dir, capsys):
    """Text alone (keep 0) cannot be read: the negative control."""
    assert run(parity.main, demo_engine_dir, PAGE, "--no-transformers", "--keep", "0") == 1
    shown = capsys.readouterr()
    assert "fast against dense" in shown.out and "first differs at token" in shown.out
    assert shown.err.endswith("error: beyond the tolerance: fast against dense\n")


def test_parity_wants_the_checkpoint_the_engine_came_from(demo_engine_dir, tmp_path, capsys):
    pytest.importorskip("transformers")
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    assert run(parity.main, demo_engine_dir, PAGE, "--model", other) == 2
    assert "is not what the engine was exported from" in capsys.readouterr().err


class TestBadEngines:
    """A damaged engine directory, in each of the ways that happen; parse, parity and doctor say the same."""

    @pytest.fixture
    def engine(self, demo_engine_dir, tmp_path) -> Path:
        return Path(shutil.copytree(demo_engine_dir, tmp_path / "engine"))

    def refused(self, engine, capsys) -> str:
        assert run(parse.main, PAGE, "--engine", engine) == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith("error: ") and shown.err.count("\n") == 1
        return shown.err

    def edit(self, engine: Path, **changes) -> None:
        path = engine / MANIFEST_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def test_no_such_directory(self, tmp_path, capsys):
        assert "no engine at" in self.refused(tmp_path / "absent", capsys)

    def test_a_file(self, capsys):
        assert "is a file" in self.refused(PAGE, capsys)

    def test_a_foreign_directory(self, tmp_path, capsys):
        assert "not an engine directory" in self.refused(tmp_path, capsys)

    def test_a_half_written_manifest(self, engine, capsys):
        path = engine / MANIFEST_NAME
        path.write_text(path.read_text()[:100])
        assert "not readable JSON" in self.refused(engine, capsys)

    def test_a_newer_schema(self, engine, capsys):
        self.edit(engine, schema_version=99)
        error = self.refused(engine, capsys)
        assert "schema version 99" in error and "newer fastocr-trt" in error

    def test_missing_weights(self, engine, capsys):
        (engine / "weights.bin").unlink()
        assert "lacks weights.bin" in self.refused(engine, capsys)

    def test_truncated_weights(self, engine, capsys):
        with (engine / "weights.bin").open("r+b") as file:
            file.truncate(1000)
        assert "1,000 bytes" in self.refused(engine, capsys)

    def test_changed_weights(self, engine, capsys):
        with (engine / "weights.bin").open("r+b") as file:
            file.write(b"changed")
        assert "hash" in self.refused(engine, capsys)
        assert run(doctor.main, "--engine", engine, "--verify") == 2
        assert "XX engine" in capsys.readouterr().out


class TestBadPages:
    @pytest.fixture
    def small(self, demo_engine_dir, tmp_path) -> Path:
        """The demo engine with room for half of the sample page's 128 visual tokens."""
        engine = Path(shutil.copytree(demo_engine_dir, tmp_path / "small"))
        manifest = json.loads((engine / MANIFEST_NAME).read_text())
        manifest["capacities"]["max_visual_tokens"] = 64
        (engine / MANIFEST_NAME).write_text(json.dumps(manifest))
        return engine

    def test_a_page_beyond_the_engine_is_made_smaller(self, small, capsys):
        assert run(parse.main, PAGE, "--engine", small, "--max-new-tokens", "2", "--format", "json") == 0
        shown = capsys.readouterr()
        (page,) = json.loads(shown.out)["pages"]
        assert page["resized_to_fit"] is True and 0 < page["visual_tokens"] <= 64
        assert "made smaller to fit the engine's 64 visual tokens" in shown.err

    def test_or_refused(self, small, capsys):
        assert run(parse.main, PAGE, "--engine", small, "--no-resize") == 2
        shown = capsys.readouterr()
        assert shown.out == "" and shown.err.startswith(f"error: {PAGE}")
        assert "128" in shown.err and "64" in shown.err

    def test_too_many_pixels(self, demo_engine_dir, capsys):
        assert run(parse.main, PAGE, "--engine", demo_engine_dir, "--max-pixels", "1000") == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {PAGE}") and "1,000" in error and "--max-pixels" in error

    @pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"%PDF-1.7\n", b"plain text"])
    def test_a_broken_file_beside_a_good_one(self, demo_engine_dir, tmp_path, capsys, content):
        bad = tmp_path / "bad.png"
        bad.write_bytes(content)
        assert run(parse.main, bad, PAGE, "--engine", demo_engine_dir, "--max-new-tokens", "12") == 1
        shown = capsys.readouterr()
        assert shown.out == text_of(3)[:12] + "\n"
        assert shown.err.startswith(f"error: {bad}") and "Traceback" not in shown.err


class TestDoctor:
    def test_report(self, demo_engine_dir, capsys):
        assert run(doctor.main, "--engine", demo_engine_dir) == 0
        shown = capsys.readouterr().out
        assert "ok onnxruntime cpu" in shown and f"ok engine {demo_engine_dir}" in shown and "sizes match" in shown
        focal = ", ".join(map(str, Manifest.read(demo_engine_dir).policy.focal_layers))
        assert f"focal layers {focal} (known for this model)" in shown

    def test_json(self, demo_engine_dir, capsys):
        assert run(doctor.main, "--engine", demo_engine_dir, "--verify", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert set(report) == {"system", "packages", "checks"}
        states = {check["name"]: check["status"] for check in report["checks"]}
        assert states["onnxruntime cpu"] == "works" and states[f"engine {demo_engine_dir}"] == "works"
        assert report["packages"]["onnxruntime"]

    def test_verify_needs_an_engine(self, capsys):
        assert run(doctor.main, "--verify") == 2
        assert capsys.readouterr().err == "error: --verify checks an engine; name it with --engine DIR\n"

    def test_an_absent_engine(self, tmp_path, capsys):
        assert run(doctor.main, "--engine", tmp_path / "absent") == 2
        assert "no engine at" in capsys.readouterr().out
