"""Find a checkpoint's policy on pages: record dense reading, choose focal layers, read with the best, keep one."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch

from .. import __version__
from ..atomic import whole_file
from ..calibration import Choice, MassRecorder, RecoveredMass, candidates, frontier, pareto
from ..counts import plural
from ..errors import FastOCRError
from .calibrate_pages import CalibrationPage, Pages
from .calibrate_record import read_dense
from .calibrate_store import CalibrationStore
from .calibrate_verify import FEWEST_PAGES, Verification, dense_accuracy, pick, verify
from .checkpoint import Checkpoint
from .engine_directory import DEMO_PROMPT, describe_model, read_config
from .fixation_method import Fixation
from .masked_reading import MaskedReader, Reading
from .prompt import DEFAULT_PROMPT
from .quiet import quiet
from .source import DEMO, find_checkpoint
from .transformers_reader import TransformersReader

MOST_FOCAL = 5
MIN_TOKENS = 8
POOR_ACCURACY = 0.5  # of dense reading, below which retention is mostly chance


class Progress(Protocol):
    """Told how a calibration goes on."""

    def begin(self, stage: str, pages: int) -> None:
        """A stage over so many pages begins; the one before is over."""

    def tokens(self, count: int) -> None:
        """Tokens written so far, of the pages at hand."""

    def advance(self, pages: int) -> None:
        """So many more pages are done, in this run or in one before."""


@dataclass(frozen=True)
class Options:
    """keeps: sizes of fixations to try, as shares of the page; batch: pages read together; target: share of dense
    accuracy that the policy must keep; least_recovered, candidates: see `fastocr_trt.calibration.candidates`."""

    prompt: str
    keeps: tuple[float, ...] = (0.05,)
    max_new_tokens: int = 512
    batch: int = 8
    target: float = 0.99
    least_recovered: float = 0.9
    candidates: int = 4


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready to be calibrated. model: as the manifest describes it, with hashes of its files."""

    reader: MaskedReader
    model: dict[str, Any]
    prompt: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """All that was found. masses: RecoveredMass of each keep, selections per KV head; dense_accuracy: against the
    texts, None without; verified: by rising reads; chosen keeps the target or, where `kept` is False, comes closest."""

    loaded: Loaded
    options: Options
    pages: dict[str, Any]
    dense_accuracy: float | None
    masses: dict[float, RecoveredMass]
    choices: list[Choice]
    verified: list[Verification]
    chosen: Verification
    kept: bool

    def _status(self) -> str:
        """Few pages are no calibration, however well they were read."""
        if not self.kept:
            return "calibrated, below its target"
        return "calibrated" if self.chosen.judged_pages >= FEWEST_PAGES else "calibrated on few pages"

    def to_dict(self) -> dict[str, Any]:
        """policy.json: the policy, and under `calibration` the record that the manifest takes over."""
        first = next(iter(self.masses.values()))
        front = pareto(self.choices)
        return {
            "policy": self.chosen.choice.policy.to_dict(),
            "calibration": {
                "status": self._status(),
                "target": self.options.target,
                "judged_by": "retention" if self.chosen.retention else "accuracy_against_dense",
                "judged_on": "lower bound" if self.chosen.judged_pages >= FEWEST_PAGES else "value",
                "model": self.loaded.model,
                "prompt": self.options.prompt,
                "max_new_tokens": self.options.max_new_tokens,
                "pages": self.pages,
                "dense_accuracy": self.dense_accuracy,
                "steps": first.steps,
                "visual_tokens": first.visual_tokens,
                "layers": {
                    "visual_mass": first.visual.tolist(),
                    "importance": first.importance.tolist(),
                    "overlap": {str(keep): mass.overlap.tolist() for keep, mass in self.masses.items()},
                    "own_mass": {str(keep): mass.own.tolist() for keep, mass in self.masses.items()},
                },
                "frontier": [
                    {
                        "policy": choice.policy.to_dict(),
                        "mean_visual_reads": choice.reads,
                        "recovered_mass": choice.recovered,
                        "best_for_its_reads": choice in front,
                    }
                    for choice in self.choices
                ],
                "verified": [verification.to_dict() for verification in self.verified],
                "environment": self.loaded.environment,
            },
        }


