"""Files that are written whole: links and devices stay what they are, and a failure names the file."""

from __future__ import annotations

import errno
import os
import stat
import threading

import pytest

from fastocr_trt.atomic import whole_file


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    real, link = tmp_path / "folder" / "real.txt", tmp_path / "link.txt"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to(real)
    with whole_file(link) as part:
        assert part.parent == real.parent
        part.write_text("new")
        assert real.read_text() == "old"
    assert link.is_symlink() and real.read_text() == "new"
    assert [path.name for path in real.parent.iterdir()] == ["real.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs mkfifo")
def test_a_fifo_is_written_to(tmp_path):
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_text()))
    reader.start()
    with whole_file(fifo) as part:
        part.write_text("through")
    reader.join(timeout=10)
    assert got == ["through"] and stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_failure_leaves_what_was_there_and_names_the_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(OSError) as full, whole_file(path) as part:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert full.value.filename == str(path) and full.value.errno == errno.ENOSPC
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(IsADirectoryError) as folder, whole_file(tmp_path) as part:
        part.write_text("new")
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError) as absent, whole_file(tmp_path / "none" / "file.txt") as part:
        part.write_text("new")
    assert absent.value.filename == str(tmp_path / "none" / "file.txt")
