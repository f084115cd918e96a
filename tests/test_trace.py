"""Traces of the demo: the text stays the same, and the masses are those that the model's attention has."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch", reason="masses are checked against torch, of the extra `export`")

from fastocr_trt.demo.pages import generate_page  # noqa: E402
from fastocr_trt.errors import EngineError, FastOCRError  # noqa: E402
from fastocr_trt.runtime import Engine  # noqa: E402
from fastocr_trt.runtime.batch import BatchRun  # noqa: E402
from fastocr_trt.runtime.options import Reading  # noqa: E402
from fastocr_trt.runtime.trace import Trace  # noqa: E402
from fastocr_trt.runtime.trace_recorder import heaviest, token_spans  # noqa: E402

LIMIT = 24


@pytest.fixture(scope="module")
def engine(demo_engine_dir):
    return Engine.load(demo_engine_dir, threads=1, trace=True)


@pytest.fixture(scope="module")
def plain(demo_engine_dir):
    return Engine.load(demo_engine_dir, threads=1, backend="onnxruntime")


@pytest.fixture(scope="module")
def pages():
    return [generate_page(seed, visual_tokens=size).image for seed, size in ((1_300, 64), (1_301, 128), (1_302, 64))]


@pytest.fixture(scope="module")
def trace(engine, pages) -> Trace:
    return engine.parse(pages[0]).trace


@pytest.mark.parametrize("mode", ["fast", "dense"])
def test_tracing_changes_no_text(engine, plain, pages, mode):
    traced, untraced = (e.parse_batch(pages, mode=mode, max_new_tokens=LIMIT) for e in (engine, plain))
    assert [r.token_ids for r in traced] == [r.token_ids for r in untraced]
    assert [r.trace for r in untraced] == [None] * 3
    for result in traced:
        assert result.trace.text == result.text and result.trace.mode == mode
        assert result.trace.token_ids.tolist() == result.token_ids
        assert result.trace.rows.shape == (len(result.token_ids), 2, 2, 8)


def test_the_fixation_is_the_graphs_own(engine, pages):
    """Of every page of a ragged batch, at every step: the set that the last focal layer chose."""
    run = BatchRun(engine.manifest, engine.session, engine.tokenizer, pages, Reading(max_new_tokens=LIMIT))
    chosen = [[] for _ in pages]
    for _ in run.steps():
        fixation = engine.session.fixation().copy()
        for b, page in enumerate(run.pages):
            if len(page.token_ids) > len(chosen[b]):
                chosen[b].append(fixation[b])
    for result, expected in zip(run.results(), chosen, strict=True):
        assert len(expected) == len(result.token_ids) > 10
        for rows, row in zip(result.trace.rows[:, -1], expected, strict=True):
            assert [set(r.tolist()) for r in rows] == [set(r.tolist()) for r in row]


def test_masses_are_those_of_attention_in_torch(engine, pages):
    """Dense reading by transformers' own weights, queries and keys: an independent way to the same numbers."""
    from fastocr_trt.export.masked_reading import Dense, MaskedReader
    from fastocr_trt.export.source import find_checkpoint
    from fastocr_trt.export.transformers_reader import TransformersReader

    focal_layers = engine.manifest.policy.focal_layers
    seen: dict[int, list[np.ndarray]] = {layer: [] for layer in focal_layers}

    def watch(layer, view):
        if layer in seen:
            seen[layer].append(view.weights()[0, ..., view.batch.visual].mean(1).numpy())

    reader = MaskedReader(TransformersReader(find_checkpoint("demo"), threads=1))
    expected = reader.read(pages[:1], "OCR:\n", Dense(), LIMIT, watch)[0]
    trace = engine.parse(pages[0], mode="dense", max_new_tokens=LIMIT, keep=1.0).trace
    assert trace.token_ids.tolist() == expected.token_ids
    for f, layer in enumerate(focal_layers):
        # The first token comes of prefill, which `watch` does not see.
        for step, masses in enumerate(seen[layer], 1):
            whole = np.zeros_like(masses)
            np.put_along_axis(whole, trace.rows[step, f].astype(np.int64), trace.mass[step, f].astype(np.float32), 1)
            np.testing.assert_allclose(whole, masses, atol=2e-3)
            np.testing.assert_allclose(trace.page_mass[step, f], masses.sum(-1), atol=2e-3)


