"""What a calibration has read so far, in one file, so that a run that was stopped goes on by page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..atomic import whole_file
from ..calibration import MassRecorder
from ..errors import FastOCRError
from ..fixation import FixationPolicy
from ..records import checked, parse_json, record
from .masked_reading import Reading

VERSION = 1
WAY_OUT = "give --fresh to begin anew, or another -o"


class CalibrationStore:
    """Dense readings with their recorded sums, and the readings of each policy that was tried, by page digest.

    head: what the readings depend on (model, prompt, sizes), by name. An existing file with another head, or a damaged
    one, is a FastOCRError; with `fresh` it is written over. The file is replaced whole by `save`. It holds the pages'
    texts as they were read.
    """

    def __init__(self, path: Path, head: Mapping[str, Any], fresh: bool = False) -> None:
        self.path = path
        self._head = json.loads(json.dumps({"version": VERSION, **head}))  # as it will be read back
        self._dense: dict[str, Reading] = {}
        self._sums: dict[str, dict[str, np.ndarray]] = {}
        self._tried: dict[str, dict[str, Reading]] = {}
        if not fresh and path.exists():
            self._load()

    def has_dense(self, page: str) -> bool:
        return page in self._dense

    def dense(self, page: str) -> Reading:
        return self._dense[page]

    def sums(self, page: str) -> dict[str, np.ndarray]:
        """As MassRecorder.state gave them."""
        return self._sums[page]

    def add_dense(self, page: str, reading: Reading, recorder: MassRecorder) -> None:
        self._dense[page], self._sums[page] = reading, recorder.state()

    def tried(self, policy: FixationPolicy) -> dict[str, Reading]:
        """The policy's readings by page, to read and to add to."""
        return self._tried.setdefault(json.dumps(policy.to_dict(), sort_keys=True), {})

    def save(self) -> None:
        """Replace the file, whole."""
        content = {
            "head": self._head,
            "dense": {page: asdict(reading) for page, reading in self._dense.items()},
            "tried": {
                policy: {page: asdict(reading) for page, reading in readings.items()}
                for policy, readings in self._tried.items()
            },
        }
        arrays = {f"{page}/{name}": array for page, sums in self._sums.items() for name, array in sums.items()}
        arrays["content"] = np.frombuffer(json.dumps(content).encode(), np.uint8)
        with whole_file(self.path) as part, part.open("wb") as file:
            np.savez(file, **arrays)

    def _load(self) -> None:
        with self.path.open("rb") as stream:
            try:
                other = self._take(stream)
            except Exception as error:  # NumPy, zip and JSON have a dozen ways to say that a file is damaged
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                raise FastOCRError(
                    f"{self.path} is not a readable record of a calibration ({reason}); {WAY_OUT}"
                ) from None
        if other:
            names = ", ".join(name.replace("_", " ") for name in other)
            raise FastOCRError(f"{self.path} is the record of a calibration with other settings ({names}); {WAY_OUT}")

    def _take(self, stream: BinaryIO) -> list[str]:
        """Take over what the file holds; where its head is another, nothing, and the names that differ are given.
        Any error where the file is damaged."""
        with np.load(stream, allow_pickle=False) as file:
            content = parse_json(file["content"].tobytes())
            head = checked(content["head"], dict, "head")
            other = [name for name in self._head if name not in head or head[name] != self._head[name]]
            if other:
                return other
            self._dense = _readings(content["dense"])
            self._tried = {policy: _readings(readings) for policy, readings in content["tried"].items()}
            self._sums = {page: {} for page in self._dense}
            for name in file.files:
                page, _, rest = name.partition("/")
                if rest:
                    self._sums[page][rest] = file[name]
        self._check_sums()
        return []

    def _check_sums(self) -> None:
        """Every page has all its sums, alike in shape and finite: what is chosen rests on them."""
        if not self._sums:
            return
        layers = len(next(iter(self._sums.values()))["visual"])
        expected = {name: array.shape for name, array in MassRecorder(layers, self._head["keep"]).state().items()}
        for page, sums in self._sums.items():
            if {name: array.shape for name, array in sums.items()} != expected:
                raise ValueError(f"the sums of page {page} are incomplete, or of another model")
            if not all(array.dtype == np.float64 and np.isfinite(array).all() for array in sums.values()):
                raise ValueError(f"the sums of page {page} are not numbers")


def _readings(data: Any) -> dict[str, Reading]:
    """By page; ValueError where one is none."""
    found = {page: record(Reading, reading, "a reading") for page, reading in checked(data, dict, "readings").items()}
    if not all(type(token) is int for reading in found.values() for token in reading.token_ids):
        raise ValueError("token_ids are not whole numbers")
    return found
