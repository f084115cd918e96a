"""The vision graph against transformers' own tower, and the host's layout against a plain reference."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.manifest import VisionShape
from fastocr_trt.runtime.vision_layout import vision_layout

QWEN = VisionShape(patch_size=14, spatial_merge_size=2, temporal_patch_size=2, in_channels=3, window_size=112)
DEMO = Path(__file__).parents[1] / "fastocr_trt" / "demo"


# The layout


def plain_patches(grid_h: int, grid_w: int, merge: int) -> list[tuple[int, int]]:
    """(row, column) of the patches in the processor's order: raster over blocks, raster inside a block."""
    return [
        (block_row + i, block_column + j)
        for block_row in range(0, grid_h, merge)
        for block_column in range(0, grid_w, merge)
        for i in range(merge)
        for j in range(merge)
    ]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 23),
    columns=st.integers(1, 23),
    merge=st.sampled_from([1, 2, 3]),
    window_tokens=st.sampled_from([1, 2, 4, 8]),
)
def test_layout_equals_plain_reference(rows: int, columns: int, merge: int, window_tokens: int):
    shape = VisionShape(14, merge, 2, 3, window_size=14 * merge * window_tokens)
    layout = vision_layout(rows * merge, columns * merge, shape)
    patches = plain_patches(rows * merge, columns * merge, merge)
    assert [tuple(p) for p in layout.rotary_positions.tolist()] == patches

    windows: dict[tuple[int, int], set[int]] = {}
    side = merge * window_tokens
    for number, (row, column) in enumerate(patches):
        windows.setdefault((row // side, column // side), set()).add(number)
    got = [{int(p) for p in row if p >= 0} for row in layout.window_rows]
    assert got == [windows[key] for key in sorted(windows)]
    assert layout.window_rows.shape[1] == side**2
    assert (layout.window_rows.ravel()[layout.window_inverse] == np.arange(len(patches))).all()


@pytest.mark.parametrize("grid", [(2, 2), (8, 8), (10, 6), (2, 40), (34, 18)])
def test_layout_equals_transformers(grid: tuple[int, int]):
    """The same sets of patches share a window, and the same positions turn the rotary."""
    torch = pytest.importorskip("torch")
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    thw = torch.tensor([[1, *grid]])
    index, ends = get_vision_window_index(thw, spatial_merge_size=2, window_size=112, patch_size=14)
    order = (index[:, None] * 4 + torch.arange(4)).flatten().tolist()
    theirs = [set(order[a:b]) for a, b in pairwise(ends)]
    layout = vision_layout(*grid, QWEN)
    assert [{int(p) for p in row if p >= 0} for row in layout.window_rows] == theirs
    assert np.array_equal(layout.rotary_positions, get_vision_position_ids(thw, 2).numpy())


def test_model_without_windows_has_one_window():
    layout = vision_layout(6, 4, VisionShape(14, 2, 2, 3, window_size=0))
    assert np.array_equal(layout.window_rows, np.arange(24)[None])
    assert np.array_equal(layout.window_inverse, np.arange(24))


@pytest.mark.parametrize("grid", [(0, 2), (3, 2), (2, 5)])
def test_layout_refuses_part_of_a_merge_block(grid: tuple[int, int]):
    with pytest.raises(ValueError, match="whole blocks of 2 x 2"):
        vision_layout(*grid, QWEN)


# The graph

PAGES = [(2, 2), (8, 8), (10, 6), (18, 34), (2, 44), (44, 2), (32, 24)]


def tiny_model(kind: str, **vision):
    """A random model with a vision tower to look at, and a decoder next to nothing, on the CPU in float32."""
    torch = pytest.importorskip("torch")
    import transformers

    config, model = {
        "qwen2_5_vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration"),
        "qwen2_vl": ("Qwen2VLConfig", "Qwen2VLForConditionalGeneration"),
    }[kind]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    text = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "vocab_size": 16}
    text |= {"num_attention_heads": 2, "num_key_value_heads": 1, "rope_parameters": rope}
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(vision_config=vision, text_config=text)).eval()
    with torch.no_grad():  # initial biases are zero and norms one: a graph that lost them would pass
        for name, parameter in made.model.visual.named_parameters():
            if name.endswith("bias") or "norm" in name or "ln_q" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def qwen2_5_model(**overrides):
    vision = {"depth": 4, "fullatt_block_indexes": [1, 3], "hidden_size": 48, "intermediate_size": 80, "num_heads": 3}
    return tiny_model("qwen2_5_vl", **{**vision, "out_hidden_size": 32, "window_size": 112, **overrides})


