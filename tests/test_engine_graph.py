"""decoder_plugin.onnx, its ops run by the oracle, against dense.onnx (prefill) and fast.onnx (decode)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="exporting needs the extra `export`")

import onnx
import tiny_checkpoint
from decoder_runner import DecoderRunner
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from fastocr_trt.export import decoder_plugin
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.reference import STATUS_TEXT_BANK_FULL, engine_form

POLICY = FixationPolicy(focal_layers=(1, 3), dense_layers=(), keep=0.25)  # gathered, focal, gathered, focal
VISUAL, COUNT, ROWS = 20, 5, 64


class DenseAttention(OpRun):
    op_domain = "fastocr"

    def _run(self, *inputs, scale, **form):
        result = engine_form("dense", *inputs, scale=scale)
        return (*_like(inputs[0], result[:5]), result.status)


class FocalAttention(OpRun):
    op_domain = "fastocr"

    def _run(self, *inputs, scale, per_kv_head, **form):
        *rows, num_fixations, fixation_slots, status = inputs
        selection = {"num_fixations": num_fixations, "fixation_size": len(fixation_slots)}
        result = engine_form("focal", *rows, status, scale=scale, per_kv_head=bool(per_kv_head), **selection)
        return (*_like(inputs[0], result[:5]), result.fixation, result.status)


class GatheredAttention(OpRun):
    op_domain = "fastocr"

    def _run(self, *inputs, scale, **form):
        *rows, fixation, attend_all, status = inputs
        result = engine_form("gathered", *rows, status, scale=scale, fixation=fixation, attend_all=attend_all)
        return (*_like(inputs[0], result[:5]), result.status)


def _like(query, arrays):
    return tuple(array.astype(query.dtype) for array in arrays)


class PluginRunner:
    """One page in decoder_plugin.onnx, as DecoderRunner has it in the other two."""

    def __init__(self, path, visual_embeds):
        model = onnx.load(path)  # with its weights
        self.evaluator = ReferenceEvaluator(model, new_ops=[DenseAttention, FocalAttention, GatheredAttention])
        self.visual_embeds = visual_embeds
        self.length = {"visual": 0, "text": 0}
        self.banks = {
            put.name: np.zeros((1, 2, ROWS, 16), np.float32)
            for put in model.graph.input
            if put.name.startswith("past.")
        }
        self.fixation = np.full((1, 2, COUNT), -1)

    def feed(self, ids, positions, attend_all=0):
        n, kind = len(ids), "visual" if ids[0] < 0 else "text"
        feeds = {
            "input_ids": ids[None],
            "visual_embeds": self.visual_embeds,
            "position_ids": positions[:, None],
            "num_fixations": np.array([COUNT]),
            "fixation_slots": np.arange(COUNT),
            "active": np.array([1]),
            "attend_all": np.array([attend_all]),
            "status": np.zeros(1, np.int64),
            "fixation": self.fixation,
            **self.banks,
        }
        for bank, length in self.length.items():
            feeds[f"{bank}_length"] = np.array([length])
            feeds[f"{bank}_valid"] = length + (np.arange(1, n + 1) if bank == kind else np.zeros(n, int))[None]
        outputs = dict(zip(self.evaluator.output_names, self.evaluator.run(None, feeds), strict=True))
        for name in list(outputs):
            if name.startswith("present."):
                self.banks[name.replace("present", "past")] = outputs.pop(name)
        self.fixation = outputs["next_fixation"]
        self.length[kind] += n
        return outputs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("tiny_plugin")
    folder = tiny_checkpoint.save(tiny_checkpoint.model(), root / "checkpoint")
    manifest = export_engine(folder, root / "engine", policy=POLICY, max_visual_tokens=64, prefill_chunk=16)
    return root / "engine", manifest


@pytest.fixture(scope="module")
def prompt():
    """input_ids [n], position_ids [3,n] and visual_embeds: a word, an image, some words."""
    rng = np.random.default_rng(0)
    ids = np.array([99, *(-1 - np.arange(VISUAL)), 100, *rng.integers(0, 90, 5)])
    positions = np.tile(np.arange(len(ids)), (3, 1))
    return ids, positions, rng.standard_normal((VISUAL, 64)).astype(np.float32) * 0.5


def test_prefill_and_decode_equal_dense_and_fast(tiny, prompt):
    directory, _ = tiny
    ids, positions, visual_embeds = prompt
    plain, plugin = (
        DecoderRunner(directory, visual_embeds, ROWS),
        PluginRunner(directory / "decoder_plugin.onnx", visual_embeds),
    )
    ends = [1, 9, 1 + VISUAL, len(ids) - 1]
    for begin, end in zip([0, *ends], ends, strict=False):
        wanted = plain.feed("dense", ids[begin:end], positions[:, begin:end])
        got = plugin.feed(ids[begin:end], positions[:, begin:end])
        np.testing.assert_allclose(got["logits"], wanted["logits"], atol=1e-4)
    wanted = plain.feed("dense", ids[-1:], positions[:, -1:], COUNT)
    got = plugin.feed(ids[-1:], positions[:, -1:], attend_all=1)
    np.testing.assert_array_equal(np.sort(got["next_fixation"]), np.sort(wanted["fixation"]))
    for _ in range(4):
        for name in ("next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"):
            np.testing.assert_array_equal(got[name], wanted[name])
        np.testing.assert_allclose(got["logits"], wanted["logits"], atol=1e-4)
        assert got["next_status"] == 0
        fixation = wanted.get("fixation", wanted.get("next_fixation"))
        token, position = wanted["next_input_ids"][0], wanted["next_position_ids"][:, 0]
        wanted = plain.feed("fast", token, position, COUNT, fixation)
        got = plugin.feed(token, position)
        np.testing.assert_array_equal(np.sort(got["next_fixation"]), np.sort(wanted["next_fixation"]))
    for name, bank in plain.banks.items():
        if "text" in name:
            np.testing.assert_allclose(
                plugin.banks[name][:, :, : plugin.length["text"]], bank[:, :, : plain.length["text"]], atol=1e-5
            )


def test_a_full_bank_is_told_by_the_last_status(tiny, prompt):
    directory, _ = tiny
    ids, positions, visual_embeds = prompt
    plugin = PluginRunner(directory / "decoder_plugin.onnx", visual_embeds)
    plugin.length["text"] = ROWS
    assert plugin.feed(ids[:1], positions[:, :1])["next_status"] & STATUS_TEXT_BANK_FULL


def test_the_graph_is_as_documented(tiny):
    directory, manifest = tiny
    path = directory / manifest.files["decoder_plugin"].file
    onnx.checker.check_model(path)
    model = onnx.load(path, load_external_data=False)
    assert not model.functions and path.stat().st_size < 200_000
    assert [put.name for put in model.graph.input] == decoder_plugin.graph_inputs(manifest.decoder)
    assert [put.name for put in model.graph.output] == decoder_plugin.graph_outputs(manifest.decoder)
    nodes = [node for node in model.graph.node if node.domain == "fastocr"]
    kinds = ["GatheredAttention", "FocalAttention", "GatheredAttention", "FocalAttention"]
    assert [node.op_type for node in nodes] == kinds
    for node in nodes:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        assert attributes.pop("scale") == pytest.approx(16**-0.5)
        form = {"dense_prefill": 1, "plugin_version": b"1", "plugin_namespace": b"fastocr"}
        form |= {"alias_banks": 0, "tune_splits": 0}
        assert attributes == form | ({"per_kv_head": 1} if node.op_type == "FocalAttention" else {})
    status = [node.output[-1] for node in nodes]
    assert [node.input[-1] for node in nodes] == ["status", *status[:-1]] and status[-1] == "next_status"


def test_it_shares_the_weights_of_the_other_graphs(tiny):
    directory, _ = tiny

    def places(name):
        model = onnx.load(directory / f"{name}.onnx", load_external_data=False)
        return {
            initializer.name: {entry.key: entry.value for entry in initializer.external_data}
            for initializer in model.graph.initializer
            if initializer.external_data
        }

    assert places("decoder_plugin") == places("dense")
    assert all(entry["location"] == "weights.bin" for entry in places("decoder_plugin").values())
