"""Pages laid out for the vision encoder, against Hugging Face's image processor."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fastocr_trt.demo
from fastocr_trt.errors import PageError
from fastocr_trt.manifest import ImageProcessing, VisionShape
from fastocr_trt.runtime.preprocess import plan, preprocess, visual_token_count

SHAPE = VisionShape(patch_size=14, spatial_merge_size=2, temporal_patch_size=2, in_channels=3, window_size=224)
DEMO = ImageProcessing(3136, 1_003_520, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
QWEN = ImageProcessing(
    3136, 200_704, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 1 / 255
)
SIDES = st.integers(8, 400)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def processor_of(processing: ImageProcessing, shape: VisionShape = SHAPE):
    transformers = pytest.importorskip("transformers", reason="compares with Hugging Face's processor")
    demo = Path(fastocr_trt.demo.__file__).parent
    return transformers.AutoImageProcessor.from_pretrained(
        demo,
        size={"shortest_edge": processing.min_pixels, "longest_edge": processing.max_pixels},
        image_mean=list(processing.image_mean),
        image_std=list(processing.image_std),
        rescale_factor=processing.rescale_factor,
        patch_size=shape.patch_size,
        merge_size=shape.spatial_merge_size,
        temporal_patch_size=shape.temporal_patch_size,
    )


def assert_equal_to_hugging_face(image: Image.Image, processing: ImageProcessing, shape: VisionShape, processor):
    expected = processor(images=[image], return_tensors="np")
    prepared = preprocess(image, processing, shape)
    assert expected["image_grid_thw"].tolist() == [[1, prepared.grid_h, prepared.grid_w]]
    assert prepared.pixel_values.dtype == np.float32
    np.testing.assert_array_equal(prepared.pixel_values, expected["pixel_values"])
    assert prepared.visual_tokens == prepared.grid_h * prepared.grid_w // shape.spatial_merge_size**2
    assert prepared.size == (prepared.grid_w * shape.patch_size, prepared.grid_h * shape.patch_size)
    assert not prepared.resized_to_fit


@pytest.fixture(scope="module", params=["demo", "qwen"])
def pair(request):
    processing = {"demo": DEMO, "qwen": QWEN}[request.param]
    return processing, processor_of(processing)


@given(width=SIDES, height=SIDES, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_pixel_values_are_those_of_hugging_face(pair, width, height, seed):
    assert_equal_to_hugging_face(noise(width, height, seed), pair[0], SHAPE, pair[1])


@pytest.mark.parametrize("size", [(8, 8), (1600, 8), (8, 1600), (672, 896), (1700, 1300), (42, 70), (14, 14), (28, 28)])
def test_sizes_at_the_edges(pair, size):
    assert_equal_to_hugging_face(noise(*size), pair[0], SHAPE, pair[1])


@pytest.mark.parametrize(
    "shape",
    [
        VisionShape(patch_size=16, spatial_merge_size=2, temporal_patch_size=2, in_channels=3, window_size=256),
        VisionShape(patch_size=14, spatial_merge_size=1, temporal_patch_size=1, in_channels=3, window_size=112),
        VisionShape(patch_size=7, spatial_merge_size=3, temporal_patch_size=3, in_channels=3, window_size=112),
    ],
    ids=str,
)
def test_other_patch_and_merge_sizes(shape):
    assert_equal_to_hugging_face(noise(150, 91), QWEN, shape, processor_of(QWEN, shape))


@given(
    width=st.integers(1, 9000),
    height=st.integers(1, 9000),
    bounds=st.sampled_from([(3136, 1_003_520), (3136, 12_845_056), (200_704, 1_003_520), (784, 784)]),
)
def test_number_of_visual_tokens_is_known_from_the_size(width, height, bounds):
    smart_resize = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl").smart_resize
    processing = dataclasses.replace(DEMO, min_pixels=bounds[0], max_pixels=bounds[1])
    try:
        down, across = smart_resize(height, width, 28, *bounds)
    except ValueError:
        with pytest.raises(PageError, match="limit is 200"):
            visual_token_count(width, height, processing, SHAPE)
        return
    layout = plan(width, height, processing, SHAPE)
    assert (layout.width, layout.height) == (across, down)
    assert visual_token_count(width, height, processing, SHAPE) == layout.visual_tokens == down * across // 784


@given(width=st.integers(1, 9000), height=st.integers(1, 9000), limit=st.integers(1, 2000))
def test_resized_to_fit_never_exceeds_the_limit(width, height, limit):
    if max(width, height) > 200 * min(width, height):
        return
    layout = plan(width, height, DEMO, SHAPE, limit)
    wanted = visual_token_count(width, height, DEMO, SHAPE)
    assert layout.resized_to_fit == (wanted > limit)
    assert layout.visual_tokens == layout.width * layout.height // 784 == min(layout.visual_tokens, limit)
    assert layout.width % 28 == layout.height % 28 == 0 and layout.visual_tokens >= 1
    if not layout.resized_to_fit:
        assert layout == plan(width, height, DEMO, SHAPE)


@given(width=st.integers(300, 3000), height=st.integers(300, 3000), limit=st.integers(100, 1000))
def test_resized_to_fit_keeps_the_shape_and_most_of_the_room(width, height, limit):
    layout = plan(width, height, DEMO, SHAPE, limit)
    if layout.resized_to_fit and max(width, height) < 4 * min(width, height):
        assert layout.visual_tokens > 0.7 * limit
        stretch = (layout.width / layout.height) / (width / height)
        assert abs(math.log(stretch)) < 0.25


def test_resized_to_fit_is_the_processor_with_fewer_pixels(pair):
    image = noise(400, 300)
    prepared = preprocess(image, pair[0], SHAPE, max_visual_tokens=60)
    lowered = dataclasses.replace(pair[0], max_pixels=60 * 784)
    expected = processor_of(lowered)(images=[image], return_tensors="np")
    np.testing.assert_array_equal(prepared.pixel_values, expected["pixel_values"])
    assert prepared.resized_to_fit and prepared.visual_tokens <= 60 and prepared.original_size == (400, 300)
    assert prepared.scale == pytest.approx(math.sqrt(prepared.size[0] * prepared.size[1] / (400 * 300)))


def test_exactly_full_is_not_resized():
    needed = visual_token_count(400, 300, DEMO, SHAPE)
    assert not preprocess(noise(400, 300), DEMO, SHAPE, needed, resize_to_fit=False).resized_to_fit
    assert preprocess(noise(400, 300), DEMO, SHAPE, needed - 1).resized_to_fit


def test_too_many_visual_tokens_without_resizing():
    with pytest.raises(PageError, match=r"672 x 896 pixels needs 768 visual tokens and the engine takes 512") as caught:
        preprocess(noise(672, 896), DEMO, SHAPE, 512, resize_to_fit=False)
    assert all(way in str(caught.value) for way in ("--no-resize", "--dpi", "--max-visual-tokens 768"))


def test_aspect_ratio():
    assert visual_token_count(1600, 8, DEMO, SHAPE) > 0
    with pytest.raises(PageError, match=r"35,000 x 20 pixels, a ratio of 1,750.* limit is 200"):
        preprocess(Image.new("RGB", (35_000, 20)), DEMO, SHAPE)


def test_what_is_no_page_is_a_defect_of_the_caller():
    with pytest.raises(ValueError, match="RGB"):
        preprocess(Image.new("L", (40, 40)), DEMO, SHAPE)
    with pytest.raises(ValueError, match="channels"):
        preprocess(noise(40, 40), DEMO, dataclasses.replace(SHAPE, in_channels=1))
