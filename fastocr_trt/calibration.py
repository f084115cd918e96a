"""Choose focal layers from recorded attention: what one layer's selection recovers of another layer's mass.

While a dense model writes pages, `MassRecorder` takes every decode step's softmax mass on the visual tokens, a step at
a time, and keeps sums over layer pairs only. `choose` then finds, by dynamic programming, the focal layers whose
selections recover most of what each gathered layer would have selected itself. Layers before the first focal layer are
scored with the selection that the last focal layer made one step earlier, as decoding uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from .counts import plural
from .errors import FastOCRError
from .fixation import FixationPolicy

Array = NDArray[np.float64]
FLOOR = 1e-12  # mass below which a layer sees nothing of the page
LEAST_GAIN = 5e-4  # recovered mass; a smaller gain is owed to the pages at hand, and pays for no read or selection


@dataclass(frozen=True)
class RecoveredMass:
    """Means over decode steps, for one size and one grouping of selections; L layers.

    same [L,L]: softmax mass of layer j (column) on the rows that layer i (row) selects at the same step, summed over KV
    heads; previous [L,L]: on the rows that layer i selected one step earlier. own [L] is the mass on layer j's own
    selection, visual [L] on the whole page, as a share of the softmax (0 to 1). importance [L] is 1 - cos(h, h + a) of
    the hidden state before and after attention. overlap [L]: share of a layer's selection that was in its last one.
    """

    same: Array
    previous: Array
    own: Array
    visual: Array
    importance: Array
    overlap: Array
    per_kv_head: bool
    keep: float
    min_tokens: int
    visual_tokens: float
    steps: int

    @property
    def num_layers(self) -> int:
        return len(self.own)

    def weight(self) -> Array:
        """[L], summing to 1: how much a gathered layer's loss counts.

        A layer's output changes by the mass it loses, and the text by as much of that as the layer's attention matters.
        """
        weight = self.importance * self.own
        total = weight.sum()
        return weight / total if total > 0 else np.full_like(weight, 1 / len(weight))

    def loss(self, selected: Array) -> Array:
        """[L,L] or [L]: share of layer j's own selected mass that `selected` (same or previous) misses, 0 to 1."""
        own = np.maximum(self.own, FLOOR)
        return np.clip(1 - selected / own, 0, 1) * (self.own > FLOOR)


@dataclass(frozen=True)
class Choice:
    """A policy, the weighted share of mass it recovers (1 is dense), and its mean visual reads (0 to 1)."""

    policy: FixationPolicy
    recovered: float
    reads: float


