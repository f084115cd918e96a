"""The benchmarks run, and what they compare computes the same thing. No timing decides anything here."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), "--quick", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def here(monkeypatch, capsys):
    """As `run`, but in this process, where torch has been imported already."""

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        module = importlib.import_module(name)
        module.run(module.main)
        return capsys.readouterr().out

    return call


def cells(output: str, first: str) -> list[str]:
    """The cells of the first row of a Markdown table that starts with `first`."""
    line = next(line for line in output.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_attention_stack_runs():
    pytest.importorskip("torch")
    output = run("attention_stack.py")
    assert "onnxruntime" in output
    assert cells(output, "256 / 64")[3].endswith("x")


def test_retention_runs_and_shows_the_method_holding(here, tmp_path):
    pytest.importorskip("torch")
    output = here("retention", "--quick", "--cache", str(tmp_path / "readings.sqlite"))
    assert cells(output, "dense")[6].startswith("100.0%")
    names = ("FastOCR | 5%", "FastOCR | 0%", "eviction after prefill (SnapKV)", "random rows")
    held, *others = (float(cells(output, name)[6].split("%")[0]) for name in names)
    assert held > 90 > 80 > max(others)
    reads = [float(cells(output, name)[2].rstrip("%")) for name in (names[0], *names[2:])]
    assert max(reads) - min(reads) < 1


def test_ablations_and_adaptive_run_and_share_readings(here, tmp_path):
    pytest.importorskip("torch")
    cache = ("--quick", "--cache", str(tmp_path / "readings.sqlite"))
    output = here("ablations", *cache)
    assert "batches of 8: 2 of 2" in output
    assert cells(output, "dense")[6].startswith("100.0%")
    output = here("adaptive", *cache)
    adaptive = cells(output, "covered mass 50%")
    assert float(adaptive[2].rstrip("%")) == pytest.approx(float(adaptive[3].rstrip("%")), abs=2)
    assert adaptive[-1] in ("wins", "loses", "no difference")


def test_a_reading_is_made_once_for_a_method_and_its_settings(tmp_path):
    pytest.importorskip("torch")
    from _methods_eviction import SnapKV, Window
    from _reading import Bench, pages_of

    from fastocr_trt.export.masked_reading import Reading

    class Reader:
        read_pages = 0

        def read(self, images, prompt, method, max_new_tokens):
            if self.read_pages >= 3:
                raise KeyboardInterrupt
            self.read_pages += len(images)
            return [
                Reading(f"{method.name} {method.keep} {image.size}", [1, 2], mean_visual_reads=0.5) for image in images
            ]

    pages = pages_of("mono", 3, 64)
    done = []

    def bench(reader):
        made = Bench("demo", "OCR:\n", 10, batch=2, threads=1, cache=tmp_path / "a" / "readings.sqlite")
        made.reader = reader
        return made

    first = bench(Reader()).read(SnapKV(0.5), pages, done.append)
    assert done == [0, 2, 1]
    used = Reader()
    assert bench(used).read(SnapKV(0.5), pages, done.append) == first and used.read_pages == 0
    for other in (SnapKV(0.25), Window(0.5)):
        assert [r.text for r in bench(Reader()).read(other, pages, done.append)] != [r.text for r in first]
    stopped = Reader()
    stopped.read_pages = 1
    with pytest.raises(KeyboardInterrupt):
        bench(stopped).read(Window(0.75), pages, done.append)
    rest = Reader()
    bench(rest).read(Window(0.75), pages, done.append)
    assert rest.read_pages == 1  # the first two were kept


def test_lines_are_counted_in_order_and_differences_by_page():
    from _scores import error_difference, exact_lines

    assert exact_lines(["a\nb\nx", "d"], ["a\nb\nc", "d"]) == 3 / 4
    assert exact_lines(["b\na"], ["a\nb"]) == 1 / 2
    truths = ["abcd", "efgh"]
    difference = error_difference(["abXX", "efgh"], ["abcd", "efgX"], truths)
    assert difference.value == 1 / 8 and difference.low == -0.25 and difference.high == 0.5


@pytest.mark.parametrize("name", ["retention", "adaptive", "ablations"])
def test_a_mistaken_option_is_one_sentence(name, here, tmp_path):
    pytest.importorskip("torch")
    policy = tmp_path / "policy.json"
    policy.write_text('{"focal_layers": [99]}')
    with pytest.raises(SystemExit) as stop:
        here(name, "--policy", str(policy), "--cache", str(tmp_path / "readings.sqlite"))
    assert str(stop.value).startswith("error: the policy names layers [99]")
    with pytest.raises(SystemExit, match="--pages is 100000; 80000 seeds are kept"):
        here(name, "--pages", "100000")
    with pytest.raises(SystemExit, match="--layouts mono=0: the number of pages must be a whole number"):
        here(name, "--layouts", "mono=0")
    with pytest.raises(SystemExit, match="no layout 'momo'"):
        here(name, "--layouts", "momo=3")
    (tmp_path / "text").write_text("no database, and more than a hundred bytes of it: " * 3)
    with pytest.raises(SystemExit, match="cannot be used"):
        here(name, "--cache", str(tmp_path / "text"))


SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
    ("value", "told"),
    [("0", "0 is too small; it must be at least 1"), ("9999", "9999 is too large; this machine has")],
)
def test_a_wrong_number_of_threads_is_one_sentence(name, value, told, here, capsys):
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as stop:
        here(name, "--threads", value)
    assert stop.value.code == 2 and f"error: argument --threads: {told}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["capacity", "peers", "provenance", "weights_memory"])
def test_an_engine_that_is_not_there_is_one_sentence(name, here, tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(SystemExit, match=r"^error: .*no-engine") as stop:
        here(name, "--engine", str(tmp_path / "no-engine"))
    assert len(str(stop.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "foo"], "there is no shape 'foo'"),
        (["--shape", "tiny", "--layers", "9"], "tiny has 4"),
        (["--shape", "tiny", "--visual-tokens", "1000"], "1000, no square number"),
        (["--visual-tokens", "1000"], r"generated pages have .64, 128"),
        (["--layers", "2"], "--layers is for --shape"),
        (["--pages", "80001"], "80,000 seeds are kept"),
    ],
)
def test_what_peers_cannot_read_is_one_sentence(arguments, told, here):
    pytest.importorskip("torch")
    with pytest.raises(SystemExit, match=f"^error: .*{told}"):
        here("peers", *arguments)


def test_every_form_of_the_attention_stack_computes_the_same():
    pytest.importorskip("torch")
    from _stack import Banks, Shape, Step, grouped_query_attention_model, kinds, stack_model

    from fastocr_trt.fixation import FixationPolicy

    shape = Shape(layers=3, heads=4, kv_heads=2, head_dim=16)
    banks = Banks(shape, visual_rows=40, text_rows=9, visual_capacity=40, text_capacity=20)
    dense = ["dense"] * 3
    sparse = kinds(shape, FixationPolicy((1,), dense_layers=()))
    steps = {
        "sliced": Step(stack_model(shape, dense), banks.inputs(40), 1),
        "whole": Step(stack_model(shape, dense, visual_slice=False), banks.inputs(40, whole_visual=True), 1),
        "every row fixated": Step(stack_model(shape, sparse), banks.inputs(40), 1),
        "joined": Step(grouped_query_attention_model(shape), banks.joined(), 1),
        "a tenth fixated": Step(stack_model(shape, sparse), banks.inputs(4), 1),
    }
    results = {}
    for name, step in steps.items():
        step()
        results[name] = step.outputs()["query.3"].ravel()
    for name in ("whole", "every row fixated", "joined"):
        np.testing.assert_allclose(results[name], results["sliced"], atol=1e-5)
    assert np.abs(results["a tenth fixated"] - results["sliced"]).max() > 1e-2


def test_peers_are_times_as_fast_in_tokens_per_second_and_to_the_first_token():
    pytest.importorskip("torch", reason="transformers is one of the peers")
    from peers import YARDSTICK, _row

    from fastocr_trt.bench.measure import Turns

    turns, names = Turns({}), (YARDSTICK, "twice as fast")
    turns.samples[YARDSTICK, 0] = {"tokens_per_s": [10.0, 5.0, 20.0], "first_ms": [80.0, 160.0, 40.0]}
    turns.samples[names[1], 0] = {"tokens_per_s": [20.0, 10.0, 40.0], "first_ms": [40.0, 80.0, 20.0]}
    _, _, decode, _, first, equal = _row(names[1], turns, {(name, 0): [1] for name in names}, 1)
    assert decode == first == "2.00x (2.00 to 2.00)" and equal == "1 of 1"


def test_results_replace_their_own_section_only(tmp_path):
    from _common import save

    page = tmp_path / "results.md"
    page.write_text("# Results\nabove\n<!-- begin a -->\nold\n<!-- end a -->\nbelow\n")
    save(page, "a", "new")
    save(page, "b", "other")
    assert page.read_text() == (
        "# Results\nabove\n<!-- begin a -->\nnew\n<!-- end a -->\nbelow\n\n<!-- begin b -->\nother\n<!-- end b -->\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["results.md"]


def test_without_torch_a_benchmark_says_what_to_install():
    script = (
        "import importlib.util as found, sys\n"
        "there = found.find_spec\n"
        "found.find_spec = lambda name, *rest: None if name in ('torch', 'onnx') else there(name, *rest)\n"
        "import _common\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=BENCHMARKS, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: benchmarks need torch, onnx: pip install") and "Traceback" not in ran.stderr
