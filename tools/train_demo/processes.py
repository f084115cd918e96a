"""Two processes of one thread each, instead of one of two threads: they meet once a step, not at every product, and so
lose little where other work takes one of the cores away."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as distributed
import torch.multiprocessing as multiprocessing
from torch import Tensor


class Group:
    """This process among `size`. number 0 is the one that writes files."""

    def __init__(self, number: int = 0, size: int = 1):
        self.number, self.size = number, size

    def add(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        distributed.all_reduce(flat)
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()


def together(work: Callable[[Group, dict], None], settings: dict, size: int, meeting: Path) -> None:
    """Run work(group, settings) in `size` processes, this one among them. meeting: a file that does not exist yet."""
    torch.set_num_threads(1)
    if size == 1:
        return work(Group(), settings)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    meeting.unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    for number in range(1, size):
        context.Process(target=_one, args=(work, settings, number, size, str(meeting)), daemon=True).start()
    return _one(work, settings, 0, size, str(meeting))


def _one(work: Callable[[Group, dict], None], settings: dict, number: int, size: int, meeting: str) -> None:
    torch.set_num_threads(1)
    # A run may be stopped for hours and go on.
    patience = timedelta(days=365)
    distributed.init_process_group("gloo", f"file://{meeting}", timeout=patience, rank=number, world_size=size)
    work(Group(number, size), settings)
    distributed.destroy_process_group()
