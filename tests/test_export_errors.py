"""What a checkpoint that cannot be exported, or a place that cannot be written, gets: one sentence, nothing left."""

# ruff: noqa: E402  (imports after the check that the extra is there)

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="exporting needs the extra `export`")

import tiny_checkpoint
from safetensors.torch import load_file, save_file

from fastocr_trt.errors import ExportError, FastOCRError
from fastocr_trt.export import engine_directory
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.export.output import new_directory


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good checkpoint; tests damage a copy."""
    return tiny_checkpoint.save(tiny_checkpoint.model(), tmp_path_factory.mktemp("good") / "checkpoint")


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "damaged"))


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every mistake here is found before the minutes of work begin."""

    def trace(*args, **kwargs):
        raise AssertionError("tracing began")

    monkeypatch.setattr(engine_directory, "_trace", trace)


def edit(folder: Path, name: str, **changes) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refused(model, tmp_path: Path, *words: str, **options) -> None:
    """The export is refused with one sentence that holds `words`, and leaves no file behind."""
    place = tmp_path / "place"
    with pytest.raises(FastOCRError) as caught:
        export_engine(model, place / "engine", **options)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text
    assert not list(place.glob("*"))
    assert not list(place.glob(".*"))


def test_an_unsupported_family_is_named(damaged: Path, tmp_path: Path) -> None:
    edit(damaged, "config.json", model_type="florence2")
    refused(damaged, tmp_path, "florence2", "qwen2_5_vl", str(damaged))


def test_a_config_without_a_family(damaged: Path, tmp_path: Path) -> None:
    (damaged / "config.json").write_text("{}")
    refused(damaged, tmp_path, "model_type", "qwen2_5_vl")


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_broken_config(damaged: Path, tmp_path: Path, text: str) -> None:
    (damaged / "config.json").write_text(text)
    refused(damaged, tmp_path, "config.json")


@pytest.mark.parametrize(
    ("section", "field", "value", "said"),
    [
        ("text_config", "num_hidden_layers", -1, "num_hidden_layers"),
        ("text_config", "hidden_size", 0, "hidden_size is 0"),
        ("text_config", "num_key_value_heads", 0, "num_key_value_heads is 0"),
        ("text_config", "num_attention_heads", 3, "divisible"),
        ("text_config", "hidden_act", "nope", "nope"),
        ("vision_config", "depth", -1, "depth is -1"),
        ("vision_config", "num_heads", 3, "3 heads"),
        (None, "architectures", 5, "architectures 5"),
        (None, "vision_config", 5, "vision_config"),
        (None, "quantization_config", 5, "cannot be used"),
        (None, "model_type", [1], "cannot be used"),
        (None, "image_token_id", 10**9, "the vocabulary has 128 tokens"),
    ],
)
def test_a_value_that_is_no_config(damaged: Path, tmp_path: Path, section, field, value, said) -> None:
    data = json.loads((damaged / "config.json").read_text())
    (data[section] if section else data)[field] = value
    edit(damaged, "config.json", **data)
    refused(damaged, tmp_path, str(damaged / "config.json"), said)


@pytest.mark.parametrize("file", [5, None, "../model.safetensors"])
def test_an_index_that_names_no_file(damaged: Path, tmp_path: Path, file) -> None:
    (damaged / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": file}}))
    refused(damaged, tmp_path, "model.safetensors.index.json", repr(file), "lm_head.weight")


def test_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path, "has no config.json")


def test_a_folder_without_weights(damaged: Path, tmp_path: Path) -> None:
    (damaged / "model.safetensors").unlink()
    refused(damaged, tmp_path, "has no weights", "model.safetensors")


def test_pickled_weights_are_not_opened(damaged: Path, tmp_path: Path) -> None:
    (damaged / "model.safetensors").rename(damaged / "pytorch_model.bin")
    refused(damaged, tmp_path, "pytorch_model.bin", "safetensors")


def test_damaged_weights(damaged: Path, tmp_path: Path) -> None:
    path = damaged / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    refused(damaged, tmp_path, "model.safetensors", "fetch it again")


