"""`python -m tools.train_demo train FOLDER`, `... evaluate READER` and `... lost READER`."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from fastocr_trt.demo.layouts import FONT_SIZES, NAMES
from fastocr_trt.demo.pages import LAYOUTS, SIZES

from .run import SETTINGS, read_settings


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_demo", description=__doc__)
    commands = parser.add_subparsers(required=True)
    _add_train(commands.add_parser("train", help="begin a run in FOLDER, or go on with the one that is there"))
    _add_evaluate(commands.add_parser("evaluate", help="read unseen pages, print error rates by layout and size"))
    _add_lost(commands.add_parser("lost", help="where READER loses its way, the text before each character given"))
    options = vars(parser.parse_args(arguments))
    options.pop("command")(options)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_train)
    parser.add_argument("folder", type=Path, help="checkpoints, logs and optimiser state go here")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop at this step (default: when told to)")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2, help="one thread each (default 2)")
    parser.add_argument("--save-minutes", type=float, default=5, help="minutes between checkpoints (default 5)")
    settings = parser.add_argument_group("settings, kept in FOLDER/settings.json; those given change the kept ones")
    settings.add_argument("--begin", help="demo (grow the embedded reader), nothing, or a run's or a reader's folder")
    settings.add_argument("--sizes", choices=("full", "tiny"), help="tiny is for tests")
    settings.add_argument("--seed", type=int)
    settings.add_argument("--muon-rate", type=float, help="learning rate of matrices")
    settings.add_argument("--adam-rate", type=float, help="learning rate of all else")
    settings.add_argument("--half-life", type=float, help="steps; the rate falls as 1 / sqrt(1 + step / half_life)")
    settings.add_argument("--cooldown", type=int, help="take the rate down to nothing over so many steps from now")
    settings.add_argument("--guidance", type=float, help="weight of the attention guidance; 0 for none")
    settings.add_argument("--guidance-steps", type=int, help="no guidance from this step on; 0: guidance for ever")
    settings.add_argument("--guided-layers", type=int, nargs="+")
    settings.add_argument("--linked-layers", type=int, nargs="+", help="guided too: line starts to those before them")
    settings.add_argument("--places", type=float, help="weight of the places of visual tokens, before guided layers")
    settings.add_argument("--under", type=float, help="weight of the characters under each visual token")
    settings.add_argument("--noise", type=float, help="share of input characters, and of words, made wrong")
    settings.add_argument("--stage", type=int, help="be at least at this stage of the curriculum")
    settings.add_argument("--pages", type=float, help="times the usual number of pages a step")


def _train(options: dict) -> None:
    import torch

    from .processes import together
    from .train import train

    folder = options["folder"]
    changes = {name: options[name] for name in SETTINGS if options.get(name) is not None}
    if "cooldown" in changes:
        state = folder / "state.pt"
        changes["cooldown_start"] = torch.load(state, weights_only=True)["step"] if state.exists() else 0
    settings = read_settings(folder, changes)
    print(json.dumps(settings), flush=True)
    (folder / "pid").write_text(f"{os.getpid()}\n")
    settings |= {"folder": str(folder), "steps": options["steps"], "save_minutes": options["save_minutes"]}
    together(train, settings, options["processes"], (folder / "meeting").absolute())


def _add_evaluate(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_evaluate)
    parser.add_argument("reader", type=Path, help="a checkpoint folder, such as FOLDER/reader")
    parser.add_argument("--pages", type=int, default=16, help="pages of each layout and size (default 16)")
    parser.add_argument("--layouts", nargs="+", choices=sorted(LAYOUTS), default=[*NAMES, "mono"])
    parser.add_argument("--visual-tokens", type=int, nargs="+", default=[128, 768])
    parser.add_argument(
        "--type-sizes",
        type=int,
        nargs="+",
        choices=range(FONT_SIZES[0], FONT_SIZES[1] + 1),
        metavar="PIXELS",
        help=f"pages of each, of {FONT_SIZES[0]} to {FONT_SIZES[1]}; layouts {', '.join(NAMES)} alone",
    )
    parser.add_argument("--first-seed", type=int, help="default: the first of the benchmarks' seeds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print so many pages of each, text and reading")


def _evaluate(options: dict) -> None:
    from .evaluate import evaluate

    if options["type_sizes"] and (fixed := set(options["layouts"]) - set(NAMES)):
        raise SystemExit(f"error: --type-sizes: the size of type of {', '.join(sorted(fixed))} cannot be chosen")
    evaluate(**options)


def _add_lost(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_lost)
    parser.add_argument("reader", type=Path, help="a checkpoint folder, such as FOLDER/reader")
    parser.add_argument("--pages", type=int, default=8, help="pages of each layout (default 8)")
    parser.add_argument("--layouts", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--visual-tokens", type=int, choices=sorted(SIZES), default=768, help="of a page (default 768)")
    parser.add_argument("--guided-layers", type=int, nargs="+", default=SETTINGS["guided_layers"])
    parser.add_argument("--threads", type=int, default=1)


def _lost(options: dict) -> None:
    from .lost import lost

    lost(**options)
