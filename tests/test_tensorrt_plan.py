"""The plan of a TensorRT session against the graphs themselves and the profiles that engines are built with."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="exporting the demo model needs the extra `export`")

from fastocr_trt.backends import EngineFile, TensorRecord
from fastocr_trt.errors import EngineError
from fastocr_trt.export.build import plan_engines
from fastocr_trt.manifest import Manifest
from fastocr_trt.runtime.tensorrt_plan import ITEM_SIZE, Plan, Roles, Sizes

BATCH = 3
TYPES = {1: "float32", 7: "int64", 10: "float16", 16: "bfloat16"}


@pytest.fixture(scope="module")
def manifest(demo_engine_dir):
    return Manifest.read(demo_engine_dir)


@pytest.fixture(scope="module")
def built(demo_engine_dir, manifest):
    """What the exporter gives the builder, by engine: tensors, and the shapes of each profile's inputs."""
    plans = [*plan_engines(demo_engine_dir, manifest, True), *plan_engines(demo_engine_dir, manifest, False)]
    return {plan.name: (list(tensors_of(plan.model)), plan.profiles) for plan in plans}


def tensors_of(model):
    for mode, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            kind = value.type.tensor_type
            yield TensorRecord(
                value.name, mode, TYPES[kind.elem_type], tuple(d.dim_value or -1 for d in kind.shape.dim)
            )


def roles_of(built, *names):
    files = {name: EngineFile("", 0, "", tuple(built[name][1]), ()) for name in ("vision", *names)}
    return Roles.of(files)


ENGINES = pytest.mark.parametrize("engines", [("decoder",), ("dense", "fast")])


@ENGINES
def test_every_tensor_has_a_place_of_its_own(manifest, built, engines):
    """At the largest sizes no two tensors of a call overlap but a bank's two, and all lie within their buffers."""
    plan = Plan(manifest, BATCH)
    buffers = plan.buffers()
    room = manifest.capacities
    for role in roles_of(built, *engines).all()[1:]:
        tensors = built[role.engine][0]
        plan.check_tensors(role.engine, tensors)
        spans = {}
        for tensor in tensors:
            place = plan.place(role.name, tensor)
            assert place.offset % 256 == 0
            name = tensor.name.removeprefix("next_").replace("present.", "past.")
            most = Sizes(
                BATCH,
                room.prefill_chunk if role.name == "prefill" and tensor.mode == "input" else 1,
                room.max_visual_tokens,
                *plan.bank_rows.values(),
                BATCH * room.max_visual_tokens,
            )
            shape = (BATCH, manifest.decoder.vocab_size) if name == "logits" else plan.shape(name, most)
            end = place.offset + prod(shape) * ITEM_SIZE[tensor.dtype]
            assert end <= buffers[place.buffer], tensor.name
            spans[tensor.mode, tensor.name] = (place.buffer, place.offset, end)
        shared_by_design = {"visual_slots", "text_slots", "fixation_slots", "active", "num_fixations"}  # only read
        for (mode, name), (buffer, begin, end) in spans.items():
            for (other_mode, other), span in spans.items():
                overlap = buffer == span[0] and begin < span[2] and span[1] < end
                if not overlap or (mode, name) == (other_mode, other):
                    continue
                bank = {name, other} == {f"past.{name.partition('.')[2]}", f"present.{name.partition('.')[2]}"}
                assert bank or {name, other} <= shared_by_design, f"{name} lies over {other}"


@ENGINES
def test_the_step_closes_what_it_hands_on(manifest, built, engines):
    """Each next_* lies in `next` where its input lies in `step`, and within the copy that ends a step."""
    plan = Plan(manifest, BATCH)
    for role in roles_of(built, *engines).all()[1:]:
        tensors = built[role.engine][0]
        handed = {t.name for t in tensors if t.mode == "output"} - {"logits"}
        handed = {name for name in handed if not name.startswith("present.")}
        assert handed >= {"next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"}
        for name in handed:
            output = plan.place(role.name, TensorRecord(name, "output", "int64", ()))
            taken = plan.place("decode", TensorRecord(name.removeprefix("next_"), "input", "int64", ()))
            assert (output.buffer, taken.buffer, output.offset) == ("next", "step", taken.offset)
            small = plan.decode_sizes(2, 9, 64, 30)
            end = output.offset + prod(plan.shape(name.removeprefix("next_"), small)) * 8
            assert end <= plan.closing_bytes(small)


