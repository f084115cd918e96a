"""fastocr-parity: the same pages read by transformers, by the engine dense, and by the engine fast."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_types
from ..counts import plural
from ..errors import FastOCRError, MissingDependencyError, PageError
from ..manifest import sha256
from ..metrics import character_error_rate
from . import _common as common
from ._engines import add_machine_options, load_engine

if TYPE_CHECKING:
    from ..runtime import Engine
    from ..runtime.documents import Page

DESCRIPTION = """\
Read the same pages three times and compare: transformers (greedy, fp32, where it is installed) with the engine's dense
mode, and the dense mode with the fast mode. The first pair tells whether the export is right, the second what the
fixations cost on these pages.
"""
EXAMPLES = """\
  fastocr-parity engines/demo examples/page-1.png
  fastocr-parity engines/qwen scans/ --model ./Qwen2.5-VL-3B-Instruct --tolerance 0.01
  fastocr-parity engines/demo examples/ --no-transformers --keep 0.02 --json
"""


@dataclass(frozen=True)
class Comparison:
    """`hypothesis` against `reference` on one page. agreed: tokens before the first that differs.

    first_difference: the index of that token, None where the two are equal.
    """

    reference_tokens: int
    hypothesis_tokens: int
    agreed: int
    first_difference: int | None
    character_error_rate: float

    @classmethod
    def of(cls, hypothesis, reference) -> Comparison:
        """Of two readings with `text` and `token_ids`."""
        ours, theirs = list(hypothesis.token_ids), list(reference.token_ids)
        agreed = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if agreed is None:
            agreed = min(len(ours), len(theirs))
        return cls(
            reference_tokens=len(theirs),
            hypothesis_tokens=len(ours),
            agreed=agreed,
            first_difference=None if ours == theirs else agreed,
            character_error_rate=character_error_rate([hypothesis.text], [reference.text]),
        )


@dataclass
class Pair:
    """A comparison over all pages."""

    name: str
    pages: dict[str, Comparison] = field(default_factory=dict)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def add(self, page: str, hypothesis, reference) -> Comparison:
        self.texts.append((hypothesis.text, reference.text))
        self.pages[page] = Comparison.of(hypothesis, reference)
        return self.pages[page]

    @property
    def character_error_rate(self) -> float:
        """All edits over all characters of the reference."""
        return character_error_rate([ours for ours, _ in self.texts], [theirs for _, theirs in self.texts])

    def to_dict(self) -> dict:
        return {
            "character_error_rate": self.character_error_rate,
            "equal_pages": sum(c.first_difference is None for c in self.pages.values()),
            "pages": {page: asdict(comparison) for page, comparison in self.pages.items()},
        }


def checkpoint_of(engine: Engine, named: str | None) -> Path:
    """The checkpoint that transformers reads with: the one named, else the engine's source.

    FastOCRError where the engine does not know it, or where it is not what the engine was exported from.
    """
    from ..export.source import DEMO, find_checkpoint

    source = engine.manifest.model["source"]
    if named is None and source != DEMO and "/" not in source:
        raise FastOCRError(f"the engine was exported from a local folder called {source!r}; name it with --model DIR")
    folder = find_checkpoint(named or source)
    for name, digest in engine.manifest.model["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != digest:
            raise FastOCRError(
                f"{folder / name} is not what the engine was exported from; "
                "name the right checkpoint with --model, or export this one"
            )
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-parity", DESCRIPTION, EXAMPLES)
    parser.add_argument("engine", type=Path, metavar="ENGINE", help="directory that fastocr-export wrote")
    parser.add_argument("inputs", nargs="+", type=Path, metavar="PAGES", help="images, PDFs or folders")
    parser.add_argument("--model", metavar="CHECKPOINT", help="for transformers (default: what the engine came from)")
    parser.add_argument("--no-transformers", action="store_true", help="compare the engine's two modes alone")
    parser.add_argument(
        "--tolerance", type=option_types.real(0, 1e9), default=0.02, metavar="CER", help="character error rate per pair"
    )
    parser.add_argument(
        "--keep", type=option_types.keep, metavar="SHARE", help="of the fast mode (default: the engine's)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="what to ask of the page (default: the engine's prompt)")
    parser.add_argument(
        "--max-new-tokens", type=option_types.at_least(1), metavar="N", help="per page (default: the engine's room)"
    )
    parser.add_argument("--pages", metavar="LIST", help="of each file, for example 1-3,7 (default: all)")
    parser.add_argument("--dpi", type=float, default=200, metavar="N", help="at which a PDF is drawn")
    add_machine_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _transformers(engine: Engine, options: argparse.Namespace):
    """The transformers reader, or None where it is unwanted or not installed; both are said."""
    if options.no_transformers:
        return None
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
        if options.model is not None:
            raise MissingDependencyError(
                "--model needs transformers, which is not installed; install the extra: "
                "pip install 'fastocr-trt[export]'"
            )
        common.warn(
            "transformers is not installed: only dense and fast are compared (pip install 'fastocr-trt[export]')"
        )
        return None
    common.leave_no_compiler_folder()
    from ..export.transformers_reader import TransformersReader

    return TransformersReader(checkpoint_of(engine, options.model), options.threads)


def _compare(page: Page, engine: Engine, yardstick, options: argparse.Namespace, pairs: dict[str, Pair]) -> list[str]:
    """Read one page in every way and add it to the pairs; its lines of the report."""
    # transformers knows nothing of the engine's capacity: only without it may a page be made smaller to fit.
    resize = yardstick is None
    reading = {"prompt": options.prompt, "max_new_tokens": options.max_new_tokens, "resize_to_fit": resize}
    dense = engine.parse(page.image, mode="dense", **reading)
    fast = engine.parse(page.image, mode="fast", keep=options.keep, **reading)
    seen = plural(dense.visual_tokens, "visual token")
    lines = [f"{page.name}: {seen}, a fast step read {fast.mean_visual_reads:.1%} of them"]
    if yardstick is not None:
        prompt = engine.manifest.prompt.default if options.prompt is None else options.prompt
        # As many tokens as the engine wrote, and the stop token: its room is not transformers' limit.
        room = options.max_new_tokens or engine.manifest.capacities.max_text_tokens
        theirs = yardstick.read(page.image, prompt, min(room, len(dense.token_ids) + 64))
        lines.append(_line("dense", pairs["dense"].add(page.name, dense, theirs)))
    lines.append(_line("fast", pairs["fast"].add(page.name, fast, dense)))
    return lines


def _line(name: str, seen: Comparison) -> str:
    first = "equal" if seen.first_difference is None else f"first differs at token {seen.first_difference}"
    against = {"dense": "dense against transformers", "fast": "fast against dense"}[name]
    return (
        f"  {against:<27} {first}; {seen.agreed:,} of {plural(seen.reference_tokens, 'token')} agree before; "
        f"character error rate {seen.character_error_rate:.2%}"
    )


def _command(options: argparse.Namespace) -> int:
    from ..runtime.documents import iter_pages

    pages = iter_pages(options.inputs, pages=options.pages, dpi=options.dpi)
    engine = load_engine(options.engine, options.provider, options.threads, options.backend)
    yardstick = _transformers(engine, options)
    pairs = {"fast": Pair("fast against dense")}
    if yardstick is not None:
        pairs = {"dense": Pair("dense against transformers"), **pairs}
    failed = 0
    for page in pages:
        for note in page.notes:
            common.warn(note)
        try:
            if page.error is not None:
                raise page.error
            lines = _compare(page, engine, yardstick, options, pairs)
        except PageError as error:
            hint = "" if yardstick is None or page.error else "; with --no-transformers it is resized to fit"
            common.complain(f"{error if str(page.source) in str(error) else f'{page.name}: {error}'}{hint}")
            failed += 1
            continue
        if not options.json:
            print("\n".join(common.printable(line) for line in lines))
            sys.stdout.flush()
    if not pairs["fast"].pages:
        raise FastOCRError("no page could be compared; see the errors above")
    beyond = [pair.name for pair in pairs.values() if pair.character_error_rate > options.tolerance]
    if options.json:
        report = {name: pair.to_dict() for name, pair in pairs.items()}
        print(json.dumps({"tolerance": options.tolerance, "within": not beyond, "failed": failed, **report}, indent=2))
    else:
        for pair in pairs.values():
            whole = pair.to_dict()
            print(
                f"{pair.name}: {whole['equal_pages']:,} of {plural(len(pair.pages), 'page')} equal, character error "
                f"rate {whole['character_error_rate']:.2%} (tolerance {options.tolerance:.2%})"
            )
    if beyond:
        common.complain(f"beyond the tolerance: {', '.join(beyond)}")
    return common.EXIT_PARTIAL if beyond or failed else common.EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-parity with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
