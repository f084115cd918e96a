"""The three ops' ONNX functions in ONNX Runtime against the oracle."""

# ruff: noqa: E402  (imports after the check that the extra is there)

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the ONNX bodies are part of the extra `export`")
onnx = pytest.importorskip("onnx")

import onnxruntime as ort

from fastocr_trt import reference
from fastocr_trt.export import bodies, ops, schemas

SCALE = 0.25
DEFAULT_CASE = {
    "batch": 2, "kv_heads": 2, "group": 2, "rows": 1, "head_dim": 8, "visual_capacity": 24, "text_capacity": 16,
    "chunk": "text", "visual_share": (0.5, 1.0), "text_share": (0.3, 1.0), "keep": (0.5, 0.25), "ties": False,
    "seed": 0,
}  # fmt: skip


@dataclass
class Case:
    """Inputs of all three ops by name, and the fixation size."""

    inputs: dict[str, np.ndarray]
    size: int

    def take(self, *names: str) -> list[np.ndarray]:
        return [self.inputs[name] for name in names]


def make_case(**changes) -> Case:
    """A ragged batch in the middle of prefill or decoding. *_share: how full each page's bank is."""
    c = DEFAULT_CASE | changes
    rng = np.random.default_rng(c["seed"])
    batch, kv, rows, dim = c["batch"], c["kv_heads"], c["rows"], c["head_dim"]
    capacity = {"visual": c["visual_capacity"], "text": c["text_capacity"]}
    share = {bank: np.resize(c[f"{bank}_share"], batch) for bank in capacity}
    length = {bank: np.floor(share[bank] * (capacity[bank] - rows)).astype(np.int64) for bank in capacity}
    steps = np.arange(1, rows + 1)
    valid = {bank: length[bank][:, None] + (steps if bank == c["chunk"] else np.zeros_like(steps)) for bank in capacity}
    draw = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    inputs = {
        "query": draw(batch, kv * c["group"], rows, dim) * 2,
        "key": draw(batch, kv, rows, dim),
        "value": draw(batch, kv, rows, dim),
    }
    for bank in capacity:
        inputs[f"past_{bank}_key"] = draw(batch, kv, capacity[bank], dim)
        inputs[f"past_{bank}_value"] = draw(batch, kv, capacity[bank], dim)
        inputs[f"{bank}_length"] = length[bank]
        inputs[f"{bank}_valid"] = valid[bank]
        inputs[f"{bank}_slots"] = np.arange(max(1, valid[bank].max()))
    if c["ties"]:
        _tie(inputs, rng, kv, c["group"])
    last_valid = valid["visual"][:, -1]
    counts = np.minimum(np.ceil(np.resize(c["keep"], batch) * last_valid).astype(np.int64), last_valid)
    size = max(1, int(counts.max()))
    inputs |= {"num_fixations": counts, "fixation_slots": np.arange(size)}
    fixation = np.full((batch, kv, size), -1, np.int64)
    for b, g in np.ndindex(batch, kv):
        fixation[b, g, : counts[b]] = rng.permutation(last_valid[b])[: counts[b]]
        rng.shuffle(fixation[b, g])  # unused places may be anywhere
    inputs["fixation"] = fixation
    return Case(inputs, size)


def _tie(inputs, rng, kv, group) -> None:
    """Few distinct keys of small integers, and the same query for all heads of a group: masses tie exactly."""
    batch, _, capacity, dim = inputs["past_visual_key"].shape
    patterns = rng.integers(-1, 2, (3, kv, dim)).astype(np.float32)
    chosen = rng.integers(0, 3, (batch, capacity))
    inputs["past_visual_key"][:] = patterns[chosen].transpose(0, 2, 1, 3)
    query = rng.integers(-2, 3, (batch, kv, 1, inputs["query"].shape[2], dim)).astype(np.float32)
    inputs["query"] = np.repeat(query, group, 2).reshape(inputs["query"].shape)


