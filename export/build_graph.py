"""An exported graph made ready for a TensorRT parser: sizes fixed, bodies that it knows, profiles.

Nothing here needs TensorRT or torch. `ranges` give each symbolic size of a graph its smallest, usual and largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx

from ..errors import ExportError
from ..manifest import Manifest
from .schemas import DOMAIN
from .vision_bodies import Form, functions

MAX_TOPK = 3840  # TensorRT's TopK takes no larger k; the plugin has no such limit

Range = tuple[int, int, int]
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def load_graph(path: Path) -> onnx.ModelProto:
    """The graph without its weights. ExportError where a TensorRT parser cannot know its nodes."""
    model = onnx.load(path, load_external_data=False)
    foreign = sorted({node.op_type for node in model.graph.node if node.domain == "com.microsoft"})
    if foreign:
        raise ExportError(
            f"{path} holds {', '.join(foreign)}, which only ONNX Runtime has: engines are built from an export without "
            "--weights; export the checkpoint again without it"
        )
    return model


def use_vision_bodies(model: onnx.ModelProto, form: Form) -> None:
    """Put the vision ops' bodies of `form` in the place of those that the graph has."""
    kept = [function for function in model.functions if function.domain != DOMAIN]
    del model.functions[:]
    model.functions.extend([*kept, *functions(form)])
    used = {node.domain for function in model.functions for node in function.node}
    opsets = [entry for entry in model.opset_import if entry.domain != "com.microsoft" or entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(opsets)


def fix_sizes(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    """Give symbolic sizes of inputs and outputs a value, in place."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]


def bank_rows(manifest: Manifest) -> dict[str, int]:
    """Rows of the banks, by the graphs' symbolic names; a cache that grows in an engine has a fixed length."""
    return {f"{kind}_capacity": rows for kind, rows in manifest.capacities.bank_rows.items()}


def decoder_ranges(manifest: Manifest, decoding: bool, max_fixation: int) -> dict[str, Range]:
    """Sizes of a decoder call: one row a page where `decoding`, else a prefill chunk."""
    room, rows = manifest.capacities, bank_rows(manifest)
    usual = min(max_fixation, max(1, manifest.policy.num_fixations(room.max_visual_tokens)))
    return {
        "batch": (1, 1, room.max_batch),
        "n": (1, 1, 1) if decoding else (1, room.prefill_chunk, room.prefill_chunk),
        "k": (1, usual, max_fixation),
        "visual_rows": (1, room.max_visual_tokens, rows["visual_capacity"]),
        "text_rows": (1, max(1, room.max_text_tokens // 4), rows["text_capacity"]),
        "visual_tokens": (1, room.max_visual_tokens, room.max_visual_tokens * room.max_batch),
    }


def vision_ranges(manifest: Manifest) -> dict[str, Range]:
    """Sizes of an image: up to max_visual_tokens, in windows that a narrow page does not fill."""
    tokens, vision = manifest.capacities.max_visual_tokens, manifest.vision
    block = vision.spatial_merge_size**2
    side = max(1, vision.window_size // vision.spatial_merge_size // vision.patch_size)
    usual = -(-tokens // 4)
    width = side**2 * block
    return {
        "patches": (block, usual * block, tokens * block),
        "windows": (1, -(-usual // side**2), -(-tokens // side)),
        "window_patches": (width, width, width),
    }


def profile_shapes(model: onnx.ModelProto, ranges: Mapping[str, Range]) -> dict[str, Shapes]:
    """Smallest, usual and largest shape of each input that has a symbolic size."""
    shapes = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if any(dim.dim_param for dim in dims):
            sizes = [ranges[dim.dim_param] if dim.dim_param else (dim.dim_value,) * 3 for dim in dims]
            shapes[value.name] = tuple(tuple(size[i] for size in sizes) for i in range(3))
    return shapes


def unused_inputs(model: onnx.ModelProto) -> set[str]:
    """Inputs that the graph itself does not use, such as the windows of a model without any."""
    used = {name for node in model.graph.node for name in node.input}
    return {value.name for value in model.graph.input} - used


def external_weights(model: onnx.ModelProto) -> dict[str, int]:
    """Bytes of each weight that lies in another file, by initializer; one that is used twice is there once."""
    return dict(_external(model))


def _external(model: onnx.ModelProto) -> Iterator[tuple[str, int]]:
    for initializer in model.graph.initializer:
        for entry in initializer.external_data:
            if entry.key == "length":
                yield initializer.name, int(entry.value)
