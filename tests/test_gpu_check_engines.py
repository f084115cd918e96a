"""What the GPU check says of engines, with the commands it runs in place of a GPU's answers."""

import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # tools/ is not installed

from tools.gpu_check import engines  # noqa: E402

NEVER = float("inf")


class Machine:
    """Stands for the commands: `texts` is what fastocr-parse prints by backend, `refused` what ends with an error."""

    def __init__(self, texts, refused=(), configured="-- Configuring done\n"):
        self.texts, self.refused, self.configured, self.commands = texts, refused, configured, []

    def __call__(self, *command):
        words = [*map(str, command)]
        self.commands.append(words)
        line = " ".join(words)
        if any(part in line for part in self.refused):
            return CompletedProcess(words, 2, "", "error: refused\n")
        if "cli.parse" in line:
            return CompletedProcess(words, 0, self.texts[words[words.index("--backend") + 1]], "")
        if "-S" in words:
            folder = Path(words[words.index("-B") + 1]) / "plugins"
            folder.mkdir(parents=True)
            (folder / "libfastocr_plugin.so").touch()
            return CompletedProcess(words, 0, self.configured, "")
        return CompletedProcess(words, 0, "", "")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Checks on a Machine where TensorRT-RTX alone is installed; (what, right, detail) of each line."""
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name == "tensorrt_rtx" or None)

    def check(machine, deadline=NEVER):
        monkeypatch.setattr(engines, "_run", machine)
        return list(engines.check(tmp_path, 89, deadline))

    return check


def test_both_forms_are_built_from_one_export_and_compared(run):
    machine = Machine({"onnxruntime": "a page", "tensorrt-rtx": "a page"})
    lines = run(machine)
    assert [what for what, _, _ in lines] == [
        f"demo engine, tensorrt-rtx, {form}, {mode}" for form in ("plugin", "bodies") for mode in ("dense", "fast")
    ]
    assert all(right for _, right, _ in lines)
    exports = [words for words in machine.commands if "cli.export" in " ".join(words)]
    assert sum("demo" in words for words in exports) == 1
    plugins = [words[words.index("--plugin") + 1] for words in exports if "--plugin" in words]
    assert plugins[0].endswith("libfastocr_plugin.so") and plugins[1] == "none"


def test_another_text_is_wrong(run):
    lines = run(Machine({"onnxruntime": "a page", "tensorrt-rtx": "another"}))
    assert {(right, detail) for _, right, detail in lines} == {(False, "another text")}


def test_a_reader_that_fails_is_wrong_even_where_both_print_nothing(run):
    lines = run(Machine({"onnxruntime": ""}, refused=["dense --backend tensorrt-rtx", "fast --backend tensorrt-rtx"]))
    assert {(right, detail) for _, right, detail in lines} == {(False, "error: refused")}


@pytest.mark.parametrize(
    "machine",
    [
        Machine({"onnxruntime": "a", "tensorrt-rtx": "a"}, refused=["-S ."]),
        Machine({"onnxruntime": "a", "tensorrt-rtx": "a"}, configured="-- no headers: the plugin is left out\n"),
    ],
    ids=["cmake fails", "no headers"],
)
def test_engines_without_the_plugin_are_not_passed_off_as_with_it(run, machine):
    lines = run(machine)
    what, right, detail = lines[0]
    assert what.endswith("plugin") and right is None and detail.startswith("the plugin is not built: ")
    assert [what for what, right, _ in lines[1:] if right] == [
        "demo engine, tensorrt-rtx, bodies, dense",
        "demo engine, tensorrt-rtx, bodies, fast",
    ]


def test_what_there_is_no_time_for_is_named(run):
    lines = run(Machine({"onnxruntime": "a", "tensorrt-rtx": "a"}), deadline=0)
    assert [(right, detail) for _, right, detail in lines] == [(None, "out of time")] * 2