@cache
def session(op: str, per_kv_head: bool = True, visual_slice: bool = True) -> ort.InferenceSession:
    names, results, _ = ops.SIGNATURES[op]
    functions = bodies.functions(per_kv_head=per_kv_head, visual_slice=visual_slice)
    attributes = {"scale": SCALE} | ({"per_kv_head": int(per_kv_head)} if op == "FocalAttention" else {})
    value = onnx.helper.make_tensor_value_info

    def describe(name: str):
        integer = name.endswith(("_length", "_valid", "_slots", "fixations", "fixation"))
        rank = 4 if not integer else {"valid": 2, "fixation": 3}.get(name.split("_")[-1], 1)
        kind = onnx.TensorProto.INT64 if integer else onnx.TensorProto.FLOAT
        return value(name, kind, [None] * rank)

    node = onnx.helper.make_node(op, names, results, domain=schemas.DOMAIN, **attributes)
    graph = onnx.helper.make_graph([node], op, [describe(n) for n in names], [describe(r) for r in results])
    opsets = [
        onnx.helper.make_opsetid("", schemas.OPSET),
        onnx.helper.make_opsetid(schemas.DOMAIN, schemas.OPSET_VERSION),
    ]
    model = onnx.helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=11)
    onnx.checker.check_model(model)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(op: str, case: Case, **variant) -> dict[str, np.ndarray]:
    names, results, _ = ops.SIGNATURES[op]
    inputs = case.inputs | {
        "visual_key": case.inputs["past_visual_key"],
        "visual_value": case.inputs["past_visual_value"],
    }
    feeds = {name: np.ascontiguousarray(inputs[name]) for name in names}
    return dict(zip(results, session(op, **variant).run(None, feeds), strict=True))


BANKS = ("past_visual_key", "past_visual_value", "past_text_key", "past_text_value")
LENGTHS = ("visual_length", "text_length", "visual_valid", "text_valid")


def assert_same(actual: dict[str, np.ndarray], expected) -> None:
    for name, wanted in expected._asdict().items():
        if name == "fixation":
            np.testing.assert_array_equal(np.sort(actual[name], -1), np.sort(wanted, -1))
        else:
            np.testing.assert_allclose(actual[name], wanted, rtol=2e-4, atol=2e-5, err_msg=name)


def check_dense(case: Case, **variant) -> None:
    expected = reference.dense_attention(*case.take("query", "key", "value", *BANKS, *LENGTHS), scale=SCALE)
    assert_same(run("DenseAttention", case, **variant), expected)


def check_focal(case: Case, per_kv_head: bool = True, visual_slice: bool = True) -> np.ndarray:
    inputs = case.take("query", "key", "value", *BANKS, *LENGTHS, "num_fixations")
    expected = reference.focal_attention(*inputs, case.size, scale=SCALE, per_kv_head=per_kv_head)
    actual = run("FocalAttention", case, per_kv_head=per_kv_head, visual_slice=visual_slice)
    assert_same(actual, expected)
    return actual["fixation"]


def check_gathered(case: Case) -> None:
    names = ("query", "key", "value", *BANKS, "text_length", "visual_valid", "text_valid", "fixation")
    assert_same(run("GatheredAttention", case), reference.gathered_attention(*case.take(*names), scale=SCALE))


CASES = {
    "one valid row": {"visual_share": (0.0,), "text_share": (0.0,), "chunk": "visual", "keep": (1.0,)},
    "text only, no visual row": {"visual_share": (0.0,), "keep": (1.0,)},
    "a page fills its bank exactly": {"visual_share": (1.0, 0.2), "chunk": "visual", "rows": 4, "keep": (1.0,)},
    "the text bank is full": {"text_share": (1.0,), "rows": 3},
    "a tiny page beside a large one": {"visual_capacity": 60, "visual_share": (0.06, 1.0), "keep": (1.0, 0.6)},
    "one page keeps nothing": {"keep": (0.0, 0.5)},
    "all pages keep nothing": {"keep": (0.0,)},
    "exact ties": {"ties": True, "visual_capacity": 40, "keep": (0.4, 0.7), "group": 4},
    "all rows tie": {"ties": True, "seed": 3, "head_dim": 1, "keep": (0.5,)},
    "a visual chunk": {"chunk": "visual", "rows": 5},
    "a text chunk": {"rows": 5, "text_capacity": 30},
    "one query head per KV head": {"group": 1, "kv_heads": 4},
    "eight query heads per KV head": {"group": 8, "kv_heads": 1},
}


