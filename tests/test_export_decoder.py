"""The exported decoder graphs against transformers and against the traced module run by the oracle."""

# ruff: noqa: E402  (imports after the check that the extra is there)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="exporting needs the extra `export`")

import onnx
import tiny_checkpoint
from decoder_runner import DecoderRunner, open_session

from fastocr_trt.export import decoder as export_decoder
from fastocr_trt.export import graph as export_graph
from fastocr_trt.export import weights as export_weights
from fastocr_trt.export.checkpoint import Checkpoint
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.export.families import qwen2_5_vl
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import Manifest

POLICY = FixationPolicy(focal_layers=(1, 3), dense_layers=(), keep=0.25)  # gathered, focal, gathered, focal
IMAGE = (4, 5)  # rows and columns of visual tokens
VISUAL = IMAGE[0] * IMAGE[1]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A random 4-layer model, and its engine exported from shards."""
    root = tmp_path_factory.mktemp("tiny")
    model = tiny_checkpoint.model()
    folder = tiny_checkpoint.save(model, root / "checkpoint", max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    manifest = export_engine(folder, root / "engine", policy=POLICY, max_visual_tokens=64, prefill_chunk=16)
    return model, folder, root / "engine", manifest


@pytest.fixture(scope="module")
def demo(demo_engine_dir: Path):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint.DEMO, dtype=torch.float32).eval()
    return model, demo_engine_dir


def make_prompt(hidden_size: int, seed: int = 0):
    """input_ids [n], position_ids [3,n] and visual_embeds: a word, an image, some words."""
    rng = np.random.default_rng(seed)
    ids = np.array([99, *(-1 - np.arange(VISUAL)), 100, *rng.integers(0, 90, 9)])
    rows, columns = np.divmod(np.arange(VISUAL), IMAGE[1])
    tail = np.tile(1 + max(IMAGE) + np.arange(10), (3, 1))
    positions = np.concatenate([np.zeros((3, 1), int), 1 + np.stack([rows * 0, rows, columns]), tail], 1)
    return ids, positions, rng.standard_normal((VISUAL, hidden_size)).astype(np.float32) * 0.5


def transformers_logits(model, ids, positions, visual_embeds) -> np.ndarray:
    """Logits of every row [n,vocab_size], by the model's own attention and mask."""
    with torch.no_grad():
        embeds = model.get_input_embeddings()(torch.from_numpy(ids.clip(0)))
        embeds[torch.from_numpy(ids < 0)] = torch.from_numpy(visual_embeds)
        hidden = model.model.language_model(
            inputs_embeds=embeds[None], position_ids=torch.from_numpy(positions)[:, None]
        )
        return model.lm_head(hidden.last_hidden_state)[0].numpy()


def feed_prompt(runner: DecoderRunner, ids, positions, stop: int) -> list[tuple[int, np.ndarray]]:
    """Prefill `stop` rows in uneven chunks of one kind; (row, logits) after each chunk."""
    ends = [1, 8, 14, 1 + VISUAL, 1 + VISUAL + 3, stop]
    seen = []
    for begin, end in zip([0, *ends], ends, strict=False):
        seen.append((end - 1, runner.feed("dense", ids[begin:end], positions[:, begin:end])["logits"][0]))
    return seen


@pytest.mark.parametrize("which", ["demo", "tiny"])
def test_dense_logits_equal_transformers(which: str, request: pytest.FixtureRequest) -> None:
    model, directory = request.getfixturevalue("demo") if which == "demo" else request.getfixturevalue("tiny")[0::2][:2]
    ids, positions, visual_embeds = make_prompt(model.config.text_config.hidden_size)
    expected = transformers_logits(model, ids, positions, visual_embeds)
    runner = DecoderRunner(directory, visual_embeds)
    chunks = feed_prompt(runner, ids, positions, len(ids) - 1)
    chunks.append((len(ids) - 1, runner.feed("dense", ids[-1:], positions[:, -1:], 5)["logits"][0]))
    for row, logits in chunks:
        np.testing.assert_allclose(logits, expected[row], atol=1e-4)