def test_a_missing_shard(damaged: Path, tmp_path: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (damaged / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(damaged, tmp_path, "model-00001-of-00002.safetensors", "incomplete")


def test_a_missing_weight(damaged: Path, tmp_path: Path) -> None:
    change_weights(damaged, lambda tensors: tensors.pop("lm_head.weight"))
    refused(damaged, tmp_path, "lm_head.weight", "1 of")


def test_weights_of_another_shape(damaged: Path, tmp_path: Path) -> None:
    edit(damaged, "config.json", text_config=json.loads((damaged / "config.json").read_text())["text_config"] | {
        "intermediate_size": 80,
    })  # fmt: skip
    refused(damaged, tmp_path, "mlp", "[80, 64]")


def test_a_quantised_checkpoint(damaged: Path, tmp_path: Path) -> None:
    edit(damaged, "config.json", quantization_config={"quant_method": "awq"})
    refused(damaged, tmp_path, "awq", "unquantised")


def test_a_sliding_window(damaged: Path, tmp_path: Path) -> None:
    text = json.loads((damaged / "config.json").read_text())["text_config"]
    edit(damaged, "config.json", text_config=text | {"layer_types": ["sliding_attention"] * 4})
    refused(damaged, tmp_path, "sliding-window")


def test_a_folder_without_tokenizer(damaged: Path, tmp_path: Path) -> None:
    (damaged / "tokenizer.json").unlink()
    refused(damaged, tmp_path, "tokenizer")


def test_a_folder_without_chat_template(damaged: Path, tmp_path: Path) -> None:
    (damaged / "chat_template.jinja").unlink()
    refused(damaged, tmp_path, "chat template")


def test_a_chat_template_that_drops_the_words(damaged: Path, tmp_path: Path) -> None:
    (damaged / "chat_template.jinja").write_text("<|vision_start|><|image_pad|><|vision_end|>OCR")
    refused(damaged, tmp_path, "chat template", "words")


def test_a_folder_without_image_processing(damaged: Path, tmp_path: Path) -> None:
    (damaged / "preprocessor_config.json").unlink()
    refused(damaged, tmp_path, "preprocessor_config.json")


def test_another_resize_filter(damaged: Path, tmp_path: Path) -> None:
    edit(damaged, "preprocessor_config.json", resample=2)
    refused(damaged, tmp_path, "bicubic")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "fp8"}, ("fp8", "fp16")),
        ({"weights": "int3"}, ("int3", "int4")),
        ({"keep": 1.5}, ("1.5", "0 to 1")),
        ({"focal_layers": [9]}, ("[9]", "4 layers")),
        ({"focal_layers": []}, ("focal",)),
        ({"max_visual_tokens": 0}, ("max_visual_tokens", "0")),
        ({"max_batch": 0}, ("max_batch", "0")),
    ],
)
def test_options_out_of_range(checkpoint: Path, tmp_path: Path, options: dict, words: tuple[str, ...]) -> None:
    refused(checkpoint, tmp_path, *words, **options)


def test_no_such_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", tmp_path, "no folder", "nowhere")
    refused("./nowhere/at/all", tmp_path, "no folder")


def test_a_file_is_not_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    refused(checkpoint / "config.json", tmp_path, "is a file")


@pytest.mark.parametrize("name", ["owner/no such name", "owner/model"])
def test_a_hub_name_without_the_hub(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    refused(name, tmp_path, name, "no folder")


def test_a_full_disk_is_seen_before_the_work(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    refused(checkpoint, tmp_path, "0.0 MB free", "make room")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="make room"), new_directory(tmp_path / "place" / "engine") as directory:
        (directory / "half").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list((tmp_path / "place").iterdir())


def test_a_place_that_cannot_be_written(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export_engine(checkpoint, tmp_path / "file" / "engine")
    with pytest.raises(ExportError, match="is a file"):
        export_engine(checkpoint, tmp_path / "file")


def test_what_is_there_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    """Other people's files are never replaced, an engine only by force."""
    other, engine = tmp_path / "other", tmp_path / "engine"
    for folder, name in ((other, "thesis.txt"), (engine, "manifest.json")):
        folder.mkdir()
        (folder / name).write_text("{}")
    with pytest.raises(ExportError, match="not an engine"):
        export_engine(checkpoint, other, force=True)
    with pytest.raises(ExportError, match="--force"):
        export_engine(checkpoint, engine)
    assert (other / "thesis.txt").is_file()
    assert (engine / "manifest.json").is_file()


def test_a_new_engine_takes_the_old_ones_place(tmp_path: Path) -> None:
    old = tmp_path / "engine"
    old.mkdir()
    (old / "manifest.json").write_text("old")
    (old / "stale").write_text("old")
    with new_directory(old, force=True) as directory:
        (directory / "manifest.json").write_text("new")
        assert (old / "manifest.json").read_text() == "old"
    assert [(p.name, p.read_text()) for p in old.iterdir()] == [("manifest.json", "new")]
    assert list(tmp_path.iterdir()) == [old]


def test_an_interrupted_export_keeps_the_old_engine(tmp_path: Path) -> None:
    old = tmp_path / "engine"
    old.mkdir()
    (old / "manifest.json").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_directory(old, force=True) as directory:
        (directory / "manifest.json").write_text("new")
        raise KeyboardInterrupt
    assert (old / "manifest.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]
