"""Records of built engines: what is read back, what does not fit a machine, and how fastocr-doctor tells it."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib import metadata

import pytest

from fastocr_trt import backends, gpus
from fastocr_trt.backends import BackendRecord, EngineFile, Installed, TensorRecord, mismatches, rebuild_command
from fastocr_trt.cli import doctor
from fastocr_trt.errors import EngineError
from fastocr_trt.hashing import sha256

TENSORS = (TensorRecord("input_ids", "input", "int64", (-1, -1)), TensorRecord("logits", "output", "float32", (-1, 98)))
HERE = Installed("1.7.1.116", ("8.9",), "1")


def make_record(size: int = 4, digest: str = "", **changes) -> BackendRecord:
    engines = {"decoder": EngineFile("tensorrt_rtx/decoder.engine", size, digest, ("prefill", "decode"), TENSORS)}
    return dataclasses.replace(BackendRecord("1.7.1.116", ("8.9", "12.0"), "1", engines), **changes)


def test_a_record_survives_json():
    record = make_record()
    assert BackendRecord.from_dict("tensorrt-rtx", json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 3}, "version is 3"),
        ({"compute_capabilities": "8.9"}, "not a list"),
        ({"engines": {"decoder": {}}}, "lacks"),
        ({"more": 1}, "unknown fields ['more']"),
        ({"version": "1.7; reboot"}, "version is '1.7; reboot', not a version"),
        ({"compute_capabilities": ["8.9", "8.9; reboot"]}, "compute capability '8.9; reboot' is none"),
    ],
)
def test_a_record_that_does_not_fit_is_told_with_the_way_out(change, told):
    data = json.loads(json.dumps(make_record().to_dict())) | change
    with pytest.raises(EngineError) as caught:
        BackendRecord.from_dict("tensorrt-rtx", data)
    assert told in str(caught.value) and "fastocr-export ENGINE_DIR --backend tensorrt-rtx" in str(caught.value)


@pytest.mark.parametrize(
    "file",
    [
        "../x.engine",
        "decoder.engine",
        "/etc/passwd",
        "tensorrt_rtx/..",
        "other/x.engine",
        "tensorrt_rtx/" + "x" * 300,
        "tensorrt_rtx/\0.engine",
    ],
)
def test_engine_files_lie_in_the_backends_folders(file):
    data = json.loads(json.dumps(make_record().to_dict()))
    data["engines"]["decoder"]["file"] = file
    with pytest.raises(EngineError, match="outside"):
        BackendRecord.from_dict("tensorrt-rtx", data)


def test_engines_that_fit_have_no_mismatch():
    assert mismatches(make_record(), "tensorrt-rtx", HERE, "engines/x") == []
    assert mismatches(make_record(plugin_version=None), "tensorrt-rtx", Installed("1.7.0", (), None), "engines/x") == []


@pytest.mark.parametrize(
    ("record", "name", "installed", "told"),
    [
        ({}, "tensorrt-rtx", Installed(None, ("8.9",), "1"), "pip install tensorrt-rtx-cu13==1.7.1.116"),
        ({}, "tensorrt-rtx", Installed("1.8.0.2", ("8.9",), "1"), "1.7.1.116 and 1.8.0.2 is installed"),
        ({"version": "10.13.3"}, "tensorrt", Installed("10.13.4", ("8.9",), "1"), "they need the same version"),
        ({}, "tensorrt-rtx", Installed("1.7.1.116", ("8.6",), "1"), "--compute-capability 8.9,12.0,8.6"),
        ({}, "tensorrt-rtx", Installed("1.7.1.116", (), None), "--plugin none"),
        ({"plugin_version": "2"}, "tensorrt-rtx", HERE, "need version 2 of the fastocr plugin"),
    ],
)
def test_each_mismatch_is_one_sentence_with_what_to_do(record, name, installed, told):
    (sentence,) = mismatches(make_record(**record), name, installed, "engines/x")
    assert told in sentence
    assert f"fastocr-export engines/x --backend {name}" in sentence or "pip install" in sentence


def test_the_command_that_rebuilds_keeps_gpus_and_form():
    bodies = make_record(plugin_version=None)
    same = "fastocr-export x --backend tensorrt-rtx --compute-capability 8.9,12.0"
    assert make_record().rebuild_command("x", "tensorrt-rtx") == same
    assert bodies.rebuild_command("x", "tensorrt-rtx") == f"{same} --plugin none"
    # TensorRT builds for its own GPU: no command names one.
    assert bodies.rebuild_command("x", "tensorrt") == "fastocr-export x --backend tensorrt --plugin none"
    assert rebuild_command("x y", "tensorrt") == "fastocr-export 'x y' --backend tensorrt"


def test_engine_files_are_compared_by_size_and_hash(tmp_path):
    path = tmp_path / "tensorrt_rtx" / "decoder.engine"
    record = make_record(digest="")
    with pytest.raises(EngineError, match=r"lacks tensorrt_rtx/decoder\.engine"):
        record.check_files("tensorrt-rtx", tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"abcd")
    make_record(digest=sha256(path)).check_files("tensorrt-rtx", tmp_path)
    path.write_bytes(b"abce")
    other = make_record(digest="0" * 64)
    other.check_files("tensorrt-rtx", tmp_path, hash_up_to=3)  # by size alone
    with pytest.raises(EngineError, match="does not match the hash"):
        other.check_files("tensorrt-rtx", tmp_path)
    path.write_bytes(b"abc")
    with pytest.raises(EngineError, match="is 3 bytes and the manifest says 4"):
        other.check_files("tensorrt-rtx", tmp_path, hash_up_to=0)


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A stand-in that prints what is asked of it."""

    def install(capabilities: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(
            f'#!/bin/sh\ncase "$1" in *compute_cap*) printf "{capabilities}";; *) echo "GPU, 1, 2";; esac\n'
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_gpus_are_told_by_kind_in_order(nvidia_smi):
    nvidia_smi("12.0\\n8.9\\n12.0\\n[N/A]\\n")
    assert gpus.compute_capabilities() == ("8.9", "12.0")
    assert gpus.gpu_names() == "GPU, 1, 2"


def test_no_gpu_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.compute_capabilities() == () and gpus.gpu_names() is None


class TestDoctor:
    """What --engine tells of built engines. The manifest is read elsewhere, so that a stand-in is enough."""

    @pytest.fixture
    def check(self, tmp_path, monkeypatch):
        path = tmp_path / "tensorrt_rtx" / "decoder.engine"
        path.parent.mkdir()
        path.write_bytes(b"abcd")

        def run(installed: Installed = HERE, **changes):
            data = json.loads(json.dumps(make_record(digest=sha256(path), **changes).to_dict()))
            manifest = type("M", (), {"backends": {"tensorrt-rtx": data}})
            monkeypatch.setattr(doctor.Manifest, "read", lambda directory: manifest)
            monkeypatch.setattr(doctor, "library_version", lambda backend: installed.version)
            monkeypatch.setattr(doctor, "plugin_version", lambda backend: installed.plugin_version)
            monkeypatch.setattr(doctor, "compute_capabilities", lambda: installed.compute_capabilities)
            return doctor.check_engines(tmp_path, verify=True)

        return run

    def test_engines_that_fit(self, check):
        (line,) = check()
        assert line.status == "unverified" and "compute capability 8.9, 12.0, with the plugin" in line.detail

    def test_every_mismatch_has_its_line(self, check):
        lines = check(Installed("2.0", ("9.0",), None))
        assert [line.status for line in lines] == ["broken"] * 3
        assert all("fastocr-export" in line.detail for line in lines)

    def test_a_changed_file(self, check, tmp_path):
        (line,) = check(engines={"decoder": dataclasses.replace(make_record(5).engines["decoder"])})
        assert line.status == "broken" and "half-written or changed" in line.detail


def test_the_doctor_lists_the_libraries_and_the_plugin(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "library_version", lambda backend: "9.9" if backend == "tensorrt" else None)
    monkeypatch.setattr(doctor, "plugin_version", lambda backend: "1")
    monkeypatch.setattr(doctor, "find_plugin", lambda: "lib/libfastocr_plugin.so")
    assert doctor.main(["--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["tensorrt"]["detail"].startswith("version 9.9")
    assert checks["tensorrt-rtx"]["status"] == "absent"
    assert checks["plugin library"]["detail"] == "lib/libfastocr_plugin.so; version 1 in tensorrt"


@pytest.mark.parametrize(
    ("here", "named"),
    [({"tensorrt-cu12": "10.14.1"}, "tensorrt-cu12"), ({"tensorrt": "11.4", "tensorrt-cu13": "11.4"}, "tensorrt")],
)
def test_the_doctor_names_the_package_that_is_installed(monkeypatch, capsys, here, named):
    """pip has TensorRT under several names, and the one to install need not be the one that is here."""
    real = metadata.version

    def version(package):
        if not package.startswith("tensorrt"):
            return real(package)
        if package not in here:
            raise metadata.PackageNotFoundError(package)
        return here[package]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(backends, "version", version)
    assert backends.installed_package("tensorrt") == named
    assert doctor.main(["--json"]) == 0
    packages = json.loads(capsys.readouterr().out)["packages"]
    listed = {name: value for name, value in packages.items() if name.startswith("tensorrt")}
    assert listed == {named: here[named], "tensorrt-rtx-cu13": None}
    assert doctor.main([]) == 0
    assert re.search(rf"^{named} +{re.escape(here[named])}$", capsys.readouterr().out, re.MULTILINE)


def test_a_plugin_library_that_does_not_load(monkeypatch):
    monkeypatch.setattr(doctor, "library_version", lambda backend: "9.9")
    monkeypatch.setattr(doctor, "plugin_version", lambda backend: None)
    monkeypatch.setattr(doctor, "find_plugin", lambda: "lib/libfastocr_plugin.so")
    check = doctor.check_plugin()
    assert check.status == "broken" and "cmake" in check.advice