def test_fast_with_all_rows_equals_dense(tiny) -> None:
    _, _, directory, _ = tiny
    ids, positions, visual_embeds = make_prompt(64)
    runner = DecoderRunner(directory, visual_embeds)
    feed_prompt(runner, ids, positions, len(ids) - 1)
    fast = runner.copy()
    everything = np.tile(np.arange(VISUAL)[::-1], (1, 2, 1))
    dense_out = runner.feed("dense", ids[-1:], positions[:, -1:], VISUAL)
    fast_out = fast.feed("fast", ids[-1:], positions[:, -1:], VISUAL, everything)
    np.testing.assert_allclose(fast_out["logits"], dense_out["logits"], atol=1e-5)
    for name in ("next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"):
        np.testing.assert_array_equal(fast_out[name], dense_out[name])


def test_fast_steps_equal_the_traced_module(tiny) -> None:
    """Sparse steps that pass the fixation on: ONNX against the module in torch, whose attention is the oracle."""
    _, _, directory, _ = tiny
    model = tiny_checkpoint.model()  # a copy, since tracing changes its attention
    model.model.language_model.config._attn_implementation = "fastocr"
    ids, positions, visual_embeds = make_prompt(64)
    runner = DecoderRunner(directory, visual_embeds)
    feed_prompt(runner, ids, positions, len(ids) - 1)
    fixation = runner.feed("dense", ids[-1:], positions[:, -1:], 5)["fixation"]
    step = export_decoder.DecoderStep(model.model.language_model, model.lm_head, POLICY, decoding=True).eval()
    token, position = np.array([7]), positions[:, -1:] + 1
    for _ in range(3):
        banks = [
            [torch.from_numpy(runner.banks[f"past.{i}.{bank}"]) for bank in export_decoder.ops.BANKS] for i in range(4)
        ]
        length = {bank: torch.tensor([n]) for bank, n in runner.length.items()}
        state = [length["visual"], length["text"], length["visual"][None], length["text"][None] + 1]
        state += [torch.arange(VISUAL), torch.arange(runner.length["text"] + 1), torch.tensor([5]), torch.arange(5)]
        with torch.no_grad():
            expected = step(
                torch.from_numpy(token)[None],
                None,
                torch.from_numpy(position)[:, None],
                state,
                torch.tensor([1]),
                torch.from_numpy(fixation),
                banks,
            )
        actual = runner.feed("fast", token, position, 5, fixation)
        np.testing.assert_allclose(actual["logits"], expected[0], atol=1e-5)
        for name, wanted in zip(
            ("next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"), expected[1:5], strict=True
        ):
            np.testing.assert_array_equal(actual[name], wanted)
        np.testing.assert_array_equal(np.sort(actual["next_fixation"]), np.sort(expected[5]))
        fixation, token, position = actual["next_fixation"], actual["next_input_ids"][0], position + 1


def test_a_finished_page_stands_still(tiny) -> None:
    """active = 0: nothing that the next step would advance by is advanced."""
    session = open_session(tiny[2] / "fast.onnx")
    sizes = {"batch": 2, "k": 2, "visual_rows": 3, "text_rows": 4, "visual_capacity": 8, "text_capacity": 8}
    feeds = {}
    for put in session.get_inputs():
        dtype = np.int64 if "int64" in put.type else np.float32
        feeds[put.name] = np.zeros([sizes.get(dim, dim) for dim in put.shape], dtype)
    feeds |= {"active": np.array([0, 1]), "text_length": np.array([3, 3]), "text_valid": np.array([[4], [4]])}
    feeds |= {"visual_slots": np.arange(3), "text_slots": np.arange(4), "fixation_slots": np.arange(2)}
    names = [put.name for put in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feeds), strict=True))
    assert outputs["next_text_length"].tolist() == [3, 4]
    assert outputs["next_text_valid"].tolist() == [[4], [5]]
    assert outputs["next_position_ids"].tolist() == [[[0], [1]]] * 3
    assert (outputs["next_fixation"] == -1).all()  # num_fixations is 0