def test_a_stream_has_its_trace(engine, pages, trace):
    stream = engine.stream(pages[0])
    text = "".join(stream)
    assert stream.result.trace.text == text == trace.text
    assert np.array_equal(stream.result.trace.rows, trace.rows)


def test_several_images_of_one_page_share_the_visual_bank(engine, pages):
    found = engine.parse([pages[0], pages[1]], max_new_tokens=LIMIT).trace
    assert [(i.first_row, i.columns, i.rows) for i in found.images] == [(0, 8, 8), (64, 16, 8)]
    assert found.visual_tokens == 192 and found.rows.max() < 192
    for picture, page in zip(found.pictures, pages, strict=False):
        assert np.array_equal(np.asarray(picture), np.asarray(page))


def test_a_page_that_is_resized_keeps_both_sizes(engine):
    image = Image.fromarray(np.full((230, 301, 3), 255, np.uint8))
    traced = engine.parse(image, max_new_tokens=2).trace.images[0]
    assert traced.size == (301, 230)
    assert traced.resized == (traced.columns * traced.cell, traced.rows * traced.cell) == (308, 224)


def test_no_fixation_leaves_no_rows(engine, pages):
    found = engine.parse(pages[0], keep=0.0, max_new_tokens=3).trace
    assert found.rows.shape == (3, len(engine.manifest.policy.focal_layers), 2, 0) and found.page_mass.max() > 0


def test_it_is_read_back_as_it_was_written(engine, trace, tmp_path):
    path = tmp_path / "a.npz"
    replace(trace, source="dir/a.png", page=3).save(path)
    back = Trace.load(path)
    for name in ("token_ids", "spans", "log_probabilities", "rows", "mass", "page_mass"):
        assert np.array_equal(getattr(back, name), getattr(trace, name))
        assert getattr(back, name).dtype == getattr(trace, name).dtype
    assert (back.text, back.mode, back.images) == (trace.text, "fast", trace.images)
    assert back.layers == engine.manifest.policy.focal_layers
    assert (back.source, back.page, back.finish_reason) == ("dir/a.png", 3, "stop")
    difference = np.asarray(back.pictures[0], int) - np.asarray(trace.pictures[0], int)
    assert np.abs(difference).mean() < 4  # the picture is kept as JPEG
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


