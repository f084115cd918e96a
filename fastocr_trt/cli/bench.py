"""fastocr-bench: how fast an engine reads prompts and decodes, dense and fast, over a matrix of sizes."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .. import option_types
from ..backends import BACKENDS
from ..counts import plural
from ..errors import FastOCRError, MissingDependencyError
from ..fixation import FixationPolicy
from ..machine import usable_cores
from ..manifest import DTYPES, Manifest
from ..shapes import SHAPES, ModelShape, find_shape
from . import _common as common
from ._engines import find_engine
from ._files import AtomicFile, DirectFile, file_ids, open_output

if TYPE_CHECKING:
    from ..bench.environment import Environment, Model
    from ..bench.matrix import Case, Options
    from ..bench.memory import EngineSize
    from ..bench.results import Run

DESCRIPTION = """\
Measure an engine: the vision encoder and prefill of a prompt, decode steps dense and fast, and their attention alone.
Options that take a LIST (1024,4096) are crossed. All cases take turns, and medians with quartiles are shown beside what
reading fewer cache rows could give at best. See docs/bench.md.
"""
EXAMPLES = """\
  fastocr-bench --engine engines/qwen --visual-tokens 1024,4096 --batch 1,4
  fastocr-bench --shape qwen2.5-vl-3b --layers 8 --weights int4 --tests decode,attention --threads 1,2
  fastocr-bench --engine engines/qwen --keep 0.02,0.05,0.1 --format json -o before.json
  fastocr-bench --engine engines/qwen --keep 0.02,0.05,0.1 --compare before.json
