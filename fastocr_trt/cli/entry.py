"""Where the installed commands begin: Ctrl-C is told in one line already while a command is being imported."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import NoReturn

_INTERRUPTED = 130


def _run(name: str) -> int:
    """The exit code of the command in the module `name`."""
    usual = signal.getsignal(signal.SIGINT)
    guarded = usual is signal.default_int_handler  # and not ignored, as in a script's background jobs
    if guarded:
        signal.signal(signal.SIGINT, _stop)
    main = import_module(f".{name}", __package__).main
    if guarded:
        signal.signal(signal.SIGINT, usual)
    try:
        return main()
    except KeyboardInterrupt:  # before the command itself looks out for it
        return _told()


def _stop(number: int, frame: object) -> NoReturn:
    """Ends the process, in which nothing is open yet; modules that guard their imports would make of an exception
    another one."""
    os._exit(_told())


def _told() -> int:
    with suppress(OSError):
        os.write(2, b"error: stopped by Ctrl-C\n")
    return _INTERRUPTED


export = partial(_run, "export")
parse = partial(_run, "parse")
parity = partial(_run, "parity")
doctor = partial(_run, "doctor")
calibrate = partial(_run, "calibrate")
bench = partial(_run, "bench")
trace = partial(_run, "trace")
