"""A training run in its folder: settings.json, state.pt (all that is needed to go on), log.jsonl, reader/ (the averaged
weights as an ordinary Hugging Face checkpoint in bf16)."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import torch
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration as Reader

from .architecture import FULL, TINY, grown_reader, new_reader
from .curriculum import Progress
from .losses import CharacterHead, PlaceHeads
from .optimiser import Optimiser
from .processes import Group

DEMO = Path(__file__).resolve().parents[2] / "fastocr_trt" / "demo"
# What a checkpoint has beside its weights; the demo's serve every reader with its characters.
_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja")

SETTINGS = {
    "begin": "demo",  # "demo": grow the embedded reader; "nothing": random weights; else a folder of a run or reader
    "sizes": "full",
    "seed": 0,
    "muon_rate": 0.01,
    "adam_rate": 1e-3,
    "half_life": 2000.0,
    "guidance": 0.3,
    "guidance_steps": 0,  # steps after which there is none; 0: never
    "guided_layers": [2, 4, 7],
    "linked_layers": [1, 3],
    "places": 0.1,
    "under": 0.4,
    "noise": 0.07,
    "stage": 0,
    "pages": 1.0,  # times the usual number of pages a step
    "cooldown_start": None,
    "cooldown": 0,
}


class Run:
    """The model, its average and the optimiser, new or as they were left."""

    def __init__(self, folder: Path, settings: dict, group: Group):
        self.folder, self.settings, self.group = folder, settings, group
        self.reader = _begin(settings).train()
        torch.manual_seed(settings["seed"])
        self.head = CharacterHead(self.reader.config.text_config.hidden_size)
        self.places = PlaceHeads(self.reader.config.text_config.hidden_size, len(settings["guided_layers"]))
        self.optimiser = Optimiser(
            self.reader, self.head, self.places, settings["muon_rate"], settings["adam_rate"], group
        )
        self.average = [parameter.detach().clone() for parameter in self.reader.parameters()]
        self.progress = Progress(settings["stage"])
        self.step = 0
        self.cpu_seconds = 0.0
        if (folder / "state.pt").exists():
            self._load()
        elif (earlier := Path(settings["begin"]) / "state.pt").exists():
            self.head.load_state_dict(torch.load(earlier, weights_only=True)["head"])

    def _load(self) -> None:
        state = torch.load(self.folder / "state.pt", weights_only=True)
        self.reader.load_state_dict(state["reader"])
        self.head.load_state_dict(state["head"])
        self.places.load_state_dict(state["places"])
        self.optimiser.load_state_dict(state["optimiser"])
        for mine, saved in zip(self.average, state["average"], strict=True):
            mine.copy_(saved)
        self.progress.load_state_dict(state["progress"])
        self.progress.stage = max(self.progress.stage, self.settings["stage"])
        self.step, self.cpu_seconds = state["step"], state["cpu_seconds"]

    @torch.no_grad()
    def update_average(self) -> None:
        """The average of the weights over the last few hundred steps reads better than the last weights do, and makes
        a reader at any time, without waiting for the rate to fall."""
        decay = min(0.995, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.reader.parameters()], 1 - decay)

    def save(self) -> None:
        """state.pt and reader/, each whole or not at all."""
        state = {
            "reader": self.reader.state_dict(),
            "head": self.head.state_dict(),
            "places": self.places.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": self.average,
            "progress": self.progress.state_dict(),
            "step": self.step,
            "cpu_seconds": self.cpu_seconds,
        }
        part = self.folder / "state.pt.part"
        torch.save(state, part)
        part.replace(self.folder / "state.pt")
        save_reader(self._averaged(), self.folder / "reader")

    def _averaged(self) -> Reader:
        reader = Reader(self.reader.config)
        reader.generation_config = self.reader.generation_config
        for mine, value in zip(reader.parameters(), self.average, strict=True):
            mine.data.copy_(value)
        return reader

    def log(self, record: dict) -> None:
        with (self.folder / "log.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": self.step, "time": round(time.time()), **record}) + "\n")


def save_reader(reader: nn.Module, folder: Path) -> None:
    """An ordinary checkpoint, bf16, with tokenizer and processor; the folder is replaced as a whole."""
    part, old = folder.with_name(folder.name + ".part"), folder.with_name(folder.name + ".old")
    for leftover in (part, old):
        shutil.rmtree(leftover, ignore_errors=True)
    reader.to(torch.bfloat16).save_pretrained(part)
    for name in _COMPANIONS:
        if (DEMO / name).exists():
            shutil.copy(DEMO / name, part / name)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _begin(settings: dict) -> Reader:
    sizes = {"full": FULL, "tiny": TINY}[settings["sizes"]]
    if settings["begin"] == "nothing":
        return new_reader(sizes, settings["seed"])
    folder = DEMO if settings["begin"] == "demo" else Path(settings["begin"])
    earlier = Reader.from_pretrained(folder / "reader" if (folder / "reader").exists() else folder, dtype=torch.float32)
    return grown_reader(earlier, sizes, settings["seed"])


def read_settings(folder: Path, changes: dict) -> dict:
    """The run's settings: the defaults, what the folder has, and the changes, which are written there."""
    path = folder / "settings.json"
    settings = dict(SETTINGS)
    if path.exists():
        settings.update(json.loads(path.read_text()))
    settings.update(changes)
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(settings, indent=2) + "\n")
    part.replace(path)
    return settings
