"""What the CUDA kernels ask of a call's shape: the workspace that it needs, and the shapes that are refused."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_calls import QUICK, load_kernels, make_call, shape_of

from tools.kernel_library import Shape


@pytest.fixture(scope="module")
def library():
    return load_kernels()


SHAPE = {
    "op": 1,
    "dtype": 1,
    "batch": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rows": 1,
    "head_dim": 64,
    "visual_capacity": 256,
    "text_capacity": 64,
    "fixation_size": 16,
    "per_kv_head": 1,
    "num_splits": 0,
    "scale": 0.125,
}
GROWING = ("batch", "rows", "visual_capacity", "text_capacity", "fixation_size", "num_splits")


@QUICK
@given(
    shape=st.fixed_dictionaries(
        {
            "op": st.integers(0, 2),
            "batch": st.integers(1, 300),
            "rows": st.integers(1, 600),
            "visual_capacity": st.integers(64, 40000),
            "text_capacity": st.integers(1, 9000),
            "fixation_size": st.integers(0, 32),
            "num_splits": st.integers(0, 100),
        }
    ),
    grown=st.sampled_from(GROWING),
    by=st.integers(1, 25),
)
def test_workspace_never_falls_as_a_call_grows(library, shape, grown, by):
    shape = SHAPE | shape
    if shape["op"] == 0:
        shape["fixation_size"] = 0
        grown = "batch" if grown == "fixation_size" else grown
    if grown == "num_splits":
        shape["num_splits"] = max(1, shape["num_splits"])  # 0 is the library's own choice
    larger = shape | {grown: shape[grown] + by}
    assert library.check(Shape(**shape)) is None and library.check(Shape(**larger)) is None
    assert 0 < library.workspace_size(Shape(**shape)) <= library.workspace_size(Shape(**larger))


def test_a_workspace_that_is_too_small_is_refused(library):
    call = make_call()
    needed = library.workspace_size(shape_of("dense", call, scale=0.3))
    with pytest.raises(RuntimeError, match=r"CUDA error 1$"):
        library.run("dense", **call, scale=0.3, workspace=np.zeros(needed - 1, np.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 68}, "head_dim is 68; it must be a multiple of 8"),
        ({"head_dim": 264}, "head_dim is 264; it must be from 8 to 256"),
        ({"op": 3}, "op is 3; it must be from 0 to 2"),
        ({"dtype": -1}, "dtype is -1; it must be from 0 to 2"),
        ({"batch": 0}, "batch is 0; it must be from 1 to 65535"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 8; it must be a multiple of num_key_value_heads.* is 3"),
        ({"fixation_size": 257}, "fixation_size is 257; it must be from 0 to 256"),
        ({"op": 0}, "fixation_size is 16; it must be from 0 to 0"),
        ({"num_splits": 129}, "num_splits is 129; it must be from 0 to 128"),
        ({"visual_capacity": 2**30}, r"visual_capacity \+ text_capacity is 1073741888"),
        ({"rows": 2**30}, "rows 1073741824 is more than 1073741824; feed fewer rows at once"),
        ({"scale": float("nan")}, "scale is -?nan; it must be finite"),
    ],
)
def test_a_shape_that_the_kernels_cannot_run_is_named(library, changes, message):
    shape = Shape(**(SHAPE | changes))
    assert re.search(message, library.check(shape))
    assert library.workspace_size(shape) == 0