def trace_fast(dtype: torch.dtype):
    """fast.onnx of the tiny model, traced and without weights."""
    config = tiny_checkpoint.config()
    return export_decoder.trace_decoder(
        lambda layers: qwen2_5_vl.decoder(qwen2_5_vl.build(config, dtype, layers)),
        qwen2_5_vl.decoder_shape(config),
        FixationPolicy((0,), ()),
        decoding=True,
    )


@pytest.fixture(scope="module")
def traced_fast():
    return trace_fast(torch.float32)


def with_weights(traced, folder: Path, output: Path, bits: int = 0, dtype: torch.dtype = torch.float32):
    """The traced graph with a checkpoint's weights, in `output`; gives a session and the graph's ONNX model."""
    graph = traced.clone()
    entries = export_graph.place_weights(graph, {}, bits)
    checkpoint = Checkpoint(folder, qwen2_5_vl.parameter_name)
    output.mkdir()
    placed = export_weights.write_weights(output / "weights.bin", entries, checkpoint, dtype)
    export_weights.bind(graph, placed)
    export_decoder.ir.save(graph, output / "fast.onnx")
    onnx.checker.check_model(output / "fast.onnx")
    return open_session(output / "fast.onnx"), onnx.load(output / "fast.onnx", load_external_data=False)


def test_argmax_takes_the_lowest_id_on_a_tie(traced_fast, tmp_path: Path) -> None:
    """Two equal rows of the head: the in-graph greedy choice is the first of them."""
    model = tiny_checkpoint.model()
    with torch.no_grad():
        model.lm_head.weight[40] = model.lm_head.weight[90] = 5 * torch.sign(model.lm_head.weight[40])
    folder = tiny_checkpoint.save(model, tmp_path / "checkpoint")
    session, _ = with_weights(traced_fast, folder, tmp_path / "engine")
    ids = {int(session_run(session, seed)["next_input_ids"][0, 0]) for seed in range(20)}
    assert 40 in ids
    assert 90 not in ids