@ENGINES
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_call_fits_the_profiles_that_engines_are_built_with(manifest, built, engines, data):
    room = manifest.capacities
    plan, roles = Plan(manifest, room.max_batch), roles_of(built, *engines)
    batch = data.draw(st.integers(1, room.max_batch))
    visual = data.draw(st.integers(1, room.max_visual_tokens))
    text = data.draw(st.integers(1, room.max_text_tokens))
    fixation = data.draw(st.integers(0, visual))
    rows = plan.prefill_rows(data.draw(st.integers(1, room.prefill_chunk)), data.draw(st.sampled_from([1, 2])))
    embeds = data.draw(st.integers(1, batch * room.max_visual_tokens))
    sizes = {
        "prefill": plan.prefill_sizes(batch, rows, visual, text, embeds),
        "decode": plan.decode_sizes(batch, fixation, visual, text),
    }
    step = sizes["decode"]
    assert max(1, fixation) <= step.fixation <= step.visual_slots
    assert visual <= step.visual_slots <= room.max_visual_tokens
    assert text <= step.text_slots <= room.max_text_tokens
    for role in roles.all()[1:]:
        tensors, profiles = built[role.engine]
        assert list(profiles)[role.profile] == role.name
        for tensor in tensors:
            if tensor.mode == "input":
                shape = plan.shape(tensor.name, sizes[role.name])
                low, _, high = profiles[role.name].get(tensor.name, [tensor.shape] * 3)
                assert len(shape) == len(low)
                assert all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True)), (tensor.name, shape, high)


def test_steps_of_a_page_have_few_shapes(manifest):
    """Each new shape is a new CUDA graph."""
    plan = Plan(manifest, 1)
    room = manifest.capacities
    texts = range(1, room.max_text_tokens + 1)
    assert len({plan.decode_sizes(1, 20, 300, text) for text in texts}) == -(-len(texts) // 128)
    assert len({plan.decode_sizes(1, k, 300, 50) for k in range(1, 301)}) <= 10
    assert len({plan.prefill_rows(rows, 1) for rows in range(1, room.prefill_chunk + 1)}) <= 8


def test_a_profiles_own_limit_on_fixations_is_not_rounded_past(manifest):
    plan = Plan(manifest, 1)
    assert plan.decode_sizes(1, 70, 300, 9, most=80).fixation == 80
    assert plan.decode_sizes(1, 60, 300, 9, most=80).fixation == 64
    assert plan.decode_sizes(1, 81, 300, 9, most=80).fixation == 81  # the engine refuses it, with its own limit


def test_a_bank_of_the_plan_is_the_bank_of_the_cache(manifest):
    """The same bytes as ONNX Runtime's cache: a page is refused, or not, alike."""
    from fastocr_trt.runtime.buffers import Device
    from fastocr_trt.runtime.cache import TwoBankCache

    for dtype in ("fp32", "fp16"):
        small = replace(manifest, dtype=dtype)
        cache = TwoBankCache(small.decoder, small.capacities, BATCH, dtype, Device("cpu"))
        banks = [size for name, size in Plan(small, BATCH).buffers().items() if name.startswith("cache.")]
        assert len(banks) == 4 * manifest.decoder.num_layers
        assert sum(banks) == cache.nbytes


@pytest.mark.parametrize(
    ("name", "mode", "dtype", "shape", "words"),
    [
        ("past.0.visual_key", "input", "float16", (-1, 2, -1, 64), "float16.*says float32"),
        ("past.0.text_key", "input", "float32", (-1, 4, -1, 64), r"\[-1, 4, -1, 64\]"),
        ("visual_embeds", "input", "float32", (-1, 128), "visual_embeds"),
        ("status", "input", "int32", (1,), "status as int32"),
        ("position_ids", "input", "int64", (4, -1, -1), "position_ids"),
        ("beam", "input", "int64", (1,), "the input 'beam', which this version"),
        ("past.99.text_key", "input", "float32", (-1, 2, -1, 64), "past.99"),
        ("next_beam", "output", "int64", (1,), "the output 'next_beam'"),
    ],
)
def test_tensors_that_would_be_bound_wrongly(manifest, name, mode, dtype, shape, words):
    with pytest.raises(EngineError, match=words):
        Plan(manifest, 2).check_tensors("decoder", [TensorRecord(name, mode, dtype, shape)])


def test_engines_that_belong_to_no_form():
    file = EngineFile("", 0, "", (), ())
    with pytest.raises(EngineError, match=r"\['dense', 'vision'\]; they must be"):
        Roles.of({"vision": file, "dense": file})
