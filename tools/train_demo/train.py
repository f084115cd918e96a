"""The training loop."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import NamedTuple

import torch

from . import curriculum, twin
from .data import SHARDS, Batch, Task, batches
from .losses import Weights, guidance_loss, line_links, link_loss, place_loss, text_loss, under_loss, weigh
from .optimiser import rate_factor
from .processes import Group
from .run import Run


def train(group: Group, settings: dict) -> None:
    """Train until settings["steps"], or until asked to stop (SIGTERM, SIGINT); goes on where the folder was left."""
    run = Run(Path(settings["folder"]), settings, group)
    stop = _Stop()
    saved = printed = time.time()
    cpu = time.process_time()
    while run.step < settings["steps"]:
        task = curriculum.task(run.progress.stage, settings["seed"], run.step)
        task = task._replace(pages=max(SHARDS, round(task.pages * settings["pages"])))
        record = _step(run, task, stop)
        run.step += 1
        run.update_average()
        now_cpu = time.process_time()
        run.cpu_seconds, cpu = run.cpu_seconds + (now_cpu - cpu) * group.size, now_cpu
        promoted = run.progress.promote()
        last = record.pop("stop") or run.step >= settings["steps"]
        if group.number == 0:
            run.log(record)
            if time.time() - printed > 60 or promoted or last:
                printed = time.time()
                print(_line(run), flush=True)
            if time.time() - saved > settings["save_minutes"] * 60 or last:
                run.save()
                saved = time.time()
        if last:
            break


class _Stop:
    """Turns true when the process is asked to end: the step is finished and the state written first."""

    def __init__(self):
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def _step(run: Run, task: Task, stop: _Stop) -> dict:
    """One step on this process's shards. Returns what to log, the same on every process."""
    settings, group = run.settings, run.group
    mine = [
        batch
        for shard in range(group.number, SHARDS, group.size)
        for batch in batches(task, settings["seed"], run.step, shard, settings["noise"])
    ]
    weighed = [weigh(batch) for batch in mine]
    sums = torch.tensor([sum(float(part.sum()) for part in parts) for parts in zip(*weighed, strict=True)])
    # All processes must stop at the same step.
    wish = torch.tensor([float(stop.asked)])
    group.add([sums, wish])
    added = torch.tensor(Found())
    for batch, weights in zip(mine, weighed, strict=True):
        added += torch.tensor(_learn(run, task, batch, weights, sums))
    group.add([added])
    found = Found(*added.tolist())
    start, length = settings["cooldown_start"], settings["cooldown"]
    factor = rate_factor(run.step, settings["half_life"], start, length)
    run.optimiser.step(factor)
    record = {
        "kind": "read" if task.reading else "see",
        "visual_tokens": task.visual_tokens,
        "layout": task.layout,
        "stage": run.progress.stage,
        "under": round(found.under, 4),
        "under_accuracy": round(found.seen / max(found.printed, 1), 4),
        "rate": round(factor, 4),
        "cpu_seconds": round(run.cpu_seconds),
        "stop": bool(wish > 0),
    }
    run.progress.note(f"under {task.visual_tokens}", record["under_accuracy"])
    if task.reading:
        record |= {"loss": round(found.text, 4), "accuracy": round(found.correct / found.asked, 4)}
        record |= {name: round(getattr(found, name), 4) for name in HELP}
        run.progress.note(f"read {task.visual_tokens}", record["accuracy"])
        run.progress.note(f"{task.layout} {task.visual_tokens}", record["accuracy"])
        for name in HELP:
            run.progress.note(name, getattr(found, name))
    return record


class Found(NamedTuple):
    """Of a batch, or of a step: losses, as shares of the step's; characters asked for, and correct; characters printed,
    and seen by the auxiliary head."""

    text: float = 0.0
    under: float = 0.0
    guidance: float = 0.0
    place: float = 0.0
    link: float = 0.0
    correct: float = 0.0
    asked: float = 0.0
    seen: float = 0.0
    printed: float = 0.0


HELP = ("guidance", "place", "link")
"""Losses of reading that are no part of what the reader is for. They are told whether or not they count, so that the
log shows how attention goes on where it is no longer guided."""


def _learn(run: Run, task: Task, batch: Batch, weights: Weights, sums: torch.Tensor) -> Found:
    """Forward and backward on one batch."""
    settings = run.settings
    text_sum, places_sum, under_sum = sums.tolist()
    visual = twin.see(run.reader, batch.pages)
    under = under_loss(run.head(visual), batch, weights)
    loss = settings["under"] * under.loss / under_sum
    found = Found(under=under.loss.item() / under_sum, seen=under.correct, printed=under.asked)
    if task.reading:
        tokens = line_links(batch)  # none where every page of the batch is a single line
        links = twin.Links(tuple(settings["linked_layers"]), tokens) if tokens.shape[1] else None
        guided = tuple(settings["guided_layers"])
        reading = twin.read(run.reader, visual, batch.input_ids, batch.columns, batch.rows, guided, links)
        text = text_loss(reading.logits, batch, weights)
        guidance = guidance_loss(reading.attention, batch, weights).loss / places_sum
        place = place_loss(run.places, reading.before, batch, weights) / places_sum
        link = link_loss(reading.links, tokens, weights) / places_sum if links else torch.zeros(())
        loss = loss + text.loss / text_sum + settings["places"] * place
        if not 0 < settings["guidance_steps"] <= run.step:
            loss = loss + settings["guidance"] * (guidance + link)
        found = found._replace(
            text=text.loss.item() / text_sum,
            correct=text.correct,
            asked=text.asked,
            guidance=guidance.item(),
            place=place.item(),
            link=link.item(),
        )
    loss.backward()
    return found


def _line(run: Run) -> str:
    averages = "  ".join(f"{key} {value:.3f}" for key, value in sorted(run.progress.averages.items()))
    return f"step {run.step}  stage {run.progress.stage}  cpu {run.cpu_seconds / 3600:.2f} h  {averages}"
