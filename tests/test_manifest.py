import json

import pytest

from fastocr_trt.errors import EngineError
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    Capacities,
    DecoderShape,
    FileRecord,
    Generation,
    ImageProcessing,
    Manifest,
    Prompt,
    VisionShape,
)

NAMES = ("vision.onnx", "dense.onnx", "fast.onnx", "weights.bin", "tokenizer.json")


@pytest.fixture
def engine(tmp_path):
    """A directory with a manifest and one file that it records."""
    for name in NAMES:
        (tmp_path / name).write_bytes(b"w" * 100)
    manifest = Manifest(
        fastocr_version="0.1.0",
        model={"family": "qwen2_5_vl", "source": "demo"},
        dtype="fp32",
        weights=None,
        decoder=DecoderShape(6, 4, 2, 64, 256, 128),
        vision=VisionShape(14, 2, 2, 3, 224),
        image_processing=ImageProcessing(3136, 1003520, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        capacities=Capacities(1280, 1024, 8, 256),
        policy=FixationPolicy(focal_layers=(2, 5)),
        prompt=Prompt("", "<|vision_start|>", "<|vision_end|>", "{prompt}", "OCR:\n", 102),
        generation=Generation((98,), 96),
        files={name.split(".")[0]: FileRecord.of(tmp_path / name) for name in NAMES},
    )
    manifest.write(tmp_path)
    return tmp_path, manifest


def edit(directory, **changes):
    path = directory / MANIFEST_NAME
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))


def test_round_trip(engine):
    directory, manifest = engine
    assert Manifest.read(directory) == manifest
    manifest.check_files(directory)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "newer fastocr-trt"),
        ({"schema_version": 0}, "reads 1"),
        ({"schema_version": True}, "not a fastocr manifest"),
        ({"schema_version": ...}, "not a fastocr manifest"),
        ({"policy": ...}, r"lacks \['policy'\]"),
        ({"decoder": {"layers": 6}}, "decoder has unknown fields"),
        ({"decoder": {"num_layers": 6}}, "decoder lacks"),
        ({"decoder": 7}, "decoder is 7, not an object"),
        ({"dtype": "wild"}, "dtype is 'wild'"),
        ({"weights": "int3"}, "weights is 'int3'"),
        ({"model": None}, "model is None"),
        ({"files": {}}, "files lacks"),
        ({"files": {"weights": {"file": 5, "size": 1, "sha256": ""}}}, "files.weights.file is 5"),
        ({"policy": {"focal_layers": [99]}}, "99"),
        ({"policy": {"focal_layers": [2], "per_kv_head": "no"}}, "per_kv_head is 'no'"),
        ({"calibration": 3}, "calibration is 3"),
    ],
)
def test_a_manifest_that_does_not_fit(engine, changes, words):
    directory, _ = engine
    edit(directory, **changes)
    with pytest.raises(EngineError, match=words):
        Manifest.read(directory)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("decoder", "num_layers", "six"),
        ("decoder", "num_layers", 0),
        ("vision", "window_size", "x"),
        ("vision", "patch_size", 0),
        ("capacities", "max_visual_tokens", 0),
        ("capacities", "max_text_tokens", "4096"),
        ("prompt", "default", None),
        ("prompt", "after", 5),
        ("generation", "stop_token_ids", 5),
        ("generation", "stop_token_ids", ["a"]),
        ("generation", "pad_token_id", True),
        ("image_processing", "max_pixels", 0),
        ("image_processing", "image_mean", [0.5]),
        ("image_processing", "image_std", [0.0, 0.0, 0.0]),
        ("image_processing", "image_std", ["a", 1, 1]),
    ],
)
def test_a_value_that_does_not_fit_is_named(engine, part, field, value):
    directory, _ = engine
    data = json.loads((directory / MANIFEST_NAME).read_text())
    edit(directory, **{part: {**data[part], field: value}})
    with pytest.raises(EngineError, match=f"{part}.{field}"):
        Manifest.read(directory)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"schema_version": ' + "9" * 5000 + "}", "\udcff"])
def test_hostile_json(engine, text):
    directory, _ = engine
    (directory / MANIFEST_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(EngineError):
        Manifest.read(directory)


def test_a_file_outside_the_directory(engine):
    directory, _ = engine
    data = json.loads((directory / MANIFEST_NAME).read_text())
    data["files"]["weights"]["file"] = "../x"
    edit(directory, files=data["files"])
    with pytest.raises(EngineError, match="outside its directory"):
        Manifest.read(directory)


def test_absent_foreign_and_half_written(tmp_path):
    with pytest.raises(EngineError, match="no such directory"):
        Manifest.read(tmp_path / "absent")
    with pytest.raises(EngineError, match="not an engine directory"):
        Manifest.read(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text('{"schema_version": 1, "mod')
    with pytest.raises(EngineError, match="not readable JSON"):
        Manifest.read(tmp_path)
    with pytest.raises(EngineError, match="is a file"):
        Manifest.read(tmp_path / MANIFEST_NAME)


def test_files_are_checked(engine):
    directory, manifest = engine
    path = directory / "weights.bin"
    path.write_bytes(b"x" * 100)
    with pytest.raises(EngineError, match="hash"):
        manifest.check_files(directory)
    manifest.check_files(directory, hash_up_to=99)  # too large to hash at this limit
    path.write_bytes(b"w" * 60)
    with pytest.raises(EngineError, match="60 bytes and the manifest says 100"):
        manifest.check_files(directory, hash_up_to=0)
    path.unlink()
    with pytest.raises(EngineError, match=r"lacks weights\.bin"):
        manifest.check_files(directory)