class MassRecorder:
    """Sums over steps, for several keeps and both groupings at once. Nothing per step or per row is kept.

    keeps: sizes of selections, as shares of the page; min_tokens: their floor, as in FixationPolicy.
    """

    def __init__(self, num_layers: int, keeps: tuple[float, ...], min_tokens: int = 8) -> None:
        self.num_layers = num_layers
        self.keeps = keeps
        self._sizes = {keep: FixationPolicy((0,), (), keep=keep, min_tokens=min_tokens) for keep in keeps}
        self._min_tokens = min_tokens
        square, row = (num_layers, num_layers), (num_layers,)
        self._sums = {
            (keep, per_head): {
                "same": np.zeros(square),
                "previous": np.zeros(square),
                "own": np.zeros(row),
                "overlap": np.zeros(row),
            }
            for keep in keeps
            for per_head in (True, False)
        }
        self._visual, self._importance = np.zeros(row), np.zeros(row)
        self._tokens, self.steps, self._pairs = 0.0, 0, 0
        self._last: dict[tuple[float, bool], NDArray[np.bool_]] = {}  # selections of the step before, on this page

    def begin_page(self) -> None:
        """The next step has none before it."""
        self._last = {}

    def step(self, mass: Array, importance: Array) -> None:
        """One decode step of one page.

        mass [L,KV,Nv]: softmax mass on each visual row, as a mean over the KV head's query heads; importance [L].
        """
        if mass.ndim != 3 or mass.shape[0] != self.num_layers:
            raise ValueError(f"mass is {mass.shape}; it must be [{self.num_layers}, KV, visual tokens]")
        if mass.shape[2] == 0:
            raise FastOCRError("a page without visual tokens cannot be calibrated on; give pages with an image")
        self._pairs += bool(self._last)
        mass = mass.astype(np.float64) / mass.shape[1]  # so that sums over KV heads are shares of the softmax
        rows = mass.reshape(self.num_layers, -1).T
        for (keep, per_head), sums in self._sums.items():
            size = self._sizes[keep].num_fixations(mass.shape[2])
            chosen = select(mass if per_head else mass.sum(1, keepdims=True), size)
            chosen = np.broadcast_to(chosen, mass.shape)
            same = chosen.reshape(self.num_layers, -1) @ rows
            sums["same"] += same
            sums["own"] += same.diagonal()
            if (last := self._last.get((keep, per_head))) is not None:
                sums["previous"] += last.reshape(self.num_layers, -1) @ rows
                sums["overlap"] += (last & chosen).sum((1, 2)) / np.maximum(1, chosen.sum((1, 2)))
            self._last[keep, per_head] = chosen
        self.steps += 1
        self._visual += mass.sum((1, 2))
        self._importance += importance
        self._tokens += mass.shape[2]

    def add(self, other: MassRecorder) -> None:
        """Count another recorder's steps too, of the same model and keeps: pages read side by side have one each."""
        mine, theirs = self.state(), other.state()
        _check_alike(mine, theirs)
        self.restore({name: mine[name] + theirs[name] for name in mine})

    def result(self, keep: float, per_kv_head: bool) -> RecoveredMass:
        """The means so far. FastOCRError where no page had two steps: then nothing is known of the step before."""
        if self._pairs == 0:
            raise FastOCRError(
                f"no page had two decode steps (all together {self.steps}), so that nothing is known of how the gaze "
                "moves; give pages with more text"
            )
        sums = self._sums[keep, per_kv_head]
        return RecoveredMass(
            same=sums["same"] / self.steps,
            previous=sums["previous"] / self._pairs,
            own=sums["own"] / self.steps,
            visual=self._visual / self.steps,
            importance=self._importance / self.steps,
            overlap=sums["overlap"] / self._pairs,
            per_kv_head=per_kv_head,
            keep=keep,
            min_tokens=self._min_tokens,
            visual_tokens=self._tokens / self.steps,
            steps=self.steps,
        )

    def state(self) -> dict[str, Array]:
        """All sums as named arrays, for a file; `restore` takes them back."""
        arrays = {
            f"{keep!r}/{int(per_head)}/{name}": array
            for (keep, per_head), sums in self._sums.items()
            for name, array in sums.items()
        }
        counts = np.array([self.steps, self._pairs, self._tokens])
        return arrays | {"visual": self._visual, "importance": self._importance, "counts": counts}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Go on from `state`. FastOCRError where it belongs to another number of layers or other keeps."""
        _check_alike(self.state(), arrays)
        for (keep, per_head), sums in self._sums.items():
            for name in sums:
                sums[name] = np.array(arrays[f"{keep!r}/{int(per_head)}/{name}"])
        self._visual, self._importance = np.array(arrays["visual"]), np.array(arrays["importance"])
        self.steps, self._pairs, self._tokens = int(arrays["counts"][0]), int(arrays["counts"][1]), arrays["counts"][2]


def _check_alike(mine: dict[str, Array], theirs: dict[str, Array]) -> None:
    if {name: np.shape(a) for name, a in mine.items()} != {name: np.shape(a) for name, a in theirs.items()}:
        raise FastOCRError("the recorded sums are of another model or of other keeps; begin the calibration anew")


def select(mass: Array, size: int) -> NDArray[np.bool_]:
    """Where the `size` largest of the last axis lie, as booleans shaped like mass; ties go to the lower place."""
    chosen = np.zeros(mass.shape, bool)
    if size > 0:
        order = np.argsort(-mass, axis=-1, kind="stable")[..., :size]
        np.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def sources(policy: FixationPolicy, num_layers: int) -> dict[int, tuple[int, bool]]:
    """Of each gathered layer: the focal layer whose selection it reads, and whether that is of the same step."""
    found, source = {}, (policy.focal_layers[-1], False)
    for layer in range(num_layers):
        kind = policy.kind(layer)
        if kind == "focal":
            source = (layer, True)
        elif kind == "gathered":
            found[layer] = source
    return found


def without_idle(policy: FixationPolicy, num_layers: int) -> FixationPolicy:
    """The policy that reads and masks the same with the fewest selections.

    A focal layer whose selection no layer reads becomes dense; where none is read, the last one stays focal.
    """
    read = {source for source, _ in sources(policy, num_layers).values()} or {policy.focal_layers[-1]}
    idle = [layer for layer in policy.focal_layers if layer not in read]
    return replace(policy, focal_layers=tuple(sorted(read)), dense_layers=(*policy.dense_layers, *idle))


def recovered(record: RecoveredMass, policy: FixationPolicy) -> float:
    """Weighted share of mass that the policy's selections recover, 0 to 1; dense and focal layers lose nothing."""
    policy.check(record.num_layers)
    same, previous, weight = record.loss(record.same), record.loss(record.previous), record.weight()
    lost = 0.0
    for layer, (source, at_once) in sources(policy, record.num_layers).items():
        lost += weight[layer] * (same if at_once else previous)[source, layer]
    return 1.0 - lost