def session_run(session, seed: int, token: int = 5) -> dict:
    """One step on random banks."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": 1, "k": 2, "visual_rows": 3, "text_rows": 4, "visual_capacity": 8, "text_capacity": 8}
    feeds = {}
    for put in session.get_inputs():
        shape = [sizes.get(dim, dim) for dim in put.shape]
        if "int64" in put.type:
            feeds[put.name] = np.zeros(shape, np.int64)
        else:
            dtype = np.float16 if "float16" in put.type else np.float32
            feeds[put.name] = rng.standard_normal(shape).astype(dtype)
    feeds |= {name: np.array([3]) for name in ("visual_length", "text_length")}
    feeds |= {"visual_valid": np.array([[3]]), "text_valid": np.array([[4]]), "input_ids": np.array([[token]])}
    feeds |= {"visual_slots": np.arange(3), "text_slots": np.arange(4), "fixation_slots": np.arange(2)}
    feeds |= {"num_fixations": np.array([2])}
    return dict(zip([put.name for put in session.get_outputs()], session.run(None, feeds), strict=True))


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 0.05), (4, 0.5)])
def test_quantised_weights_stay_close(tiny, traced_fast, tmp_path: Path, bits: int, tolerance: float) -> None:
    _, folder, _, _ = tiny
    plain, _ = with_weights(traced_fast, folder, tmp_path / "plain")
    quantised, model = with_weights(traced_fast, folder, tmp_path / "quantised", bits)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("MatMulNBits") == 4 * 7 + 1
    assert "MatMul" not in kinds
    for seed in range(3):
        expected, actual = (session_run(session, seed)["logits"] for session in (plain, quantised))
        assert np.abs(actual - expected).max() < tolerance * np.abs(expected).max()
        assert np.abs(actual - expected).max() > 0
    sizes = [(tmp_path / name / "weights.bin").stat().st_size for name in ("plain", "quantised")]
    assert sizes[1] < sizes[0]


def test_half_precision_stays_close_and_is_fused_alike(tiny, traced_fast, tmp_path: Path) -> None:
    """Norms and rotary embeddings are single nodes in both types, although transformers casts around them in fp16."""
    _, folder, _, _ = tiny
    full, full_model = with_weights(traced_fast, folder, tmp_path / "fp32")
    traced_half = trace_fast(torch.float16)
    half, half_model = with_weights(traced_half, folder, tmp_path / "fp16", dtype=torch.float16)
    for model in (full_model, half_model):
        kinds = [node.op_type for node in model.graph.node]
        assert kinds.count("RMSNormalization") == 4 * 2 + 1
        assert kinds.count("RotaryEmbedding") == 4 * 2
    for seed in range(3):
        expected, actual = (session_run(session, seed)["logits"] for session in (full, half))
        assert actual.dtype == np.float32
        assert np.abs(actual - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize("which", ["demo", "tiny"])
def test_weights_are_stored_once_and_aligned(which: str, request: pytest.FixtureRequest) -> None:
    """Both graphs name one copy of each weight; a tied head is its embedding."""
    model, directory = request.getfixturevalue("demo") if which == "demo" else request.getfixturevalue("tiny")[0::2][:2]
    places: dict[str, tuple[int, int]] = {}
    for path in directory.glob("*.onnx"):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            data = {entry.key: entry.value for entry in tensor.external_data}
            if not data:
                assert len(tensor.raw_data) < 4096
                continue
            assert data["location"] == "weights.bin"
            place = int(data["offset"]), int(data["length"])
            assert place[0] % 4096 == 0
            assert places.setdefault(tensor.name, place) == place
    stored = sum(length for _, length in places.values())
    assert stored == sum(parameter.nbytes for parameter in model.parameters())
    assert len({offset for offset, _ in places.values()}) == len(places)


def test_graphs_have_the_documented_names_and_no_trace_of_their_making(tiny) -> None:
    _, folder, directory, manifest = tiny
    shape, policy = manifest.decoder, manifest.policy
    for name, decoding in (("dense", False), ("fast", True)):
        raw = (directory / f"{name}.onnx").read_bytes()
        assert b"pkg.torch" not in raw
        assert str(folder.parent).encode() not in raw
        assert b"site-packages" not in raw
        session = open_session(directory / f"{name}.onnx")
        assert [put.name for put in session.get_inputs()] == export_decoder.graph_inputs(shape, decoding)
        outputs = [put.name for put in session.get_outputs()]
        assert outputs == export_decoder.graph_outputs(shape, policy, decoding)
    assert "present.0.visual_key" not in outputs  # a gathered layer of fast.onnx only reads the page
    assert "present.0.text_key" in outputs
    assert "present.1.visual_key" in outputs


def test_manifest_describes_the_engine(tiny) -> None:
    _, folder, directory, manifest = tiny
    assert Manifest.read(directory) == manifest
    manifest.check_files(directory)
    assert set(manifest.files) == {"vision", "dense", "fast", "decoder_plugin", "weights", "tokenizer"}
    assert manifest.generation.stop_token_ids == (98, 96)
    assert manifest.calibration == {"status": "given"}
    assert manifest.capacities.max_visual_tokens == 64
    assert manifest.model["family"] == "qwen2_5_vl"
    assert manifest.model["source"] == folder.name
    assert (directory / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert sorted(p.name for p in directory.iterdir()) == sorted(
        [
            "manifest.json",
            "vision.onnx",
            "dense.onnx",
            "fast.onnx",
            "decoder_plugin.onnx",
            "weights.bin",
            "tokenizer.json",
        ]
    )
