"""Pages read in torch under a method: dense is transformers' generate, the policy is what the engine does."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastocr_trt.demo.pages import generate_page  # noqa: E402
from fastocr_trt.errors import FastOCRError  # noqa: E402
from fastocr_trt.export.fixation_method import Fixation, largest  # noqa: E402
from fastocr_trt.export.masked_reading import Dense, MaskedReader  # noqa: E402
from fastocr_trt.export.source import find_checkpoint  # noqa: E402
from fastocr_trt.export.transformers_reader import TransformersReader  # noqa: E402
from fastocr_trt.fixation import FixationPolicy  # noqa: E402
from fastocr_trt.runtime import Engine  # noqa: E402

PROMPT = "OCR:\n"
LIMIT = 40


@pytest.fixture(scope="module")
def pages():
    return [generate_page(seed, visual_tokens=size).image for seed, size in ((1_000, 64), (1_001, 128), (1_002, 64))]


@pytest.fixture(scope="module")
def reader():
    return TransformersReader(find_checkpoint("demo"), threads=1)


@pytest.fixture(scope="module")
def generated(reader, pages):
    return [reader.read(page, PROMPT, LIMIT).token_ids for page in pages]


@pytest.fixture(scope="module")
def masked(reader, generated):
    return MaskedReader(reader)


def test_dense_is_what_generate_writes_alone_and_together(masked, pages, generated):
    together = masked.read(pages, PROMPT, Dense(), LIMIT)
    assert [r.token_ids for r in together] == generated
    assert [r.mean_visual_reads for r in together] == pytest.approx([1, 1, 1])
    assert [r.visual_tokens for r in together] == [64, 128, 64]
    assert masked.read(pages[1:2], PROMPT, Dense(), LIMIT)[0].token_ids == generated[1]


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.3, 1.0])
def test_the_policy_is_what_the_engine_does(masked, pages, demo_engine_dir, keep):
    engine = Engine.load(demo_engine_dir, threads=1, backend="onnxruntime")
    policy = engine.manifest.policy
    want = engine.parse_batch(pages, keep=keep, max_new_tokens=LIMIT, loop_guard=False)
    got = masked.read(pages, PROMPT, Fixation(policy, keep), LIMIT)
    assert [r.token_ids for r in got] == [r.token_ids for r in want]
    assert [r.mean_visual_reads for r in got] == pytest.approx([r.mean_visual_reads for r in want])


def test_refreshes_are_counted_by_each_page_of_a_batch(masked, pages, demo_engine_dir):
    engine = Engine.load(demo_engine_dir, threads=1, backend="onnxruntime")
    policy = replace(engine.manifest.policy, refresh_every=3)
    engine.manifest = replace(engine.manifest, policy=policy)
    want = masked.read(pages, PROMPT, Fixation(policy), 120)
    assert len({len(r.token_ids) for r in want}) > 1  # they end at different steps
    got = engine.parse_batch(pages, max_new_tokens=120, loop_guard=False)
    assert [r.token_ids for r in got] == [r.token_ids for r in want]
    assert [r.mean_visual_reads for r in got] == pytest.approx([r.mean_visual_reads for r in want])


def test_a_shared_fixation_and_refreshes_change_what_is_seen(masked, pages):
    layers = {"focal_layers": (2,), "dense_layers": ()}
    masks = {}
    for name, policy in {
        "per head": FixationPolicy(**layers),
        "shared": FixationPolicy(**layers, per_kv_head=False),
        "refresh": FixationPolicy(**layers, refresh_every=2),
    }.items():
        method = Fixation(policy)
        seen = masks[name] = []
        masked.read(pages[:1], PROMPT, method, 4, watch=lambda layer, view, m=method, s=seen: s.append(m._fixation))
    assert all(bool((f[:, :1] == f).all()) for f in masks["shared"])
    assert not all(bool((f[:, :1] == f).all()) for f in masks["per head"])
    reads = [
        masked.read(pages[:1], PROMPT, Fixation(FixationPolicy(**layers, refresh_every=n)), 5)[0].mean_visual_reads
        for n in (0, 2, 1)
    ]
    assert reads[0] < reads[1] < reads[2] == pytest.approx(1)


def test_what_is_watched_is_the_softmax_of_dense_attention(masked, pages):
    masses, view_batch = [], []

    def watch(layer, view):
        masses.append((layer, view.weights()))
        view_batch.append(view.batch)

    masked.read(pages[:2], PROMPT, Dense(), 3, watch=watch)
    assert [layer for layer, _ in masses] == [*range(masked.num_layers)] * 2
    for _, weights in masses:
        np.testing.assert_allclose(weights.sum(-1).numpy(), 1, atol=1e-5)
        padding = ~view_batch[0].visual_valid()
        assert padding[0].sum() == 64 and (weights[0, :, :, view_batch[0].visual][..., padding[0]] == 0).all()


def test_ties_go_to_the_lower_row():
    mass = torch.tensor([[[0.1, 0.3, 0.3, 0.3]], [[0.0, 0.0, 0.0, 0.0]]])
    assert largest(mass, torch.tensor([2, 1])).tolist() == [
        [[False, True, True, False]],
        [[True, False, False, False]],
    ]


def test_pages_of_different_prompts_are_refused(masked, reader, pages, monkeypatch):
    right = reader.inputs
    monkeypatch.setattr(
        reader, "inputs", lambda image, prompt: right(image, prompt + ("x" if image is pages[1] else ""))
    )
    with pytest.raises(FastOCRError, match="one prompt"):
        masked.read(pages[:2], PROMPT, Dense(), 2)
