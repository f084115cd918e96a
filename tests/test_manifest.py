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


@pytest.fixture
def engine(tmp_path):
    """A directory with a manifest and one file that it records."""
    (tmp_path / "weights.bin").write_bytes(b"w" * 100)
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
        files={"weights": FileRecord.of(tmp_path / "weights.bin")},
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
        ({"schema_version": ...}, "not a fastocr manifest"),
        ({"policy": ...}, "lacks \\['policy'\\]"),
        ({"decoder": {"layers": 6}}, "does not know"),
        ({"files": {"weights": {"file": "../x", "size": 1, "sha256": ""}}}, "outside its directory"),
        ({"policy": {"focal_layers": [99]}}, "99"),
    ],
)
def test_a_manifest_that_does_not_fit(engine, changes, words):
    directory, _ = engine
    edit(directory, **changes)
    with pytest.raises(Exception, match=words) as caught:
        Manifest.read(directory)
    assert "Traceback" not in str(caught.value)


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
