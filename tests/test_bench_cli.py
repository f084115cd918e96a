"""fastocr-bench as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
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
    head, prompts, table = out.split("\n\n")
    assert "cores" in head and "onnxruntime 1." in head and " layers" in head and "2 rounds" in head
    assert "threads 1, visual tokens 48, text tokens 8" in head
    heads, rows = cells_of(prompts)
    assert heads == ["batch", "vision, ms", "prefill, tokens/s", "first token, ms"]
    assert [row[0] for row in rows] == ["1", "2"] and all(" to " in cell for row in rows for cell in row[1:])
    heads, rows = cells_of(table)
    assert heads[:3] == ["batch", "mode", "keep"]
    assert [row[:3] for row in rows] == [
        [b, m, k] for b in "12" for m, k in (("dense", ""), ("fast", "0.1"), ("fast", "0.5"))
    ]
    cells = dict(zip(heads, rows[1], strict=True))
    assert re.fullmatch(r"[\d.]+x \([\d.]+ to [\d.]+\)", cells["step, dense/fast"])
    assert cells["row bound of attention"].endswith("x")
    assert all(" to " in cells[name] for name in heads if name.endswith((", ms", "tokens/s")))
    assert all(row[heads.index("visual reads")] == "100%" for row in rows if row[1] == "dense")


def cells_of(table: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a Markdown table."""
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    return heads, rows


def test_one_round_shows_no_spread(measure):
    code, out, err = measure("--repeats", "1", "--tests", "prompt,decode")
    assert (code, err) == (0, "") and " to " not in out.split("\n\n", 1)[1] and "One round (2 decode steps)" in out


