"""Time to the first token, against transformers with sdpa attention: the same page, weights (fp32) and threads.

Vision encoder and prefill are timed, up to the first token's choice; reading the image and cutting it into patches is
left out on both sides. Models: the demo, and a random one of the Qwen2.5-VL-3B shape with 8 decoder layers and 8
vision blocks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from _common import arguments, header, interleaved_medians, markdown_table, progress, report, run
from _models import DEMO, random_checkpoint
from PIL import Image

from fastocr_trt.demo.pages import SEEDS, generate_page
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.export.transformers_reader import TransformersReader
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.option_types import at_least
from fastocr_trt.runtime import Engine


def ours(engine: Engine, image: Image.Image) -> dict[str, float]:
    """Seconds of vision and prefill of one page."""
    timings = engine.parse(image, mode="dense", max_new_tokens=1).timings
    return {"vision": timings.vision, "prefill": timings.prefill}


def measure(model: Path, name: str, image: Image.Image, policy: FixationPolicy | None, args, rounds: int) -> list[str]:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "engine"
        export_engine(str(model), directory, policy=policy, max_text_tokens=512)
        engine = Engine.load(directory, threads=args.threads)
        reader = TransformersReader(model, threads=args.threads)
        prompt = engine.manifest.prompt.default
        inputs = reader.inputs(image, prompt)
        parts: list[dict[str, float]] = []

        def engine_first_token() -> None:
            parts.append(ours(engine, image))

        def transformers_first_token() -> None:
            with torch.inference_mode():
                reader.model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

        variants = {"engine": engine_first_token, "transformers": transformers_first_token}
        time = interleaved_medians(variants, rounds, warmup=1)
        vision, prefill = (sorted(p[part] for p in parts[1:])[len(parts[1:]) // 2] for part in ("vision", "prefill"))
        visual = engine.parse(image, mode="dense", max_new_tokens=1).visual_tokens
    total = vision + prefill
    row = [name, str(visual), *(f"{t:.3f}" for t in (vision, prefill, total, time["transformers"]))]
    return [*row, f"{total / time['transformers']:.2f}x"]


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=7, help="measured rounds")
    parser.add_argument(
        "--layers", type=at_least(1), default=8, help="decoder layers and vision blocks of the random model"
    )
    parser.add_argument("--only", choices=["demo", "3b"], help="one of the models alone")
    parser.set_defaults(threads=2)
    args = parser.parse_args()
    rows = []
    models = [args.only] if args.only else ["demo", "3b"]
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        task = bar.add_task("models", total=len(models))
        for name in models:
            bar.update(task, description=name)
            rounds = 1 if args.quick else args.rounds
            seed = SEEDS["benchmarks"][0]
            if name == "demo":
                image = generate_page(seed, visual_tokens=64 if args.quick else 768).image
                rows.append(measure(DEMO, name, image, None, args, rounds))
            else:
                layers = 2 if args.quick else args.layers
                checkpoint = random_checkpoint(Path(folder) / "checkpoint", layers, layers, small=args.quick)
                side = 8 if args.quick else 32
                image = generate_page(seed).image.resize((side * 28, side * 28))
                policy = FixationPolicy((layers // 2,), dense_layers=(0,) if layers > 1 else ())
                title = f"3B shape, {layers} layers"
                rows.append(measure(checkpoint, title, image, policy, args, min(rounds, 5)))
            bar.advance(task)
    columns = ["model", "visual tokens", "vision, s", "prefill, s", "to the first token, s", "transformers, s", "ratio"]
    report(args, "first_token", header(args.threads, "torch", "transformers"), markdown_table(columns, rows))


if __name__ == "__main__":
    run(main)
