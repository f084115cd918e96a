"""The same pages, weights (fp32), threads and greedy choice in four readers, which take turns.

transformers with sdpa attention; onnxruntime-genai, whose own model builder writes the decoder (GroupQueryAttention,
dense); and this package, dense and fast. The first token counts the vision encoder and prefill, not reading the image
file nor cutting it into patches; decoding counts the tokens after the first, each reader's own loop in Python included.
onnxruntime-genai runs our vision graph, since its builder has none. Read with is the demo, or random weights in a known
shape, whose texts mean nothing.

    pip install onnxruntime-genai
    python benchmarks/peers.py --save
    python benchmarks/peers.py --shape qwen2.5-vl-3b --layers 4 --visual-tokens 1024 --pages 1 --save
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _common import arguments, header, markdown_table, progress, report, run
from _models import DEMO
from PIL import Image

from fastocr_trt.bench.measure import Spread, Turns
from fastocr_trt.counts import plural
from fastocr_trt.demo.pages import SEEDS, SIZES, generate_page
from fastocr_trt.errors import FastOCRError
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.export.random_checkpoint import random_checkpoint
from fastocr_trt.export.transformers_reader import TransformersReader
from fastocr_trt.option_types import at_least
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.batch import prepare_images, tokenize
from fastocr_trt.runtime.options import Reading
from fastocr_trt.shapes import SHAPES, find_shape

Read = Callable[[Image.Image], tuple[list[int], float, float]]
"""A page to its tokens, seconds to the first one, and seconds of a step after it."""
YARDSTICK = "transformers, sdpa"
ROOM, RANDOM_ROOM = 512, 32  # tokens a page, at most; of random weights, which seldom end a page


class Times:
    """A streamer of transformers that keeps when each token came; `generate` gives it the prompt first."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None: ...


def transformers(engine: Engine, checkpoint: Path, room: int, threads: int) -> Read:
    reader = TransformersReader(checkpoint, threads=threads)

    def read(image: Image.Image) -> tuple[list[int], float, float]:
        inputs = reader.inputs(image, engine.manifest.prompt.default)
        times, prompt = Times(), inputs["input_ids"].shape[1]
        start = time.perf_counter()
        with torch.inference_mode():
            written = reader.model.generate(
                **inputs, do_sample=False, repetition_penalty=1.0, max_new_tokens=room, streamer=times
            )[0, prompt:].tolist()
        _, first, *rest = times.at
        return [t for t in written if t not in reader.stop_token_ids], first - start, (rest[-1] - first) / len(rest)

    return read


def ours(engine: Engine, room: int, mode: str) -> Read:
    def read(image: Image.Image) -> tuple[list[int], float, float]:
        result = engine.parse(image, mode=mode, max_new_tokens=room, loop_guard=False)
        timings = result.timings
        return result.token_ids, timings.vision + timings.prefill, timings.decode / timings.decode_steps

    return read


def genai(engine: Engine, checkpoint: Path, room: int, threads: int, directory: Path, folder: Path) -> Read:
    """directory: the engine's; folder: for the model of onnxruntime-genai."""
    from _genai import GenaiReader, build

    build(checkpoint, directory, folder / "genai", threads)
    reader = GenaiReader(folder / "genai", engine.manifest)
    options = Reading.of(None, "dense", {})

    def read(image: Image.Image) -> tuple[list[int], float, float]:
        (prepared,) = prepare_images(engine.manifest, image, options)
        prompt = tokenize(engine.manifest, engine.tokenizer, [prepared], None)
        tokens, first, steps = reader.read(prepared, prompt, room)
        return tokens, first, statistics.fmean(steps)

    return read


