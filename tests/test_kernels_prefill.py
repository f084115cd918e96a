"""Dense attention of the kernels for n > 1, run on the CPU, against the oracle: chunks as prefill feeds them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.reference import engine_form

torch = pytest.importorskip("torch", reason="torch is not installed: it holds the bfloat16 arrays")
kernel_library = pytest.importorskip("tools.kernel_library")

BANKS = ("past_visual_key", "past_visual_value", "past_text_key", "past_text_value")
# Outputs are about 1. 16-bit types round the output, and the weights before they meet the values.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(TOLERANCE)


@pytest.fixture(scope="module")
def library():
    missing = kernel_library.missing_tool()
    if missing:
        pytest.skip(f"{missing} is not found: it builds the kernels")
    return kernel_library.KernelLibrary(kernel_library.build())


def chunk(kind, lengths, rows, dtype, head_dim, *, group=1, kv_heads=1, room=0, seed=0):
    """The arrays of one chunk of `rows` new rows of `kind` ("visual" or "text").

    lengths [(visual, text) of each page]: rows in the banks before it. Banks have room for the chunk and `room` more.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(sizes, generator=generator).to(dtype)

    batch = len(lengths)
    lengths = torch.tensor(lengths)
    capacity = [int(lengths[:, bank].max()) + rows + room for bank in range(2)]
    arrays = {"query": normal(batch, kv_heads * group, rows, head_dim)}
    arrays |= {name: normal(batch, kv_heads, rows, head_dim) for name in ("key", "value")}
    for name, size in zip(BANKS, (capacity[0], capacity[0], capacity[1], capacity[1]), strict=True):
        arrays[name] = normal(batch, kv_heads, size, head_dim)
    seen_by_row = torch.arange(1, rows + 1)
    for bank, name in enumerate(("visual", "text")):
        length = lengths[:, bank].contiguous()
        arrays[f"{name}_length"] = length
        arrays[f"{name}_valid"] = (length[:, None] + (seen_by_row if name == kind else 0 * seen_by_row)).contiguous()
    arrays["status"] = torch.zeros(1, dtype=torch.int64)
    return arrays


def oracle(arrays, scale):
    """The output and status that the definition gives, in double precision."""
    exact = {
        name: (array.double() if array.is_floating_point() else array).numpy().copy() for name, array in arrays.items()
    }
    result = engine_form("dense", **exact, scale=scale)
    return result.output, int(result.status[0])


def check(library, arrays, *, status=0):
    dtype, head_dim = arrays["query"].dtype, arrays["query"].shape[3]
    scale = 1.3 / math.sqrt(head_dim)
    want, want_status = oracle(arrays, scale)
    output = torch.full_like(arrays["query"], float("nan"))
    result = library.run("dense", **arrays, output=output, scale=scale)
    np.testing.assert_allclose(result.output.double().numpy(), want, rtol=0, atol=TOLERANCE[dtype])
    assert int(result.status[0]) == want_status == status


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 24, 32, 64, 80, 96, 128, 256])
def test_every_head_dim(library, dtype, head_dim):
    check(library, chunk("visual", [(61, 9)], 5, dtype, head_dim, group=2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 3, 7, 8, 16])
def test_every_group_size(library, dtype, group):
    check(library, chunk("text", [(3, 5), (20, 0)], 11, dtype, 16, group=group, kv_heads=2))


@pytest.mark.parametrize("kind", ["visual", "text"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_of_several_tiles(library, dtype, kind):
    """More query rows and more keys than one tile holds, pages of very different lengths."""
    check(library, chunk(kind, [(130, 66), (0, 0)], 70, dtype, 32, group=2, room=3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_first_chunk_of_a_page_sees_only_itself(library, dtype):
    check(library, chunk("text", [(0, 0)], 2, dtype, 16, group=3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_that_sees_nothing_is_zero(library, dtype):
    """Padding rows of a shorter page, beside rows of the same tile that see keys."""
    arrays = chunk("visual", [(7, 4), (2, 0)], 6, dtype, 16, group=2)
    for name in ("visual_valid", "text_valid"):
        arrays[name][0, 4:] = 0
        arrays[name][1, :] = 0
    check(library, arrays)
    output = library.run("dense", **arrays, scale=0.25).output
    assert not output[0, :, 4:].any() and not output[1].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_counts_out_of_range_are_cut_and_reported(library, dtype):
    arrays = chunk("text", [(5, 5)], 4, dtype, 16)
    arrays["visual_valid"][0] = torch.tensor([-1, 3, 1000, 2**40])
    arrays["text_valid"][0] = torch.tensor([-(2**40), 2**31, 1, 2])
    check(library, arrays, status=8)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_scores_do_not_overflow(library, dtype):
    """Scores of some hundreds, the largest in the last tile: exponentials would overflow without rescaling."""
    arrays = chunk("text", [(70, 40)], 3, dtype, 32)
    arrays["query"] = torch.full_like(arrays["query"], 4.0)
    arrays["key"] = torch.full_like(arrays["key"], 8.0)
    arrays["past_text_key"][:, :, 39] = -8.0
    check(library, arrays)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_nobody_sees_may_hold_anything(library, dtype):
    arrays = chunk("visual", [(10, 6)], 3, dtype, 16, room=40)
    for name in BANKS[:2]:
        arrays[name][:, :, 13:] = float("nan")
    for name in BANKS[2:]:  # the chunk's rows go to the text bank too, unseen; what follows them stays as it was
        arrays[name][:, :, 9:] = float("inf")
    check(library, arrays)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_chunk(library, data):
    """Counts that follow no pattern, which the ops allow as well."""
    draw = data.draw
    pages, rows = draw(st.integers(1, 3)), draw(st.integers(2, 24))
    lengths = draw(st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40)), min_size=pages, max_size=pages))
    arrays = chunk(
        draw(st.sampled_from(["visual", "text"])),
        lengths,
        rows,
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from([16, 32, 64])),
        group=draw(st.integers(1, 5)),
        kv_heads=draw(st.integers(1, 2)),
        room=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 2**16)),
    )
    if draw(st.booleans()):
        random = np.random.default_rng(draw(st.integers(0, 2**16)))
        for name in ("visual", "text"):
            capacity = arrays[f"past_{name}_key"].shape[2]
            arrays[f"{name}_valid"] = torch.from_numpy(random.integers(0, capacity + 1, (pages, rows)))
    check(library, arrays)
