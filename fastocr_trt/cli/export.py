"""fastocr-export: a checkpoint becomes an engine directory, and engines of TensorRT are built for one."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .. import option_types
from ..backends import BACKENDS, BackendRecord
from ..counts import plural
from ..errors import FastOCRError, MissingDependencyError
from ..export.source import DEMO
from ..fixation import FixationPolicy
from ..manifest import MANIFEST_NAME, Manifest
from ..policy_file import read_policy
from . import _common as common

DESCRIPTION = """\
Export a vision-language checkpoint (Qwen2.5-VL architecture) into an engine directory that fastocr-parse runs
without torch. MODEL is `demo` (the reader that comes with this package), a local folder, or a hub name. It may also be
an engine directory that is there: then only the engines of --backend are built and added to it.
"""
EXAMPLES = """\
  fastocr-export demo -o engines/demo
  fastocr-export ./Qwen2.5-VL-3B-Instruct -o engines/qwen --weights int4 --max-visual-tokens 4096
  fastocr-export ./checkpoint --focal-layers 9,18,26 --keep 0.05 --force
  fastocr-export engines/demo --backend tensorrt-rtx --compute-capability 8.9,12.0
"""


BACKEND_NAMES = ("onnxruntime", *BACKENDS)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
LARGEST_SIZE = 1 << 50  # of builder memory, which the library takes as a 64-bit number


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


def describe_policy(policy: FixationPolicy) -> str:
    """One line: which layers do what."""
    dense = ", ".join(map(str, policy.dense_layers)) or "none"
    focal = ", ".join(map(str, policy.focal_layers))
    return f"dense layers {dense}; focal layers {focal}; the others read {policy.keep * 100:g}% of the visual tokens"


def summary(manifest: Manifest, directory: Path, elapsed: float, engines: Sequence[str] = ()) -> str:
    """What was written, for people. engines: a line for each backend that was built for."""
    shape, room = manifest.decoder, manifest.capacities
    files = ", ".join(
        f"{record.file} {common.size_text(record.size)}"
        for record in sorted(manifest.files.values(), key=lambda record: -record.size)[:4]
    )
    weights = f", {manifest.weights} weights" if manifest.weights else ""
    return "\n".join(
        [
            f"wrote {common.printable(str(directory))} in {common.seconds_text(elapsed)}: "
            f"{common.size_text(common.directory_size(directory))} ({files})",
            f"  model    {manifest.model.get('family', 'unknown family')}, {plural(shape.num_layers, 'layer')}, "
            f"{manifest.dtype}{weights}",
            f"  policy   {describe_policy(manifest.policy)}",
            f"  limits   {plural(room.max_visual_tokens, 'visual token')}, {plural(room.max_text_tokens, 'text token')}"
            f", batch of {room.max_batch}",
            *engines,
            f"next: fastocr-parse PAGE --engine {directory}",
        ]
    )


def backend_list(text: str) -> tuple[str, ...]:
    """Names of backends with commas between; `all` is all of them."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [name for name in names if name not in (*BACKEND_NAMES, "all")]
    if unknown:
        choices = ", ".join((*BACKEND_NAMES, "all"))
        raise argparse.ArgumentTypeError(f"there is no backend {', '.join(map(repr, unknown))}; choose from {choices}")
    return BACKEND_NAMES if "all" in names else names


def capability_list(text: str) -> tuple[str, ...]:
    """Compute capabilities with commas between: 8.9,12.0."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(re.fullmatch(r"[1-9]\d?\.\d", part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of compute capabilities, for example 8.9,12.0")
    return parts


def byte_size(text: str) -> int:
    """A size in bytes: 4GiB, 512MiB, or a number."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, for example 4GiB or 512MiB")
    size = float(found[1]) * UNITS[found[2].upper()]
    if size > LARGEST_SIZE:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is more than any GPU has")
    return int(size)


def plugin_choice(text: str) -> str | Path:
    """`auto`, `none`, or the path of a library."""
    return text if text in ("auto", "none") else Path(text)


