"""Where each patch of an image lies: what the vision graph needs from the grid, computed on the host.

Patches come in the processor's merge-block order: raster over blocks of m x m patches (m is spatial_merge_size),
raster inside a block. A block becomes one visual token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..manifest import VisionShape

Index = NDArray[np.int64]


class VisionLayout(NamedTuple):
    """Inputs of vision.onnx for one image, all int64.

    rotary_positions [patches,2]: (row, column) of each patch, in patches.
    window_rows [windows,W]: patch numbers of each attention window, -1 where a window at the page's edge is smaller;
        W is always a full window's patches, so that equal windows of all pages are one shape.
    window_inverse [patches]: where patch p stands in window_rows flattened.
    """

    rotary_positions: Index
    window_rows: Index
    window_inverse: Index


def vision_layout(grid_h: int, grid_w: int, shape: VisionShape) -> VisionLayout:
    """Lay out one image of `grid_h` x `grid_w` patches.

    shape.window_size is in pixels; 0 means a model without windows: one window holds the whole image.
    Raises ValueError where the grid is not whole merge blocks (preprocessing always gives whole ones).
    """
    merge = shape.spatial_merge_size
    if grid_h < merge or grid_w < merge or grid_h % merge or grid_w % merge:
        raise ValueError(f"a grid of {grid_h} x {grid_w} patches is not made of whole blocks of {merge} x {merge}")
    rows, columns = grid_h // merge, grid_w // merge  # in merged tokens

    position = np.indices((grid_h, grid_w)).reshape(2, rows, merge, columns, merge)
    rotary_positions = np.ascontiguousarray(position.transpose(1, 3, 2, 4, 0).reshape(-1, 2))

    side_h = side_w = shape.window_size // merge // shape.patch_size  # in merged tokens
    if not shape.window_size:
        side_h, side_w = rows, columns
    windows_h, windows_w = -(-rows // side_h), -(-columns // side_w)
    token = np.full((windows_h * side_h, windows_w * side_w), -1, np.int64)
    token[:rows, :columns] = np.arange(rows * columns).reshape(rows, columns)
    token = token.reshape(windows_h, side_h, windows_w, side_w).transpose(0, 2, 1, 3).reshape(-1, side_h * side_w, 1)
    patch = np.where(token < 0, -1, token * merge**2 + np.arange(merge**2))
    window_rows = np.ascontiguousarray(patch.reshape(windows_h * windows_w, -1))

    flat = window_rows.ravel()
    used = np.flatnonzero(flat >= 0)
    window_inverse = np.empty(grid_h * grid_w, np.int64)
    window_inverse[flat[used]] = used
    return VisionLayout(rotary_positions, window_rows, window_inverse)
