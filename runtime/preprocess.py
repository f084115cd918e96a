"""A page to the vision encoder's patches, equal to what Hugging Face's Qwen2-VL image processor gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..counts import plural
from ..errors import PageError
from ..manifest import ImageProcessing, VisionShape

MAX_ASPECT_RATIO = 200
"""Long side over short side; the processor refuses more."""


@dataclass(frozen=True)
class PreparedImage:
    """An image laid out for `vision.onnx`.

    pixel_values [patches, channels*temporal_patch_size*patch_size^2] float32, patches in merge-block order;
    grid_h, grid_w: patches down and across; visual_tokens: rows that the decoder sees;
    resized_to_fit: shrunk below the model's own resize rule, to stay within max_visual_tokens;
    size, original_size: (width, height) in pixels after and before the resize.
    """

    pixel_values: NDArray[np.float32]
    grid_h: int
    grid_w: int
    visual_tokens: int
    resized_to_fit: bool
    size: tuple[int, int]
    original_size: tuple[int, int]

    @property
    def scale(self) -> float:
        """How much a length was scaled by the resize (mean of both sides): 0.5 is half as wide and high."""
        return math.sqrt(math.prod(self.size) / math.prod(self.original_size))


@dataclass(frozen=True)
class Layout:
    """What an image will become, known from its size alone. width and height are pixels after the resize."""

    width: int
    height: int
    visual_tokens: int
    resized_to_fit: bool


def visual_token_count(width: int, height: int, processing: ImageProcessing, shape: VisionShape) -> int:
    """Visual tokens of an image of `width` x `height` pixels where nothing limits them. PageError: aspect ratio."""
    return plan(width, height, processing, shape).visual_tokens


def plan(
    width: int,
    height: int,
    processing: ImageProcessing,
    shape: VisionShape,
    max_visual_tokens: int | None = None,
    resize_to_fit: bool = True,
) -> Layout:
    """How an image will be laid out, before any work is done.

    Raises PageError where the aspect ratio is above 200, or where the image needs more than max_visual_tokens
    and resize_to_fit is False.
    """
    factor = shape.patch_size * shape.spatial_merge_size
    size = _smart_resize(width, height, factor, processing.min_pixels, processing.max_pixels)
    tokens = math.prod(size) // factor**2
    if max_visual_tokens is None or tokens <= max_visual_tokens:
        return Layout(*size, tokens, False)
    if not resize_to_fit:
        raise PageError(
            f"the page of {width:,} x {height:,} pixels needs {plural(tokens, 'visual token')} and the engine takes "
            f"{max_visual_tokens:,}: let it be resized to fit (without --no-resize), use a lower --dpi for a PDF, "
            f"or export the engine with --max-visual-tokens {tokens}"
        )
    limit = max_visual_tokens * factor**2
    size = _smart_resize(width, height, factor, min(processing.min_pixels, limit), limit)
    if math.prod(size) > limit:  # long strips: the rule keeps at least one token across, whatever the area
        down = min(max_visual_tokens, max(1, math.floor(math.sqrt(max_visual_tokens * height / width))))
        size = (max_visual_tokens // down * factor, down * factor)
    return Layout(*size, math.prod(size) // factor**2, True)


def preprocess(
    image: Image.Image,
    processing: ImageProcessing,
    shape: VisionShape,
    max_visual_tokens: int | None = None,
    resize_to_fit: bool = True,
) -> PreparedImage:
    """Resize, rescale, normalise and cut an RGB image into patches.

    image: 8-bit RGB (see `documents.load_image`). max_visual_tokens: a page that needs more is shrunk to fit.
    Raises PageError as `plan` does.
    """
    if image.mode != "RGB":
        raise ValueError(f"preprocess takes an RGB image, not {image.mode}: use load_image")
    if shape.in_channels != 3:
        raise ValueError(f"the vision encoder takes {shape.in_channels} channels, and pages have 3")
    layout = plan(*image.size, processing, shape, max_visual_tokens, resize_to_fit)
    size = (layout.width, layout.height)
    pixels = np.asarray(image if image.size == size else image.resize(size, Image.Resampling.BICUBIC))
    grid_h, grid_w = layout.height // shape.patch_size, layout.width // shape.patch_size
    values = _patches(pixels, grid_h, grid_w, _levels(processing), shape)
    return PreparedImage(values, grid_h, grid_w, layout.visual_tokens, layout.resized_to_fit, size, image.size)


def _smart_resize(width: int, height: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(width, height): multiples of `factor`, area within the bounds, aspect ratio kept as nearly as that allows."""
    ratio = max(width, height) / min(width, height)
    if ratio > MAX_ASPECT_RATIO:
        raise PageError(
            f"the page is {width:,} x {height:,} pixels, a ratio of {ratio:,.0f} to 1, and the limit is "
            f"{MAX_ASPECT_RATIO}: cut it into pieces"
        )
    new_h, new_w = round(height / factor) * factor, round(width / factor) * factor
    if new_h * new_w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        new_h = max(factor, math.floor(height / beta / factor) * factor)
        new_w = max(factor, math.floor(width / beta / factor) * factor)
    elif new_h * new_w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        new_h = math.ceil(height * beta / factor) * factor
        new_w = math.ceil(width * beta / factor) * factor
    return new_w, new_h


def _levels(processing: ImageProcessing) -> NDArray[np.float32]:
    """[3,256]: what each 8-bit level of each channel becomes, by the processor's own steps and roundings."""
    rescaled = (np.arange(256, dtype=np.float64) * processing.rescale_factor).astype(np.float32)
    mean = np.array(processing.image_mean, np.float32)[:, None]
    std = np.array(processing.image_std, np.float32)[:, None]
    return (rescaled - mean) / std


def _patches(pixels: NDArray[np.uint8], grid_h: int, grid_w: int, levels: NDArray[np.float32], shape: VisionShape):
    """pixels [H,W,3] to [patches, 3*T*ps*ps]: ordered while still bytes, then looked up; the T copies are equal."""
    size, merge = shape.patch_size, shape.spatial_merge_size
    blocks = pixels.reshape(grid_h // merge, merge, size, grid_w // merge, merge, size, 3)
    blocks = blocks.transpose(0, 3, 1, 4, 6, 2, 5).reshape(grid_h * grid_w, 3, 1, size * size)
    values = np.empty((grid_h * grid_w, 3, shape.temporal_patch_size, size * size), np.float32)
    for channel in range(3):
        values[:, channel] = levels[channel][blocks[:, channel]]
    return values.reshape(grid_h * grid_w, -1)
