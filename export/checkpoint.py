"""A checkpoint folder, read tensor by tensor: config, tokenizer files, safetensors in one file or in shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..counts import plural
from ..errors import ExportError
from ..records import parse_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Checkpoint:
    """Where each parameter of a local checkpoint lies.

    rename: from a tensor's name in the file to the parameter's name in the model. Raises ExportError where the
    folder has no config, no safetensors weights, or a damaged file.
    """

    def __init__(self, folder: Path, rename: Callable[[str], str] = str):
        self.folder = folder
        self._places: dict[str, tuple[Path, str]] = {}
        for shard, keys in _shards(folder).items():
            for key in keys:
                self._places[rename(key)] = (shard, key)

    @property
    def shards(self) -> list[Path]:
        """Weight files in the order in which they are read."""
        return sorted({shard for shard, _ in self._places.values()})

    def shard_of(self, parameter: str) -> Path:
        return self._places[parameter][0]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter; only headers are read."""
        shapes: dict[str, tuple[int, ...]] = {}
        for shard in self.shards:
            with open_safetensors(shard) as file:
                present = set(file.keys())
                for parameter, (place, key) in self._places.items():
                    if place == shard and key in present:
                        shapes[parameter] = tuple(file.get_slice(key).get_shape())
        return shapes

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ExportError where a parameter is missing or of another shape than `expected`."""
        shapes = self.shapes()
        missing = [name for name in expected if name not in shapes]
        if missing:
            raise ExportError(
                f"{self.folder} lacks {len(missing)} of {plural(len(expected), 'weight')}, for example {missing[0]!r}: "
                "the download is incomplete, or config.json belongs to another checkpoint"
            )
        for name, shape in expected.items():
            if shapes[name] != shape:
                raise ExportError(
                    f"{self.folder}: the weight {name!r} has shape {list(shapes[name])} and config.json asks for "
                    f"{list(shape)}: config.json belongs to another checkpoint"
                )

    @contextmanager
    def open(self, shard: Path) -> Iterator[Callable[[str], Tensor]]:
        """Read parameters of one shard; its pages are given back when it closes."""
        with open_safetensors(shard) as file:
            yield lambda parameter: file.get_tensor(self._places[parameter][1])


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in `path`; ExportError where it is missing or unreadable."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError(f"{path.parent} has no {path.name}, {what}; it is not a whole checkpoint") from None
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read ({error}); fetch the checkpoint again") from None
    if not isinstance(data, dict):
        raise ExportError(f"{path} holds a {type(data).__name__} where {what} should be; fetch the checkpoint again")
    return data


def open_safetensors(path: Path):
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ExportError(
            f"{path} is named by the checkpoint's index and missing; the download is incomplete"
        ) from None
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{path} is not readable as safetensors ({error}); fetch it again") from None


def _shards(folder: Path) -> dict[Path, list[str]]:
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX, "the index of its weights").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ExportError(f"{folder / INDEX} has no weight_map; fetch the checkpoint again")
        shards: dict[Path, list[str]] = {}
        for key, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ExportError(
                    f"{folder / INDEX} says that {key!r} lies in {file!r}, which is no file name; "
                    "fetch the checkpoint again"
                )
            shards.setdefault(folder / file, []).append(key)
        missing = sorted(shard.name for shard in shards if not shard.is_file())
        if missing:
            raise ExportError(f"{folder} lacks {missing}, which its index names; the download is incomplete")
        return shards
    if (folder / SINGLE).is_file():
        with open_safetensors(folder / SINGLE) as file:
            return {folder / SINGLE: list(file.keys())}
    pickled = sorted(p.name for p in folder.glob("*.bin"))
    if pickled:
        raise ExportError(
            f"{folder} has its weights as {pickled[0]}, a pickle, which is not opened; save it as safetensors first "
            "(in transformers: model.save_pretrained(DIR))"
        )
    raise ExportError(f"{folder} has no weights: neither {SINGLE} nor {INDEX} is there")
