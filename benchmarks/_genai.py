"""A checkpoint in onnxruntime-genai: its builder's decoder, our vision graph, an embedding graph of five nodes.

The package's model builder writes the text decoder of Qwen2.5-VL with GroupQueryAttention; it writes no vision encoder,
so that the same `vision.onnx` is run by both, and what differs is the decoder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fastocr_trt.export.checkpoint import Checkpoint
from fastocr_trt.export.families import qwen2_5_vl
from fastocr_trt.manifest import Manifest
from fastocr_trt.runtime.preprocess import PreparedImage
from fastocr_trt.runtime.prompt import PromptTokens
from fastocr_trt.runtime.vision_layout import vision_layout

EMBEDDINGS = "model.language_model.embed_tokens.weight"


def build(checkpoint: Path, engine: Path, directory: Path, threads: int) -> None:
    """Write a model directory of onnxruntime-genai for `checkpoint`, fp32 on the CPU. engine: its exported engine."""
    cache, source = directory.with_name(directory.name + "-cache"), checkpoint
    if _misleads(checkpoint):
        source = directory.with_name(directory.name + "-checkpoint")
        _widen_vocabulary(checkpoint, source)
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(directory)]
    command += ["-p", "fp32", "-e", "cpu", "-c", str(cache), "--extra_options", "exclude_embeds=true"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"onnxruntime-genai's builder failed: {done.stderr.strip().splitlines()[-1:]}")
    manifest = Manifest.read(engine)
    for name in ("vision", "weights"):  # a link would lead out of the directory, which is refused
        shutil.copy(engine / manifest.files[name].file, directory)
    config = json.loads((checkpoint / "config.json").read_text())
    embedding = _embedding_graph(source, config["image_token_id"])  # beyond 2 GB a file must lie beside it
    onnx.save(embedding, directory / "embedding.onnx", save_as_external_data=True, location="embedding.bin")
    path = directory / "genai_config.json"
    settings = json.loads(path.read_text())
    model = settings["model"]
    model |= {name: config[name] for name in ("image_token_id", "video_token_id", "vision_start_token_id")}
    model["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
        "outputs": {"inputs_embeds": "inputs_embeds"},
    }
    model["vision"] = {
        "filename": manifest.files["vision"].file,
        "spatial_merge_size": manifest.vision.spatial_merge_size,
        "inputs": {"pixel_values": "pixel_values", "image_grid_thw": "image_grid_thw"},
        "outputs": {"image_features": "visual_embeds"},
    }
    model["decoder"]["session_options"]["intra_op_num_threads"] = threads
    path.write_text(json.dumps(settings, indent=2))


def _misleads(checkpoint: Path) -> bool:
    """Whether the builder would take another matrix for the output head: it goes by the number of outputs alone, and
    the demo's keys and values have as many as it has tokens."""
    shapes = _open(checkpoint).shapes()
    tokens = shapes[EMBEDDINGS][0]
    return any(size[0] == tokens for name, size in shapes.items() if len(size) == 2 and "embed_tokens" not in name)


def _widen_vocabulary(checkpoint: Path, target: Path) -> None:
    """A copy of a small checkpoint with one more token, which has the weights of token 0 and so is never chosen before
    it."""
    import torch
    from safetensors.torch import load_file, save_file

    target.mkdir(parents=True)
    for file in (*checkpoint.glob("*.json"), *checkpoint.glob("*.jinja")):
        shutil.copy(file, target)
    weights = load_file(checkpoint / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("embed_tokens.weight"))
    weights[name] = torch.cat([weights[name], weights[name][:1]])
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    config["text_config"]["vocab_size"] += 1
    (target / "config.json").write_text(json.dumps(config))


def _embedding_graph(checkpoint: Path, image_token_id: int) -> onnx.ModelProto:
    """input_ids [B,n] and image_features [rows, hidden] to inputs_embeds [B,n,hidden]: the page's rows in place."""
    source = _open(checkpoint)
    with source.open(source.shard_of(EMBEDDINGS)) as read:
        table = read(EMBEDDINGS).float().numpy()
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embeds"]),
        helper.make_node("Equal", ["input_ids", "image_token_id"], ["is_image"]),
        helper.make_node("NonZero", ["is_image"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        helper.make_node("ScatterND", ["embeds", "rows", "image_features"], ["inputs_embeds"]),
    ]
    float_, int_, width = TensorProto.FLOAT, TensorProto.INT64, table.shape[1]
    inputs = [
        helper.make_tensor_value_info("input_ids", int_, ["batch", "n"]),
        helper.make_tensor_value_info("image_features", float_, ["rows", width]),
    ]
    outputs = [helper.make_tensor_value_info("inputs_embeds", float_, ["batch", "n", width])]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array(image_token_id, np.int64), "image_token_id"),
    ]
    graph = helper.make_graph(nodes, "embedding", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _open(checkpoint: Path) -> Checkpoint:
    return Checkpoint(checkpoint, qwen2_5_vl.parameter_name)


class GenaiReader:
    """Reads a page greedily. Raises ImportError where onnxruntime-genai is absent."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        import onnxruntime_genai

        self._genai, self._manifest = onnxruntime_genai, manifest
        self._model = onnxruntime_genai.Model(str(directory))

    def read(
        self, image: PreparedImage, prompt: PromptTokens, max_new_tokens: int
    ) -> tuple[list[int], float, list[float]]:
        """token_ids without the stop token, seconds to the first token, and seconds of each step after it."""
        ids = np.concatenate([chunk.input_ids for chunk in prompt.chunks])
        ids = np.where(ids < 0, self._manifest.prompt.image_token_id, ids).astype(np.int32)
        layout = vision_layout(image.grid_h, image.grid_w, self._manifest.vision)._asdict()
        inputs = self._genai.NamedTensors()
        inputs["input_ids"] = ids[None]
        inputs["pixel_values"] = np.ascontiguousarray(image.pixel_values, np.float32)
        inputs["image_grid_thw"] = np.array([[1, image.grid_h, image.grid_w]], np.int64)
        inputs["num_image_tokens"] = np.array([image.visual_tokens], np.int64)
        for name, value in layout.items():  # inputs of our vision graph, handed on as they are
            inputs[name] = np.ascontiguousarray(value)
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(max_length=len(ids) + max_new_tokens, do_sample=False)
        start = time.perf_counter()
        generator = self._genai.Generator(self._model, params)
        generator.set_inputs(inputs)
        generator.generate_next_token()
        first = time.perf_counter() - start
        steps = []
        while not generator.is_done():
            start = time.perf_counter()
            generator.generate_next_token()
            steps.append(time.perf_counter() - start)
        written = [int(token) for token in generator.get_sequence(0)[len(ids) :]]
        stops = self._manifest.generation.stop_token_ids
        return [token for token in written if token not in stops], first, steps
