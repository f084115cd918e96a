"""Find a checkpoint's policy on pages: record dense reading, choose focal layers, read with the best, keep one."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from .. import __version__
from ..calibration import MassRecorder, candidates, frontier
from ..counts import plural
from ..errors import FastOCRError
from .calibrate_pages import CalibrationPage, Pages
from .calibrate_record import read_dense
from .calibrate_result import Calibration, Loaded, Options, tell_cut
from .calibrate_store import CalibrationStore
from .calibrate_verify import dense_accuracy, pick, verify
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
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        warn(text)

    record = CalibrationStore(store, head, fresh)
    found = _record(loaded, pages, options, record, progress, tell)
    if not found:
        raise FastOCRError("there is no page to calibrate on: none of those given can be read")
    dense = [record.dense(page.digest) for page in found]
    texts = [page.text for page in found]
    accuracy = dense_accuracy(dense, texts)
    cut = sum(reading.finish_reason == "length" for reading in dense)
    _warn_of_readings(dense, cut, accuracy, options, tell)
    total = MassRecorder(loaded.reader.num_layers, options.keeps, MIN_TOKENS)
    for page in found:
        part = MassRecorder(loaded.reader.num_layers, options.keeps, MIN_TOKENS)
        part.restore(record.sums(page.digest))
        total.add(part)
    choices = frontier(total, MOST_FOCAL)
    verified = []
    tried = candidates(choices, options.least_recovered, options.candidates)
    if tried[0].recovered < options.least_recovered:
        tell(
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
        "left_out": pages.left_out,
        "cut": cut,
        "digests": [page.digest for page in found],
    }
    masses = {keep: total.result(keep, True) for keep in options.keeps}
    return Calibration(loaded, options, about, accuracy, masses, choices, verified, chosen, kept, tuple(told))


def _record(
    loaded: Loaded,
    pages: Pages,
    options: Options,
    record: CalibrationStore,
    progress: Progress,
    tell: Callable[[str], None],
) -> list[CalibrationPage]:
    """Read densely what the record lacks; all pages in order, without their images, each picture once."""
    progress.begin("recording dense reading", len(pages))
    found: dict[str, CalibrationPage] = {}

    def wanted():
        for page in pages:
            if page.digest in found:  # the same picture twice says nothing new, but one of its texts may
                first = found[page.digest]
                if first.text is None:
                    found[page.digest] = first._replace(text=page.text)
                elif page.text not in (None, first.text):
                    tell(f"{page.name} is the same picture as {first.name} with another text, which is left out")
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
    dense: Sequence[Reading], cut: int, accuracy: float | None, options: Options, warn: Callable[[str], None]
) -> None:
    if accuracy is not None and accuracy < POOR_ACCURACY:
        belong = "give pages that the model can read, or see whether the texts belong to them"
        warn(
            f"dense reading gets {accuracy:.1%} of the texts' characters right: what is kept of so little says little; "
            + ("raise --max-new-tokens first, since texts are whole and pages were cut" if cut else belong)
        )
    if cut:
        warn(
            f"{tell_cut(cut, len(dense), options.max_new_tokens)}: what comes later is not measured; "
            "raise --max-new-tokens"
        )
    short = sum(len(reading.token_ids) < 2 for reading in dense)
    if short:
        warn(
            f"{short} of {plural(len(dense), 'page')} gave fewer than two tokens, too few to say anything of attention"
        )
