"""The GPU check's own program, on the CPU: it runs, and it tells a wrong kernel from a right one."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # tools/ is not installed

from tools import kernel_library  # noqa: E402
from tools.gpu_check import cli, implementations  # noqa: E402

pytestmark = pytest.mark.skipif(
    kernel_library.missing_tool() is not None, reason=f"{kernel_library.missing_tool()} is not installed"
)


def test_a_dry_run_checks_everything_and_agrees(capsys):
    assert cli.main(["--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "FAIL" not in text and "Everything agrees" in text
    for op in ("dense", "focal", "gathered"):
        assert f"| CUDA kernels | {op} bfloat16" in text
    assert "| select | CUDA kernels |" in text and "| fast | CUDA kernels |" in text


@pytest.mark.parametrize("what", ["output", "fixation", "status"])
def test_a_kernel_that_is_wrong_is_told(what, monkeypatch, capsys):
    right = implementations.Kernels.run

    def wrong(self, op, layer, state, case):
        result = right(self, op, layer, state, case)
        if what in result:
            result[what] = result[what] + 1
        return result

    monkeypatch.setattr(implementations.Kernels, "run", wrong)
    monkeypatch.setattr(cli, "report_speed", lambda *_: None)
    assert cli.main(["--dry-run"]) == 1
    assert "| FAIL |" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(capsys):
    if implementations.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main([]) == 2
    assert "no CUDA GPU" in capsys.readouterr().err
