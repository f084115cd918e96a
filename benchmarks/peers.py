"""The same pages, weights (fp32), threads and greedy choice in four readers, which take turns.

transformers with sdpa attention; onnxruntime-genai, whose own model builder writes the decoder (GroupQueryAttention,
dense); and this package, dense and fast. The first token counts the vision encoder and prefill, not reading the image
file nor cutting it into patches; decoding counts the tokens after the first, each reader's own loop in Python included.
onnxruntime-genai runs our vision graph, since its builder has none.

    pip install onnxruntime-genai
    python benchmarks/peers.py --save
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _common import arguments, header, markdown_table, progress, report
from _models import DEMO
from PIL import Image

from fastocr_trt.bench.measure import Spread, Turns
from fastocr_trt.demo.pages import SEEDS, generate_page
from fastocr_trt.export.transformers_reader import TransformersReader
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.batch import prepare_images, tokenize
from fastocr_trt.runtime.options import Reading

Read = Callable[[Image.Image], tuple[list[int], float, float]]
"""A page to its tokens, seconds to the first one, and seconds of a step after it."""
ROOM = 512  # tokens a page, at most


class Times:
    """A streamer of transformers that keeps when each token came; `generate` gives it the prompt first."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None: ...


def transformers(engine: Engine, threads: int) -> Read:
    reader = TransformersReader(DEMO, threads=threads)

    def read(image: Image.Image) -> tuple[list[int], float, float]:
        inputs = reader.inputs(image, engine.manifest.prompt.default)
        times, prompt = Times(), inputs["input_ids"].shape[1]
        start = time.perf_counter()
        with torch.inference_mode():
            written = reader.model.generate(
                **inputs, do_sample=False, repetition_penalty=1.0, max_new_tokens=ROOM, streamer=times
            )[0, prompt:].tolist()
        _, first, *rest = times.at
        return [t for t in written if t not in reader.stop_token_ids], first - start, (rest[-1] - first) / len(rest)

    return read


def ours(engine: Engine, mode: str) -> Read:
    def read(image: Image.Image) -> tuple[list[int], float, float]:
        result = engine.parse(image, mode=mode, max_new_tokens=ROOM, loop_guard=False)
        timings = result.timings
        return result.token_ids, timings.vision + timings.prefill, timings.decode / timings.decode_steps

    return read


def genai(engine: Engine, engine_directory: Path, folder: Path, threads: int) -> Read:
    from _genai import GenaiReader, build

    build(DEMO, engine_directory, folder / "genai", threads)
    reader = GenaiReader(folder / "genai", engine.manifest)
    options = Reading.of(None, "dense", {})

    def read(image: Image.Image) -> tuple[list[int], float, float]:
        (prepared,) = prepare_images(engine.manifest, image, options)
        prompt = tokenize(engine.manifest, engine.tokenizer, [prepared], None)
        tokens, first, steps = reader.read(prepared, prompt, ROOM)
        return tokens, first, statistics.fmean(steps)

    return read


def main() -> None:
    parser = arguments(__doc__.split("\n\n")[0])
    parser.add_argument("--engine", type=Path, default=Path("engines/demo"), help="the demo model's, fp32")
    parser.add_argument("--pages", type=int, default=5, help="generated pages")
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds over all of them")
    args = parser.parse_args()
    count, rounds, visual = (1, 1, 64) if args.quick else (args.pages, args.rounds, 768)
    images = [generate_page(SEEDS["benchmarks"][i], visual_tokens=visual).image for i in range(count)]
    engine = Engine.load(args.engine, threads=args.threads, backend="onnxruntime")
    if (engine.manifest.model["source"], engine.manifest.dtype, engine.manifest.weights) != ("demo", "fp32", None):
        parser.error(f"{args.engine} is not the demo in fp32; fastocr-export demo -o engines/demo --force")
    has_genai = importlib.util.find_spec("onnxruntime_genai") is not None
    if not has_genai:
        print("onnxruntime-genai is left out: pip install onnxruntime-genai", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        readers = {"transformers, sdpa": transformers(engine, args.threads)}
        if has_genai:
            readers["onnxruntime-genai"] = genai(engine, args.engine, Path(folder), args.threads)
        readers |= {f"fastocr-trt, {mode}": ours(engine, mode) for mode in ("dense", "fast")}
        texts: dict[tuple[str, int], list[int]] = {}
        turns = Turns(
            {(n, p): partial(_turn, readers[n], images[p], texts, (n, p)) for n in readers for p in range(count)}
        )
        task = bar.add_task("pages", total=len(readers) * count * (rounds + 1))
        turns.run(rounds, 1, lambda name: bar.update(task, advance=1, description=name[0]))
    rows = [_row(name, readers, turns, texts, count) for name in readers]
    columns = ["reader", "decode, tokens/s", "against transformers", "first token, ms", "against transformers"]
    columns += ["pages with the tokens of transformers"]
    length = statistics.fmean(len(texts["transformers, sdpa", page]) for page in range(count))
    about = (
        f"{count} pages of {visual} visual tokens, {length:.0f} tokens written a page; medians (quartiles) over "
        f"{rounds} rounds of all pages. The demo: {engine.manifest.decoder.num_layers} layers, "
        f"{DEMO.joinpath('model.safetensors').stat().st_size / 2e6:.1f} million parameters."
    )
    versions = header(args.threads, "torch", "transformers", *["onnxruntime-genai"] * has_genai)
    report(args, "peers", versions, about, markdown_table(columns, rows))


def _turn(read: Read, image: Image.Image, texts: dict, name: tuple[str, int]) -> dict[str, float]:
    texts[name], first, step = read(image)
    return {"first_ms": 1e3 * first, "tokens_per_s": 1 / step}


def _row(name: str, readers: dict, turns: Turns, texts: dict, count: int) -> list[str]:
    def spread(reader: str, quantity: str) -> Spread:
        return Spread.of([value for page in range(count) for value in turns.samples[reader, page][quantity]])

    yardstick, cells = next(iter(readers)), [name]
    for quantity in ("tokens_per_s", "first_ms"):
        mine, theirs = spread(name, quantity), spread(yardstick, quantity)
        cells.append(f"{mine.median:.0f} ({mine.low:.0f} to {mine.high:.0f})")
        cells.append(f"{mine.median / theirs.median:.2f}x")
    equal = sum(texts[name, page] == texts[yardstick, page] for page in range(count))
    return [*cells, f"{equal} of {count}"]


if __name__ == "__main__":
    main()