def import_builder() -> ModuleType:
    """The module `export.build`, or MissingDependencyError that names what to install: onnx, but not torch."""
    try:
        from ..export import build
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fastocr_trt"):
            raise
        raise MissingDependencyError(
            f"building engines needs {error.name}, which is not installed: pip install {error.name} "
            "(torch is not needed)"
        ) from None
    return build


def engines_summary(name: str, record: BackendRecord) -> str:
    """One line on the engines of a backend."""
    files = ", ".join(f"{Path(file.file).name} {common.size_text(file.size)}" for file in record.engines.values())
    decoder = "with the plugin" if record.plugin_version else "from function bodies"
    return f"  {name} {record.version} for {', '.join(record.compute_capabilities)}, decoder {decoder}: {files}"


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-export", DESCRIPTION, EXAMPLES)
    parser.add_argument(
        "model", metavar="MODEL", help="`demo`, a folder with config.json, a hub name, or an engine directory"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="engine directory (default: engines/NAME)")
    parser.add_argument("--force", action="store_true", help="replace an engine that is there")

    numbers = parser.add_argument_group("numbers")
    numbers.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="of weights and caches (default: fp32)")
    numbers.add_argument(
        "--weights",
        choices=("int4", "int8"),
        help="quantise the decoder's weights alone; for ONNX Runtime: no engines of TensorRT are built of them",
    )

    limits = parser.add_argument_group("limits (memory is taken for them when the engine is loaded)")
    limits.add_argument(
        "--max-visual-tokens",
        type=option_types.at_least(1),
        metavar="N",
        help="largest page (default: the model's largest image, at most 8192)",
    )
    limits.add_argument(
        "--max-text-tokens",
        type=option_types.at_least(2),
        metavar="N",
        help="prompt and output (default: 4096, or what the model can)",
    )
    limits.add_argument(
        "--max-batch", type=option_types.at_least(1), metavar="N", help="pages read at once (default: 8)"
    )

    policy = parser.add_argument_group("policy (what a decode step reads of the page)")
    policy.add_argument(
        "--keep", type=option_types.keep, metavar="SHARE", help="share of the visual tokens in a fixation"
    )
    policy.add_argument(
        "--focal-layers",
        type=option_types.layer_list,
        metavar="N,N",
        help="layers that read the whole page and select (default: the model's known policy, else spread evenly)",
    )
    policy.add_argument("--policy", type=Path, metavar="FILE", help="a policy as JSON instead of the two above")
    parser.add_argument("--prompt", metavar="TEXT", help="the engine's default prompt")

    engines = parser.add_argument_group("engines of TensorRT and TensorRT-RTX (beside what ONNX Runtime reads)")
    engines.add_argument(
        "--backend",
        type=backend_list,
        action="extend",
        metavar="NAME",
        help=f"{', '.join(BACKEND_NAMES)} or all; several with commas or repeated (default: onnxruntime)",
    )
    engines.add_argument(
        "--compute-capability",
        type=capability_list,
        metavar="N.N,N.N",
        help="GPUs to build for (default: those here; where none is, TensorRT-RTX builds for 8.0,8.6,8.9,12.0)",
    )
    engines.add_argument(
        "--plugin",
        type=plugin_choice,
        default="auto",
        metavar="auto|none|PATH",
        help="the plugin library: with it one decoder engine, whose attention reads and writes the caches in place; "
        "auto takes the package's or the checkout's, and does without where there is none",
    )
    engines.add_argument(
        "--builder-memory",
        type=byte_size,
        metavar="SIZE",
        help="device memory that a kernel may use as workspace, such as 4GiB (default: the library's)",
    )
    engines.add_argument(
        "--timing-cache",
        type=Path,
        metavar="FILE",
        help="where TensorRT keeps kernel times (default: beside the engines; TensorRT-RTX has none)",
    )
    return parser


