"""Times of queued GPU work: captured once in a CUDA graph, replayed, interleaved, median."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping

import torch

Work = Callable[[], object]


def captured(work: Work, device: str) -> Work:
    """`work` as the replay of a CUDA graph, so that no launch overhead of Python is timed; itself on the CPU."""
    if device == "cpu":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()  # first use compiles, allocates and sets attributes, which a capture does not bear
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def medians(variants: Mapping[str, Work], device: str, rounds: int, repeats: int = 1) -> dict[str, float]:
    """Median seconds of one run of each variant. Every round runs all of them, in an order of its own, each of them
    `repeats` times between two events of the device."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    order, source = list(variants), random.Random(0)
    for number in range(rounds + 1):
        source.shuffle(order)
        for name in order:
            seconds = _time(variants[name], device, repeats)
            if number:  # the first round warms up
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def _time(work: Work, device: str, repeats: int) -> float:
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - start) / repeats
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats
