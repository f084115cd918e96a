"""Export a checkpoint into an engine directory (see docs/architecture.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import transformers

from .. import __version__
from ..counts import check_count
from ..errors import ExportError, FastOCRError
from ..fixation import FixationPolicy
from ..hashing import sha256
from ..manifest import Capacities, DecoderShape, FileRecord, ImageProcessing, Manifest, VisionShape
from . import processing
from .checkpoint import Checkpoint, read_json
from .decoder import trace_decoder
from .decoder_plugin import trace_plugin_decoder
from .families import family_of
from .graph import BLOCK_SIZE, Stored, place_weights
from .output import check_output, check_space, new_directory
from .prompt import render_prompt
from .quantize import BITS
from .quiet import quiet
from .source import DEMO, find_checkpoint
from .vision import trace_vision
from .weights import DTYPES, WEIGHTS_NAME, bind, write_weights

Progress = Callable[[str, float | None], None]

DEMO_POLICY = FixationPolicy(focal_layers=(2, 5), dense_layers=(0,), keep=0.05)
DEMO_PROMPT = "OCR:\n"
MAX_VISUAL_TOKENS = 8192  # default limits, where the model's own are not lower
MAX_TEXT_TOKENS = 4096
SIZES = {
    "text_config": (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "max_position_embeddings",
    ),
    "vision_config": (
        "depth",
        "hidden_size",
        "num_heads",
        "in_channels",
        "patch_size",
        "temporal_patch_size",
        "spatial_merge_size",
        "window_size",
    ),
}
"""Fields of a config that count something; those that a family lacks are passed over."""


def export_engine(
    model: str | Path,
    output: Path,
    *,
    dtype: str = "fp32",
    weights: str | None = None,
    policy: FixationPolicy | None = None,
    calibration: Mapping[str, Any] | None = None,
    keep: float | None = None,
    focal_layers: Sequence[int] | None = None,
    max_visual_tokens: int | None = None,
    max_text_tokens: int | None = None,
    max_batch: int = 8,
    prefill_chunk: int = 256,
    default_prompt: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the engine directory `output` for `model`, and return its manifest.

    model: "demo", a checkpoint's folder, or a hub name. dtype: fp32, fp16 or bf16, of weights and caches.
    weights: int4 or int8 quantises the decoder's matrices, block by block; None keeps them in `dtype`.
    policy: what each layer does; keep and focal_layers change single fields of it. The default for an unknown model
    is evenly spaced and uncalibrated, and the manifest says so. calibration: the record that fastocr-calibrate wrote
    with the policy, for the manifest.
    max_visual_tokens, max_text_tokens, max_batch, prefill_chunk: the engine's limits, in tokens and pages.
    force: replace an engine that is there. progress(stage, share): called as the work goes; share is 0 to 1 or None.

    The directory appears whole or not at all. Raises ExportError (FastOCRError for a policy that does not fit).
    """
    report = progress or (lambda stage, share: None)
    output = Path(output)
    _check_choices(dtype, weights)
    check_output(output, force)
    report("reading the checkpoint", None)
    folder = find_checkpoint(model)
    family, config, shapes = read_config(folder)
    checkpoint = Checkpoint(folder, family.parameter_name)
    checkpoint.check(shapes)
    tokenizer = processing.load_tokenizer(folder)
    decoder, vision = family.decoder_shape(config), family.vision_shape(config)
    images = processing.image_processing(folder, vision)
    chosen, origin = _policy(model, decoder, policy, keep, focal_layers)
    capacities = _capacities(config, images, vision, max_visual_tokens, max_text_tokens, max_batch, prefill_chunk)
    if model == DEMO and default_prompt is None:
        default_prompt = DEMO_PROMPT
    host_side = {
        "prompt": render_prompt(folder, tokenizer, config.image_token_id, default_prompt),
        "generation": processing.generation(folder, config, tokenizer),
    }
    with new_directory(output, force) as directory:
        check_space(directory, _size(shapes, dtype, weights))
        graphs, entries = _trace(family, config, dtype, decoder, chosen, weights, report)
        placed = write_weights(
            directory / WEIGHTS_NAME, entries, checkpoint, DTYPES[dtype], lambda share: report("writing weights", share)
        )
        for name, graph in graphs.items():
            report(f"saving {name}.onnx", None)
            bind(graph, placed)
            ir.save(graph, directory / f"{name}.onnx")
            onnx.checker.check_model(directory / f"{name}.onnx")
        processing.write_tokenizer(folder, tokenizer, directory)
        report("hashing files", None)
        files = {name: FileRecord.of(directory / f"{name}.onnx") for name in graphs}
        files["weights"] = FileRecord.of(directory / WEIGHTS_NAME)
        files["tokenizer"] = FileRecord.of(directory / processing.TOKENIZER_NAME)
        manifest = Manifest(
            fastocr_version=__version__,
            model=describe_model(model, folder, config, checkpoint),
            dtype=dtype,
            weights=weights,
            decoder=decoder,
            vision=vision,
            image_processing=images,
            capacities=capacities,
            policy=chosen,
            **host_side,
            files=files,
            calibration=origin if calibration is None else dict(calibration),
        )
        manifest.write(directory)
    return manifest


def _check_choices(dtype: str, weights: str | None) -> None:
    if dtype not in DTYPES:
        raise ExportError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    if weights is not None and weights not in BITS:
        raise ExportError(f"weights is {weights!r}; it must be one of {', '.join(BITS)}, or left out")


