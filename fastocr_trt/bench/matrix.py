"""The cases of a run: every combination of the options that makes sense, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product

from ..counts import plural
from ..errors import FastOCRError
from ..fixation import FixationPolicy
from ..manifest import Manifest


@dataclass(frozen=True)
class Prompt:
    """What is read before decoding, and by what. threads: of one graph call on the CPU, None for a compiled backend.

    visual_tokens, text_tokens: of each page. text_tokens is how much text a decode step finds: prompt and answer.
    """

    backend: str
    threads: int | None
    batch: int
    visual_tokens: int
    text_tokens: int

    def __str__(self) -> str:
        return f"{self.visual_tokens} + {self.text_tokens} tokens, batch {self.batch}"


@dataclass(frozen=True)
class Case:
    """One row of the table: a prompt, and how a decode step behind it reads. mode: dense or fast. keep: None in dense
    mode, which reads everything."""

    backend: str
    threads: int | None
    batch: int
    visual_tokens: int
    text_tokens: int
    mode: str
    keep: float | None

    @property
    def prompt(self) -> Prompt:
        return Prompt(self.backend, self.threads, self.batch, self.visual_tokens, self.text_tokens)

    @property
    def dense(self) -> Case:
        """The same in dense mode."""
        return replace(self, mode="dense", keep=None)

    def __str__(self) -> str:
        keep = "" if self.keep is None else f" keep {self.keep:g}"
        return f"{self.mode}{keep}, {self.prompt}"


@dataclass(frozen=True)
class Options:
    """What a user asked for: each a list, crossed with all others. steps: decode steps in one measurement."""

    backends: Sequence[str]
    threads: Sequence[int]
    batches: Sequence[int]
    visual_tokens: Sequence[int]
    text_tokens: Sequence[int]
    modes: Sequence[str]
    keeps: Sequence[float]
    steps: int = 16


def cases(options: Options) -> list[Case]:
    """Each combination once: dense mode has no keep, and a compiled backend has no threads."""
    found: dict[Case, None] = {}
    sizes = product(options.backends, options.threads, options.batches, options.visual_tokens, options.text_tokens)
    for backend, threads, batch, visual, text in sizes:
        prompt = Prompt(backend, threads if backend == "onnxruntime" else None, batch, visual, text)
        for mode in options.modes:
            for keep in options.keeps if mode == "fast" else (None,):
                found[Case(*astuple(prompt), mode, keep)] = None
    return list(found)


def merge_keeps(cases: Sequence[Case], policy: FixationPolicy) -> tuple[list[Case], list[str]]:
    """`cases` without those whose fixation is as large as another keep's on the same prompt, which is the same work;
    and what was merged, a sentence each."""
    groups: dict[tuple, list[Case]] = {}
    for case in cases:
        k = None if case.keep is None else policy.num_fixations(case.visual_tokens, case.keep)
        groups.setdefault((case.prompt, case.mode, k), []).append(case)
    told: dict[str, None] = {}
    for (prompt, _, k), same in groups.items():
        if len(same) > 1:
            *keeps, last = (f"{case.keep:g}" for case in same)
            floor = ", the policy's min_tokens," if k == policy.min_tokens else ""
            page = plural(prompt.visual_tokens, "visual token")
            told[
                f"--keep {', '.join(keeps)} and {last} are the same {k}{floor} of {page}: measured once, as {keeps[0]}"
            ] = None
    return [same[0] for same in groups.values()], list(told)


def check_capacities(options: Options, manifest: Manifest) -> None:
    """FastOCRError, with the limit, where the engine does not hold what is asked for."""
    room = manifest.capacities
    text = max(options.text_tokens) + options.steps + 2  # a step before the clock starts, and the one that ends prefill
    for what, wanted, limit, option in (
        (
            plural(max(options.visual_tokens), "visual token"),
            max(options.visual_tokens),
            room.max_visual_tokens,
            "visual",
        ),
        (
            f"{plural(max(options.text_tokens), 'text token')} and {plural(options.steps + 2, 'step')}",
            text,
            room.max_text_tokens,
            "text",
        ),
    ):
        if wanted > limit:
            raise FastOCRError(
                f"{what} do not fit the engine, which holds {plural(limit, f'{option} token')}; ask for fewer, or "
                f"export with a larger --max-{option}-tokens"
            )
    if max(options.batches) > room.max_batch:
        raise FastOCRError(
            f"a batch of {max(options.batches)} does not fit the engine, which holds {room.max_batch}; ask for less, "
            "or export with a larger --max-batch"
        )


def row_bound(policy: FixationPolicy, num_layers: int, case: Case) -> float:
    """What reading fewer cache rows can give at best: rows that a dense step reads over those of this case's step."""
    if case.mode == "dense":
        return 1.0
    visual, text = case.visual_tokens, case.text_tokens + 1
    whole = sum(policy.kind(layer) != "gathered" for layer in range(num_layers))
    k = policy.num_fixations(visual, case.keep)
    return num_layers * (visual + text) / (whole * (visual + text) + (num_layers - whole) * (k + text))
