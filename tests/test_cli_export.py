"""fastocr-export: what reaches the exporter, what is shown, and what bad checkpoints get."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastocr_trt.backends import BackendRecord
from fastocr_trt.cli import _common, _engines, export, parse
from fastocr_trt.errors import ExportError
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import MANIFEST_NAME, Manifest


@pytest.fixture
def exporter(monkeypatch):
    """A stand-in for export_engine that remembers its calls and reports two stages."""
    calls = []

    def export_engine(model, output, *, progress, **options):
        calls.append((model, output, options))
        progress("tracing the decoder", None)
        progress("writing weights", 0.5)
        progress("writing weights", 1.0)
        output.mkdir(parents=True)
        (output / MANIFEST_NAME).write_text("{}")
        return SimpleNamespace(
            decoder=SimpleNamespace(num_layers=6),
            capacities=SimpleNamespace(max_visual_tokens=768, max_text_tokens=1024, max_batch=2),
            files={"weights": SimpleNamespace(file="weights.bin", size=9_400_000)},
            model={"family": "qwen2_5_vl"},
            dtype="fp16",
            weights="int4",
            policy=FixationPolicy(focal_layers=(2, 5), keep=0.05),
        )

    monkeypatch.setattr(_common, "import_exporter", lambda: export_engine)
    return calls


def test_only_what_was_given_is_passed_on(exporter, tmp_path):
    assert export.main(["demo", "-o", str(tmp_path / "demo")]) == 0
    assert exporter == [("demo", tmp_path / "demo", {"dtype": "fp32", "weights": None, "policy": None, "force": False})]


def test_demo_is_the_reader_of_the_package_whatever_a_folder_is_called(exporter, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo", MANIFEST_NAME).write_text("{}")
    assert export.main(["demo", "-o", "other"]) == 0
    assert exporter[0][0] == "demo"
    assert export.main(["./demo", "-o", "third"]) == 2
    assert "is an engine directory" in capsys.readouterr().err


def test_every_option_reaches_the_exporter(exporter, tmp_path):
    options = "--dtype bf16 --weights int8 --max-visual-tokens 100 --max-text-tokens 200 --max-batch 3 --keep 0.1"
    argv = ["hub/name", "-o", str(tmp_path / "x"), *options.split(), "--focal-layers", "2,5", "--force"]
    assert export.main([*argv, "--prompt", "Read this."]) == 0
    assert exporter[0][2] == {
        "dtype": "bf16",
        "weights": "int8",
        "policy": None,
        "force": True,
        "max_visual_tokens": 100,
        "max_text_tokens": 200,
        "max_batch": 3,
        "keep": 0.1,
        "focal_layers": (2, 5),
        "default_prompt": "Read this.",
    }


@pytest.mark.parametrize(
    ("model", "directory"),
    [("demo", "engines/demo"), ("owner/Some-Model", "engines/Some-Model"), (".", "engines/here")],
)
def test_the_engine_is_named_after_the_model(exporter, tmp_path, monkeypatch, model, directory):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert export.main([model]) == 0
    assert exporter[0][1] == Path(directory)


def test_stages_with_times_and_a_summary(exporter, tmp_path, capsys):
    assert export.main(["demo", "-o", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr()
    stages = [line.split("  ") for line in shown.err.splitlines() if line.endswith(" s")]
    assert [line[1] for line in stages] == ["tracing the decoder", "writing weights"]
    assert "\x1b" not in shown.err + shown.out
    assert f"wrote {tmp_path / 'demo'} in " in shown.out and "weights.bin 9.4 MB" in shown.out
    assert "qwen2_5_vl, 6 layers, fp16, int4 weights" in shown.out
    assert "dense layers 0; focal layers 2, 5; the others read 5% of the visual tokens" in shown.out
    assert "768 visual tokens, 1,024 text tokens, batch of 2" in shown.out
    assert shown.out.splitlines()[-1] == f"next: fastocr-parse PAGE --engine {tmp_path / 'demo'}"


def test_engines_are_summed_up_before_the_next_step(exporter, tmp_path, capsys, monkeypatch):
    record = BackendRecord("1.7", ("8.9",), "1", {})
    prepared = SimpleNamespace(note=None, library=SimpleNamespace(name="tensorrt-rtx"))
    builder = SimpleNamespace(
        check_timing_cache=lambda _: None, prepare=lambda *_: prepared, build_engines=lambda *_, **__: record
    )
    monkeypatch.setattr(export, "import_builder", lambda: builder)
    assert export.main(["demo", "-o", str(tmp_path / "demo"), "--backend", "tensorrt-rtx"]) == 0
    *_, engines, following = capsys.readouterr().out.splitlines()
    assert engines.startswith("  tensorrt-rtx 1.7 for 8.9, decoder with the plugin")
    assert following.startswith("next: fastocr-parse")


def test_a_policy_file(exporter, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"focal_layers": [3], "dense_layers": [], "keep": 0.2}))
    assert export.main(["demo", "-o", str(tmp_path / "demo"), "--policy", str(file)]) == 0
    assert exporter[0][2]["policy"] == FixationPolicy(focal_layers=(3,), dense_layers=(), keep=0.2)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "there is no policy file"),
        ("{", "is not readable JSON"),
        ("[1]", "a policy must be a JSON object"),
        ('{"keep": 0.1}', "lacks focal_layers"),
        ('{"focal_layers": [2], "keep": 7}', "keep is 7; it is a share"),
        ('{"focal_layers": [2], "layers": 3}', "unknown fields ['layers']"),
    ],
)
def test_a_bad_policy_file(exporter, tmp_path, capsys, content, told):
    file = tmp_path / "policy.json"
    if content is not None:
        file.write_text(content)
    assert export.main(["demo", "--policy", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and told in error and error.count("\n") == 1
    assert exporter == []


def test_policy_and_keep_contradict(exporter, tmp_path, capsys):
    file = tmp_path / "policy.json"
    file.write_text('{"focal_layers": [2]}')
    assert export.main(["demo", "--policy", str(file), "--keep", "0.1"]) == 2
    assert "leave out --keep and --focal-layers" in capsys.readouterr().err


def test_the_demo_engine_is_made_once_in_the_cache(exporter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = _engines.find_engine(None)
    assert first.parent == tmp_path / "cache" / "fastocr-trt"
    assert _engines.find_engine(None) == first
    assert len(exporter) == 1
    local = tmp_path / "engines" / "demo"
    local.mkdir(parents=True)
    (local / MANIFEST_NAME).write_text("{}")
    assert _engines.find_engine(None) == Path("engines/demo")
    assert _engines.find_engine(tmp_path / "named") == tmp_path / "named"


@pytest.mark.parametrize("home", ["absent", "file"])
def test_a_home_that_cannot_keep_the_demo_is_not_made(exporter, tmp_path, monkeypatch, capsys, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    (tmp_path / "file").write_text("")
    page = Path(__file__).parents[1] / "examples" / "page-3.png"
    assert parse.main([str(page)]) == 2
    shown = capsys.readouterr().err
    assert str(tmp_path / home) in shown and "XDG_CACHE_HOME" in shown and shown.count("\n") == 1
    assert exporter == [] and [path.name for path in tmp_path.iterdir()] == ["file"]


class TestWithoutTorch:
    """The commands in an environment without the extra, seen from outside."""

    def run(self, command: str, *argv: str, **variables: str) -> subprocess.CompletedProcess:
        hide = "import sys\nfor name in ('torch', 'transformers', 'onnx'): sys.modules[name] = None\n"
        script = f"{hide}from fastocr_trt.cli.{command} import main\nsys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", script, *argv], capture_output=True, text=True, check=False, **variables
        )

    def test_export_names_the_extra(self, tmp_path):
        done = self.run("export", "demo", "-o", str(tmp_path / "demo"))
        assert done.returncode == 2 and not (tmp_path / "demo").exists()
        assert done.stderr.endswith("install the extra: pip install 'fastocr-trt[export]'\n")
        assert "Traceback" not in done.stderr

    def test_engines_of_an_engine_directory_need_onnx_alone(self, demo_engine_dir):
        done = self.run("export", str(demo_engine_dir), "--backend", "tensorrt-rtx")
        assert done.returncode == 2
        assert done.stderr == (
            "error: building engines needs onnx, which is not installed: pip install onnx (torch is not needed)\n"
        )

    def test_parse_names_it_where_the_demo_is_not_there(self, tmp_path):
        page = Path(__file__).parents[1] / "examples" / "page-3.png"
        environment = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
        done = self.run("parse", str(page), cwd=tmp_path, env=environment)
        assert done.returncode == 2 and done.stdout == ""
        assert "pip install 'fastocr-trt[export]'" in done.stderr and "Traceback" not in done.stderr

    def test_parse_reads_without_torch(self, demo_engine_dir):
        page = Path(__file__).parents[1] / "examples" / "page-3.png"
        done = self.run("parse", str(page), "--engine", str(demo_engine_dir), "--max-new-tokens", "20", "--quiet")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "yoaK statement telli\n"
        assert "cut off after 20 tokens" in done.stderr


class TestBadCheckpoints:
    """With the real exporter, which refuses all of these before it traces anything."""

    @pytest.fixture(autouse=True)
    def _needs_torch(self):
        pytest.importorskip("torch")

    def refuse(self, model, output, capsys, *options) -> str:
        assert export.main([str(model), "-o", str(output), *options]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ") and "defect" not in error
        return error

    def test_no_folder(self, tmp_path, capsys):
        assert "there is no folder" in self.refuse(tmp_path / "absent", tmp_path / "out", capsys)
        assert list(tmp_path.iterdir()) == []

    def test_an_empty_folder(self, tmp_path, capsys):
        (tmp_path / "model").mkdir()
        assert "config.json" in self.refuse(tmp_path / "model", tmp_path / "out", capsys)
        assert not (tmp_path / "out").exists()

    def test_an_unsupported_family(self, tmp_path, capsys):
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
        assert "bert" in self.refuse(tmp_path / "model", tmp_path / "out", capsys)

    def test_no_weights(self, tmp_path, capsys):
        demo = Path(_engines.__file__).parents[1] / "demo"
        (tmp_path / "model").mkdir()
        for file in demo.iterdir():
            if file.suffix in (".json", ".jinja"):
                (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
        assert "has no weights" in self.refuse(tmp_path / "model", tmp_path / "out", capsys)
        assert not (tmp_path / "out").exists()

    def test_an_engine_that_is_there(self, tmp_path, capsys, demo_engine_dir):
        before = sorted(demo_engine_dir.iterdir())
        assert "--force" in self.refuse("demo", demo_engine_dir, capsys)
        assert sorted(demo_engine_dir.iterdir()) == before

    def test_an_output_that_cannot_be_written(self, tmp_path, capsys):
        (tmp_path / "file").write_text("in the way")
        self.refuse("demo", tmp_path / "file" / "out", capsys)

    def test_layers_the_model_has_not(self, tmp_path, capsys):
        error = self.refuse("demo", tmp_path / "out", capsys, "--focal-layers", "2,9")
        assert "[9]" in error and "0 to 5" in error
        assert not (tmp_path / "out").exists()

    def test_a_hub_name_without_a_hub(self, tmp_path):
        script = "import sys\nfrom fastocr_trt.cli.export import main\nsys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", script, "owner/absent", "-o", str(tmp_path / "out")],
            capture_output=True,
            text=True,
            check=False,
            env={"HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)},
        )
        assert done.returncode == 2
        assert "owner/absent" in done.stderr.splitlines()[-1] and "defect" not in done.stderr


def test_an_engine_error_ends_an_export_without_a_summary(monkeypatch, tmp_path, capsys):
    def fail(*_, progress, **__):
        progress("checking", None)
        raise ExportError("the checkpoint has no weights")

    monkeypatch.setattr(_common, "import_exporter", lambda: fail)
    assert export.main(["demo", "-o", str(tmp_path / "demo")]) == 2
    shown = capsys.readouterr()
    assert shown.err.endswith("error: the checkpoint has no weights\n") and shown.out == ""


def test_the_exported_demo_has_the_known_policy(demo_engine_dir):
    from fastocr_trt.export.engine_directory import DEMO_POLICY

    manifest = Manifest.read(demo_engine_dir)
    assert manifest.policy == DEMO_POLICY
    assert manifest.model["source"] == "demo"
