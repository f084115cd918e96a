"""A builder's nested phases as one share from 0 to 1, and a way to stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class _Phase:
    name: str
    steps: int
    done: int = 0


class PhaseShares:
    """Follows the phases of one build. A phase is a part of the step that its parent is at."""

    def __init__(self) -> None:
        self._open: list[_Phase] = []
        self._share = 0.0

    def start(self, name: str, parent: str | None, steps: int) -> float:
        """A phase of `steps` steps begins within `parent` (None: it is the whole build)."""
        if parent is not None:
            while self._open and self._open[-1].name != parent:
                self._open.pop()
        else:
            self._open.clear()
        self._open.append(_Phase(name, max(1, steps)))
        return self.share()

    def step(self, name: str, step: int) -> float:
        """Step number `step` of a phase, counted from 0, is done."""
        for phase in self._open:
            if phase.name == name:
                phase.done = max(phase.done, min(phase.steps, step + 1))
        return self.share()

    def finish(self, name: str) -> float:
        """A phase has ended; those within it have too."""
        names = [phase.name for phase in self._open]
        if name in names:
            at = len(names) - 1 - names[::-1].index(name)
            del self._open[at:]
        if not self._open:
            self._share = 1.0
        return self.share()

    def share(self) -> float:
        """How much of the build is done; never less than before."""
        share, part = 0.0, 1.0
        for phase in self._open:
            share += part * phase.done / phase.steps
            part *= (phase.done < phase.steps) / phase.steps
        self._share = min(1.0, max(self._share, share))
        return self._share


def progress_monitor(trt: Any, report: Callable[[float], None], stop: threading.Event) -> Any:
    """An IProgressMonitor that tells `report` the share, and ends the build once `stop` is set.

    Its methods are called from C++, which no exception may pass: one of `report` sets `stop`.
    """

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.shares = PhaseShares()
            self.error: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._tell(lambda: self.shares.start(phase_name, parent_phase, num_steps))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(lambda: self.shares.step(phase_name, step))
            return not stop.is_set()

        def phase_finish(self, phase_name: str) -> None:
            self._tell(lambda: self.shares.finish(phase_name))

        def _tell(self, change: Callable[[], float]) -> None:
            try:
                report(change())
            except BaseException as error:
                self.error = self.error or error
                stop.set()

    return Monitor()
