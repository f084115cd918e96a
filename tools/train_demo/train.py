"""The training loop."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import torch

from . import curriculum, twin
from .data import SHARDS, Batch, Task, batches
from .losses import guidance_loss, line_links, link_loss, place_loss, text_loss, under_loss, weigh
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
    found = torch.zeros(9)
    for batch, weights in zip(mine, weighed, strict=True):
        found += _learn(run, task, batch, weights, sums)
    group.add([found])
    start, length = settings["cooldown_start"], settings["cooldown"]
    factor = rate_factor(run.step, settings["half_life"], start, length)
    run.optimiser.step(factor)
    text, guidance, under, correct, asked, seen, printed, place, link = found.tolist()
    record = {
        "kind": "read" if task.reading else "see",
        "visual_tokens": task.visual_tokens,
        "layout": task.layout,
        "stage": run.progress.stage,
        "under": round(under, 4),
        "under_accuracy": round(seen / max(printed, 1), 4),
        "rate": round(factor, 4),
        "cpu_seconds": round(run.cpu_seconds),
        "stop": bool(wish > 0),
    }
    run.progress.note(f"under {task.visual_tokens}", record["under_accuracy"])
    if task.reading:
        record |= {"loss": round(text, 4), "guidance": round(guidance, 4), "accuracy": round(correct / asked, 4)}
        record |= {"place": round(place, 4), "link": round(link, 4)}
        run.progress.note(f"read {task.visual_tokens}", record["accuracy"])
        run.progress.note(f"{task.layout} {task.visual_tokens}", record["accuracy"])
        run.progress.note("guidance", guidance)
        run.progress.note("place", place)
        run.progress.note("link", link)
    return record


def _learn(run: Run, task: Task, batch: Batch, weights, sums: torch.Tensor) -> torch.Tensor:
    """Forward and backward on one batch. Returns its share of: text, guidance and under loss; characters correct and
    asked; printed characters correct and asked; place and link loss."""
    settings = run.settings
    text_sum, places_sum, under_sum = sums.tolist()
    visual = twin.see(run.reader, batch.pages)
    under = under_loss(run.head(visual), batch, weights)
    loss = settings["under"] * under.loss / under_sum
    found = [0.0, 0.0, under.loss.item() / under_sum, 0, 0, under.correct, under.asked, 0.0, 0.0]
    if task.reading:
        guiding = settings["guidance"] > 0 and not 0 < settings["guidance_steps"] <= run.step
        guided = tuple(settings["guided_layers"]) if guiding else ()
        tokens = line_links(batch)  # none where every page of the batch is a single line
        links = twin.Links(tuple(settings["linked_layers"]), tokens) if guiding and tokens.shape[1] else None
        reading = twin.read(run.reader, visual, batch.input_ids, batch.columns, batch.rows, guided, links)
        text = text_loss(reading.logits, batch, weights)
        loss = loss + text.loss / text_sum
        found[0], found[3], found[4] = text.loss.item() / text_sum, text.correct, text.asked
        if guided:
            guidance = guidance_loss(reading.attention, batch, weights)
            loss = loss + settings["guidance"] * guidance.loss / places_sum
            found[1] = guidance.loss.item() / places_sum
            place = place_loss(run.places, reading.before, batch, weights)
            loss = loss + settings["places"] * place / places_sum
            found[7] = place.item() / places_sum
        if links:
            link = link_loss(reading.links, tokens, weights)
            loss = loss + settings["guidance"] * link / places_sum
            found[8] = link.item() / places_sum
    loss.backward()
    return torch.tensor(found)


def _line(run: Run) -> str:
    averages = "  ".join(f"{key} {value:.3f}" for key, value in sorted(run.progress.averages.items()))
    return f"step {run.step}  stage {run.progress.stage}  cpu {run.cpu_seconds / 3600:.2f} h  {averages}"