def random_engine(args, folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the engine of --shape."""
    shape = find_shape(args.shape, args.layers)
    checkpoint, directory = random_checkpoint(folder / "checkpoint", shape), folder / "engine"
    export_engine(str(checkpoint), directory, max_visual_tokens=args.visual_tokens, max_text_tokens=256)
    return checkpoint, directory


def pages(args) -> list[Image.Image]:
    """As many visual tokens as asked for; those of --shape are stretched to a square."""
    if args.shape is None:
        return [
            generate_page(SEEDS["benchmarks"][i], visual_tokens=args.visual_tokens).image for i in range(args.pages)
        ]
    side = math.isqrt(args.visual_tokens) * 28
    return [generate_page(SEEDS["benchmarks"][i]).image.resize((side, side)) for i in range(args.pages)]


def check(args) -> None:
    """FastOCRError for a model or pages that there are not; fills in the default size of a page."""
    if args.shape is not None:
        find_shape(args.shape, args.layers)
        args.visual_tokens = args.visual_tokens or 1024
        if math.isqrt(args.visual_tokens) ** 2 != args.visual_tokens:
            raise FastOCRError(f"--visual-tokens is {args.visual_tokens}, no square number; give 256, 1024 or 4096")
    else:
        args.visual_tokens, sizes = args.visual_tokens or 768, sorted(SIZES)
        if args.layers is not None:
            raise FastOCRError("--layers is for --shape; the demo has its own")
        if args.visual_tokens not in sizes:
            raise FastOCRError(f"--visual-tokens is {args.visual_tokens}; generated pages have {sizes}")
    if args.pages > (most := len(SEEDS["benchmarks"])):
        raise FastOCRError(f"--pages is {args.pages}; {most:,} seeds are kept for benchmarks")


def main() -> None:
    parser = arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--engine", type=Path, default=Path("engines/demo"), help="the demo model's, fp32")
    parser.add_argument("--shape", help=f"random weights in place of the demo: {', '.join(SHAPES)}")
    parser.add_argument("--layers", type=at_least(1), help="of --shape, default all")
    parser.add_argument("--visual-tokens", type=at_least(1), help="of a page; default 768, of --shape 1024")
    parser.add_argument("--pages", type=at_least(1), default=5, help="generated pages")
    parser.add_argument("--rounds", type=at_least(1), default=5, help="measured rounds over all of them")
    args = parser.parse_args()
    if args.quick:
        args.visual_tokens, args.pages, args.rounds = 64, 1, 1
    check(args)
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        checkpoint, directory, room = DEMO, args.engine, ROOM
        if args.shape is not None:
            checkpoint, directory = random_engine(args, Path(folder))
            room = RANDOM_ROOM
        engine = Engine.load(directory, threads=args.threads, backend="onnxruntime")
        manifest = engine.manifest
        found = manifest.model["source"], manifest.dtype, manifest.weights
        if args.shape is None and found != ("demo", "fp32", None):
            raise FastOCRError(f"{directory} is not the demo in fp32; fastocr-export demo -o {directory} --force")
        common = (engine, checkpoint, room, args.threads)
        readers = {YARDSTICK: transformers(*common)}
        if importlib.util.find_spec("onnxruntime_genai") is not None:
            readers["onnxruntime-genai"] = genai(*common, directory, Path(folder))
        else:
            print("onnxruntime-genai is left out: pip install onnxruntime-genai", file=sys.stderr)
        readers |= {f"fastocr-trt, {mode}": ours(engine, room, mode) for mode in ("dense", "fast")}
        texts: dict[tuple[str, int], list[int]] = {}
        names = [(name, page) for name in readers for page in range(args.pages)]
        images = pages(args)
        turns = Turns({name: partial(_turn, readers[name[0]], images[name[1]], texts, name) for name in names})
        task = bar.add_task("pages", total=len(names) * (args.rounds + 1))
        turns.run(args.rounds, 1, lambda name: bar.update(task, advance=1, description=name[0]))
    rows = [_row(name, turns, texts, args.pages) for name in readers]
    columns = ["reader"]
    for what in ("decode, tokens/s", "first token, ms"):
        columns += [what, f"{what.split(',')[0]}: times as fast as transformers"]
    columns += ["pages with the tokens of transformers"]
    length = statistics.fmean(len(texts[YARDSTICK, page]) for page in range(args.pages))
    reads = manifest.policy.mean_visual_reads(args.visual_tokens, manifest.decoder.num_layers)
    about = (
        f"{args.shape or 'The demo'}, {manifest.decoder.num_layers} layers. Pages: {args.pages}, of "
        f"{args.visual_tokens} visual tokens, {length:.0f} tokens written on each; a fast step reads {reads:.0%} of "
        f"the page. Medians (quartiles) over {plural(args.rounds, 'round')} of all pages. Times as fast: above 1 is "
        "faster than transformers; ratios of the same page in the same round."
    )
    versions = header(args.threads, "torch", "transformers", "onnxruntime-genai")
    section = "peers" if args.shape is None else f"peers {args.shape}"
    report(args, section, versions, about, markdown_table(columns, rows))


def _turn(read: Read, image: Image.Image, texts: dict, name: tuple[str, int]) -> dict[str, float]:
    texts[name], first, step = read(image)
    return {"first_ms": 1e3 * first, "tokens_per_s": 1 / step}


def _row(name: str, turns: Turns, texts: dict, count: int) -> list[str]:
    def samples(reader: str, quantity: str) -> list[float]:
        return [value for page in range(count) for value in turns.samples[reader, page][quantity]]

    cells = [name]
    for quantity in ("tokens_per_s", "first_ms"):
        mine, theirs = samples(name, quantity), samples(YARDSTICK, quantity)
        shown = Spread.of(mine)
        cells.append(_spread(shown, 0 if shown.median >= 100 else 1))
        times = Spread.of_ratios(theirs, mine) if quantity == "first_ms" else Spread.of_ratios(mine, theirs)
        cells.append(_spread(times, 2, "x"))
    equal = sum(texts[name, page] == texts[YARDSTICK, page] for page in range(count))
    return [*cells, f"{equal} of {count}"]


def _spread(spread: Spread, digits: int, unit: str = "") -> str:
    median = f"{spread.median:.{digits}f}{unit}"
    return f"{median} ({spread.low:.{digits}f} to {spread.high:.{digits}f})" if spread.count > 1 else median


if __name__ == "__main__":
    run(main)
