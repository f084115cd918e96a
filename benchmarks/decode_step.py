"""A whole decode step of a Qwen2.5-VL-3B-shaped decoder, dense and fast: weights, attention and output head.

8 random layers with int4 weights (as --weights int4 exports them), batch 1, layer 0 dense, layer 4 focal, keep 5%.
At a batch of one a step reads all weights once, so that attention is a small part of it on short pages.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from _common import arguments, header, interleaved_medians, markdown_table, progress, report, run
from _models import filled_session, random_checkpoint

from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.option_types import at_least

TEXT_ROWS = 256


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--layers", type=at_least(1), default=8, help="decoder layers")
    parser.add_argument("--focal", type=int, default=4, help="the focal layer")
    parser.add_argument("--visual-rows", type=at_least(1), nargs="+", default=[1024, 4096, 16384], help="of the page")
    parser.add_argument("--weights", choices=["int4", "int8", "none"], default="int4", help="of the decoder")
    parser.add_argument("--rounds", type=at_least(1), default=25, help="measured rounds of each size")
    args = parser.parse_args()
    layers = 2 if args.quick else args.layers
    policy = FixationPolicy((min(args.focal, layers - 1),), dense_layers=(0,))
    sizes = [128] if args.quick else args.visual_rows
    weights = None if args.weights == "none" else args.weights
    rows = []
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        task = bar.add_task("making the model", total=len(sizes))
        checkpoint = random_checkpoint(Path(folder) / "checkpoint", layers, 1, small=args.quick)
        directory = Path(folder) / "engine"
        export_engine(str(checkpoint), directory, weights=weights, policy=policy)
        for visual_rows in sizes:
            bar.update(task, description=f"{visual_rows} visual tokens")
            k = policy.num_fixations(visual_rows)
            room = {"max_visual_tokens": visual_rows, "max_text_tokens": 4096}
            session = filled_session(directory, args.threads, visual_rows, TEXT_ROWS, k, **room)
            steps = {mode: partial(session.step, mode) for mode in ("dense", "fast")}
            time = interleaved_medians(steps, 2 if args.quick else args.rounds, warmup=4)
            reads = policy.mean_visual_reads(visual_rows, layers)
            row = [f"{visual_rows} / {TEXT_ROWS}", *(f"{t * 1e3:.1f}" for t in time.values())]
            rows.append([*row, f"{time['dense'] / time['fast']:.2f}x", f"{reads:.0%}"])
            del session, steps
            bar.advance(task)
    about = f"{layers} layers, weights {args.weights}, focal layer {policy.focal_layers[0]}, layer 0 dense, keep 5%."
    columns = ["visual / text rows", "dense, ms", "fast, ms", "fast vs dense", "visual reads, mean over layers"]
    report(args, "decode_step", header(args.threads), about, markdown_table(columns, rows))


if __name__ == "__main__":
    run(main)
