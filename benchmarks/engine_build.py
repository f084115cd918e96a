"""Build time, memory and size of TensorRT-RTX decoder engines of the Qwen2.5-VL-3B shape; no GPU is needed.

36 layers in fp16 with capacities of 16,384 visual and 4,096 text rows, for compute capabilities 8.0, 8.6, 8.9 and 12.0:
from function bodies (two engines) and with the plugin (one engine of two profiles, whose plugin layers are counted).
Weights are zeros in a sparse file, as many bytes as real ones; equal weights are stored once, so that the engine's size
is not that of a real one. Each engine is built in a process of its own, whose peak memory the system reports.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from _common import arguments, header, markdown_table, progress, report, run

from fastocr_trt.export import build, build_graph
from fastocr_trt.export.build_engine import EnginePlan, Settings, build_engine
from fastocr_trt.export.quiet import quiet
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import Capacities
from fastocr_trt.option_types import at_least

CAPACITIES = Capacities(max_visual_tokens=16_384, max_text_tokens=4096, max_batch=8, prefill_chunk=256)
PROFILES = {"dense": ("prefill", "decode"), "fast": ("decode",), "decoder_plugin": ("prefill", "decode")}


def policy(layers: int) -> FixationPolicy:
    return FixationPolicy(tuple(sorted({layers // 4, layers // 2, 3 * layers // 4})))


def write_graphs(folder: Path, layers: int, small: bool) -> None:
    """The three decoder graphs, and a sparse file of the size of their weights."""
    import onnx_ir as ir
    import torch
    from _models import random_config

    from fastocr_trt.export import decoder, decoder_plugin, weights
    from fastocr_trt.export.families import qwen2_5_vl as family
    from fastocr_trt.export.graph import place_weights

    config = random_config(layers, 1, small)
    shape = family.decoder_shape(config)

    def make(count: int):
        return family.decoder(family.build(config, torch.float16, count))

    graphs = {
        "dense": decoder.trace_decoder(make, shape, policy(layers), decoding=False),
        "fast": decoder.trace_decoder(make, shape, policy(layers), decoding=True),
        "decoder_plugin": decoder_plugin.trace_plugin_decoder(make, shape, policy(layers)),
    }
    sizes = family.parameter_shapes(config)
    placed, end = {}, 0
    for graph in graphs.values():
        for stored in place_weights(graph, family.aliases(config)):
            dims = sizes[stored.source][::-1] if stored.form == "transposed" else sizes[stored.source]
            length = 2
            for dim in dims:
                length *= dim
            if stored.name not in placed:
                placed[stored.name] = weights.Placed(end, length, ir.DataType.FLOAT16, tuple(dims))
                end += -(-length // weights.ALIGNMENT) * weights.ALIGNMENT
    with (folder / weights.WEIGHTS_NAME).open("wb") as file:
        file.truncate(end)
    for name, graph in graphs.items():
        weights.bind(graph, placed)
        ir.save(graph, folder / f"{name}.onnx")


def build_one(folder: Path, name: str, layers: int, plugin: str) -> dict:
    """Build one engine; what it took."""
    prepared = build.prepare("tensorrt-rtx", Path(plugin) if plugin else "none", build.DEFAULT_CAPABILITIES)
    sizes = SimpleNamespace(capacities=CAPACITIES, policy=policy(layers))
    model = build_graph.load_graph(folder / f"{name}.onnx")
    build_graph.fix_sizes(model, build_graph.bank_rows(sizes))
    most = CAPACITIES.max_visual_tokens if plugin else build_graph.MAX_TOPK
    shapes = {
        profile: build_graph.profile_shapes(model, build_graph.decoder_ranges(sizes, profile == "decode", most))
        for profile in PROFILES[name]
    }
    plan = EnginePlan(name, model, folder / f"{name}.onnx", shapes)
    expected = build.estimate([plan])
    built = build_engine(prepared.library, plan, Settings(prepared.compute_capabilities), folder / f"{name}.engine")
    return {
        "version": prepared.library.version,
        "weights": sum(build_graph.external_weights(model).values()),
        "parse": built.parse_seconds,
        "build": built.build_seconds,
        "size": built.file.size,
        "layers": built.plugin_layers,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "expected": expected.memory,
    }


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--plugin", type=Path, help="the plugin library; without it only bodies are built")
    parser.add_argument("--layers", type=at_least(1), default=36, help="decoder layers")
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "NAME"), help="build one engine, print JSON (internal)")
    args = parser.parse_args()
    layers = 4 if args.quick else args.layers
    plugin = str(args.plugin.resolve()) if args.plugin else ""
    if args.one:
        print(json.dumps(build_one(Path(args.one[0]), args.one[1], layers, plugin)))
        return
    names = ["dense", "fast", *(["decoder_plugin"] if plugin else [])]
    rows = []
    with tempfile.TemporaryDirectory() as temporary, progress() as bar:
        task = bar.add_task("tracing", total=len(names) + 1)
        with quiet():
            write_graphs(Path(temporary), layers, args.quick)
        for name in names:
            bar.update(task, description=f"building {name}", advance=1)
            command = [sys.executable, __file__, "--one", temporary, name, "--layers", str(layers)]
            command += ["--plugin", plugin] if name == "decoder_plugin" else []
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            (Path(temporary) / f"{name}.engine").unlink()
            rows.append(
                [
                    f"{name}, {' and '.join(PROFILES[name])}",
                    f"{found['parse']:.1f} s",
                    f"{found['build']:.1f} s",
                    f"{found['memory'] / 1e9:.2f} GB",
                    f"{found['expected'] / 1e9:.2f} GB",
                    f"{found['weights'] / 1e9:.2f} GB",
                    f"{found['size'] / 1e9:.2f} GB",
                    found["layers"],
                ]
            )
    columns = ["engine", "parse", "build", "peak memory", "estimate", "weights", "engine size", "plugin layers"]
    line = f"{layers} layers, fp16; compute capabilities {', '.join(build.DEFAULT_CAPABILITIES)}"
    report(args, "engine_build", header(args.threads, "tensorrt-rtx-cu13", "onnx"), line, markdown_table(columns, rows))


if __name__ == "__main__":
    run(main)
