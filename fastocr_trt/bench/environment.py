"""What numbers belong to: the machine, the versions, the model; and whether two runs may be compared."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from .. import __version__
from ..backends import BACKENDS, installed_package
from ..counts import plural
from ..errors import FastOCRError
from ..fixation import FixationPolicy
from ..gpus import gpu_names
from ..machine import memory, package_version, processor, usable_cores
from ..manifest import DecoderShape, Manifest


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
class Model:
    """An engine, or one that is still to be made, as far as its speed goes. name: of its shape or where it is from."""

    name: str
    dtype: str
    weights: str | None
    decoder: DecoderShape
    policy: FixationPolicy

    @classmethod
    def of(cls, manifest: Manifest, name: str | None = None) -> Model:
        source = name or manifest.model["source"]
        return cls(source, manifest.dtype, manifest.weights, manifest.decoder, manifest.policy)


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
    def here(cls, model: Model, backends: Iterable[str]) -> Environment:
        about = {"name": model.name, "dtype": model.dtype, "weights": model.weights, **asdict(model.decoder)}
        now, python = time.strftime("%Y-%m-%d %H:%M"), platform.python_version()
        return cls(Machine.here(), _versions(backends), about, __version__, python, model.policy.to_dict(), now)

    def check_here(self, backends: Iterable[str]) -> None:
        """FastOCRError where these numbers are of another machine, or of other versions, than a run would be here."""
        check_same("machine", self.machine, Machine.here())
        check_same("versions", _list(self.versions), _list(_versions(backends)))

    def check_model(self, new: Environment) -> None:
        """FastOCRError where these numbers are of another model than `new`'s."""
        check_same("model", _list(self.model), _list(new.model))

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


def check_same(what: str, old: object, new: object) -> None:
    """FastOCRError where `what` differs between an earlier run and this one."""
    if str(old) != str(new):
        raise FastOCRError(
            f"the runs cannot be compared, the {what} differ{'s' * (not what.endswith('s'))}: it was {old}, and is "
            f"{new}; measure both with the same"
        )


def _versions(backends: Iterable[str]) -> dict[str, str]:
    packages = ["numpy", *(installed_package(b) if b in BACKENDS else "onnxruntime" for b in backends)]
    return {package: package_version(package) for package in dict.fromkeys(packages)}


def _list(values: dict) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