def load(model: str, dtype: str, device: str, threads: int | None, prompt: str | None) -> Loaded:
    """Load `model`: "demo", a checkpoint's folder or a hub name. dtype: fp32 or bf16; device: cpu or cuda.

    Raises ExportError for a checkpoint that is no model of a supported family, FastOCRError where CUDA is not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise FastOCRError("--device cuda: PyTorch sees no CUDA device here; use --device cpu, or a PyTorch with CUDA")
    with quiet():
        folder = find_checkpoint(model)
        family, config, shapes = read_config(folder)
        checkpoint = Checkpoint(folder, family.parameter_name)
        checkpoint.check(shapes)
        reader = MaskedReader(TransformersReader(folder, threads, dtype), device)
    environment = {
        "fastocr_version": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})",
        "dtype": dtype,
        "threads": torch.get_num_threads(),
    }
    if prompt is None:
        prompt = DEMO_PROMPT if model == DEMO else DEFAULT_PROMPT
    return Loaded(reader, describe_model(model, folder, config, checkpoint), prompt, environment)


def calibrate(
    loaded: Loaded,
    pages: Pages,
    options: Options,
    store: Path,
    fresh: bool,
    progress: Progress,
    warn: Callable[[str], None],
) -> Calibration:
    """Record, choose, verify. `store`: the file that a stopped run goes on from; `fresh` begins it anew.

    Raises FastOCRError where there is no page to read, none on which enough is written, or texts of other pages.
    """
    head = {
        "model": loaded.model,
        "prompt": options.prompt,
        "max_new_tokens": options.max_new_tokens,
        "keep": options.keeps,
        "dtype": loaded.environment["dtype"],
    }
    record = CalibrationStore(store, head, fresh)
    found = _record(loaded, pages, options, record, progress)
    if not found:
        raise FastOCRError("there is no page to calibrate on: none of those given can be read")
    dense = [record.dense(page.digest) for page in found]
    texts = [page.text for page in found]
    accuracy = dense_accuracy(dense, texts)
    _warn_of_readings(dense, accuracy, options, warn)
    total = MassRecorder(loaded.reader.num_layers, options.keeps, MIN_TOKENS)
    for page in found:
        part = MassRecorder(loaded.reader.num_layers, options.keeps, MIN_TOKENS)
        part.restore(record.sums(page.digest))
        total.add(part)
    choices = frontier(total, MOST_FOCAL)
    verified = []
    tried = candidates(choices, options.least_recovered, options.candidates)
    if tried[0].recovered < options.least_recovered:
        warn(
            f"no choice of focal layers recovers {options.least_recovered:.0%} of the selected mass; only the best, "
            f"with {tried[0].recovered:.1%}, is read with: a larger --keep would recover more"
        )
    for number, choice in enumerate(tried, 1):
        progress.begin(f"reading with policy {number} of {len(tried)}", len(found))
        readings = _read_with(loaded, pages, found, choice, options, record, progress)
        verified.append(verify(choice, readings, dense, texts))
    chosen, kept = pick(verified, options.target)
    about = {
        **pages.about,
        "count": len(found),
        "with_text": sum(text is not None for text in texts),
        "digests": [page.digest for page in found],
    }
    masses = {keep: total.result(keep, True) for keep in options.keeps}
    return Calibration(loaded, options, about, accuracy, masses, choices, verified, chosen, kept)


def write_policy(path: Path, calibration: Calibration) -> None:
    """Write policy.json, whole."""
    data = json.dumps(_finite(calibration.to_dict()), indent=2, allow_nan=False) + "\n"
    with whole_file(path) as part:
        part.write_text(data, encoding="utf-8")


def _record(loaded, pages: Pages, options: Options, record: CalibrationStore, progress: Progress):
    """Read densely what the record lacks; all pages in order, without their images, each once."""
    progress.begin("recording dense reading", len(pages))
    found: dict[str, CalibrationPage] = {}

    def wanted():
        for page in pages:
            if page.digest in found:  # the same picture twice says nothing new
                progress.advance(1)
                continue
            found[page.digest] = page._replace(image=None)
            if record.has_dense(page.digest):
                progress.advance(1)
            else:
                yield page

    for group in _groups(wanted(), options.batch):
        with _memory(options.batch):
            read = read_dense(
                loaded.reader,
                [page.image for page in group],
                options.prompt,
                options.max_new_tokens,
                options.keeps,
                MIN_TOKENS,
                progress.tokens,
            )
        for page, (reading, recorder) in zip(group, read, strict=True):
            record.add_dense(page.digest, reading, recorder)
        record.save()
        progress.advance(len(group))
    return list(found.values())


def _read_with(loaded, pages, found, choice, options, record, progress) -> list[Reading]:
    """The policy's reading of each page of `found`; what the record has is not read again."""
    readings = record.tried(choice.policy)
    missing = {page.digest for page in found} - readings.keys()
    progress.advance(len(found) - len(missing))
    if missing:
        steps = 0

        def advance(active) -> None:
            nonlocal steps
            steps += 1
            progress.tokens(steps)

        for group in _groups((page for page in _once(pages) if page.digest in missing), options.batch):
            steps = 0
            images = [page.image for page in group]
            with _memory(options.batch):
                read = loaded.reader.read(
                    images, options.prompt, Fixation(choice.policy), options.max_new_tokens, advance=advance
                )
            readings.update({page.digest: reading for page, reading in zip(group, read, strict=True)})
            record.save()
            progress.advance(len(group))
    return [readings[page.digest] for page in found]


def _once(pages: Pages) -> Iterator[CalibrationPage]:
    """Each picture once."""
    seen: set[str] = set()
    for page in pages:
        if page.digest not in seen:
            seen.add(page.digest)
            yield page


def _groups(pages: Iterator[CalibrationPage], size: int) -> Iterator[list[CalibrationPage]]:
    while group := list(islice(pages, size)):
        yield group


@contextmanager
def _memory(batch: int) -> Iterator[None]:
    """A device that is full is told in a sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise FastOCRError(
            f"the device has too little memory for --batch {batch} at this page size; give a smaller --batch, "
            "--dtype bf16, or smaller pages"
        ) from None


def _warn_of_readings(
    dense: Sequence[Reading], accuracy: float | None, options: Options, warn: Callable[[str], None]
) -> None:
    cut = sum(reading.finish_reason == "length" for reading in dense)
    if accuracy is not None and accuracy < POOR_ACCURACY:
        belong = "give pages that the model can read, or see whether the texts belong to them"
        warn(
            f"dense reading gets {accuracy:.1%} of the texts' characters right: what is kept of so little says little; "
            + ("raise --max-new-tokens first, since texts are whole and pages were cut" if cut else belong)
        )
    if cut:
        warn(
            f"dense reading of {cut} of {plural(len(dense), 'page')} was cut after "
            f"{plural(options.max_new_tokens, 'token')}: what comes later is not measured; raise --max-new-tokens"
        )
    short = sum(len(reading.token_ids) < 2 for reading in dense)
    if short:
        warn(f"{short} of {plural(len(dense), 'page')} gave less than two tokens and say nothing about attention")


def _finite(value: Any) -> Any:
    """JSON has no infinity: a retention over a page of which dense read nothing becomes null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