def _command(options: argparse.Namespace) -> int:
    backends = [name for name in BACKENDS if name in (options.backend or ())]
    # `demo` is the reader of this package even where a folder has that name, which is then ./demo.
    if options.model != DEMO and (Path(options.model) / MANIFEST_NAME).is_file():
        return _build_only(options, backends)
    if options.policy and (options.keep is not None or options.focal_layers is not None):
        raise FastOCRError("--policy already says keep and focal layers; leave out --keep and --focal-layers")
    _check_engine_options(options, backends)
    if backends and options.weights:
        raise FastOCRError(
            f"--weights {options.weights} is for ONNX Runtime: no engine of {' or '.join(backends)} is built of it; "
            "leave out --weights, or --backend"
        )
    policy, calibration = read_policy(options.policy) if options.policy else (None, None)
    output = options.output or default_directory(options.model)
    export_engine = common.import_exporter()
    prepared = _prepare(options, backends)  # what is missing is told before minutes are spent on an export
    # Only what was given is passed on: the exporter owns its defaults.
    given = {
        "max_visual_tokens": options.max_visual_tokens,
        "max_text_tokens": options.max_text_tokens,
        "max_batch": options.max_batch,
        "calibration": calibration,
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
            dtype=options.dtype or "fp32",
            weights=options.weights,
            policy=policy,
            force=options.force,
            progress=progress,
            **{name: value for name, value in given.items() if value is not None},
        )
    measured = calibration.get("model") if calibration else None
    if isinstance(measured, dict) and measured.get("files") != manifest.model["files"]:
        common.warn(
            f"{options.policy} was calibrated on another checkpoint than {options.model}, and policies do not carry "
            "over: calibrate this one with fastocr-calibrate"
        )
    built = _build(options, output, prepared)
    print(summary(manifest, output, time.perf_counter() - started, built))
    return common.EXIT_OK


def _build_only(options: argparse.Namespace, backends: list[str]) -> int:
    """Build engines for the engine directory MODEL, which is otherwise left as it is."""
    directory = Path(options.model)
    if not backends:
        raise FastOCRError(
            f"{directory} is an engine directory; say which engines to build for it with --backend, or export its "
            "checkpoint to change it"
        )
    fixed = ("dtype", "weights", "max_visual_tokens", "max_text_tokens", "max_batch", "keep", "focal_layers", "policy")
    given = [name for name in (*fixed, "prompt", "output") if getattr(options, name) is not None]
    if given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise FastOCRError(
            f"{directory} is an engine directory, to which engines are added: {named} cannot change it; export its "
            "checkpoint again for that"
        )
    started = time.perf_counter()
    built = _build(options, directory, _prepare(options, backends))
    elapsed = common.seconds_text(time.perf_counter() - started)
    print("\n".join([f"built in {elapsed}, for {common.printable(str(directory))}:", *built]))
    return common.EXIT_OK


def _check_engine_options(options: argparse.Namespace, backends: list[str]) -> None:
    """FastOCRError for an option of engines where none are built."""
    names = ("compute_capability", "builder_memory", "timing_cache")
    given = [name for name in names if getattr(options, name) is not None]
    given += ["plugin"] if options.plugin != "auto" else []
    if given and not backends:
        option = given[0].replace("_", "-")
        raise FastOCRError(f"--{option} is about engines, and none are built: give --backend {' or '.join(BACKENDS)}")


def _prepare(options: argparse.Namespace, backends: list[str]) -> list:
    """What `build_engines` needs, for each backend."""
    if not backends:
        return []
    builder = import_builder()
    builder.check_timing_cache(options.timing_cache)
    prepare = builder.prepare
    prepared = []
    for name in backends:
        try:
            made = prepare(name, options.plugin, options.compute_capability, options.builder_memory)
        except MissingDependencyError as error:
            others = ",".join(other for other in backends if other != name)
            if not others:
                raise
            raise MissingDependencyError(f"{error}; or build without {name}: --backend {others}") from None
        prepared.append(made)
    return prepared


def _build(options: argparse.Namespace, directory: Path, prepared: list) -> list[str]:
    """Build the engines of each backend; a line on each."""
    lines = []
    console = common.stderr_console()
    for backend in prepared:
        if backend.note:
            common.note(backend.note)
        with StageReporter(console) as progress:
            record = import_builder().build_engines(
                directory,
                backend,
                options.builder_memory,
                options.timing_cache,
                progress,
                announce=lambda text: console.print(text, markup=False),
            )
        lines.append(engines_summary(backend.library.name, record))
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-export with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
