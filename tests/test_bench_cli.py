"""fastocr-bench as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastocr_trt.bench import runners
from fastocr_trt.cli import bench

QUICK = ["--threads", "1", "--visual-tokens", "48", "--text-tokens", "8", "--steps", "2", "--warmup", "0"]
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measure(demo_engine_dir, capsys):
    """Runs the command on the demo engine; (exit code, standard output, standard error)."""

    def run(*arguments: str, engine: bool = True) -> tuple[int, str, str]:
        which = ["--engine", str(demo_engine_dir)] if engine else []
        code = bench.main([*which, *QUICK, *arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def saved(measure, tmp_path) -> Path:
    path = tmp_path / "old.json"
    code, out, err = measure("--repeats", "2", "--tests", "decode", "--format", "json", "-o", str(path))
    assert (code, out, err) == (0, "", "")
    return path


def test_a_table_with_the_machine_above_it(measure):
    pytest.importorskip("onnx", reason="attention alone needs onnx")
    code, out, err = measure("--repeats", "2", "--keep", "0.1,0.5", "--batch", "1,2")
    assert (code, err) == (0, "")
    head, table = out.split("\n\n")
    assert "cores" in head and "onnxruntime 1." in head and "6 layers" in head and "2 rounds" in head
    assert "threads 1, visual tokens 48, text tokens 8" in head
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    assert heads[:3] == ["batch", "mode", "keep"]
    assert [row[:3] for row in rows] == [
        [b, m, k] for b in "12" for m, k in (("dense", ""), ("fast", "0.1"), ("fast", "0.5"))
    ]
    cells = dict(zip(heads, rows[1], strict=True))
    assert cells["step, dense/fast"].endswith("x") and cells["row bound of attention"].endswith("x")
    assert all(" to " in cells[name] for name in heads if name.endswith((", ms", "tokens/s")))
    assert all(row[heads.index("visual reads")] == "100%" for row in rows if row[1] == "dense")


def test_json_and_csv_hold_the_same(saved, measure):
    run = json.loads(saved.read_text())
    assert run["finished"] and run["repeats"] == 2 and run["environment"]["versions"]["onnxruntime"]
    dense, fast = run["results"]
    assert (dense["case"]["mode"], dense["case"]["keep"], fast["case"]["keep"]) == ("dense", None, 0.05)
    step = fast["measured"]["step_ms"]
    assert step["count"] == 2 and step["low"] <= step["median"] <= step["high"]
    assert fast["speedup"]["step_ms"] == pytest.approx(dense["measured"]["step_ms"]["median"] / step["median"])
    code, out, _ = measure("--repeats", "1", "--tests", "decode", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and [row["mode"] for row in rows] == ["dense", "fast"]
    assert float(rows[1]["row_bound"]) == pytest.approx(fast["row_bound"])
    assert rows[0]["machine_processor"] == run["environment"]["machine"]["processor"]
    assert float(rows[0]["step_ms_median"]) > 0 and rows[0]["attention_ms_median"] == ""


def test_an_earlier_run_is_set_beside(saved, measure):
    code, out, err = measure("--repeats", "1", "--tests", "decode", "--keep", "0.05,0.2", "--compare", str(saved))
    assert (code, err) == (0, "")
    table = out.split("new/old")[1]
    assert table.count("decode step, ms") == table.count("decode, tokens/s") == 2  # keep 0.2 was not measured before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run["environment"]["machine"].update(processor="Abacus"), "machine differs: it was Abacus"),
        (lambda run: run["environment"]["versions"].update(onnxruntime="0.1"), "versions differ: .*onnxruntime 0.1"),
        (lambda run: run["environment"]["model"].update(weights="int4"), "model differs: .*weights int4"),
        (lambda run: run["results"].pop() and run["results"].pop(), "none of these cases"),
        (lambda run: run.update(schema_version=9), "schema version is 9"),
        (lambda run: run.pop("steps"), "is not a run of fastocr-bench .*lacks .'steps'"),
        (lambda run: run["environment"].update(date="1970-01-01"), None),
        (lambda run: run["environment"].update(fastocr_version="0.0.1"), None),
    ],
)
def test_runs_that_do_not_compare_are_refused_before_measuring(saved, measure, monkeypatch, change, told):
    import re

    run = json.loads(saved.read_text())
    change(run)
    saved.write_text(json.dumps(run))
    if told is not None:
        monkeypatch.setattr(runners, "variants", lambda *args: pytest.fail("it was measured"))
    code, out, err = measure("--repeats", "1", "--tests", "decode", "--compare", str(saved))
    if told is None:
        assert code == 0 and "new/old" in out
    else:
        assert (code, out) == (2, "") and len(err.splitlines()) == 1 and re.search(told, err)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--layers", "2"], "--layers is for --shape"),
        (["--visual-tokens", "2000"], "the engine, which holds 1,280"),
        (["--batch", "1,9"], "a batch of 9"),
        (["--backend", "tensorrt", "--tests", "decode"], "has no engines of tensorrt"),
        (["--backend", "tensorrt", "--tests", "attention"], "no engines of tensorrt|nothing is left to measure"),
        (["--compare", "absent.json"], "cannot read absent.json"),
        (["--compare", "absent.json", "--format", "csv"], "write that with -o"),
        (["--provider", "cuda", "--tests", "decode"], "CUDAExecutionProvider"),
        (["-o", "."], "it is a directory"),
    ],
)
def test_a_mistake_is_one_sentence(measure, arguments, told, tmp_path, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    code, out, err = measure(*arguments)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1 and re.search(told, err), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--mode", "slow", "none of dense, fast"),
        ("--keep", "0.1,5", "'5' is not a share"),
        ("--batch", "0", "at least 1"),
    ],
)
def test_a_wrong_value_is_told(measure, option, value, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        measure(option, value)
    assert stopped.value.code == 2 and told in capsys.readouterr().err


def test_the_earlier_run_is_not_overwritten(saved, measure):
    before = saved.read_text()
    code, _, err = measure("--compare", str(saved), "-o", str(saved), "--format", "json")
    assert code == 2 and "would overwrite" in err and saved.read_text() == before


@pytest.mark.parametrize("to_file", [False, True])
def test_ctrl_c_gives_what_is_done(measure, monkeypatch, tmp_path, to_file):
    real = runners.variants

    def stopping(*args, **more):
        ways, turns = real(*args, **more), []

        def turn(way):
            turns.append(0)
            if len(turns) > 2 * len(ways):
                raise KeyboardInterrupt
            return way()

        return {name: (lambda way=way: turn(way)) for name, way in ways.items()}

    monkeypatch.setattr(runners, "variants", stopping)
    path = tmp_path / "run.md"
    code, out, err = measure("--repeats", "9", "--tests", "decode", *(["-o", str(path)] if to_file else []))
    assert code == 130 and "stopped by Ctrl-C" in err
    text = path.read_text() if to_file else out
    assert "of 2 rounds" in text and "Stopped before all 9 rounds" in text and "| fast |" in text


def test_a_stop_before_anything_is_measured_writes_nothing(measure, monkeypatch, tmp_path):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(runners, "variants", lambda *args, **more: {("decode", "x"): stopped})
    code, out, _ = measure("-o", str(tmp_path / "run.md"))
    assert (code, out) == (130, "") and list(tmp_path.iterdir()) == []


def test_a_shape_is_made_measured_and_removed(measure, monkeypatch, demo_engine_dir, tmp_path):
    pytest.importorskip("torch", reason="random weights need the extra `export`")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    asked = {}

    def export(checkpoint, output, **given):
        assert (Path(checkpoint) / "config.json").is_file()
        asked.update(given)
        shutil.copytree(demo_engine_dir, output)

    monkeypatch.setattr(bench.common, "import_exporter", lambda: export)
    shape = ["--shape", "tiny", "--layers", "3", "--weights", "int4", "--focal-layers", "2", "--batch", "2"]
    code, out, _ = measure(*shape, "--repeats", "1", "--tests", "decode", engine=False)
    assert code == 0 and "- tiny: " in out
    assert (asked["weights"], asked["dtype"], asked["max_batch"]) == ("int4", "fp32", 2)
    assert (asked["max_visual_tokens"], asked["max_text_tokens"]) == (48, 12)
    assert asked["policy"].focal_layers == (2,) and asked["policy"].dense_layers == (0,)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "gpt"], "known are qwen2.5-vl-3b"),
        (["--shape", "tiny", "--layers", "9"], "tiny has 4"),
        (["--shape", "tiny", "--focal-layers", "7"], "layers [7]"),
        (["--shape", "tiny", "--backend", "tensorrt"], "--shape makes no engines of tensorrt"),
        (["--shape", "tiny", "--dtype", "bf16"], "CPU kernels do not compute"),
    ],
)
def test_a_shape_that_cannot_be_made_is_refused_at_once(measure, arguments, told, monkeypatch):
    monkeypatch.setattr(bench.common, "import_exporter", lambda: pytest.fail("it was exported"))
    code, out, err = measure(*arguments, engine=False)
    assert (code, out) == (2, "") and told in err and len(err.splitlines()) == 1


def test_an_engine_is_measured_without_torch(demo_engine_dir):
    script = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from fastocr_trt.cli.bench import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "--engine", str(demo_engine_dir), *QUICK, "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "decode step, ms" in done.stdout and "first token, ms" in done.stdout


def test_peers_write_the_same_tokens(demo_engine_dir):
    pytest.importorskip("torch", reason="transformers is one of the peers")
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--quick", "--engine", str(demo_engine_dir)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    last = [line.strip("| ").rsplit("| ", 1)[-1].strip() for line in done.stdout.splitlines() if line.startswith("| ")]
    names = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")]
    equal = dict(zip(names, last, strict=True))
    assert equal["fastocr-trt, dense"] == "1 of 1" and "fastocr-trt, fast" in equal
    try:
        import onnxruntime_genai  # noqa: F401
    except ImportError:
        assert "onnxruntime-genai is left out" in done.stderr
    else:
        assert equal["onnxruntime-genai"] == "1 of 1"
