"""What the host needs of a checkpoint's small files: image processing, stop ids, the tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import ExportError
from ..manifest import Generation, ImageProcessing, VisionShape
from .checkpoint import read_json

TOKENIZER_NAME = "tokenizer.json"
# What Qwen2VLImageProcessor takes where the file is silent.
_MIN_PIXELS, _MAX_PIXELS = 56 * 56, 28 * 28 * 1280
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_BICUBIC = 3


def image_processing(folder: Path, vision: VisionShape) -> ImageProcessing:
    """From preprocessor_config.json, in its older form (min_pixels, max_pixels) or its newer (size).

    Raises ExportError where there is none, or where it asks for what the runtime does not do.
    """
    data = _processor_config(folder)
    size = data.get("size") or {}
    for name, ours in (("patch_size", vision.patch_size), ("merge_size", vision.spatial_merge_size)):
        if data.get(name, ours) != ours:
            raise ExportError(f"{folder}: the processor's {name} is {data[name]} and the model's is {ours}")
    if data.get("resample", _BICUBIC) != _BICUBIC:
        raise ExportError(f"{folder}: the processor resizes with filter {data['resample']}; only bicubic (3) is known")
    if not (data.get("do_rescale", True) and data.get("do_normalize", True) and data.get("do_resize", True)):
        raise ExportError(
            f"{folder}: the processor leaves out resizing, rescaling or normalising, which is unsupported"
        )
    return ImageProcessing(
        min_pixels=int(data.get("min_pixels") or size.get("shortest_edge") or _MIN_PIXELS),
        max_pixels=int(data.get("max_pixels") or size.get("longest_edge") or _MAX_PIXELS),
        image_mean=tuple(data.get("image_mean") or _MEAN),
        image_std=tuple(data.get("image_std") or _STD),
        rescale_factor=float(data.get("rescale_factor") or 1 / 255),
    )


def generation(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Generation:
    """Stop ids and padding from generation_config.json, else from the config, else from the tokenizer."""
    path = folder / "generation_config.json"
    data = read_json(path, "how it generates") if path.is_file() else {}
    stop = _first(data.get("eos_token_id"), config.text_config.eos_token_id, tokenizer.eos_token_id)
    stop_ids = tuple(stop) if isinstance(stop, (list, tuple)) else (stop,)
    if stop is None or not stop_ids:
        raise ExportError(f"{folder} names no end-of-sequence token: set eos_token_id in generation_config.json")
    pad = _first(data.get("pad_token_id"), config.text_config.pad_token_id, tokenizer.pad_token_id, stop_ids[0])
    return Generation(stop_token_ids=tuple(map(int, stop_ids)), pad_token_id=int(pad))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer; ExportError where there is none that can be loaded."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()
        raise ExportError(
            f"the tokenizer of {folder} cannot be loaded ({reason[0] if reason else type(error).__name__}); "
            f"the folder needs {TOKENIZER_NAME}, or the files it is made from"
        ) from None


def write_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Copy tokenizer.json into `output`, or make one where the checkpoint has only the older files."""
    target = output / TOKENIZER_NAME
    if (folder / TOKENIZER_NAME).is_file():
        shutil.copyfile(folder / TOKENIZER_NAME, target)
        return
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ExportError(f"{folder} has no {TOKENIZER_NAME} and its tokenizer cannot be turned into one")
    backend.save(str(target))


def _processor_config(folder: Path) -> dict[str, Any]:
    if (folder / "preprocessor_config.json").is_file():
        return read_json(folder / "preprocessor_config.json", "its image processing")
    if (folder / "processor_config.json").is_file():
        data = read_json(folder / "processor_config.json", "its processing").get("image_processor")
        if isinstance(data, dict):
            return data
    raise ExportError(f"{folder} has no preprocessor_config.json; the image size, mean and std are unknown without it")


def _first(*values):
    return next((value for value in values if value is not None), None)