def _rewrite(path, **changes):
    with np.load(path) as stored:
        content = dict(stored)
    if {"facts", "image"} & set(changes):
        facts = {**json.loads(content["facts"].tobytes()), **changes.pop("facts", {})}
        facts["images"] = [{**each, **changes.get("image", {})} for each in facts["images"]]
        changes.pop("image", None)
        content["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(path, **{**content, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts": {"schema": "fastocr-trace/99"}}, "fastocr-trace/99"),
        ({"facts": {"images": []}}, "damaged"),
        ({"facts": {"unheard": 1}}, "damaged"),
        ({"rows": np.full((1, 2, 2, 8), 64, np.int32)}, "damaged"),
        ({"rows": np.zeros(3, np.int32)}, "damaged"),
        ({"spans": np.full((1, 2), 999, np.int32)}, "damaged"),
        ({"spans": np.array([[1, 0]], np.int32)}, "damaged"),
        ({"picture_0": np.zeros(9, np.uint8)}, "damaged"),
        ({"rows": np.zeros((1, 2, 2, 8))}, "damaged"),
        ({"mass": np.full((1, 2, 2, 8), np.nan, np.float16)}, "damaged"),
        ({"mass": np.full((1, 2, 2, 8), -0.5, np.float16)}, "mass has numbers outside 0 to 1"),
        ({"mass": np.full((1, 2, 2, 8), 2, np.float16)}, "mass has numbers outside 0 to 1"),
        ({"page_mass": np.full((1, 2, 2), -1, np.float16)}, "page_mass has numbers outside"),
        ({"log_probabilities": np.full(1, 5, np.float16)}, "log_probabilities has numbers outside -inf to 0"),
        ({"facts": {"source": "a\ud800b"}}, "half a character"),
        ({"facts": {"text": "\udfff" * 999}}, "half a character"),
        ({"facts": {"source": []}}, "damaged"),
        ({"facts": {"page": 0}}, "damaged"),
        ({"facts": {"page": 10**400}}, "damaged"),
        ({"facts": {"text": 5}}, "damaged"),
        ({"facts": {"layers": ["2", "5"]}}, "damaged"),
        ({"image": {"size": [0, 0]}}, "damaged"),
        ({"image": {"size": "xy"}}, "damaged"),
        ({"image": {"size": [10**400, 1]}}, "no size"),
        ({"image": {"cell": -28}}, "damaged"),
        ({"image": {"columns": 10**9}}, "damaged"),
        ({"image": {"first_row": 1}}, "damaged"),
        ({"image": {"first_row": 0.0}}, "damaged"),
        ({"image": {"resized": [28, 28], "columns": 1, "rows": 1}}, "damaged"),
    ],
)
def test_damage_is_told_in_one_sentence(trace, tmp_path, changes, said):
    path = tmp_path / "a.npz"
    one = {name: getattr(trace, name)[:1] for name in ("token_ids", "spans", "log_probabilities")}
    replace(trace, **one, rows=trace.rows[:1], mass=trace.mass[:1], page_mass=trace.page_mass[:1]).save(path)
    Trace.load(path)
    _rewrite(path, **changes)
    with pytest.raises(FastOCRError, match=said) as error:
        Trace.load(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut"])
def test_a_foreign_file_is_told_in_one_sentence(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(FastOCRError, match="is not a trace"):
        Trace.load(path)
    np.savez(path, other=np.zeros(3))
    with pytest.raises(FastOCRError, match="is not a trace"):
        Trace.load(path)
    with pytest.raises(FastOCRError, match="there is no trace"):
        Trace.load(tmp_path / "b.npz")


def test_any_damaged_byte_is_told_in_one_sentence(trace, tmp_path):
    path, chance = tmp_path / "a.npz", np.random.default_rng(4)
    trace.save(path)
    whole, told = path.read_bytes(), 0
    for place in chance.integers(0, len(whole), 60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            Trace.load(path)
        except FastOCRError as error:
            told += 1
            assert "\n" not in str(error)
    assert told > 30


def test_a_file_that_claims_too_much_is_not_unpacked(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, facts=np.frombuffer(b"{}", np.uint8))
    content = path.read_bytes()
    entry = content.rindex(b"PK\x01\x02")  # of the directory: the size that it claims is there, and nowhere else
    path.write_bytes(content[: entry + 24] + (2**31 + 1).to_bytes(4, "little") + content[entry + 28 :])
    with pytest.raises(FastOCRError, match="claims to hold 2,147,483,649 bytes"):
        Trace.load(path)


def test_the_same_trace_is_the_same_file(trace, tmp_path):
    trace.save(tmp_path / "a.npz")
    trace.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_what_cannot_be_traced_is_refused(demo_engine_dir):
    with pytest.raises(EngineError, match="gives no traces"):
        Engine.load(demo_engine_dir, backend="tensorrt", trace=True)


def test_heaviest_rows_come_first_and_ties_go_to_the_lower():
    masses = np.array([[[0.1, 0.3, 0.1, 0.2], [0.4, 0.0, 0.0, 0.5]]], np.float32)
    rows, mass = heaviest(masses, 5)
    assert rows.tolist() == [[[1, 3, 0, 2, -1], [3, 0, 1, 2, -1]]]
    assert mass[0, 0].tolist() == pytest.approx([0.3, 0.2, 0.1, 0.1, 0])
    shared, _ = heaviest(masses, 2, per_kv_head=False)
    assert shared.tolist() == [[[3, 0], [3, 0]]]


def test_spans_cover_the_text_token_by_token(engine):
    text = "two words\nand 3.50"
    ids = engine.tokenizer.encode(text, add_special_tokens=False).ids
    stop = engine.manifest.generation.stop_token_ids[0]
    spans = token_spans([ids[0], stop, *ids[1:]], engine.tokenizer)
    assert spans[1].tolist() == [1, 1]  # a special token writes nothing
    assert "".join(text[start:end] for start, end in spans) == text


def test_tokens_of_one_character_share_its_span():
    from byte_level_tokenizer import byte_level_tokenizer

    tokenizer = byte_level_tokenizer()
    ids = tokenizer.encode("a\N{SNOWMAN}b").ids
    spans = token_spans(ids, tokenizer)
    assert spans.tolist() == [[0, 1], [1, 2], [1, 2], [1, 2], [2, 3]]
