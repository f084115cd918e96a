"""What numbers belong to: the machine, the versions, the model; and whether two runs may be compared."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from .. import __version__
from ..backends import BACKENDS, installed_package
from ..counts import plural
from ..errors import FastOCRError
from ..gpus import gpu_names
from ..machine import memory, package_version, processor
from ..manifest import Manifest


@dataclass(frozen=True)
class Machine:
    """processor as it names itself; cores that this process may use; memory in GiB; gpus: see `gpu_names`."""

    system: str
    processor: str
    cores: int
    memory_gib: int
    gpus: str | None

    @classmethod
    def here(cls) -> Machine:
        return cls(
            f"{platform.system()} {platform.machine()}",
            processor(),
            usable_cores(),
            round(memory("MemTotal") / 2**30),
            gpu_names(),
        )

    def __str__(self) -> str:
        gpus = f"; {self.gpus}" if self.gpus else ""
        return f"{self.processor}, {plural(self.cores, 'core')}, {self.memory_gib} GiB, {self.system}{gpus}"


@dataclass(frozen=True)
class Environment:
    """versions: package -> version of what computes, python not among them. fastocr_version may differ between runs
    that are compared: that is what comparing is for. model: what is measured, without its policy."""

    machine: Machine
    versions: dict[str, str]
    model: dict
    fastocr_version: str
    python: str
    policy: dict
    date: str

    @classmethod
    def here(cls, manifest: Manifest, name: str, backends: Iterable[str]) -> Environment:
        decoder = manifest.decoder
        model = {"name": name, "dtype": manifest.dtype, "weights": manifest.weights, **asdict(decoder)}
        packages = ["numpy", *(installed_package(b) if b in BACKENDS else "onnxruntime" for b in backends)]
        versions = {package: package_version(package) for package in dict.fromkeys(packages)}
        now = time.strftime("%Y-%m-%d %H:%M")
        python = platform.python_version()
        return cls(Machine.here(), versions, model, __version__, python, manifest.policy.to_dict(), now)

    def check_comparable(self, old: Environment) -> None:
        """FastOCRError where `old`'s numbers cannot be set against this run's."""
        for what, before, now in (
            ("machine", str(old.machine), str(self.machine)),
            ("versions", _list(old.versions), _list(self.versions)),
            ("model", _list(old.model), _list(self.model)),
        ):
            if before != now:
                raise FastOCRError(
                    f"the runs cannot be compared, the {what} differ{'s' * (what != 'versions')}: it was {before}, and "
                    f"is {now}; measure both with the same"
                )

    def lines(self) -> list[str]:
        """For people, a sentence each."""
        model = self.model
        weights = f", weights {model['weights']}" if model["weights"] else ""
        policy = self.policy
        return [
            str(self.machine),
            f"fastocr-trt {self.fastocr_version}, Python {self.python}, {_list(self.versions)}; {self.date}",
            f"{model['name']}: {plural(model['num_layers'], 'layer')}, {model['num_attention_heads']} query and "
            f"{model['num_key_value_heads']} KV heads of {model['head_dim']}, {model['dtype']}{weights}; focal layers "
            f"{policy['focal_layers']}, dense layers {policy['dense_layers']}",
        ]


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _list(values: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
