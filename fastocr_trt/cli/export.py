"""fastocr-export: a checkpoint becomes an engine directory."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import FastOCRError
from ..fixation import FixationPolicy
from ..manifest import Manifest
from . import _common as common

DESCRIPTION = """\
Export a vision-language checkpoint (Qwen2.5-VL architecture) into an engine directory that fastocr-parse runs
without torch. MODEL is `demo` (the reader that comes with this package), a local folder, or a hub name.
"""
EXAMPLES = """\
  fastocr-export demo -o engines/demo
  fastocr-export ./Qwen2.5-VL-3B-Instruct -o engines/qwen --weights int4 --max-visual-tokens 4096
  fastocr-export ./checkpoint --focal-layers 9,18,26 --keep 0.05 --force
"""


class StageReporter:
    """Shows the exporter's stages: a live line on a terminal, one line per finished stage elsewhere."""

    def __init__(self, console: Console):
        self.console = console
        self.live = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console, transient=True
        )
        self.stage: str | None = None
        self.started = 0.0
        self.task = None

    def __enter__(self) -> StageReporter:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, kind, error, trace) -> None:
        if kind is None:
            self._finish()
        if self.console.is_terminal:
            self.live.stop()

    def __call__(self, stage: str, fraction: float | None = None) -> None:
        """The exporter is in `stage`; `fraction` of it is done, None where that is not known."""
        if stage != self.stage:
            self._finish()
            self.stage, self.started = stage, time.perf_counter()
            self.task = self.live.add_task(stage, total=None)
        if fraction is not None:
            self.live.update(self.task, total=1.0, completed=fraction)

    def _finish(self) -> None:
        if self.stage is None:
            return
        self.live.remove_task(self.task)
        # print, not console.print: a stage's name is text, not rich markup.
        self.console.print(
            f"  {self.stage:<44} {time.perf_counter() - self.started:6.1f} s", markup=False, highlight=False
        )
        self.stage = None


def default_directory(model: str) -> Path:
    """engines/NAME, NAME being the last part of a folder or of a hub name."""
    return Path("engines") / (Path(model).resolve().name if Path(model).exists() else model.rstrip("/").split("/")[-1])


def read_policy(path: Path) -> FixationPolicy:
    """The policy in a JSON file; FastOCRError where it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FastOCRError(f"there is no policy file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FastOCRError(f"the policy file {path} is not readable JSON ({error})") from None
    return FixationPolicy.from_dict(data)


def describe_policy(policy: FixationPolicy) -> str:
    """One line: which layers do what."""
    dense = ", ".join(map(str, policy.dense_layers)) or "none"
    focal = ", ".join(map(str, policy.focal_layers))
    return f"dense layers {dense}; focal layers {focal}; the others read {policy.keep * 100:g}% of the visual tokens"


def summary(manifest: Manifest, directory: Path, elapsed: float) -> str:
    """What was written, for people."""
    shape, room = manifest.decoder, manifest.capacities
    files = ", ".join(
        f"{record.file} {common.size_text(record.size)}"
        for record in sorted(manifest.files.values(), key=lambda record: -record.size)[:4]
    )
    weights = f", {manifest.weights} weights" if manifest.weights else ""
    return "\n".join(
        [
            f"wrote {directory} in {common.seconds_text(elapsed)}: "
            f"{common.size_text(common.directory_size(directory))} ({files})",
            f"  model    {manifest.model.get('family', 'unknown family')}, {shape.num_layers} layers, "
            f"{manifest.dtype}{weights}",
            f"  policy   {describe_policy(manifest.policy)}",
            f"  limits   {room.max_visual_tokens} visual tokens, {room.max_text_tokens} text tokens, "
            f"batch of {room.max_batch}",
            f"next: fastocr-parse PAGE --engine {directory}",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-export", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="`demo`, a folder with config.json, or a hub name")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="engine directory (default: engines/NAME)")
    parser.add_argument("--force", action="store_true", help="replace an engine that is there")

    numbers = parser.add_argument_group("numbers")
    numbers.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="fp32", help="of weights and caches")
    numbers.add_argument("--weights", choices=("int4", "int8"), help="quantise the decoder's weights alone")

    limits = parser.add_argument_group("limits (memory is taken for them when the engine is loaded)")
    limits.add_argument(
        "--max-visual-tokens",
        type=common.at_least(1),
        metavar="N",
        help="largest page (default: the model's largest image, at most 8192)",
    )
    limits.add_argument(
        "--max-text-tokens",
        type=common.at_least(2),
        metavar="N",
        help="prompt and output (default: 4096, or what the model can)",
    )
    limits.add_argument("--max-batch", type=common.at_least(1), metavar="N", help="pages read at once (default: 8)")

    policy = parser.add_argument_group("policy (what a decode step reads of the page)")
    policy.add_argument("--keep", type=common.keep, metavar="SHARE", help="share of the visual tokens in a fixation")
    policy.add_argument(
        "--focal-layers",
        type=common.layer_list,
        metavar="N,N",
        help="layers that read the whole page and select (default: the model's known policy, else spread evenly)",
    )
    policy.add_argument("--policy", type=Path, metavar="FILE", help="a policy as JSON instead of the two above")
    parser.add_argument("--prompt", metavar="TEXT", help="the engine's default prompt")
    return parser


def _command(options: argparse.Namespace) -> int:
    if options.policy and (options.keep is not None or options.focal_layers is not None):
        raise FastOCRError("--policy already says keep and focal layers; leave out --keep and --focal-layers")
    policy = read_policy(options.policy) if options.policy else None
    output = options.output or default_directory(options.model)
    export_engine = common.import_exporter()
    # Only what was given is passed on: the exporter owns its defaults.
    given = {
        "max_visual_tokens": options.max_visual_tokens,
        "max_text_tokens": options.max_text_tokens,
        "max_batch": options.max_batch,
        "keep": options.keep,
        "focal_layers": options.focal_layers,
        "default_prompt": options.prompt,
    }
    started = time.perf_counter()
    console = common.stderr_console()
    console.print(f"exporting {options.model} to {output}", markup=False)
    with StageReporter(console) as progress:
        manifest = export_engine(
            options.model,
            output,
            dtype=options.dtype,
            weights=options.weights,
            policy=policy,
            force=options.force,
            progress=progress,
            **{name: value for name, value in given.items() if value is not None},
        )
    print(summary(manifest, output, time.perf_counter() - started))
    return common.EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-export with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
