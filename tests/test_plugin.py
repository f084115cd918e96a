"""The TensorRT plugin library over the kernels on the CPU: host code, the oracle's results, NVIDIA's registries."""

import ctypes
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fastocr_trt import reference
from fastocr_trt.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # tools/ is not installed

from tools.plugin_library import build_plugin  # noqa: E402

OPS = {"dense": "DenseAttention", "focal": "FocalAttention", "gathered": "GatheredAttention"}
BATCH, HEADS, KV, DIM, VCAP, TCAP, SCALE = 2, 6, 2, 64, 40, 24, 0.125
INT64 = 8  # of nvinfer1::DataType
TYPES = {"fp32": 0, "fp16": 1, "bf16": 7}
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}
MAX_DIMS = 8


class DriverTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("nb_dims", ctypes.c_int32),
        ("dims", ctypes.c_int64 * MAX_DIMS),
    )


@pytest.fixture(scope="session")
def library() -> Path:
    """libfastocr_plugin_cpu.so, built once; the test programs lie in tests/ beside it."""
    try:
        return build_plugin(cuda=False)
    except MissingDependencyError as error:
        pytest.skip(str(error))


def stored(array, dtype):
    """The bytes of float64 values in a storage type (a numpy array), and back."""
    if dtype == "bf16":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # cut, not rounded: still a bfloat16
    return array.astype({"fp32": np.float32, "fp16": np.float16}[dtype])


def loaded(array, dtype):
    if dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def ragged_call(rows, dtype, seed=0):
    """The 11 inputs that the ops share: two pages of different lengths, both banks part full, new rows of text."""
    rng = np.random.default_rng(seed)
    shapes = [(BATCH, h, rows, DIM) for h in (HEADS, KV, KV)] + [
        (BATCH, KV, cap, DIM) for cap in (VCAP, VCAP, TCAP, TCAP)
    ]
    visual_length, text_length = np.array([33, 9]), np.array([4, 11])
    visual_valid = np.repeat(visual_length[:, None], rows, 1)
    text_valid = text_length[:, None] + np.arange(1, rows + 1)
    values = [stored(rng.standard_normal(shape), dtype) for shape in shapes]
    return [*values, visual_length, text_length, visual_valid, text_valid]


def drive(library, op, inputs, dtype, *, fixation_size=0, tactic=0, in_place=True, per_kv_head=True):
    """Results of the plugin as reference.Appended (storage types), and what it logged."""
    function = ctypes.CDLL(str(library.parent / "tests" / "libplugin_driver.so")).fastocr_drive_plugin
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_float, ctypes.c_int32, ctypes.c_int32]
    function.argtypes += [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32]
    function.argtypes += [ctypes.c_char_p, ctypes.c_size_t]
    inputs = [np.ascontiguousarray(array).copy() for array in inputs]
    outputs = [np.zeros_like(inputs[0]), *(bank if in_place else np.zeros_like(bank) for bank in inputs[3:7])]
    if op == "focal":
        outputs.append(np.full((BATCH, KV, fixation_size), -7, np.int64))
    outputs.append(np.zeros(1, np.int64))

    def described(arrays):
        tensors = (DriverTensor * len(arrays))()
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.data, tensor.nb_dims = array.ctypes.data, array.ndim
            tensor.type = INT64 if array.dtype == np.int64 else TYPES[dtype]
            tensor.dims[: array.ndim] = array.shape
        return tensors, len(arrays)

    log = ctypes.create_string_buffer(8192)
    code = function(
        str(library).encode(),
        OPS[op].encode(),
        SCALE,
        int(per_kv_head),
        tactic,
        *described(inputs),
        *described(outputs),
        log,
        len(log),
    )
    assert code == 0, log.value.decode()
    fixation = outputs[5] if op == "focal" else None
    return reference.Appended(*outputs[:5], fixation, outputs[-1]), log.value.decode()