def test_json_and_csv_hold_the_same(saved, measure):
    run = json.loads(saved.read_text())
    assert run["finished"] and run["repeats"] == 2 and run["environment"]["versions"]["onnxruntime"]
    dense, fast = run["results"]
    assert (dense["case"]["mode"], dense["case"]["keep"], fast["case"]["keep"]) == ("dense", None, 0.05)
    step = fast["measured"]["step_ms"]
    assert step["count"] == 2 and step["low"] <= step["median"] <= step["high"]
    speedup = fast["speedup"]["step_ms"]
    assert speedup["count"] == 2 and 0 < speedup["low"] <= speedup["median"] <= speedup["high"]
    assert run["yardstick"]["count"] == 2 and dense["speedup"] == {}
    code, out, _ = measure("--repeats", "1", "--tests", "decode", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and [row["mode"] for row in rows] == ["dense", "fast"]
    assert float(rows[1]["row_bound"]) == pytest.approx(fast["row_bound"])
    assert rows[0]["machine_processor"] == run["environment"]["machine"]["processor"]
    assert float(rows[0]["step_ms_median"]) > 0 and rows[0]["attention_ms_median"] == ""
    assert rows[0]["step_ms_speedup_low"] == "" and float(rows[1]["step_ms_speedup_low"]) > 0
    environment = run["environment"]
    assert json.loads(rows[0]["policy"]) == environment["policy"] and rows[0]["python"] == environment["python"]
    assert (rows[0]["repeats"], rows[0]["warmup"], rows[0]["provider"]) == ("1", "0", "cpu")
    lists = ("machine", "model")
    assert {f"{name}_{field}" for name in lists for field in environment[name]} <= rows[0].keys()
    assert float(rows[0]["yardstick_ms_median"]) > 0


def test_an_earlier_run_is_set_beside(saved, measure):
    code, out, err = measure("--repeats", "1", "--tests", "decode", "--keep", "0.2,0.5", "--compare", str(saved))
    assert code == 0 and re.fullmatch(r"warning: the earlier run has 2 rounds and this one 1: .* --repeats 7 .*\n", err)
    heads, rows = cells_of(out[out.rindex("\n\n") :])
    assert [row[heads.index("measured")] for row in rows] == ["decode step, ms", "decode, tokens/s"]  # dense alone
    assert heads[-1] == "change" and {row[-1] for row in rows} == {"too few rounds"}
    assert "The machine itself: " in out


def test_a_prompt_is_compared_once_for_all_modes(measure, tmp_path):
    path = tmp_path / "old.json"
    assert measure("--repeats", "1", "--tests", "prompt", "--format", "json", "-o", str(path))[0] == 0
    code, out, _ = measure("--repeats", "1", "--tests", "prompt", "--keep", "0.1,0.5", "--compare", str(path))
    heads, rows = cells_of(out[out.rindex("\n\n") :])
    assert code == 0 and heads == ["measured", "old", "new", "new/old", "change"]
    assert [row[0] for row in rows] == ["vision, ms", "prefill, tokens/s", "first token, ms"]


def test_keeps_of_the_same_fixation_are_measured_once_and_told(measure):
    code, out, err = measure("--repeats", "1", "--tests", "decode", "--keep", "0.02,0.05", "--mode", "fast")
    assert code == 0 and "keep 0.02" in out and len(cells_of(out.split("\n\n")[1])[1]) == 1
    assert err.startswith("note: --keep 0.02 and 0.05 are the same 8") and len(err.splitlines()) == 1


def test_more_threads_than_cores_are_warned_of(measure, monkeypatch):
    monkeypatch.setattr("fastocr_trt.cli.bench.usable_cores", lambda: 1)
    code, _, err = measure("--repeats", "1", "--tests", "decode", "--threads", "1,2")
    assert code == 0 and err.startswith("warning: --threads 2 on the 1 core that this process may use")
    assert len(err.splitlines()) == 1


def spread(run: dict) -> dict:
    """A measured one of a run's JSON."""
    return run["results"][0]["measured"]["step_ms"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda run: run["environment"]["machine"].update(processor="Abacus"), "machine differs: it was Abacus"),
        (lambda run: run["environment"]["versions"].update(onnxruntime="0.1"), "versions differ: .*onnxruntime 0.1"),
        (lambda run: run["environment"]["model"].update(weights="int4"), "model differs: .*weights int4"),
        (lambda run: run["results"].pop() and run["results"].pop(), "none of these cases"),
        (lambda run: [result.update(measured={}) for result in run["results"]], "none of these cases"),
        (lambda run: run.update(steps=5), "decode steps differ: it was 5, and is 2"),
        (lambda run: run.update(provider="cuda"), "provider differs: it was cuda"),
        (lambda run: run.update(schema_version=9), "schema version is 9"),
        (lambda run: run.update(schema_version="1"), "schema_version is '1', not a whole number"),
        (lambda run: spread(run).update(median=0.0, low=0.0), "results.0..measured.step_ms has the quartiles 0, 0,"),
        (lambda run: spread(run).update(median=-1), "quartiles .*, -1, .* 1e-09 to 1e.12"),
        (lambda run: spread(run).update(low=spread(run)["high"] + 1), "which must not fall"),
        (lambda run: spread(run).update(high=1e308), "quartiles .*1e.308"),
        (lambda run: spread(run).update(high=10**400), "not a number"),
        (lambda run: spread(run).update(median=float("nan")), "not a number"),
        (lambda run: spread(run).update(count=0), "is of 0 rounds, and the run has 2"),
        (lambda run: spread(run).update(count=70), "is of 70 rounds, and the run has 2"),
        (lambda run: run["yardstick"].update(low=-1), "yardstick has the quartiles -1"),
        (lambda run: run["results"][1]["speedup"]["step_ms"].update(low=-1), "speedup.step_ms has the quartiles -1"),
        (lambda run: run["results"].append(run["results"][0]), "results.2. is of a case that is there before: dense"),
        (lambda run: run["results"][0]["measured"].update(joules=spread(run)), "has 'joules', which is none of vision"),
        (lambda run: run["environment"].update(date="1970\n\x1b[31m"), r"date is '1970\\n\\x1b\[31m'"),
        (lambda run: run.pop("steps"), "is not a run of fastocr-bench .*lacks .'steps'"),
        (lambda run: run["environment"].update(date="1970-01-01"), None),
        (lambda run: spread(run).update(median=2.0, high=2.0, low=2.0000000000000004), None),
        (lambda run: run["environment"].update(fastocr_version="0.0.1"), None),
    ],
)
def test_runs_that_do_not_compare_are_refused_before_measuring(saved, measure, monkeypatch, change, told):
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
        (["-o", "."], "it is a directory; name a file"),
    ],
)
def test_a_mistake_is_one_sentence(measure, arguments, told, tmp_path, monkeypatch):
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
        ("--batch", "1" + 400 * "0", "a number of 401 digits is too large"),
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
        (["--shape", "tiny", "--visual-tokens", "10000000"], "this run takes about "),
        (["--shape", "tiny", "--text-tokens", "100000000000"], "this run takes about "),
        (["--shape", "tiny", "--batch", str(2**63 - 1)], "this run takes about "),
        (["--shape", "tiny", "--steps", "100000000000"], "this run takes about "),
    ],
)
def test_a_shape_that_cannot_be_made_is_refused_at_once(measure, arguments, told, monkeypatch):
    monkeypatch.setattr("fastocr_trt.bench.memory.memory", lambda field: 8 * 2**30)
    monkeypatch.setattr(bench.common, "import_exporter", lambda: pytest.fail("it was exported"))
    code, out, err = measure(*arguments, engine=False)
    assert (code, out) == (2, "") and told in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("which", "cores", "told"),
    [
        (["--shape", "tiny"], None, "model differs: it was name demo"),
        (["--shape", "tiny"], 99, "machine differs: .* 99 cores"),
        ([], 99, "machine differs: .* 99 cores"),
    ],
)
def test_nothing_is_exported_for_a_run_that_does_not_compare(saved, measure, monkeypatch, tmp_path, which, cores, told):
    run = json.loads(saved.read_text())
    machine = run["environment"]["machine"]
    machine.update(cores=cores or machine["cores"])
    saved.write_text(json.dumps(run))
    monkeypatch.setattr(bench.common, "import_exporter", lambda: pytest.fail("it was exported"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where there is no demo engine
    monkeypatch.chdir(tmp_path)
    code, out, err = measure(*which, "--tests", "decode", "--compare", str(saved), engine=False)
    assert (code, out) == (2, "") and re.search(told, err) and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("load", "place"),
    [
        ("_common.import_exporter()", None),
        ("_common.import_exporter()", "kept"),
        ("calibrate.import_calibrator()", None),
        ("parity._transformers(ENGINE, Namespace(no_transformers=False, model=None, threads=1))", None),
    ],
)
def test_torch_leaves_no_folder_of_its_compiler(tmp_path, load, place):
    """Unless the user names one."""
    pytest.importorskip("torch", reason="exporting needs the extra `export`")
    script = (
        "from argparse import Namespace\n"
        "from fastocr_trt.cli import _common, calibrate, parity\n"
        "ENGINE = Namespace(manifest=Namespace(model={'source': 'demo', 'files': {}}))\n"
        f"{load}\n"
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        "print(cache_dir())\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment["TMPDIR"] = str(tmp_path)
    if place is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / place)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and Path(done.stdout.strip()).parent == tmp_path, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [place] * (place is not None)


def test_the_plan_of_a_shape_is_what_is_made(measure, monkeypatch, demo_engine_dir, tmp_path):
    """A run of --shape compares with another run of it: what is checked beforehand is what is written."""
    monkeypatch.setattr(bench, "_made_engine", lambda *given: demo_engine_dir)
    path = tmp_path / "old.json"
    shape = ["--shape", "tiny", "--layers", "3", "--tests", "decode", "--repeats", "1"]
    assert measure(*shape, "--format", "json", "-o", str(path), engine=False)[0] == 0
    model = json.loads(path.read_text())["environment"]["model"]
    assert (model["name"], model["num_layers"], model["hidden_size"], model["dtype"]) == ("tiny", 3, 256, "fp32")
    assert measure(*shape, "--compare", str(path), engine=False)[0] == 0
    code, _, err = measure(*shape[:2], *shape[4:], "--compare", str(path), engine=False)
    assert code == 2 and "num_layers 3" in err and "num_layers 4" in err


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
