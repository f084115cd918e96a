"""fastocr-calibrate: which layers must look at the whole page, and what that costs, measured on pages."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .. import option_types
from ..counts import plural
from ..demo.pages import LAYOUTS, SIZES
from ..errors import FastOCRError, MissingDependencyError
from ..export.source import DEMO, local_checkpoint
from . import _common as common
from ._files import check_no_input, check_writable, file_ids
from ._progress import PageProgress
from .export import describe_policy

if TYPE_CHECKING:
    from ..calibration import Choice
    from ..export.calibrate_result import Calibration

CHECKPOINT_FILES = (
    "*config.json",
    "*.safetensors",
    "*.index.json",
    "*token*.json",
    "tokenizer*",
    "chat_template*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.bin",
)
TABLE_WIDTH = 110  # characters; on a narrower terminal lines wrap, but no cell is cut
DESCRIPTION = """\
Find the fixation policy of a checkpoint (Qwen2.5-VL architecture) on pages: read them densely, choose the focal layers
whose selections recover most attention on the page, read again with the best choices, and keep the cheapest that stays
as accurate as --target asks. fastocr-export takes the result with --policy. MODEL is `demo`, a folder, or a hub name;
without --pages, `demo` is calibrated on generated pages. A run that was stopped goes on where it was.
"""
EXAMPLES = """\
  fastocr-calibrate demo -o policy.json --html report.html
  fastocr-calibrate ./Qwen2.5-VL-3B-Instruct --pages scans/ --texts truths/ -o qwen.json --device cuda --dtype bf16
  fastocr-calibrate ./checkpoint --pages scans/ -o policy.json --keep 0.02 --keep 0.05 --keep 0.1
  fastocr-export ./checkpoint --policy policy.json
