"""The engine directory's manifest: what was exported, from what, and how to run it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from .atomic import whole_file
from .backends import BackendRecord
from .counts import plural
from .errors import EngineError, FastOCRError
from .fixation import FixationPolicy
from .hashing import sha256
from .records import checked, record

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """One file of the engine directory: name relative to it, size in bytes, SHA-256 in hex."""

    file: str
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        return cls(path.name, path.stat().st_size, sha256(path))


@dataclass(frozen=True)
class DecoderShape:
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True)
class VisionShape:
    """What the host needs to lay out an image: sizes in pixels, but spatial_merge_size in patches."""

    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    in_channels: int
    window_size: int


@dataclass(frozen=True)
class ImageProcessing:
    """min_pixels and max_pixels bound the resized area; mean and std are per channel, after rescaling to 0..1."""

    min_pixels: int
    max_pixels: int
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    rescale_factor: float = 1 / 255


@dataclass(frozen=True)
class Capacities:
    """Limits the engine was exported for. A bank's buffer is its maximum plus prefill_chunk rows."""

    max_visual_tokens: int
    max_text_tokens: int
    max_batch: int
    prefill_chunk: int

    @property
    def bank_rows(self) -> dict[str, int]:
        """Rows of a page's `visual` and `text` bank: a chunk more than fits, since new rows go to both banks."""
        return {
            "visual": self.max_visual_tokens + self.prefill_chunk,
            "text": self.max_text_tokens + self.prefill_chunk,
        }


@dataclass(frozen=True)
class Prompt:
    """The rendered chat template: before + (image_before, visual tokens, image_after) per image + after, with
    `{prompt}` in `after` (or in `before`) standing for the user's words; `default` is used where there are none."""

    before: str
    image_before: str
    image_after: str
    after: str
    default: str
    image_token_id: int


@dataclass(frozen=True)
class Generation:
    stop_token_ids: tuple[int, ...]
    pad_token_id: int


