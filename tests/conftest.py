"""What several test files share: the demo engine, exported once a session."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("kernel_calls")  # its comparisons then say what differs, as those in a test do


@pytest.fixture(scope="session")
def demo_engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the demo engine in fp32. Read it only: damage a copy, as every test of the session shares it."""
    pytest.importorskip("torch", reason="exporting the demo model needs the extra `export`")
    from fastocr_trt.export.engine_directory import export_engine

    directory = tmp_path_factory.mktemp("engines") / "demo"
    export_engine("demo", directory)
    return directory


@pytest.fixture
def directory(demo_engine_dir: Path, tmp_path: Path) -> Path:
    """A copy of the demo engine, to build in or to damage."""
    return Path(shutil.copytree(demo_engine_dir, tmp_path / "demo"))


@pytest.fixture
def tensorrt(monkeypatch):
    """Puts a stand-in in the place of tensorrt, on a machine with a GPU of compute capability 8.9."""
    import fake_tensorrt

    from fastocr_trt.export import build, build_library

    monkeypatch.setattr(build, "compute_capabilities", lambda: ("8.9",))
    monkeypatch.setattr(build_library, "load_plugin", lambda trt, path: path)
    monkeypatch.setattr(build_library, "plugin_versions", lambda trt: ["1"])

    def install(**options):
        trt = fake_tensorrt.make(**options)
        monkeypatch.setitem(sys.modules, "tensorrt", trt)
        return trt

    return install
