"""Time and peak memory of the vision graph in ONNX Runtime against transformers with sdpa, same page and threads.

Two towers: the demo's, and a random one of the Qwen2.5-VL-3B shape (hidden 1280, 16 heads) cut to a few blocks, of
which the last attends to the whole page (in the real one 4 of 32 do). Memory is what one page adds to a
process of its own that has already read a small page, so that weights do not count.

    python benchmarks/vision_speed.py --tokens 1024 4096
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from argparse import SUPPRESS
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime as ort
import torch
from _common import arguments, header, interleaved_medians, markdown_table, report, run
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from fastocr_trt.export.quiet import quiet
from fastocr_trt.export.vision import trace_vision
from fastocr_trt.manifest import VisionShape
from fastocr_trt.option_types import at_least
from fastocr_trt.runtime.vision_layout import vision_layout

DEMO = Path(__file__).parents[1] / "fastocr_trt" / "demo"


def load_model(name: str, blocks: int) -> Qwen2_5_VLForConditionalGeneration:
    if name == "demo":
        return Qwen2_5_VLForConditionalGeneration.from_pretrained(DEMO, dtype=torch.float32).eval()
    vision = dict(depth=blocks, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=2048)
    vision |= dict(fullatt_block_indexes=[blocks - 1], window_size=112)
    text = dict(hidden_size=2048, num_hidden_layers=1, intermediate_size=64, vocab_size=8)
    text |= dict(num_attention_heads=16, num_key_value_heads=2)
    text |= dict(rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[16, 24, 24]))
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(vision_config=vision, text_config=text)).eval()


def ours(model, threads: int):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = options.enable_mem_reuse = False  # as the engine runs it
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vision.onnx"
        with quiet():
            onnx_ir.save(trace_vision(model), path, external_data="weights.bin")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    config = model.config.vision_config
    shape = VisionShape(
        config.patch_size,
        config.spatial_merge_size,
        config.temporal_patch_size,
        config.in_channels,
        config.window_size,
    )

    def run(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        return session.run(None, {"pixel_values": pixels, **vision_layout(*grid, shape)._asdict()})[0]

    return run


def theirs(model, threads: int):
    torch.set_num_threads(threads)
    model.set_attn_implementation("sdpa")

    def run(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
        with torch.inference_mode():
            return model.model.visual(torch.from_numpy(pixels), torch.tensor([[1, *grid]])).pooler_output.numpy()

    return run


RUNNERS = {"fastocr": ours, "transformers": theirs}


def page(tokens: int) -> tuple[np.ndarray, tuple[int, int]]:
    """A page of about `tokens` visual tokens, a little taller than wide; not a multiple of the windows."""
    columns = int((tokens / 1.3) ** 0.5)
    grid = (2 * (tokens // columns), 2 * columns)
    pixels = np.random.default_rng(0).standard_normal((grid[0] * grid[1], 3 * 2 * 14 * 14), np.float32)
    return pixels, grid


def added_memory(runner: str, name: str, tokens: int, args) -> float:
    """MiB that one page adds, measured in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", runner, "--models", name, "--tokens", str(tokens)]
    command += ["--threads", str(args.threads), "--blocks", str(args.blocks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def report_memory(args) -> None:
    run = RUNNERS[args.memory_of](load_model(args.models[0], args.blocks), args.threads)
    pixels, grid = page(args.tokens[0])
    run(*page(16))
    resident = memory_status("VmRSS")
    run(pixels, grid)
    print(memory_status("VmHWM") - resident)


def memory_status(field: str) -> float:
    """MiB. ru_maxrss will not do: a process starts with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=["demo", "3b"], default=["demo", "3b"])
    parser.add_argument("--tokens", nargs="+", type=at_least(1), default=[1024, 4096], help="visual tokens of the page")
    parser.add_argument("--blocks", type=at_least(1), default=2, help="blocks of the 3B-shaped tower; the last is full")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--memory-of", choices=list(RUNNERS), help=SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        report_memory(args)
        return
    rows = []
    for name in args.models[:1] if args.quick else args.models:
        model = load_model(name, args.blocks)
        runners = {runner: make(model, args.threads) for runner, make in RUNNERS.items()}
        for tokens in [64] if args.quick else args.tokens:
            pixels, grid = page(tokens)
            calls = {runner: partial(run, pixels, grid) for runner, run in runners.items()}
            median = interleaved_medians(calls, args.rounds, warmup=0 if tokens > 2000 else 1)
            memory = [f"{added_memory(runner, name, tokens, args):.0f}" for runner in RUNNERS]
            ratio = f"{median['fastocr'] / median['transformers']:.2f}"
            tower = name if name == "demo" else f"{name}, {args.blocks} blocks"
            rows.append([tower, grid[0] * grid[1] // 4, *(f"{t:.3f}" for t in median.values()), ratio, *memory])
            print(rows[-1], file=sys.stderr, flush=True)
    columns = ["tower", "visual tokens", *(f"{r} s" for r in RUNNERS), "ratio", *(f"{r} MiB" for r in RUNNERS)]
    report(args, "vision_speed", header(args.threads, "torch", "transformers"), markdown_table(columns, rows))


if __name__ == "__main__":
    run(main)
