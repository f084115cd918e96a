"""What several test files share: the demo engine, exported once a session."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the demo engine in fp32. Read it only: damage a copy, as every test of the session shares it."""
    pytest.importorskip("torch", reason="exporting the demo model needs the extra `export`")
    from fastocr_trt.export.engine_directory import export_engine

    directory = tmp_path_factory.mktemp("engines") / "demo"
    export_engine("demo", directory)
    return directory