class Traced:
    """A model's vision graph in ONNX Runtime, beside the model."""

    def __init__(self, model, directory: Path, **options):
        import onnx_ir
        import onnxruntime

        from fastocr_trt.export.vision import trace_vision

        self.model = model
        self.path = directory / "vision.onnx"
        onnx_ir.save(trace_vision(model, **options), self.path)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        settings.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(self.path, settings, providers=["CPUExecutionProvider"])
        config = model.config.vision_config
        window = getattr(config, "window_size", 0)
        size = (config.patch_size, config.spatial_merge_size, config.temporal_patch_size, config.in_channels)
        self.shape = VisionShape(*size, window_size=window)

    def ours(self, pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        inputs = {"pixel_values": pixels, **vision_layout(*grid, self.shape)._asdict()}
        return self.session.run(["visual_embeds"], inputs)[0]

    def theirs(self, pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        import torch

        with torch.inference_mode():
            visual = self.model.model.visual
            return visual(torch.from_numpy(pixels), torch.tensor([[1, *grid]])).pooler_output.float().numpy()


def noise(grid: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(grid).standard_normal((grid[0] * grid[1], 3 * 2 * 14 * 14), np.float32)


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Traced:
    torch = pytest.importorskip("torch")
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(DEMO, dtype=torch.float32).eval()
    return Traced(model, tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Traced:
    """Two windowed and two whole-page blocks."""
    return Traced(qwen2_5_model(), tmp_path_factory.mktemp("mixed"))


@pytest.mark.parametrize("grid", PAGES)
def test_windowed_and_whole_page_blocks_equal_transformers(mixed: Traced, grid: tuple[int, int]):
    pixels = noise(grid)
    ours, theirs = mixed.ours(pixels, grid), mixed.theirs(pixels, grid)
    assert ours.shape == (grid[0] * grid[1] // 4, 32)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("grid", PAGES)
def test_demo_equals_transformers(demo: Traced, grid: tuple[int, int]):
    """On a page of flat paper with strokes. The trained tower's output reaches tens, so the bound is relative."""
    pixels = np.where(noise(grid) > 1.5, -1.0, 1.0).astype(np.float32)
    ours, theirs = demo.ours(pixels, grid), demo.theirs(pixels, grid)
    assert np.abs(ours - theirs).max() < 1e-4 * max(1.0, np.abs(theirs).max())


def test_tokens_come_in_raster_order(mixed: Traced):
    """Patches that change change their own token most: no window order leaks out."""
    grid = (18, 22)
    pixels = noise(grid)
    base = mixed.ours(pixels, grid)
    for token in (0, 5, 11, 47, 98):
        changed = pixels.copy()
        changed[4 * token : 4 * token + 4] *= -1
        assert np.abs(mixed.ours(changed, grid) - base).max(1).argmax() == token


def test_windows_keep_patches_apart(tmp_path: Path):
    """With windows alone, a patch changes no token outside its window; the window at the edge is a small one."""
    traced = Traced(qwen2_5_model(depth=1, fullatt_block_indexes=[]), tmp_path)
    grid = (10, 20)
    pixels = noise(grid)
    changed = pixels.copy()
    changed[-1] += 1
    touched = np.abs(traced.ours(changed, grid) - traced.ours(pixels, grid)).max(1).reshape(5, 10) > 0
    assert np.argwhere(touched).tolist() == [[4, 8], [4, 9]]


def test_model_without_windows_equals_transformers(tmp_path: Path):
    vision = {"depth": 1, "embed_dim": 48, "num_heads": 3, "mlp_ratio": 2, "hidden_size": 32}
    traced = Traced(tiny_model("qwen2_vl", **vision), tmp_path)
    for grid in PAGES[:4]:
        pixels = noise(grid)
        assert np.abs(traced.ours(pixels, grid) - traced.theirs(pixels, grid)).max() < 1e-4


def test_standard_bodies_equal_transformers(tmp_path: Path):
    """The bodies for parsers that know ONNX's own operators only."""
    import onnx

    traced = Traced(qwen2_5_model(depth=2, fullatt_block_indexes=[1]), tmp_path, form="standard")
    domains = {node.domain for function in onnx.load(traced.path).functions for node in function.node}
    assert domains == {""}
    for grid in PAGES[:4]:
        pixels = noise(grid)
        assert np.abs(traced.ours(pixels, grid) - traced.theirs(pixels, grid)).max() < 1e-4


MEASURE = """
import re, sys
import numpy as np, onnxruntime
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
inputs = dict(np.load(sys.argv[2]))
before = peak()
session.run(None, inputs)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_whole_page_attention_holds_no_scores_of_the_page(mixed: Traced, tmp_path: Path):
    """heads * patches^2 scores would be 1,200 MB here. A process of its own, as a peak is that of all its life."""
    grid = (100, 100)
    layout = vision_layout(*grid, mixed.shape)
    np.savez(tmp_path / "inputs.npz", pixel_values=noise(grid), **layout._asdict())
    command = [sys.executable, "-c", MEASURE, str(mixed.path), str(tmp_path / "inputs.npz")]
    added = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert added < 200_000


def test_half_precision_takes_float32_pixels(tmp_path: Path):
    torch = pytest.importorskip("torch")
    traced = Traced(qwen2_5_model(depth=2, fullatt_block_indexes=[1]).to(torch.float16), tmp_path)
    grid = (10, 14)
    pixels = noise(grid)
    ours = traced.ours(pixels, grid)
    assert ours.dtype == np.float16
    assert np.abs(ours - traced.theirs(pixels, grid)).max() < 5e-3


def test_graph_is_valid_and_names_are_the_checkpoints(mixed: Traced):
    import onnx

    graph = onnx.load(mixed.path)
    onnx.checker.check_model(graph, full_check=True)
    state = {f"model.visual.{name}" for name, _ in mixed.model.model.visual.named_parameters()}
    shapes = {i.name: tuple(i.dims) for i in graph.graph.initializer}
    assert state <= shapes.keys()
    assert all(shapes[name] == tuple(mixed.model.get_parameter(name).shape) for name in state)
    assert all(np.prod(shapes[name]) < 64 for name in shapes.keys() - state)


def test_tracing_reads_no_weights():
    """Nor their values from anywhere: "meta" has none. In bfloat16 the pixels still come in float32."""
    torch = pytest.importorskip("torch")
    import onnx_ir

    from fastocr_trt.export.vision import trace_vision

    model = qwen2_5_model(depth=3, fullatt_block_indexes=[1]).to("meta", torch.bfloat16)
    graph = trace_vision(model).graph
    names = {f"model.visual.{name}" for name, _ in model.model.visual.named_parameters()}
    assert names <= graph.initializers.keys()
    assert [node.op_type for node in graph if node.domain == "fastocr"] == [
        "WindowAttention",
        "BidirectionalAttention",
        "WindowAttention",
    ]
    assert graph.inputs[0].dtype == onnx_ir.DataType.FLOAT
    assert graph.outputs[0].dtype == onnx_ir.DataType.BFLOAT16