@pytest.mark.parametrize("per_kv_head", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_named_cases(name: str, per_kv_head: bool) -> None:
    case = make_case(**CASES[name])
    check_focal(case, per_kv_head)
    if per_kv_head:
        check_dense(case)
        check_gathered(case)


cases = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "kv_heads": st.integers(1, 3),
        "group": st.integers(1, 8),
        "rows": st.integers(1, 4),
        "head_dim": st.sampled_from([1, 4, 16]),
        "visual_capacity": st.integers(4, 40),
        "text_capacity": st.integers(4, 20),
        "chunk": st.sampled_from(["visual", "text"]),
        "visual_share": st.tuples(*[st.floats(0, 1)] * 3),
        "text_share": st.tuples(*[st.floats(0, 1)] * 3),
        "keep": st.tuples(*[st.floats(0, 1)] * 3),
        "ties": st.booleans(),
        "seed": st.integers(0, 1 << 16),
    }
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases, st.booleans())
def test_ops_equal_the_oracle(changes: dict, per_kv_head: bool) -> None:
    case = make_case(**changes)
    check_dense(case)
    check_focal(case, per_kv_head)
    if (case.inputs["text_valid"] > 0).all():  # a decode step sees its own row at least
        check_gathered(case)


def test_ties_go_to_the_lower_row() -> None:
    case = make_case(keep=(0.5,))
    case.inputs["query"][:] = 0  # every row gets the same mass
    fixation = check_focal(case)
    for b, count in enumerate(case.inputs["num_fixations"]):
        for g in range(fixation.shape[1]):
            assert sorted(fixation[b, g][fixation[b, g] >= 0]) == list(range(count))


def test_a_page_keeps_what_it_would_keep_alone() -> None:
    """Beside a larger page, a page's fixation has the same rows, and -1 in the places it does not use."""
    together = make_case(visual_share=(0.2, 1.0), keep=(0.5, 0.9))
    alone = Case({name: value[:1] for name, value in together.inputs.items() if not name.endswith("slots")}, 0)
    alone.size = int(alone.inputs["num_fixations"][0])
    for bank in ("visual", "text"):
        alone.inputs[f"{bank}_slots"] = np.arange(max(1, alone.inputs[f"{bank}_valid"].max()))
    alone.inputs["fixation_slots"] = np.arange(alone.size)
    small, both = check_focal(alone), check_focal(together)
    assert both.shape[-1] > alone.size
    unused = both.shape[-1] - alone.size
    ordered = np.sort(both[0], -1)  # -1 comes first
    np.testing.assert_array_equal(ordered[:, unused:], np.sort(small[0], -1))
    assert (ordered[:, :unused] == -1).all()


def test_a_fixation_is_in_the_order_of_the_bank() -> None:
    """Rows are gathered front to back."""
    fixation = check_focal(make_case(visual_share=(0.2, 1.0), keep=(0.5, 0.9)))
    assert (np.diff(fixation, axis=-1) >= 0).all()


def test_the_whole_bank_may_be_read_instead_of_a_slice() -> None:
    case = make_case(visual_share=(0.3, 0.6))
    case.inputs["visual_slots"] = np.arange(DEFAULT_CASE["visual_capacity"])
    check_dense(case, visual_slice=False)
    check_focal(case, visual_slice=False)


def test_inlined_bodies_write_the_banks_in_place() -> None:
    """A bank bound as past and present is updated where it lies; only the new row changes."""
    case = make_case()
    names, results, _ = ops.SIGNATURES["DenseAttention"]
    binding = session("DenseAttention").io_binding()
    arrays = {name: np.ascontiguousarray(case.inputs[name]).copy() for name in names}
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name in names:
        binding.bind_ortvalue_input(name, values[name])
    for name in results[1:]:
        binding.bind_ortvalue_output(name, values[name.replace("present", "past")])
    binding.bind_output("output")
    session("DenseAttention").run_with_iobinding(binding)
    expected = reference.dense_attention(*case.take("query", "key", "value", *BANKS, *LENGTHS), scale=SCALE)
    for name in BANKS:
        wanted = getattr(expected, name.replace("past", "present"))
        np.testing.assert_array_equal(values[name].numpy(), wanted)
        assert not np.array_equal(wanted, case.inputs[name])