@dataclass(frozen=True)
class Manifest:
    """All of manifest.json. `model` tells family, source, architecture and hashes of the source's files."""

    fastocr_version: str
    model: dict[str, Any]
    dtype: str
    weights: str | None
    decoder: DecoderShape
    vision: VisionShape
    image_processing: ImageProcessing
    capacities: Capacities
    policy: FixationPolicy
    prompt: Prompt
    generation: Generation
    files: dict[str, FileRecord]
    calibration: dict[str, Any] | None = None
    backends: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def write(self, directory: Path) -> None:
        """Write manifest.json whole: one that is there stays until then."""
        data = asdict(self)
        data["policy"] = self.policy.to_dict()
        data = {"schema_version": data.pop("schema_version"), **data}
        with whole_file(directory / MANIFEST_NAME) as part:
            part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and validate; EngineError says in one sentence what does not fit and how to rebuild."""
        return _read(directory)

    def check_files(self, directory: Path, hash_up_to: int | None = None, backend: str | None = None) -> None:
        """Raise EngineError where a file is missing, of another size, or of other content.

        hash_up_to: files of more bytes than this are not hashed; None hashes all. backend: check the engines that were
        built for it too; those of other backends may be gone without harm.
        """
        if backend in self.backends:
            BackendRecord.from_dict(backend, self.backends[backend]).check_files(backend, directory, hash_up_to)
        for name, expected in self.files.items():
            path = directory / expected.file
            if not path.is_file():
                raise EngineError(f"{directory} lacks {expected.file} ({name}); {REBUILD}")
            size = path.stat().st_size
            if size != expected.size:
                raise EngineError(
                    f"{path} is {plural(size, 'byte')} and the manifest says {expected.size:,}: "
                    f"half-written or changed; {REBUILD}"
                )
            if (hash_up_to is None or size <= hash_up_to) and sha256(path) != expected.sha256:
                raise EngineError(f"{path} does not match the hash in the manifest: it was changed; {REBUILD}")


REBUILD = "export it again with `fastocr-export MODEL -o DIR --force`"
REQUIRED_FILES = {"vision", "dense", "fast", "weights", "tokenizer"}
DTYPES = ("fp32", "fp16", "bf16")
WEIGHTS = (None, "int4", "int8")
# Each part's type, and the smallest whole number in it.
_PARTS = {
    "decoder": (DecoderShape, 1),
    "vision": (VisionShape, 1),
    "image_processing": (ImageProcessing, 1),
    "capacities": (Capacities, 1),
    "prompt": (Prompt, 0),
    "generation": (Generation, 0),
}


def _read(directory: Path) -> Manifest:
    path = directory / MANIFEST_NAME
    if not directory.exists():
        raise EngineError(f"no engine at {directory}: there is no such directory; make one with `fastocr-export`")
    if not directory.is_dir():
        raise EngineError(f"{directory} is a file; an engine is a directory that `fastocr-export` wrote")
    if not path.is_file():
        raise EngineError(f"{directory} is not an engine directory: it has no {MANIFEST_NAME}; {REBUILD}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bad UTF-8, bad JSON, endless digits, endless nesting
        raise EngineError(f"{path} is not readable JSON ({error}): half-written or foreign; {REBUILD}") from None
    if not isinstance(data, dict) or type(data.get("schema_version")) is not int:
        raise EngineError(f"{path} is not a fastocr manifest: it has no schema_version; {REBUILD}")
    version = data["schema_version"]
    if version > SCHEMA_VERSION:
        raise EngineError(
            f"{path} has schema version {version} and this fastocr-trt reads up to {SCHEMA_VERSION}; "
            "install a newer fastocr-trt, or export the engine again with this one"
        )
    if version < SCHEMA_VERSION:
        raise EngineError(f"{path} has schema version {version}; this fastocr-trt reads {SCHEMA_VERSION}; {REBUILD}")
    known = {f.name for f in fields(Manifest)}
    missing = sorted(known - set(data) - {"calibration", "backends"})
    if missing:
        raise EngineError(f"{path} lacks {missing}: half-written or foreign; {REBUILD}")
    try:
        parts = {name: record(kind, data[name], name, least) for name, (kind, least) in _PARTS.items()}
        files = {
            name: record(FileRecord, item, f"files.{name}")
            for name, item in checked(data["files"], dict, "files").items()
        }
        hints = get_type_hints(Manifest)
        rest = {
            name: checked(value, hints[name], name)
            for name, value in data.items()
            if name in known and name not in _PARTS and name not in ("policy", "files")
        }
        _check_values(parts, files, rest)
    except ValueError as error:
        raise EngineError(f"{path} does not fit: {error}; {REBUILD}") from None
    outside = [r.file for r in files.values() if Path(r.file).name != r.file]
    if outside:
        raise EngineError(f"{path} names files outside its directory: {outside}")
    try:
        policy = FixationPolicy.from_dict(data["policy"])
        policy.check(parts["decoder"].num_layers)
    except FastOCRError as error:
        raise EngineError(f"{path}: {error}; {REBUILD}") from None
    return Manifest(**rest, **parts, policy=policy, files=files)


def _check_values(parts: dict[str, Any], files: dict[str, FileRecord], rest: dict[str, Any]) -> None:
    """What a type does not say; ValueError."""
    absent = sorted(REQUIRED_FILES - set(files))
    if absent:
        raise ValueError(f"files lacks {absent}")
    for name, allowed in (("dtype", DTYPES), ("weights", WEIGHTS)):
        if rest[name] not in allowed:
            raise ValueError(f"{name} is {rest[name]!r}, not one of {list(allowed)}")
    images, channels = parts["image_processing"], parts["vision"].in_channels
    for name in ("image_mean", "image_std"):
        if len(getattr(images, name)) != channels:
            raise ValueError(f"image_processing.{name} has {len(getattr(images, name))} values for {channels} channels")
    if min(images.image_std) <= 0 or images.rescale_factor <= 0:
        raise ValueError("image_processing.image_std and rescale_factor must be above 0")
    if images.min_pixels > images.max_pixels:
        raise ValueError(f"image_processing.min_pixels is {images.min_pixels} and max_pixels {images.max_pixels}")