def read_config(folder: Path) -> tuple[Any, transformers.PreTrainedConfig, dict[str, tuple[int, ...]]]:
    """The family's module, the config and the shapes of its parameters.

    ExportError where the family is unsupported or the config unusable.
    """
    path = folder / "config.json"
    data = read_json(path, "its architecture")
    names = data.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ExportError(f"{path} has architectures {names!r}, not a list of names; fetch the checkpoint again")
    try:
        family = family_of(data.get("model_type"), str(folder))
        if data.get("quantization_config"):
            method = data["quantization_config"].get("quant_method", "unknown")
            raise ExportError(
                f"{folder} is quantised already ({method}); export the unquantised checkpoint with --weights"
            )
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        _check_sizes(config)
        family.check(config)
        return family, config, family.parameter_shapes(config)
    except FastOCRError:
        raise
    except Exception as error:  # transformers checks little of a config and trips over the rest in a dozen ways
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"{path} cannot be used: {reason}; fetch the checkpoint again") from None


def _check_sizes(config: transformers.PreTrainedConfig) -> None:
    """Raise ValueError for a size that is none."""
    for section, names in SIZES.items():
        for name in names:
            value = getattr(getattr(config, section), name, 1)
            if value < 1:
                raise ValueError(f"{section}.{name} is {value} and must be at least 1")
    vision = config.vision_config
    width = getattr(vision, "embed_dim", None) or vision.hidden_size  # Qwen2-VL's hidden_size is the decoder's
    if width % vision.num_heads:
        raise ValueError(f"vision_config has {vision.num_heads} heads, which do not divide its width of {width}")
    if not 0 <= config.image_token_id < config.text_config.vocab_size:
        raise ValueError(
            f"image_token_id is {config.image_token_id}, and the vocabulary has {config.text_config.vocab_size} tokens"
        )


def _policy(
    model: str | Path,
    decoder: DecoderShape,
    policy: FixationPolicy | None,
    keep: float | None,
    focal_layers: Sequence[int] | None,
) -> tuple[FixationPolicy, dict[str, Any]]:
    """The policy, and the manifest's word on where it comes from."""
    status = "given"
    if policy is None:
        known = model == DEMO
        policy = DEMO_POLICY if known else FixationPolicy.evenly_spaced(decoder.num_layers)
        status = "known for this model" if known else "uncalibrated"
    if focal_layers is not None:
        dense = tuple(i for i in policy.dense_layers if i not in focal_layers)
        policy, status = replace(policy, focal_layers=tuple(focal_layers), dense_layers=dense), "given"
    if keep is not None:
        policy = replace(policy, keep=keep)
    policy.check(decoder.num_layers)
    return policy, {"status": status}


def _capacities(
    config: transformers.PreTrainedConfig,
    images: ImageProcessing,
    vision: VisionShape,
    max_visual_tokens: int | None,
    max_text_tokens: int | None,
    max_batch: int,
    prefill_chunk: int,
) -> Capacities:
    pixels = (vision.patch_size * vision.spatial_merge_size) ** 2
    if max_visual_tokens is None:
        max_visual_tokens = min(MAX_VISUAL_TOKENS, max(1, images.max_pixels // pixels))
    if max_text_tokens is None:
        max_text_tokens = min(MAX_TEXT_TOKENS, config.text_config.max_position_embeddings)
    capacities = Capacities(max_visual_tokens, max_text_tokens, max_batch, prefill_chunk)
    return Capacities(**{name: check_count(value, name) for name, value in vars(capacities).items()})


def _trace(family, config, dtype, decoder, policy, weights, report) -> tuple[dict[str, ir.Model], list[Stored]]:
    """The graphs by file name, cleaned and with their weights placed, and the entries of the weights file."""

    def build(num_layers: int):
        return family.decoder(family.build(config, DTYPES[dtype], num_layers))

    tracers = {
        "dense": lambda: trace_decoder(build, decoder, policy, decoding=False),
        "fast": lambda: trace_decoder(build, decoder, policy, decoding=True),
        "vision": lambda: _trace_vision(family.build(config, DTYPES[dtype], 1)),
    }
    if weights is None:  # the products of quantised weights are ONNX Runtime's own
        tracers["decoder_plugin"] = lambda: trace_plugin_decoder(build, decoder, policy)
    graphs: dict[str, ir.Model] = {}
    entries: list[Stored] = []
    for name, trace in tracers.items():
        report(f"tracing {name}.onnx", None)
        with quiet():
            graph = trace()
            bits = BITS[weights] if weights and name != "vision" else 0
            entries += place_weights(graph, family.aliases(config), bits)
        graphs[name] = graph
    return graphs, entries


def _trace_vision(hf_model) -> ir.Model:
    """The vision graph with its parameters released, as those of the decoder are."""
    graph = trace_vision(hf_model)
    for name, _ in hf_model.named_parameters():
        if name in graph.graph.initializers:
            graph.graph.initializers[name].const_value = None
    return graph


def _size(shapes: Mapping[str, tuple[int, ...]], dtype: str, weights: str | None) -> int:
    """About how many bytes the engine's weights take."""
    itemsize = DTYPES[dtype].itemsize
    quantised = (BITS[weights] + 8 * itemsize / BLOCK_SIZE) / 8 if weights else itemsize
    kept = sum(math.prod(s) for name, s in shapes.items() if "visual" in name or "embed_tokens" in name)
    total = sum(math.prod(s) for s in shapes.values())
    return int(kept * itemsize + (total - kept) * quantised)


def describe_model(
    model: str | Path, folder: Path, config: transformers.PreTrainedConfig, checkpoint: Checkpoint
) -> dict:
    """The manifest's `model`: hashes tell whether an engine belongs to a checkpoint."""
    files = [folder / "config.json", *checkpoint.shards]
    return {
        "family": config.model_type,
        "source": folder.name if isinstance(model, Path) or Path(model).is_dir() else str(model),
        "architecture": (config.architectures or ["unknown"])[0],
        "files": {path.name: sha256(path) for path in files},
    }
