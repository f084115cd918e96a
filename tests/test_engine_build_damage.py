"""Building engines where something goes wrong around it: damaged files, two builds, a full disk, an interruption."""

from __future__ import annotations

import argparse
import errno
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="building engines needs the extra `export`")

from fastocr_trt.backends import rebuild_command
from fastocr_trt.cli import export as cli
from fastocr_trt.errors import EngineError, ExportError
from fastocr_trt.export import build
from fastocr_trt.export.build_directory import only_build
from fastocr_trt.manifest import Manifest


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_two_builds_in_one_directory(directory, tensorrt):
    pytest.importorskip("fcntl", reason="builds are told apart by a file lock, which this system lacks")
    tensorrt()
    prepared = build.prepare("tensorrt", "none")
    with only_build(directory), pytest.raises(ExportError, match="another process builds engines in"):
        build.build_engines(directory, prepared)
    left = directory / ".engines.killed.partial"
    left.mkdir()
    build.build_engines(directory, prepared)
    assert not left.exists()


def test_what_the_manifest_learned_during_the_build_is_kept(directory, tensorrt):
    tensorrt()

    def meanwhile(stage, share):
        manifest = Manifest.read(directory)
        replace(manifest, backends={**manifest.backends, "other": {"of": stage}}).write(directory)

    build.build_engines(directory, build.prepare("tensorrt", "none"), progress=meanwhile)
    assert set(Manifest.read(directory).backends) == {"other", "tensorrt"}


def test_a_directory_that_was_exported_again_during_the_build(directory, tensorrt):
    tensorrt()

    def meanwhile(stage, share):
        manifest = Manifest.read(directory)
        changed = replace(manifest.files["fast"], size=1)
        replace(manifest, files={**manifest.files, "fast": changed}).write(directory)

    with pytest.raises(ExportError, match="was exported again while its engines were built"):
        build.build_engines(directory, build.prepare("tensorrt", "none"), progress=meanwhile)
    assert Manifest.read(directory).backends == {} and not (directory / "tensorrt").exists()


@pytest.mark.parametrize(
    ("name", "keep", "told"),
    [("dense.onnx", 0.5, "half-written or changed"), ("weights.bin", 0.9, "half-written"), ("fast.onnx", 0, "lacks")],
)
def test_files_that_are_cut_or_gone(directory, tensorrt, name, keep, told):
    tensorrt()
    path = directory / name
    whole = path.read_bytes()
    path.unlink()
    if keep:
        path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(EngineError, match=told):
        build.build_engines(directory, build.prepare("tensorrt", "none"))


def test_a_graph_with_a_changed_byte(directory, tensorrt):
    tensorrt()
    path = directory / "vision.onnx"
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(EngineError, match="does not match the hash"):
        build.build_engines(directory, build.prepare("tensorrt", "none"))


@pytest.mark.parametrize("where", ["absent/timing.cache", "."])
def test_a_timing_cache_that_cannot_be_written_is_told_first(directory, tensorrt, tmp_path, where, capsys):
    trt = tensorrt()
    with pytest.raises(ExportError, match="the timing cache cannot be written to"):
        build.build_engines(directory, build.prepare("tensorrt", "none"), timing_cache=tmp_path / where)
    assert trt.calls.models == []
    model = tmp_path / "no checkpoint"
    cache = tmp_path / where
    assert cli.main([str(model), "-o", str(tmp_path / "x"), "--backend", "tensorrt", "--timing-cache", str(cache)]) == 2
    assert "the timing cache cannot be written to" in capsys.readouterr().err


def test_a_disk_that_fills_up(directory, tensorrt, monkeypatch):
    tensorrt()
    build.build_engines(directory, build.prepare("tensorrt", "none"))
    before = contents(directory)
    real = build.build_engine

    def full(library, plan, settings, output, progress):
        if plan.name == "fast":
            raise OSError(errno.ENOSPC, "No space left on device", str(output))
        return real(library, plan, settings, output, progress)

    monkeypatch.setattr(build, "build_engine", full)
    with pytest.raises(ExportError, match=r"cannot be written .*No space left on device.*make room"):
        build.build_engines(directory, build.prepare("tensorrt", "none"))
    assert contents(directory) == before
    assert not [path for path in directory.iterdir() if path.name.startswith(".")]


def test_an_interruption_while_the_folders_change_places(directory, tensorrt, monkeypatch):
    tensorrt()
    build.build_engines(directory, build.prepare("tensorrt", "none"))
    before = contents(directory)
    tensorrt(serialized=b"another engine")

    rename = Path.rename

    def interrupted(self, target):
        if self.parent.name.endswith(".partial") and self.name != "old":  # the new engines, on their way to their place
            raise KeyboardInterrupt
        return rename(self, target)

    def not_written(self, directory):
        raise KeyboardInterrupt

    for owner, name, fails in ((Path, "rename", interrupted), (Manifest, "write", not_written)):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, fails)
            build.build_engines(directory, build.prepare("tensorrt", "none"))
        assert contents(directory) == before


def test_sizes_that_no_gpu_has():
    for text in ("9" * 400, "9" * 400 + "GiB", "99999999GiB"):
        with pytest.raises(argparse.ArgumentTypeError, match="is more than any GPU has"):
            cli.byte_size(text)


def test_the_command_that_rebuilds_can_be_pasted():
    assert rebuild_command("my engines/öcr", "tensorrt") == "fastocr-export 'my engines/öcr' --backend tensorrt"