def check(library, op, rows, dtype, *, status=0, extra=None, change=None, tactic=0, in_place=True, per_kv_head=True):
    """One call of the plugin and of the oracle, compared; gives the plugin's log and status."""
    inputs = ragged_call(rows, dtype)
    if change:
        change(inputs)
    status_in = np.array([status], np.int64)
    counts, size = np.array([5, 9]), 12
    fixation = np.array([[[0, 32, 7, -1], [1, 2, 3, 4]], [[8, -1, -1, -1], [0, 5, 6, 2]]])
    attend_all = np.array([(extra or {}).get("attend_all", 0)])
    rest = {
        "dense": ([], {}),
        "focal": (
            [counts, np.arange(size)],
            {"num_fixations": counts, "fixation_size": size, "per_kv_head": per_kv_head},
        ),
        "gathered": ([fixation, attend_all], {"fixation": fixation, "attend_all": attend_all}),
    }[op]
    wide = [loaded(array, dtype) for array in inputs[:7]] + inputs[7:]
    wanted = reference.engine_form(op, *wide, status_in, scale=SCALE, **rest[1])
    got, log = drive(
        library,
        op,
        [*inputs, *rest[0], status_in],
        dtype,
        fixation_size=size,
        tactic=tactic,
        in_place=in_place,
        per_kv_head=per_kv_head,
    )
    np.testing.assert_allclose(loaded(got.output, dtype), wanted.output, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for present, expected in zip(got[1:5], wanted[1:5], strict=True):
        np.testing.assert_array_equal(loaded(present, dtype), expected)
    if op == "focal":
        unused_last = np.where(wanted.fixation < 0, VCAP, wanted.fixation)
        ascending = np.sort(unused_last, -1)
        np.testing.assert_array_equal(got.fixation, np.where(ascending == VCAP, -1, ascending))
    np.testing.assert_array_equal(got.status, wanted.status)
    return log, int(got.status[0])


@pytest.mark.parametrize("program", ["plugin_test", "plugin_abuse"])
def test_host_code(library, program):
    done = subprocess.run([library.parent / "tests" / program, library], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("op", OPS)
def test_results_are_the_oracles(library, op, rows, dtype):
    log, status = check(library, op, rows, dtype)
    assert (log, status) == ("", 0)


def test_attend_all_makes_a_gathered_step_dense(library):
    check(library, "gathered", 1, "fp16", extra={"attend_all": 1})


def test_one_fixation_for_all_heads(library):
    check(library, "focal", 1, "fp32", per_kv_head=False)


@pytest.mark.parametrize("tactic", [1, 2, 3, 6])
def test_every_split_count_gives_the_same(library, tactic):
    for op in OPS:
        check(library, op, 1, "fp32", tactic=tactic)


def test_banks_that_are_not_shared_are_copied_with_one_warning(library):
    log, _ = check(library, "dense", 1, "fp16", in_place=False)
    assert log.count("W: ") == 1
    assert "present_visual_key is not at the address of past_visual_key" in log


@pytest.mark.parametrize(
    ("place", "value", "bit"),
    [
        (7, VCAP, reference.STATUS_VISUAL_BANK_FULL),
        (8, TCAP, reference.STATUS_TEXT_BANK_FULL),
        (10, TCAP + 1, reference.STATUS_VALID_OUT_OF_RANGE),
    ],
)
def test_what_does_not_fit_is_a_bit_of_status(library, place, value, bit):
    def change(inputs):
        inputs[place][1] = value

    _, status = check(library, "dense", 1, "fp32", status=reference.STATUS_FIXATION_OUT_OF_RANGE, change=change)
    assert status == bit | reference.STATUS_FIXATION_OUT_OF_RANGE


def test_exports_two_names(library):
    if shutil.which("nm") is None:
        pytest.skip("nm (binutils) is not installed")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert sorted(line.split()[-1] for line in listed) == ["getCreators", "setLoggerFinder"]


# In a process of its own: two TensorRT libraries do not share one.
REGISTRY = """
import sys
from importlib import import_module
import numpy as np

trt = import_module(sys.argv[1])
registry = trt.get_plugin_registry()
assert registry.load_library(sys.argv[2]) is not None
creators = {c.name: c for c in registry.all_creators if c.plugin_namespace == "fastocr"}
scale = trt.PluginField("scale", np.array([0.125], np.float32), trt.PluginFieldType.FLOAT32)
form = [trt.PluginField("dense_prefill", np.array([n], np.int64), trt.PluginFieldType.INT64) for n in (0, 1)]
for name, creator in sorted(creators.items()):
    for fields in ([scale, form[1]], [scale, form[0]], [form[1]]):
        made = creator.create_plugin("layer", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
        print(name, creator.plugin_version, made is not None)
"""


@pytest.mark.parametrize("module", ["tensorrt_lean", "tensorrt_rtx"])
def test_nvidias_registries_load_it_and_create_its_plugins(library, module):
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    done = subprocess.run([sys.executable, "-c", REGISTRY, module, library], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = [f"{name} 1 {made}" for name in sorted(OPS.values()) for made in (True, False, False)]
    assert done.stdout.splitlines() == wanted
    # No runtime exists here, so the registry has no logger to give: the messages go to stderr.
    assert done.stderr.count("'dense_prefill' is 0; it must be 1") == len(OPS)
    assert done.stderr.count("'scale' is missing") == len(OPS)