"""
TESTS = ("prompt", "decode", "attention")
MODES = ("dense", "fast")
FORMATS = ("md", "json", "csv")
VISUAL_TOKENS = 1024  # where the engine holds as many


def comma_list(of: Callable[[str], object]) -> Callable[[str], list]:
    """A type of option: values of type `of` with commas between, each once."""

    def parse(text: str) -> list:
        return list(dict.fromkeys(of(part.strip()) for part in text.split(",")))

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """A type of option: one of `names`."""

    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-bench", DESCRIPTION, EXAMPLES)
    model = parser.add_argument_group("what is measured")
    which = model.add_mutually_exclusive_group()
    which.add_argument("--engine", type=Path, metavar="DIR", help="that fastocr-export wrote (default: the demo's)")
    which.add_argument("--shape", metavar="NAME", help=f"random weights in the shape of {', '.join(SHAPES)}")
    model.add_argument(
        "--layers",
        type=option_types.at_least(1),
        metavar="N",
        help="of --shape: so many decoder layers and at most so many vision blocks (default: all)",
    )
    model.add_argument("--weights", choices=("int4", "int8"), help="of --shape: quantise the decoder's matrices")
    model.add_argument("--dtype", choices=DTYPES, help="of --shape: of weights and caches (default: fp32)")
    model.add_argument(
        "--focal-layers", type=option_types.layer_list, metavar="LIST", help="of --shape (default: evenly spaced)"
    )

    matrix = parser.add_argument_group("matrix")
    whole = comma_list(option_types.at_least(1))
    matrix.add_argument("--visual-tokens", type=whole, metavar="LIST", help="of a page (default: 1024, or what fits)")
    matrix.add_argument(
        "--text-tokens", type=whole, default=[256], metavar="LIST", help="that a decode step finds (default: 256)"
    )
    matrix.add_argument(
        "--keep", type=comma_list(option_types.keep), metavar="LIST", help="of fast mode (default: the policy's)"
    )
    matrix.add_argument("--batch", type=whole, default=[1], metavar="LIST", help="pages at once (default: 1)")
    matrix.add_argument(
        "--threads", type=comma_list(option_types.threads), metavar="LIST", help="of a graph call (default: all cores)"
    )
    backends = comma_list(one_of("onnxruntime", *BACKENDS))
    matrix.add_argument(
        "--backend",
        type=backends,
        default=["onnxruntime"],
        metavar="LIST",
        help=f"onnxruntime, {', '.join(BACKENDS)} (default: onnxruntime)",
    )
    matrix.add_argument("--mode", type=comma_list(one_of(*MODES)), metavar="LIST", help="(default: dense,fast)")
    matrix.add_argument("--provider", choices=("cpu", "cuda"), default="cpu", help="of ONNX Runtime")

    rounds = parser.add_argument_group("rounds")
    rounds.add_argument(
        "--tests", type=comma_list(one_of(*TESTS)), metavar="LIST", help=f"(default: {','.join(TESTS)})"
    )
    rounds.add_argument("--repeats", type=option_types.at_least(1), default=7, metavar="N", help="measured rounds")
    rounds.add_argument("--warmup", type=option_types.at_least(0), default=1, metavar="N", help="rounds before them")
    rounds.add_argument(
        "--steps", type=option_types.at_least(1), default=16, metavar="N", help="decode steps in a turn"
    )

    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=FORMATS, default="md", help="docs/bench.md has the fields")
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help="instead of standard output")
    output.add_argument("--compare", type=Path, metavar="OLD.json", help="print ratios to this earlier run as well")
    output.add_argument("--quiet", action="store_true", help="no progress; warnings and errors stay")
    return parser


def _check_options(options: argparse.Namespace) -> None:
    """Fill in defaults; FastOCRError for options that do not go together."""
    if options.shape is None:
        given = [name for name in ("layers", "weights", "dtype", "focal_layers") if getattr(options, name) is not None]
        if given:
            raise FastOCRError(f"--{given[0].replace('_', '-')} is for --shape; an engine has its own")
    elif compiled := [name for name in options.backend if name != "onnxruntime"]:
        raise FastOCRError(
            f"--shape makes no engines of {compiled[0]}; measure an exported one: fastocr-export MODEL -o DIR "
            f"--backend {compiled[0]}, then --engine DIR"
        )
    if options.compare is not None and options.format != "md" and options.output is None:
        raise FastOCRError(f"--compare prints a table, which would mix with the {options.format}; write that with -o")
    options.mode = options.mode or list(MODES)
    _check_threads(options)
    has_onnx = importlib.util.find_spec("onnx") is not None
    if options.tests is None:
        options.tests = [test for test in TESTS if test != "attention" or has_onnx]
        if not has_onnx:
            common.note("onnx is not installed: attention alone is not measured (pip install 'fastocr-trt[export]')")
    elif "attention" in options.tests and not has_onnx:
        raise MissingDependencyError(
            "attention alone needs onnx, which is not installed; install the extra: pip install 'fastocr-trt[export]'"
        )


def _check_threads(options: argparse.Namespace) -> None:
    """A warning where graph calls get more threads than cores."""
    cores, most = usable_cores(), max(options.threads or [1])
    if most > cores and "onnxruntime" in options.backend:
        common.warn(
            f"--threads {most} on the {plural(cores, 'core')} that this process may use: threads wait for each other, "
            f"often longer than they compute; give at most {cores}"
        )


@dataclass(frozen=True)
class _Plan:
    """What is going to be measured, known before an engine is opened or made."""

    matrix: Options
    cases: list[Case]
    environment: Environment


def _plan(options: argparse.Namespace, model: Model, max_visual_tokens: int, old: Run | None) -> _Plan:
    """FastOCRError where it does not compare with `old`. max_visual_tokens: of the engine."""
    from ..bench.environment import Environment
    from ..bench.matrix import Options, cases, merge_keeps
    from ..bench.measure import ENOUGH_ROUNDS
    from ..bench.results import check_comparable

    matrix = Options(
        backends=options.backend,
        threads=options.threads or [usable_cores()],
        batches=options.batch,
        visual_tokens=options.visual_tokens or [min(VISUAL_TOKENS, max_visual_tokens)],
        text_tokens=options.text_tokens,
        modes=options.mode,
        keeps=options.keep or [model.policy.keep],
        steps=options.steps,
    )
    wanted, merged = merge_keeps(cases(matrix), model.policy)
    plan = _Plan(matrix, wanted, Environment.here(model, matrix.backends))
    if old is not None:
        check_comparable(old, plan.environment, wanted, options.tests, matrix.steps, options.provider)
        if min(old.rounds, options.repeats) < ENOUGH_ROUNDS:
            common.warn(
                f"the earlier run has {plural(old.rounds, 'round')} and this one {options.repeats}: with fewer than "
                f"{ENOUGH_ROUNDS} nothing is called faster or slower; give both --repeats {ENOUGH_ROUNDS} or more"
            )
    for text in merged:
        common.note(text)
    return plan


@contextmanager
def _engine(options: argparse.Namespace, old: Run | None) -> Iterator[tuple[Path, Manifest, _Plan]]:
    """The engine directory; one of --shape is made in a temporary directory and removed afterwards. What does not
    compare with `old` is told before that."""
    from ..bench.environment import Model
    from ..bench.matrix import check_capacities
    from ..bench.memory import EngineSize

    if old is not None:
        old.environment.check_here(options.backend)
    if options.shape is None:
        directory = find_engine(options.engine, quiet=True)
        manifest = Manifest.read(directory)
        plan = _plan(options, Model.of(manifest), manifest.capacities.max_visual_tokens, old)
        check_capacities(plan.matrix, manifest)
        _check_memory(options, plan, EngineSize.of(manifest))
        yield directory, manifest, plan
        return
    shape, policy, dtype = find_shape(options.shape, options.layers), _policy(options), options.dtype or "fp32"
    model = Model(options.shape, dtype, options.weights, shape.decoder, policy)
    plan = _plan(options, model, VISUAL_TOKENS, old)
    _check_memory(options, plan, EngineSize.of_shape(shape, dtype, options.weights))
    with tempfile.TemporaryDirectory(prefix="fastocr-bench-") as folder:
        directory = _made_engine(options, shape, model, Path(folder))
        yield directory, Manifest.read(directory), plan


def _check_memory(options: argparse.Namespace, plan: _Plan, engine: EngineSize) -> None:
    """FastOCRError where the run does not fit the memory of this machine; that of a GPU is not looked at."""
    from ..bench.memory import check_run

    if options.provider == "cpu":
        check_run(engine, plan.cases, plan.matrix.steps, "prompt" in options.tests)


def _policy(options: argparse.Namespace) -> FixationPolicy:
    """Of --shape; FastOCRError where --focal-layers does not fit."""
    num_layers = find_shape(options.shape, options.layers).num_layers
    policy = FixationPolicy.evenly_spaced(num_layers)
    if options.focal_layers is not None:
        dense = tuple(layer for layer in policy.dense_layers if layer not in options.focal_layers)
        policy = FixationPolicy(options.focal_layers, dense)
    policy.check(num_layers)
    return policy


def _made_engine(options: argparse.Namespace, shape: ModelShape, model: Model, folder: Path) -> Path:
    """An engine with random weights, as large as the matrix asks for; FastOCRError where there is no room for it."""
    from ..bench.memory import PREFILL_CHUNK, check_export
    from ..runtime.onnxruntime_session import choose_provider
    from .export import StageReporter

    choose_provider([options.provider], model.dtype)
    check_export(shape, model.dtype, model.weights, folder)
    export_engine = common.import_exporter()
    from ..export.random_checkpoint import random_checkpoint

    console = common.stderr_console()
    console.quiet = options.quiet
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint, StageReporter(console) as progress:
        progress("making random weights", None)
        random_checkpoint(Path(checkpoint), shape)
        export_engine(
            checkpoint,
            folder / "engine",
            dtype=model.dtype,
            weights=model.weights,
            policy=model.policy,
            max_visual_tokens=max(options.visual_tokens or [VISUAL_TOKENS]),
            max_text_tokens=max(options.text_tokens) + options.steps + 2,
            max_batch=max(options.batch),
            prefill_chunk=PREFILL_CHUNK,
            progress=progress,
        )
    return folder / "engine"


def _measure(
    options: argparse.Namespace, directory: Path, manifest: Manifest, plan: _Plan, write: Callable[[Run], None]
) -> None:
    """Measure and hand the run to `write`: also after Ctrl-C, with what was measured until then."""
    from ..bench.measure import Turns
    from ..bench.results import Run, results
    from ..bench.runners import variants
    from ..bench.yardstick import YARDSTICK, Yardstick
    from ..runtime.onnxruntime_session import choose_provider

    matrix, wanted = plan.matrix, plan.cases
    if "onnxruntime" in matrix.backends:
        choose_provider([options.provider], manifest.dtype)
    ways = variants(directory, manifest, wanted, options.tests, matrix.steps, options.provider)
    if not ways:
        raise FastOCRError(
            "nothing is left to measure: attention alone is measured in ONNX Runtime on the CPU only; add decode"
        )
    ways[YARDSTICK] = Yardstick()
    turns = Turns(ways)

    def run(finished: bool) -> Run:
        return Run(
            plan.environment,
            options.provider,
            matrix.steps,
            options.repeats,
            options.warmup,
            finished,
            turns.spread(YARDSTICK, "yardstick_ms"),
            results(wanted, manifest, turns),
        )

    try:
        with _progress(options, len(ways) * (options.warmup + options.repeats)) as advance:
            turns.run(options.repeats, options.warmup, advance)
    except KeyboardInterrupt:
        if (stopped := run(finished=False)).results:
            write(stopped)
        raise
    write(run(finished=True))


@contextmanager
def _progress(options: argparse.Namespace, turns: int) -> Iterator[Callable[[tuple[str, Case]], None]]:
    """A bar over the turns on a terminal; the function it gives is told which turn begins."""
    console = common.stderr_console()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bar = Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=options.quiet or not console.is_terminal,
    )
    task = bar.add_task("turns", total=turns)
    begun = False

    def advance(name: tuple[str, Case]) -> None:
        nonlocal begun
        bar.update(task, advance=int(begun), description=f"{name[0]}: {name[1]}")
        begun = True

    with bar:
        yield advance


def _command(options: argparse.Namespace) -> int:
    from ..bench.report import comparison, csv_text, markdown
    from ..bench.results import Run, compare

    _check_options(options)
    if options.shape is not None:
        find_shape(options.shape, options.layers)
    old = None if options.compare is None else Run.read(options.compare)
    output: AtomicFile | DirectFile | None = None
    if options.output is not None:
        if options.compare is not None and file_ids([options.output]) & file_ids([options.compare]):
            raise FastOCRError(f"-o would overwrite {options.compare}, which --compare reads; choose another place")
        if options.output.is_dir():
            raise FastOCRError(f"cannot write {options.output}: it is a directory; name a file")
        output = open_output(options.output, frozenset())
    texts = {"md": markdown, "json": Run.to_json, "csv": csv_text}

    def write(run: Run) -> None:
        text = texts[options.format](run)
        if output is None:
            sys.stdout.write(text)
        else:
            output.file.write(text)
            output.commit()
        if old is not None:
            sys.stdout.write(("\n" if output is None else "") + comparison(old, run, compare(old, run)))
        sys.stdout.flush()

    try:
        with _engine(options, old) as (directory, manifest, plan):
            _measure(options, directory, manifest, plan, write)
    finally:
        if output is not None:
            output.discard()
    return common.EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-bench with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
