"""What is measured: reading a prompt, decode steps, and the attention of a decode step."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np

from ..manifest import Manifest
from ..runtime.onnxruntime_session import OnnxRuntimeSession
from ..runtime.prefill import prefill
from ..runtime.session import Session
from ..runtime.vision_layout import vision_layout
from .matrix import Case, Prompt
from .measure import Measured
from .sessions import FilledSession, made_up_image, made_up_prompt

TESTS = ("prompt", "decode", "attention")
Variants = dict[Hashable, Callable[[], Measured]]


def variants(
    directory: Path,
    manifest: Manifest,
    cases: Sequence[Case],
    tests: Sequence[str],
    steps: int,
    provider: str = "cpu",
) -> Variants:
    """What to run for `cases`, by (test, case) and by ("prompt", prompt); prefill is dense in both modes.

    All sessions are open and all caches filled when this returns. provider: of ONNX Runtime. Attention alone is
    measured in ONNX Runtime on the CPU only.
    """
    found: Variants = {}
    opened: dict[tuple, Session] = {}
    prompts = dict.fromkeys(case.prompt for case in cases)
    for prompt in prompts:
        mine = [case for case in cases if case.prompt == prompt]
        if prompt.backend == "onnxruntime" and provider == "cpu":
            found |= _filled(directory, manifest, prompt, mine, tests, steps, opened)
        else:
            found |= _prefilled(directory, manifest, prompt, mine, tests, steps, provider, opened)
    return found


def _filled(directory, manifest, prompt: Prompt, cases, tests, steps: int, opened) -> Variants:
    """On the CPU the caches of decode steps are filled with random rows, which costs no prefill."""
    sessions: dict[float, FilledSession] = {}
    for keep in dict.fromkeys(case.keep for case in cases if case.keep is not None) or [manifest.policy.keep]:
        session = FilledSession(directory, manifest, "cpu", prompt.threads)
        if sessions:
            session.share(next(iter(sessions.values())))
        elif ("filled", prompt.threads) in opened:
            session.share_graphs(opened["filled", prompt.threads])
        opened.setdefault(("filled", prompt.threads), session)
        k = manifest.policy.num_fixations(prompt.visual_tokens, keep)
        session.fill(prompt.visual_tokens, prompt.text_tokens, k, prompt.batch)
        sessions[keep] = session
    first = next(iter(sessions.values()))
    found: Variants = {}
    if "prompt" in tests:
        found["prompt", prompt] = PromptTurn(first, manifest, prompt, next(iter(sessions)))
    for case in cases:
        session = first if case.keep is None else sessions[case.keep]
        if "decode" in tests:
            found["decode", case] = FilledSteps(session, case, steps)
        if "attention" in tests:
            from .attention import AttentionStep

            step = AttentionStep(session, directory, case.mode, prompt.threads)
            found["attention", case] = AttentionSteps(step, steps)
    return found


def _prefilled(directory, manifest, prompt: Prompt, cases, tests, steps: int, provider: str, opened) -> Variants:
    """On a device every turn of decode steps begins with a prefill, outside its clock: one session, one cache."""
    if (prompt.backend, prompt.threads) not in opened:
        opened[prompt.backend, prompt.threads] = _open(directory, manifest, prompt, provider)
    session = opened[prompt.backend, prompt.threads]
    found: Variants = {}
    if "prompt" in tests:
        found["prompt", prompt] = PromptTurn(session, manifest, prompt, manifest.policy.keep)
    if "decode" in tests:
        for case in cases:
            keep = manifest.policy.keep if case.keep is None else case.keep
            read = PromptTurn(session, manifest, prompt, keep)
            found["decode", case] = PrefilledSteps(session, read, case, steps)
    return found


def _open(directory: Path, manifest: Manifest, prompt: Prompt, provider: str) -> Session:
    from ..runtime.backend import open_tensorrt

    if prompt.backend == "onnxruntime":
        return OnnxRuntimeSession(directory, manifest, provider, prompt.threads)
    return open_tensorrt(directory, manifest, prompt.backend, hash_up_to=0)


class PromptTurn:
    """Reads made-up pages up to their first token: the vision graph, then prefill in chunks."""

    def __init__(self, session: Session, manifest: Manifest, prompt: Prompt, keep: float) -> None:
        self._session, self._manifest, self._prompt = session, manifest, prompt
        self._fixations = manifest.policy.num_fixations(prompt.visual_tokens, keep)
        self._image: tuple | None = None

    def __call__(self) -> Measured:
        if self._image is None:
            pixels, grid = made_up_image(self._prompt.visual_tokens, self._manifest.vision)
            self._image = (pixels, *vision_layout(*grid, self._manifest.vision))
        start = time.perf_counter()
        embeds = [self._session.encode_image(*self._image) for _ in range(self._prompt.batch)]
        seen = time.perf_counter()
        self.prefill(np.concatenate(embeds))
        end = time.perf_counter()
        tokens = self._prompt.batch * (self._prompt.visual_tokens + self._prompt.text_tokens)
        return {
            "vision_ms": 1e3 * (seen - start),
            "prefill_tokens_per_s": tokens / (end - seen),
            "first_token_ms": 1e3 * (end - start),
        }

    def prefill(self, embeds: np.ndarray | None = None) -> None:
        """embeds [B * visual_tokens, hidden_size]; without them the pages are blank."""
        batch, visual = self._prompt.batch, self._prompt.visual_tokens
        if embeds is None:
            embeds = np.zeros((batch * visual, self._manifest.decoder.hidden_size), np.float32)
            embeds = embeds.astype(np.float16) if self._manifest.dtype == "fp16" else embeds
        self._session.begin(embeds, np.full(batch, self._fixations, np.int64))
        pages = [made_up_prompt(visual, self._prompt.text_tokens) for _ in range(batch)]
        offsets = [visual * page for page in range(batch)]
        chunk, pad = self._manifest.capacities.prefill_chunk, self._manifest.generation.pad_token_id
        prefill(self._session, pages, offsets, chunk, pad)
        self._session.next_tokens()


class FilledSteps:
    """Decode steps on filled caches, from the same text length in every turn; the first one is not timed."""

    def __init__(self, session: FilledSession, case: Case, steps: int) -> None:
        self._session, self._case, self._steps = session, case, steps

    def __call__(self) -> Measured:
        self._session.rewind(self._case.text_tokens)
        self._session.step(self._case.mode)
        self._session.rewind(self._case.text_tokens)
        start = time.perf_counter()
        for _ in range(self._steps):
            self._session.step(self._case.mode)
        self._session.next_tokens()
        return _step_quantities(time.perf_counter() - start, self._steps, self._case.batch)


class PrefilledSteps:
    """Decode steps after a prefill and one more step, which are not timed; in groups where the session has them."""

    def __init__(self, session: Session, read: PromptTurn, case: Case, steps: int) -> None:
        self._session, self._read, self._case, self._steps = session, read, case, steps

    def __call__(self) -> Measured:
        self._read.prefill()
        self._session.step(self._case.mode)
        self._session.next_tokens()
        largest = getattr(self._session, "group_size", 1)
        start, left = time.perf_counter(), self._steps
        while left:
            count = min(largest, left)
            if count > 1:
                self._session.steps(self._case.mode, count)
            else:
                self._session.step(self._case.mode)
                self._session.next_tokens()
            left -= count
        return _step_quantities(time.perf_counter() - start, self._steps, self._case.batch)


class AttentionSteps:
    """The attention of decode steps alone; the first one is not timed."""

    def __init__(self, step: Callable[[], None], steps: int) -> None:
        self._step, self._steps = step, steps

    def __call__(self) -> Measured:
        self._step()
        start = time.perf_counter()
        for _ in range(self._steps):
            self._step()
        return {"attention_ms": 1e3 * (time.perf_counter() - start) / self._steps}


def _step_quantities(seconds: float, steps: int, batch: int) -> Measured:
    return {"step_ms": 1e3 * seconds / steps, "decode_tokens_per_s": batch * steps / seconds}
