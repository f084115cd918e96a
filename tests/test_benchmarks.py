"""The benchmarks run, and what they compare computes the same thing. No timing decides anything here."""

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


def cells(output: str, first: str) -> list[str]:
    """The cells of the first row of a Markdown table that starts with `first`."""
    line = next(line for line in output.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_attention_stack_runs():
    pytest.importorskip("torch")
    output = run("attention_stack.py")
    assert "onnxruntime" in output
    assert cells(output, "256 / 64")[3].endswith("x")


def test_retention_runs_and_shows_the_method_holding(demo_engine_dir):
    output = run("retention.py", "--engine", str(demo_engine_dir))
    assert cells(output, "dense")[3].startswith("100.0%")
    held, control = cells(output, "FastOCR | 5%"), cells(output, "FastOCR | 0%")
    evicted = cells(output, "eviction at prefill | 5%")
    retention = [float(row[3].split("%")[0]) for row in (held, control, evicted)]
    assert retention[0] > 90 > 70 > max(retention[1:])


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


def test_votes_for_eviction_are_softmax_mass_of_the_prompt():
    """One query row by hand: two visual keys, its own text key; another row sees one text key less."""
    from _eviction import visual_votes

    visual_key = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    text_key = np.zeros((1, 2, 2))
    query = np.array([[[2.0, 0.0], [0.0, 3.0]]])
    first = np.exp([2.0, 0.0, 0.0])
    second = np.exp([0.0, 3.0, 0.0, 0.0])
    wanted = first[:2] / first.sum() + second[:2] / second.sum()
    np.testing.assert_allclose(visual_votes(query, visual_key, text_key, 1.0)[0], wanted)


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
