"""What fastocr-bench measures and on what: cases, turns, sessions, estimates. No timing decides anything here."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from fastocr_trt.backends import BackendRecord, EngineFile
from fastocr_trt.bench import memory as bench_memory
from fastocr_trt.bench.matrix import Case, Options, Prompt, cases, check_capacities, merge_keeps, row_bound
from fastocr_trt.bench.measure import Spread, Turns
from fastocr_trt.bench.results import Change
from fastocr_trt.bench.runners import FilledSteps, PrefilledSteps, PromptTurn, variants
from fastocr_trt.bench.sessions import FilledSession, filled_session, made_up_image, made_up_prompt
from fastocr_trt.errors import FastOCRError
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import FileRecord, Manifest
from fastocr_trt.runtime.onnxruntime_session import OnnxRuntimeSession
from fastocr_trt.runtime.tensorrt_library import Library
from fastocr_trt.runtime.tensorrt_session import TensorRTSession
from fastocr_trt.shapes import SHAPES, find_shape

VISUAL, TEXT = 40, 12


def options(**changes) -> Options:
    given = dict(
        backends=["onnxruntime"],
        threads=[1],
        batches=[1],
        visual_tokens=[VISUAL],
        text_tokens=[TEXT],
        modes=["dense", "fast"],
        keeps=[0.05],
        steps=3,
    )
    return Options(**{**given, **changes})


def case(mode: str = "dense", keep: float | None = None, **changes) -> Case:
    made = Case("onnxruntime", 1, 1, VISUAL, TEXT, mode, keep)
    return dataclasses.replace(made, **changes)


class TestMatrix:
    def test_dense_mode_has_no_keep_and_a_compiled_backend_no_threads(self):
        found = cases(options(backends=["onnxruntime", "tensorrt"], threads=[1, 2], keeps=[0.05, 0.1], batches=[1, 4]))
        assert len(found) == len(set(found)) == 2 * 3 * (2 + 1)
        assert {c.keep for c in found if c.mode == "dense"} == {None}
        assert {c.threads for c in found if c.backend == "tensorrt"} == {None}
        assert all(c.dense in found for c in found)

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"visual_tokens": [64, 1281]}, "1,281 visual tokens do not fit the engine, which holds 1,280"),
            ({"text_tokens": [4094]}, "holds 4,096 text tokens"),
            ({"batches": [9]}, "a batch of 9 does not fit the engine, which holds 8"),
        ],
    )
    def test_what_the_engine_does_not_hold_is_refused_with_the_limit(self, demo_engine_dir, changes, told):
        manifest = Manifest.read(demo_engine_dir)
        check_capacities(options(visual_tokens=[1280], text_tokens=[4091], batches=[8]), manifest)
        with pytest.raises(FastOCRError, match=told):
            check_capacities(options(**changes), manifest)

    def test_the_row_bound_counts_the_rows_that_attention_reads(self):
        policy = FixationPolicy((9, 18, 26), dense_layers=())
        fast = case("fast", 0.05, visual_tokens=4096, text_tokens=255)
        assert row_bound(policy, 28, fast) == pytest.approx(28 * 4352 / (3 * 4352 + 25 * (205 + 256)))
        assert row_bound(policy, 28, dataclasses.replace(fast, keep=1.0)) == row_bound(policy, 28, fast.dense) == 1

    def test_keeps_of_the_same_fixation_are_measured_once(self):
        policy = FixationPolicy((2, 5), min_tokens=8)
        wanted = cases(options(visual_tokens=[128, 1024], keeps=[0.02, 0.05, 0.1], batches=[1, 2]))
        kept, told = merge_keeps(wanted, policy)
        assert len(kept) == 2 * ((1 + 2) + (1 + 3))
        assert {c.keep for c in kept if c.visual_tokens == 128} == {None, 0.02, 0.1}
        assert told == [
            "--keep 0.02 and 0.05 are the same 8, the policy's min_tokens, of 128 visual tokens: measured once, as 0.02"
        ]
        assert merge_keeps(kept, policy) == (kept, [])


class TestTurns:
    def test_every_round_runs_all_variants_and_warm_up_does_not_count(self):
        run = []
        turns = Turns({name: lambda name=name: run.append(name) or {"n": len(run)} for name in "abc"})
        turns.run(rounds=3, warmup=2)
        assert [sorted(run[i : i + 3]) for i in range(0, 15, 3)] == [["a", "b", "c"]] * 5
        assert len({tuple(run[i : i + 3]) for i in range(0, 15, 3)}) > 1
        values = [turns.samples[name]["n"] for name in "abc"]
        assert sorted(n for some in values for n in some) == list(range(7, 16)) and {len(v) for v in values} == {3}

    def test_what_was_measured_before_an_interrupt_is_kept(self):
        seen = []

        def variant():
            seen.append(0)
            if len(seen) == 4:
                raise KeyboardInterrupt
            return {"n": 10.0 * len(seen)}

        turns = Turns({"a": variant})
        with pytest.raises(KeyboardInterrupt):
            turns.run(rounds=9, warmup=1)
        assert turns.spread("a", "n") == Spread(25.0, 22.5, 27.5, 2)
        assert turns.spread("a", "other") is None

    def test_a_ratio_is_of_the_same_round(self):
        """A round that is ten times as slow as the others is so for both, and does not move their ratio."""
        times = iter([(30.0, 10.0), (320.0, 100.0), (31.0, 10.0), (33.0, 10.0)] * 2)
        now = {}

        def variant(name, place):
            if name in now or not now:
                now.clear()
                now["both"] = next(times)
            now[name] = True
            return {"ms": now["both"][place]}

        turns = Turns({"dense": lambda: variant("dense", 0), "fast": lambda: variant("fast", 1)})
        turns.run(rounds=4, warmup=0)
        assert sorted(turns.samples["fast"]["ms"]) == [10, 10, 10, 100]
        assert turns.ratio("dense", "fast", "ms") == Spread(*map(pytest.approx, (3.15, 3.075, 3.225)), 4)
        turns.samples["dense"]["ms"].append(1.0)  # a round that Ctrl-C stopped
        assert turns.ratio("dense", "fast", "ms").count == 4
        assert turns.ratio("dense", "other", "ms") is None


class TestChanges:
    @pytest.mark.parametrize(
        ("new", "count", "machine", "told"),
        [
            (80.0, 7, 1.0, "faster"),
            (120.0, 7, 1.0, "slower"),
            (80.0, 6, 1.0, "too few rounds"),
            (91.0, 7, 1.0, "within the spread"),  # the quartiles do not meet, which is not enough
            (80.0, 7, 0.82, "the machine changed"),
            (80.0, 7, 0.6, "the machine changed"),  # by more than the engine: it may have become slower
            (80.0, 7, 1.3, "faster"),
            (103.0, 7, 0.6, "within the spread"),
        ],
    )
    def test_only_what_is_beyond_the_spread_and_the_machine_is_a_change(self, new, count, machine, told):
        old, now = Spread(100.0, 97.0, 103.0, 7), Spread(new, new - 3, new + 3, count)
        assert Change(case(), "step_ms", old, now, machine).verdict == told
        rate, rates = Spread(10.0, 9.7, 10.3, 7), Spread(1e3 / new, 1e3 / new - 0.3, 1e3 / new + 0.3, count)
        assert Change(case(), "decode_tokens_per_s", rate, rates, machine).verdict == told
        assert Change(case(), "step_ms", dataclasses.replace(old, count=count), now, machine).verdict == told


class TestSessions:
    def test_a_rewound_session_never_fills_its_text_bank(self, demo_engine_dir):
        room = {"max_visual_tokens": VISUAL, "max_text_tokens": TEXT + 5, "prefill_chunk": 1}
        session = filled_session(demo_engine_dir, 1, VISUAL, TEXT, 4, **room)
        turn = FilledSteps(session, case("fast", 0.05), 5)
        for _ in range(3):
            measured = turn()
        assert measured["decode_tokens_per_s"] == pytest.approx(1e3 / measured["step_ms"])
        with pytest.raises(ValueError, match="text bank"):
            for _ in range(7):
                session.step("fast")

    def test_attention_alone_is_softmax_over_the_rows_in_use(self, demo_engine_dir):
        pytest.importorskip("onnx", reason="attention alone needs onnx")
        from fastocr_trt.bench.attention import AttentionStep

        def run(mode, fixations):
            session = filled_session(demo_engine_dir, 1, VISUAL, TEXT, fixations)
            step = AttentionStep(session, demo_engine_dir, mode, 1)
            step()
            return session, step

        session, dense = run("dense", VISUAL)
        shape = session.manifest.decoder
        heads, kv = shape.num_attention_heads, shape.num_key_value_heads
        given = {name: dense._values[name].numpy()[0] for name in ("query", "key", "value")}
        query = given["query"]
        for layer in range(shape.num_layers):
            bank = {name: session.cache.array(layer, name)[0] for name in ("visual_key", "visual_value", "text_key")}
            bank["text_value"] = session.cache.array(layer, "text_value")[0]
            rows = {
                part: np.concatenate(
                    [bank[f"visual_{part}"][:, :VISUAL], bank[f"text_{part}"][:, :TEXT], given[part]], axis=1
                )
                for part in ("key", "value")
            }
            grouped = query.reshape(kv, heads // kv, shape.head_dim)
            scores = grouped @ rows["key"].transpose(0, 2, 1) * shape.head_dim**-0.5
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            query = given["query"] + (weights @ rows["value"]).reshape(given["query"].shape)
        np.testing.assert_allclose(dense.output()[0], query, atol=2e-4)
        whole, some = run("fast", VISUAL)[1], run("fast", 4)[1]
        np.testing.assert_allclose(whole.output(), dense.output(), atol=2e-4)
        assert np.abs(some.output() - dense.output()).max() > 1e-2

    def test_made_up_pages_are_prompts_of_the_size_asked_for(self, demo_engine_dir):
        manifest = Manifest.read(demo_engine_dir)
        prompt = made_up_prompt(6, 5)
        assert [(c.kind, len(c.input_ids)) for c in prompt.chunks] == [("text", 2), ("visual", 6), ("text", 3)]
        assert prompt.chunks[1].input_ids.tolist() == [-1, -2, -3, -4, -5, -6] and prompt.length == 11
        for visual, grid in ((48, (16, 12)), (7, (14, 2))):
            pixels, found = made_up_image(visual, manifest.vision)
            assert found == grid and pixels.shape == (4 * visual, 3 * 2 * 14 * 14)

    def test_a_turn_without_filled_caches_prefills_first_and_runs_groups(self, demo_engine_dir):
        counts = []

        class Grouped(OnnxRuntimeSession):
            group_size = 4

            def steps(self, mode, count):
                counts.append(count)
                tokens = []
                for _ in range(count):
                    self.step(mode)
                    tokens.append(self.next_tokens().copy())
                return np.stack(tokens)

        manifest = Manifest.read(demo_engine_dir)
        session = Grouped(demo_engine_dir, manifest, "cpu", 1)
        prompt = Prompt("onnxruntime", 1, 2, VISUAL, TEXT)
        read = PromptTurn(session, manifest, prompt, 0.1)
        turn = PrefilledSteps(session, read, case("fast", 0.1, batch=2), 10)
        assert turn().keys() == turn().keys() == {"step_ms", "decode_tokens_per_s"}
        assert counts == [4, 4, 2] * 2
        assert (np.sort(session.fixation()) >= 0).sum() == 2 * 2 * manifest.policy.num_fixations(VISUAL, 0.1)
        assert read().keys() == {"vision_ms", "prefill_tokens_per_s", "first_token_ms"}

    def test_sizes_share_graphs_and_keeps_share_caches(self, demo_engine_dir, monkeypatch):
        opened, made = [], []
        monkeypatch.setattr(FilledSession, "_create", _counting(FilledSession._create, opened))
        monkeypatch.setattr(FilledSession, "fill", _counting(FilledSession.fill, made))
        wanted = cases(options(visual_tokens=[VISUAL, 24], keeps=[0.1, 0.5], batches=[1, 2]))
        ways = variants(demo_engine_dir, Manifest.read(demo_engine_dir), wanted, ["prompt", "decode"], 2)
        assert len(ways) == 4 + 4 * 3
        turns = Turns(ways)
        turns.run(rounds=1, warmup=0)
        assert len(opened) == 3  # vision, dense and fast, once each
        assert len(made) == 4 * 2 and len({id(session.cache) for (session, *_) in made}) == 4
        assert all(turns.spread(name, "first_token_ms" if name[0] == "prompt" else "step_ms") for name in ways)

    def test_a_compiled_backend_is_measured_on_one_session(self, demo_engine_dir, tmp_path, monkeypatch):
        from fake_gpu import FakeCuda, FakeTensorRT, write_engine

        manifest, files, cuda = Manifest.read(demo_engine_dir), {}, FakeCuda()
        for name, profiles in {"vision": ["vision"], "dense": ["prefill", "decode"], "fast": ["decode"]}.items():
            path = tmp_path / "tensorrt" / f"{name}.engine"
            write_engine(path, demo_engine_dir / f"{name}.onnx", {key: {} for key in profiles})
            file = FileRecord.of(path)
            files[name] = EngineFile(f"tensorrt/{path.name}", file.size, file.sha256, tuple(profiles), ())
        record = json.loads(json.dumps(BackendRecord(FakeTensorRT.__version__, ("8.9",), None, files).to_dict()))
        room = dataclasses.replace(manifest.capacities, max_visual_tokens=64, max_text_tokens=64, max_batch=2)
        manifest = dataclasses.replace(manifest, backends={"tensorrt": record}, capacities=room)
        opened = []

        def open_fake(directory, manifest, backend, hash_up_to):
            opened.append(TensorRTSession(tmp_path, manifest, Library(backend, FakeTensorRT(cuda), cuda)))
            return opened[-1]

        monkeypatch.setattr("fastocr_trt.runtime.backend.open_tensorrt", open_fake)
        wanted = cases(options(backends=["tensorrt"], batches=[1, 2], keeps=[0.1, 0.5], steps=10))
        ways = variants(demo_engine_dir, manifest, wanted, ["prompt", "decode", "attention"], 10)
        assert {name[0] for name in ways} == {"prompt", "decode"} and len(ways) == 2 + 2 * 3
        turns = Turns(ways)
        turns.run(rounds=1, warmup=1)
        assert len(opened) == 1 and cuda.launches > 2 * 6 * 10
        assert all(turns.spread(name, "first_token_ms" if name[0] == "prompt" else "step_ms") for name in ways)
        opened[0].close()


def _counting(method, calls: list):
    def counted(self, *args, **more):
        calls.append((self, *args))
        return method(self, *args, **more)

    return counted


class TestEstimates:
    @pytest.mark.parametrize(("name", "billions"), [("qwen2.5-vl-3b", 3.75), ("qwen2.5-vl-7b", 8.29)])
    def test_parameters_of_the_known_models(self, name, billions):
        assert sum(find_shape(name).parameters()) / 1e9 == pytest.approx(billions, rel=0.01)

    def test_a_shape_is_cut_and_unknown_ones_are_told_with_the_known(self):
        assert find_shape("qwen2.5-vl-7b", 4).num_layers == find_shape("qwen2.5-vl-7b", 4).vision_depth == 4
        with pytest.raises(FastOCRError, match=r"no shape 'gpt'.*qwen2\.5-vl-3b.*tiny"):
            find_shape("gpt")
        with pytest.raises(FastOCRError, match=r"--layers is 37 and .* has 36"):
            find_shape("qwen2.5-vl-3b", 37)

    def test_a_run_that_does_not_fit_the_memory_is_refused_before_it_starts(self, demo_engine_dir, monkeypatch):
        manifest = Manifest.read(demo_engine_dir)
        engine = bench_memory.EngineSize.of(manifest)
        few, many = cases(options()), cases(options(visual_tokens=[VISUAL, 1280], batches=[1, 8]))
        needed = bench_memory.run_bytes(engine, few, 16, prompt=True)
        assert bench_memory.run_bytes(engine, many, 16, prompt=True) > needed > manifest.files["weights"].size
        monkeypatch.setattr(bench_memory, "memory", lambda field: needed)
        bench_memory.check_run(engine, few, 16, prompt=True)
        with pytest.raises(FastOCRError, match=r"takes about .* GiB of memory and .* is available; measure fewer"):
            bench_memory.check_run(engine, many, 16, prompt=True)

    def test_a_run_of_a_shape_takes_what_its_engine_takes(self, demo_engine_dir):
        """Before it is made: all but the size of the weights, which is estimated, is what its manifest says."""
        engine = bench_memory.EngineSize.of(Manifest.read(demo_engine_dir))
        planned = bench_memory.EngineSize.of_shape(SHAPES["tiny"], "fp32", None)
        weights = dataclasses.replace(planned, weights_bytes=engine.weights_bytes, decoder=engine.decoder)
        assert weights == engine and planned.decoder == SHAPES["tiny"].decoder
        assert planned.weights_bytes == pytest.approx(4 * sum(SHAPES["tiny"].parameters()))
        assert bench_memory.EngineSize.of_shape(SHAPES["tiny"], "fp16", "int4").quantised

    def test_an_engine_that_does_not_fit_is_refused_before_it_is_made(self, tmp_path, monkeypatch):
        monkeypatch.setattr(bench_memory, "memory", lambda field: 8 * 2**30)
        bench_memory.check_export(SHAPES["tiny"], "fp32", None, tmp_path)
        with pytest.raises(FastOCRError, match=r"making this engine takes about .* --layers, or --weights int4"):
            bench_memory.check_export(SHAPES["qwen2.5-vl-72b"], "fp32", None, tmp_path)

    def test_random_checkpoints_are_whole_and_of_the_estimated_size(self, tmp_path):
        pytest.importorskip("torch", reason="random weights need the extra `export`")
        from fastocr_trt.export.checkpoint import Checkpoint
        from fastocr_trt.export.engine_directory import read_config
        from fastocr_trt.export.families import qwen2_5_vl
        from fastocr_trt.export.random_checkpoint import random_checkpoint, random_config

        for name in SHAPES:
            assert qwen2_5_vl.decoder_shape(random_config(SHAPES[name])) == SHAPES[name].decoder
        shape = dataclasses.replace(SHAPES["tiny"], tied=False)
        folder = random_checkpoint(tmp_path / "checkpoint", shape)
        family, _, shapes = read_config(folder)
        checkpoint = Checkpoint(folder, family.parameter_name)
        checkpoint.check(shapes)
        count = sum(int(np.prod(size)) for size in shapes.values())
        assert sum(shape.parameters()) == pytest.approx(count, rel=0.03)
        first, second = (f"model.language_model.layers.{i}.mlp.up_proj.weight" for i in range(2))
        norm = "model.language_model.norm.weight"
        with checkpoint.open(checkpoint.shard_of(first)) as read:
            assert not (read(first) == read(second)).all() and (read(norm) == 1).all()
            assert 0.01 < read(first).float().std() < 0.03