def choose(record: RecoveredMass, num_focal: int, dense_layers: tuple[int, ...] = ()) -> Choice:
    """The best `num_focal` focal layers beside `dense_layers`. FastOCRError where there are too few layers for that."""
    layers = record.num_layers
    free = [layer for layer in range(layers) if layer not in dense_layers]
    if not 1 <= num_focal <= len(free):
        raise FastOCRError(
            f"{plural(num_focal, 'focal layer')} cannot be chosen among {plural(layers, 'layer')}, of which "
            f"{len(dense_layers)} dense"
        )
    weight = record.weight().copy()
    weight[list(dense_layers)] = 0.0
    same, previous = record.loss(record.same) * weight, record.loss(record.previous) * weight
    # after[f, t]: what layers f+1 .. t-1 lose with the selection of f; before[f, last]: what layers 0 .. f-1 lose.
    zero = np.zeros((layers, 1))
    summed = np.hstack([zero, np.cumsum(same, axis=1)])
    after = summed - summed[np.arange(layers), np.arange(1, layers + 1)][:, None]
    before = np.hstack([zero, np.cumsum(previous, axis=1)]).T[:layers]
    best: tuple[float, tuple[int, ...]] | None = None
    for last in free:
        chain: dict[int, tuple[float, tuple[int, ...]]] = {f: (float(before[f, last]), (f,)) for f in free if f <= last}
        for _ in range(num_focal - 1):
            chain = {
                f: min((cost + float(after[e, f]), (*path, f)) for e, (cost, path) in chain.items() if e < f)
                for f in free
                if f <= last and any(e < f for e in chain)
            }
        if last in chain:
            cost, path = chain[last]
            total = cost + float(after[last, layers])
            best = min(best, (total, path)) if best else (total, path)
    policy = FixationPolicy(
        best[1], dense_layers, keep=record.keep, min_tokens=record.min_tokens, per_kv_head=record.per_kv_head
    )
    reads = policy.mean_visual_reads(round(record.visual_tokens), layers)
    return Choice(policy, recovered(record, policy), reads)


def frontier(recorder: MassRecorder, most_focal: int = 5) -> list[Choice]:
    """The best choice of every kind: 1 to `most_focal` focal layers, layer 0 dense or not, each keep and grouping,
    by rising reads and then falling recovered mass.

    A focal layer whose selection nothing reads is listed as dense, and what then is one policy is listed once.
    """
    found: dict[FixationPolicy, Choice] = {}
    for keep in recorder.keeps:
        for per_head in (True, False):
            record = recorder.result(keep, per_head)
            for dense in ((), (0,)):
                for count in range(1, min(most_focal, recorder.num_layers - len(dense)) + 1):
                    choice = choose(record, count, dense)
                    policy = without_idle(choice.policy, recorder.num_layers)
                    found.setdefault(policy, replace(choice, policy=policy))
    return sorted(found.values(), key=lambda choice: (choice.reads, -choice.recovered))


def pareto(choices: Sequence[Choice]) -> list[Choice]:
    """Those of `frontier` that recover more than every cheaper one, by LEAST_GAIN at least; by rising reads.

    Of equal reads there is one, taken from those within LEAST_GAIN of the best: the one with the fewest focal layers,
    since a selection costs time that a dense layer does not take; then one whose layer 0 does not select, since its
    query knows only the last token; then one fixation per KV head, whose own mass, of which `recovered` is a share, is
    the larger; then the one that recovers most.
    """
    best: list[Choice] = []
    for _, group in groupby(sorted(choices, key=lambda choice: choice.reads), key=lambda choice: choice.reads):
        equal = list(group)
        most = max(choice.recovered for choice in equal)
        alike = [choice for choice in equal if choice.recovered > most - LEAST_GAIN]
        choice = min(alike, key=_plainness)
        if not best or choice.recovered >= best[-1].recovered + LEAST_GAIN:
            best.append(choice)
    return best


def _plainness(choice: Choice) -> tuple[int, bool, bool, float]:
    policy = choice.policy
    return len(policy.focal_layers), 0 in policy.focal_layers, not policy.per_kv_head, -choice.recovered


def candidates(choices: Sequence[Choice], least_recovered: float, most: int) -> list[Choice]:
    """What is worth decoding with: the cheapest `most` of the Pareto front that recover at least `least_recovered`
    (0 to 1); where none does, the one that recovers most."""
    front = pareto(choices)
    return [choice for choice in front if choice.recovered >= least_recovered][:most] or front[-1:]