"""


class StageProgress:
    """A bar per stage on a terminal; elsewhere a line when a stage is over."""

    def __init__(self, console: Console, shown: bool) -> None:
        self._console = console
        self._shown = shown
        self._bar: PageProgress | None = None
        self._stage, self._started = "", 0.0

    def __enter__(self) -> StageProgress:
        return self

    def __exit__(self, kind, error, trace) -> None:
        self._end(told=kind is None)

    def begin(self, stage: str, pages: int | None) -> None:
        """pages: None where the stage is not about pages."""
        self._end(told=True)
        self._stage, self._started = stage, time.perf_counter()
        self._bar = PageProgress(self._console, pages, self._shown, streams=False, label=stage)
        self._bar.__enter__()

    def tokens(self, count: int) -> None:
        self._bar.tokens(count)

    def advance(self, pages: int) -> None:
        self._bar.advance(pages)

    def _end(self, told: bool) -> None:
        if self._bar is None:
            return
        self._bar.__exit__(None, None, None)
        self._bar = None
        if told and self._shown:
            seconds = common.seconds_text(time.perf_counter() - self._started)
            self._console.print(f"  {self._stage:<44} {seconds}", markup=False, highlight=False)


def frontier_table(choices: Sequence[Choice]) -> Table:
    """The best choice at each number of reads."""
    table = _table("mean visual reads against recovered attention", "focal", "dense", "fixation", "keep")
    for name in ("reads", "recovered"):
        table.add_column(name, justify="right")
    for choice in choices:
        table.add_row(*_policy_cells(choice), f"{choice.reads:.1%}", f"{choice.recovered:.2%}")
    return table


def verification_table(calibration: Calibration) -> Table:
    """What reading with each candidate gave: measured reads, accuracy with dense output as the truth, retention;
    with 95% intervals where pages are enough."""
    table = _table("reading with the candidates", "focal", "dense", "fixation", "keep")
    names = ("like dense (95%)", "retention (95%)") if calibration.chosen.by_bound else ("like dense", "retention")
    for name in ("reads", *names, "equal", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for v in calibration.verified:
        mark = "" if v is not calibration.chosen else "chosen" if calibration.kept else "closest"
        accuracies = [v.tell_against_dense("-"), v.tell_retention("-")]
        cells = [f"{v.reads:.1%}", *accuracies, f"{v.equal_pages}/{v.pages}", mark]
        table.add_row(*_policy_cells(v.choice), *cells)
    return table


def verdict(calibration: Calibration) -> str:
    """Two lines: what was chosen, and by what."""
    return f"policy: {describe_policy(calibration.chosen.choice.policy)}\n  {calibration.tell()}"


def _policy_cells(choice: Choice) -> list[str]:
    policy = choice.policy
    return [
        ",".join(map(str, policy.focal_layers)),
        ",".join(map(str, policy.dense_layers)) or "-",
        "per KV head" if policy.per_kv_head else "shared",
        f"{policy.keep:.3g}",
    ]


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False, header_style="")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-calibrate", DESCRIPTION, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="`demo`, a folder with config.json, or a hub name")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="policy.json to write")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report with plots, in one file")
    parser.add_argument(
        "--fresh", action="store_true", help="begin anew, and write over the record of a run that was stopped"
    )

    pages = parser.add_argument_group("pages")
    pages.add_argument("--pages", type=Path, metavar="DIR", help="images, PDFs and TIFFs (default for demo: generated)")
    pages.add_argument(
        "--texts",
        type=Path,
        metavar="DIR",
        help="what pages say: NAME.txt, or NAME-3.txt for page 3 of several (default: beside the pages)",
    )
    pages.add_argument("--dpi", type=float, default=200, metavar="N", help="at which a PDF is drawn")
    pages.add_argument("--count", type=option_types.at_least(1), metavar="N", help="generated pages (default: 24)")
    pages.add_argument(
        "--layout",
        action="append",
        choices=sorted(LAYOUTS),
        help="of generated pages; repeated, they take turns (default: mono)",
    )
    pages.add_argument(
        "--visual-tokens", type=int, choices=sorted(SIZES), help="size of generated pages (default: 768)"
    )

    reading = parser.add_argument_group("reading")
    reading.add_argument("--prompt", metavar="TEXT", help="what to ask of a page (default: that of fastocr-export)")
    reading.add_argument(
        "--max-new-tokens",
        type=option_types.at_least(3),
        default=512,
        metavar="N",
        help="per page; longer ones are cut",
    )

    choice = parser.add_argument_group("choice")
    choice.add_argument(
        "--target",
        type=option_types.real(0, 1),
        default=0.99,
        metavar="SHARE",
        help="of dense accuracy that must be kept",
    )
    choice.add_argument(
        "--keep",
        type=option_types.keep,
        action="append",
        metavar="SHARE",
        help="share of the page in a fixation; repeated, each is tried (default: 0.05)",
    )
    choice.add_argument(
        "--candidates",
        type=option_types.at_least(1),
        default=4,
        metavar="N",
        help="policies that are read with, at most",
    )
    choice.add_argument(
        "--least-recovered",
        type=option_types.real(0, 1),
        default=0.9,
        metavar="SHARE",
        help="of selected attention that a candidate must recover",
    )

    machine = parser.add_argument_group("machine")
    machine.add_argument("--batch", type=option_types.at_least(1), default=8, metavar="N", help="pages read at once")
    machine.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    machine.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="of weights and caches")
    machine.add_argument("--threads", type=option_types.threads, metavar="N", help="of the CPU (default: PyTorch's)")
    machine.add_argument("--quiet", action="store_true", help="no progress; warnings, errors and the result stay")
    return parser


def _command(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    _check_options(options)
    console = common.stderr_console()
    with StageProgress(console, not options.quiet) as progress:
        progress.begin("loading the model", None)
        module = import_calibrator()
        pages = _pages(options)
        if options.pages and not options.quiet:
            common.note(f"{pages.with_text} of {plural(pages.readable, 'page')} have texts")
        loaded = module.load(options.model, options.dtype, options.device, options.threads, options.prompt)
        settings = module.Options(
            prompt=loaded.prompt,
            keeps=tuple(dict.fromkeys(options.keep or (0.05,))),
            max_new_tokens=options.max_new_tokens,
            batch=options.batch,
            target=options.target,
            least_recovered=options.least_recovered,
            candidates=options.candidates,
        )
        record = _record_path(options.output)
        calibration = module.calibrate(loaded, pages, settings, record, options.fresh, progress, common.warn)
    from ..calibration import pareto
    from ..export.calibrate_result import write_policy

    write_policy(options.output, calibration)
    if options.html:
        from ..export.calibration_report import write_report

        try:
            write_report(options.html, calibration)
        except BaseException:
            common.note(f"the policy is written to {options.output}; only the report is not")
            raise
    out = Console(highlight=False)
    out.width = max(out.width, TABLE_WIDTH)
    out.print(frontier_table(pareto(calibration.choices)))
    out.print()
    out.print(verification_table(calibration))
    out.print()
    elapsed = common.seconds_text(time.perf_counter() - started)
    files = " and ".join(common.printable(str(path)) for path in (options.output, options.html) if path)
    out.print(f"{verdict(calibration)}\nwrote {files} in {elapsed}", markup=False, soft_wrap=True)
    if not calibration.kept:
        common.complain(
            f"no policy that was read with keeps {options.target:.1%} of dense accuracy: the closest was written; give "
            "a larger --keep, more --candidates, more pages (for a narrower interval) or a lower --target"
        )
    if pages.left_out:
        common.complain(f"{plural(pages.left_out, 'page')} could not be read; the policy rests on the others")
    return common.EXIT_OK if calibration.kept and not pages.left_out else common.EXIT_PARTIAL


def import_calibrator() -> ModuleType:
    """The module `export.calibrate`, or MissingDependencyError that names the extra `export`."""
    common.leave_no_compiler_folder()
    try:
        from ..export import calibrate
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fastocr_trt"):
            raise
        raise MissingDependencyError(
            f"calibrating a model needs {error.name}, which is not installed; "
            "install the extra: pip install 'fastocr-trt[export]'"
        ) from None
    return calibrate


def _record_path(output: Path) -> Path:
    """What a stopped run goes on from, beside its output."""
    return output.with_name(f"{output.stem}.record.npz")


def _check_options(options: argparse.Namespace) -> None:
    """What can be told before a model is loaded."""
    from ..runtime.pdf import check_dpi

    _check_outputs(options)
    check_dpi(options.dpi)
    if options.html:
        _check_plots()
    if 0 in (options.keep or ()):
        raise FastOCRError("--keep 0 selects nothing of the page, so that there is nothing to choose by; give more")
    given = [name for name in ("count", "layout", "visual_tokens") if getattr(options, name) is not None]
    if options.pages and given:
        raise FastOCRError(f"--{given[0].replace('_', '-')} is about generated pages; leave it out, or --pages")
    if options.pages is None and options.model != DEMO:
        raise FastOCRError(
            f"{options.model} needs pages to be calibrated on: give --pages DIR, with pages like those it is to read"
        )
    if options.pages is None and options.texts:
        raise FastOCRError("--texts goes with --pages; the texts of generated pages are known")


def _check_outputs(options: argparse.Namespace) -> None:
    """FastOCRError where a file cannot be written, is an input, or two are one."""
    from ..runtime.documents import list_files

    record = _record_path(options.output)
    outputs = {"-o": options.output, f"the record of -o {options.output}": record}
    if options.html:
        outputs["--html"] = options.html
    inputs = {
        "a page to read": list_files(options.pages) if options.pages and options.pages.is_dir() else (),
        "the text of a page": _inside(options.texts or options.pages, ("*.txt",)),
        "a file of the checkpoint": _inside(local_checkpoint(options.model), CHECKPOINT_FILES),
    }
    seen: dict[str, str] = {}
    for name, path in outputs.items():
        option = "--html" if name == "--html" else "-o"
        if path.is_dir():
            raise FastOCRError(f"{path} is a folder; give a file to write")
        if path.exists() and not path.is_file():
            raise FastOCRError(f"{path} is a device or a FIFO; give a file to write with {option}")
        if not path.parent.is_dir():
            raise FastOCRError(f"there is no folder {path.parent} to write {path.name} into; make it first")
        for what, files in inputs.items():
            check_no_input(path, file_ids(files), what, option)
        check_writable(path, option)
        real = os.path.realpath(path)
        if real in seen:
            raise FastOCRError(f"{seen[real]} and {name} are both {path}; give two files")
        seen[real] = name


def _inside(folder: Path | None, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern)] if folder and folder.is_dir() else []


def _check_plots() -> None:
    """MissingDependencyError where matplotlib cannot draw: told before the work and not after it."""
    try:
        for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_svg"):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"--html needs {error.name}, which is not installed; install the extra: pip install 'fastocr-trt[plots]'"
        ) from None
    except Exception as error:  # a library that does not fit another fails on import in ways of its own
        raise MissingDependencyError(
            f"--html needs matplotlib, which is installed but cannot be imported ({type(error).__name__}: {error}); "
            "install it anew: pip install --force-reinstall 'fastocr-trt[plots]'"
        ) from None


def _pages(options: argparse.Namespace):
    from ..export.calibrate_pages import FolderPages, GeneratedPages

    if options.pages:
        return FolderPages(options.pages, options.texts, options.dpi, common.warn)
    given = {"count": options.count, "layouts": options.layout, "visual_tokens": options.visual_tokens}
    return GeneratedPages(**{name: value for name, value in given.items() if value is not None})


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-calibrate with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
