"""Calibrating: what is recorded is dense attention, a stopped run goes on, and the cheapest good policy is kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="calibrating needs the extra `export`")

import tiny_checkpoint  # noqa: E402

from fastocr_trt.calibration import Choice, MassRecorder, without_idle  # noqa: E402
from fastocr_trt.demo.pages import generate_page  # noqa: E402
from fastocr_trt.errors import FastOCRError  # noqa: E402
from fastocr_trt.export import calibrate as module  # noqa: E402
from fastocr_trt.export.calibrate_pages import CalibrationPage, GeneratedPages  # noqa: E402
from fastocr_trt.export.calibrate_record import DenseRecording, read_dense  # noqa: E402
from fastocr_trt.export.calibrate_store import CalibrationStore  # noqa: E402
from fastocr_trt.export.calibrate_verify import FEWEST_PAGES, dense_accuracy, pick, verify  # noqa: E402
from fastocr_trt.export.fixation_method import Fixation  # noqa: E402
from fastocr_trt.export.masked_reading import Dense, MaskedReader, Reading  # noqa: E402
from fastocr_trt.export.source import find_checkpoint  # noqa: E402
from fastocr_trt.export.transformers_reader import TransformersReader  # noqa: E402
from fastocr_trt.fixation import FixationPolicy  # noqa: E402

PROMPT = "OCR:\n"
LIMIT = 24


class Silent:
    def begin(self, stage: str, pages: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def advance(self, pages: int) -> None: ...


class Steps:
    """Takes the steps of a MassRecorder, and keeps them."""

    def __init__(self) -> None:
        self.mass: list[np.ndarray] = []
        self.importance: list[np.ndarray] = []

    def step(self, mass, importance) -> None:
        self.mass.append(mass)
        self.importance.append(importance)


@pytest.fixture(scope="module")
def images():
    return [generate_page(seed, visual_tokens=size).image for seed, size in ((1_010, 64), (1_015, 128), (1_014, 64))]


@pytest.fixture(scope="module")
def demo():
    return module.load("demo", "fp32", "cpu", 1, None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tiny_checkpoint.save(tiny_checkpoint.model(), tmp_path_factory.mktemp("tiny"))
    return module.load(str(folder), "fp32", "cpu", 1, PROMPT)


def sums_of(loaded, images, limit=LIMIT):
    return [
        recorder.state()
        for _, recorder in read_dense(loaded.reader, images, PROMPT, limit, (0.1,), 2, lambda count: None)
    ]


def test_what_is_recorded_is_the_attention_that_transformers_computes(demo, images):
    steps, limit = Steps(), 6
    with DenseRecording(demo.reader, [steps]) as recording:
        [reading] = demo.reader.read(
            images[:1], PROMPT, Dense(), limit, watch=recording.watch, advance=recording.advance
        )
    plain = TransformersReader(find_checkpoint("demo"), threads=1)
    plain.model.set_attn_implementation("eager")
    inputs = plain.inputs(images[0], PROMPT)
    visual = inputs["mm_token_type_ids"][0].bool()
    prompt = len(visual)
    written = torch.tensor([reading.token_ids[: limit - 1]])
    for name, extra in (("input_ids", written), ("attention_mask", written), ("mm_token_type_ids", 0 * written)):
        inputs[name] = torch.cat([inputs[name], extra if name != "attention_mask" else torch.ones_like(extra)], 1)
    before, after = [], []
    for layer in plain.model.model.language_model.layers:
        layer.register_forward_pre_hook(lambda m, args, kw: before.append(args[0]), with_kwargs=True)
        layer.post_attention_layernorm.register_forward_pre_hook(lambda m, args: after.append(args[0]))
    with torch.inference_mode():
        attentions = plain.model(**inputs, output_attentions=True).attentions
    kv_heads = plain.model.config.text_config.num_key_value_heads
    for number in range(limit - 1):
        whole = torch.stack([a[0, :, prompt + number, : len(visual)] for a in attentions])[..., visual]
        grouped = whole.view(len(attentions), kv_heads, -1, whole.shape[-1]).mean(2)
        np.testing.assert_allclose(steps.mass[number], grouped.numpy(), atol=1e-4)
        cosines = [
            torch.cosine_similarity(h[0, prompt + number], a[0, prompt + number], dim=0).item()
            for h, a in zip(before, after, strict=True)
        ]
        np.testing.assert_allclose(steps.importance[number], 1 - np.array(cosines), atol=1e-4)
    assert len(steps.mass) == limit - 1


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_pages_read_together_are_recorded_as_alone(name, request, images):
    loaded = request.getfixturevalue(name)
    together = sums_of(loaded, images)
    for image, sums in zip(images, together, strict=True):
        [alone] = sums_of(loaded, [image])
        assert sums["counts"].tolist() == alone["counts"].tolist()
        for key, value in alone.items():
            np.testing.assert_allclose(sums[key], value, rtol=1e-3, atol=1e-3)
    steps = [sums["counts"][0] for sums in together]
    assert len(set(steps)) > 1 or name == "tiny"  # pages that end early are recorded no further


def test_hooks_are_gone_after_a_recording(tiny, images):
    before = tiny.reader.read(images[:1], PROMPT, Dense(), 4)[0].token_ids
    with pytest.raises(ZeroDivisionError), DenseRecording(tiny.reader, [MassRecorder(4, (0.1,))]):
        raise ZeroDivisionError
    layer = tiny.reader.language_model.layers[0]
    assert not layer._forward_pre_hooks and not layer.self_attn._forward_hooks
    assert tiny.reader.read(images[:1], PROMPT, Dense(), 4)[0].token_ids == before


def test_a_stopped_run_goes_on_by_page_and_ends_with_the_same_policy(demo, tmp_path, monkeypatch):
    pages = GeneratedPages(4, visual_tokens=64)
    options = module.Options(PROMPT, max_new_tokens=10, batch=2, candidates=1)
    told: list[str] = []
    whole = module.calibrate(demo, pages, options, tmp_path / "whole.npz", False, Silent(), told.append)

    read = []

    def counting(reader, images, *rest):
        if len(read) == 1:
            raise KeyboardInterrupt
        read.append(len(images))
        return read_dense(reader, images, *rest)

    monkeypatch.setattr(module, "read_dense", counting)
    store = tmp_path / "stopped.npz"
    with pytest.raises(KeyboardInterrupt):
        module.calibrate(demo, pages, options, store, False, Silent(), told.append)
    assert read == [2] and store.is_file() and not list(tmp_path.glob("*.part"))

    monkeypatch.setattr(module, "read_dense", lambda *args: read.append(len(args[1])) or read_dense(*args))
    again = module.calibrate(demo, pages, options, store, False, Silent(), told.append)
    assert read == [2, 2] and again.to_dict() == whole.to_dict()

    monkeypatch.setattr(MaskedReader, "read", lambda *args, **options: pytest.fail("all pages were read before"))
    last = module.calibrate(demo, pages, options, store, False, Silent(), told.append)
    assert last.to_dict() == whole.to_dict()
    assert any("--max-new-tokens" in text for text in told)


def test_the_record_says_what_was_measured(demo, tmp_path):
    options = module.Options(PROMPT, keeps=(0.05, 0.2), max_new_tokens=LIMIT, batch=4, candidates=2)
    found = module.calibrate(
        demo, GeneratedPages(3, visual_tokens=64), options, tmp_path / "r.npz", False, Silent(), lambda text: None
    )
    record = found.to_dict()["calibration"]
    assert record["pages"]["count"] == record["pages"]["with_text"] == 3
    layers = demo.reader.num_layers
    assert [len(record["layers"][name]) for name in ("visual_mass", "importance")] == [layers, layers]
    assert set(record["layers"]["overlap"]) == {"0.05", "0.2"}
    assert len(record["verified"]) == 2
    for entry in record["frontier"]:
        policy = FixationPolicy.from_dict(entry["policy"])
        assert entry["mean_visual_reads"] == pytest.approx(policy.mean_visual_reads(64, layers))
    for entry in record["verified"]:  # what was predicted of the reads is what was read
        policy = FixationPolicy.from_dict(entry["policy"])
        assert entry["mean_visual_reads"] == pytest.approx(policy.mean_visual_reads(64, layers))
        assert entry["recovered_mass"] >= options.least_recovered
    assert record["environment"]["dtype"] == "fp32" and record["model"]["files"]


class Watched(Fixation):
    """Keeps the masks of every step and layer."""

    def __init__(self, policy: FixationPolicy) -> None:
        super().__init__(policy)
        self.masks: list[torch.Tensor | None] = []

    def columns(self, layer, view):
        self.masks.append(super().columns(layer, view))
        return self.masks[-1]


@pytest.mark.parametrize("policy", [FixationPolicy((0, 1, 3), ()), FixationPolicy((1, 2), ())])
def test_without_idle_selections_the_masks_are_the_same(tiny, images, policy):
    lean = without_idle(policy, tiny.reader.num_layers)
    assert len(lean.focal_layers) < len(policy.focal_layers)
    methods = [Watched(policy), Watched(lean)]
    full, same = (tiny.reader.read(images[:2], PROMPT, method, 6) for method in methods)
    assert same == full and full[0].mean_visual_reads < 1
    assert len(methods[0].masks) == 5 * tiny.reader.num_layers
    for a, b in zip(*(method.masks for method in methods), strict=True):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def test_pages_on_which_too_little_is_written_are_refused(tiny, tmp_path):
    options = module.Options(PROMPT, max_new_tokens=2)
    with pytest.raises(FastOCRError, match="more text"):
        module.calibrate(
            tiny, GeneratedPages(2, visual_tokens=64), options, tmp_path / "r.npz", False, Silent(), lambda text: None
        )


class ListedPages(list):
    """Pages as FolderPages gives them."""

    about, left_out = {"source": "list"}, 0


def test_of_one_picture_under_two_names_no_text_is_dropped_in_silence(tiny, images, tmp_path):
    def page(name, text):
        return CalibrationPage(name, "same", text, images[0])

    def texts_of(*texts):
        told = []
        pages = ListedPages(page(f"{number}.png", text) for number, text in enumerate(texts))
        store = CalibrationStore(tmp_path / "r.npz", {"keep": (0.05,)})
        options = module.Options(PROMPT, max_new_tokens=4)
        found = module._record(tiny, pages, options, store, Silent(), told.append)
        return [page.text for page in found], told

    assert texts_of(None, "a text", "a text") == (["a text"], [])
    found, told = texts_of("a text", "another")
    assert found == ["a text"]
    assert told == ["1.png is the same picture as 0.png with another text, which is left out"]


def test_a_record_of_other_settings_or_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "r.npz"
    store = CalibrationStore(path, {"prompt": "a", "keep": (0.05,)})
    recorder = MassRecorder(2, (0.05,))
    store.add_dense("page", Reading("text", [1, 2]), recorder)
    policy = FixationPolicy((1,))
    store.tried(policy)["page"] = Reading("tex", [1])
    store.save()
    again = CalibrationStore(path, {"prompt": "a", "keep": (0.05,)})
    assert again.dense("page") == Reading("text", [1, 2]) and again.tried(policy)["page"].text == "tex"
    assert again.sums("page").keys() == recorder.state().keys()
    with pytest.raises(FastOCRError, match=r"other settings \(prompt\); give --fresh"):
        CalibrationStore(path, {"prompt": "b", "keep": (0.05,)})
    assert not CalibrationStore(path, {"prompt": "b"}, fresh=True).has_dense("page")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FastOCRError, match="not a readable record"):
        CalibrationStore(path, {"prompt": "a", "keep": (0.05,)})


DAMAGES = {
    "text": lambda content, arrays: content["dense"]["page"].update(text=5),
    "no tokens": lambda content, arrays: content["dense"]["page"].update(token_ids=None),
    "no whole token": lambda content, arrays: content["dense"]["page"].update(token_ids=[1.5]),
    "reads": lambda content, arrays: content["tried"]["{}"]["page"].update(mean_visual_reads="x"),
    "unknown field": lambda content, arrays: content["dense"]["page"].update(more=1),
    "list of pages": lambda content, arrays: content.update(dense=[]),
    "no number": lambda content, arrays: arrays["page/visual"].fill(np.nan),
    "missing": lambda content, arrays: arrays.pop("page/0.05/1/own"),
    "shape": lambda content, arrays: arrays.update({"page/importance": np.zeros(3)}),
    "kind": lambda content, arrays: arrays.update({"page/visual": np.array(["a", "b"])}),
    "no page": lambda content, arrays: arrays.update({"other/visual": np.zeros(2)}),
    "head": lambda content, arrays: content.update(head=[]),
}


@pytest.mark.parametrize("damage", [*DAMAGES, "deep"])
def test_a_record_that_was_tampered_with_is_named_with_a_way_out(tmp_path, damage):
    path, head = tmp_path / "r.npz", {"prompt": "a", "keep": (0.05,)}
    store = CalibrationStore(path, head)
    store.add_dense("page", Reading("text", [1, 2]), MassRecorder(2, (0.05,)))
    store.save()
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    content = json.loads(arrays["content"].tobytes())
    content["tried"]["{}"] = {"page": dict(content["dense"]["page"])}
    text = "[" * 100_000
    if damage != "deep":
        DAMAGES[damage](content, arrays)
        text = json.dumps(content)
    np.savez(path, **arrays | {"content": np.frombuffer(text.encode(), np.uint8)})
    with pytest.raises(FastOCRError, match=r"r\.npz is not a readable record.*give --fresh"):
        CalibrationStore(path, head)


def choice(*focal: int) -> Choice:
    policy = FixationPolicy(focal, ())
    return Choice(policy, 0.95, policy.mean_visual_reads(100, 6))


def readings(texts):
    return [Reading(text, mean_visual_reads=0.5) for text in texts]


def judge(candidate: Choice, wrong_pages: int, pages: int, truths=None):
    dense = ["abcdefghij"] * pages
    ours = ["abcdefghiX"] * wrong_pages + dense[wrong_pages:]
    return verify(candidate, readings(ours), readings(dense), truths or [None] * pages)


def test_the_cheapest_that_keeps_the_target_is_picked():
    pages = 2 * FEWEST_PAGES
    cheap, fair, dear = judge(choice(1), 8, pages), judge(choice(1, 2), 0, pages), judge(choice(1, 2, 3), 0, pages)
    assert pick([dear, cheap, fair], 0.99) == (fair, True)
    assert pick([dear, cheap, fair], 0.9) == (cheap, True)
    assert pick([cheap], 0.99) == (cheap, False)


def test_the_lower_bound_counts_where_pages_are_many_and_the_value_where_they_are_few():
    many, few = judge(choice(1), 2, 2 * FEWEST_PAGES), judge(choice(1), 1, FEWEST_PAGES - 1)
    assert many.judged.low < 0.985 < many.judged.value and not many.keeps(0.985)
    assert few.judged.low < 0.985 < few.judged.value and few.keeps(0.985)
    assert many.tell_judged() == f"99.0% ({many.judged.low:.1%} to 100.0%)" and few.tell_judged() == "98.9%"
    assert many.to_dict()["accuracy_against_dense"]["low"] == many.judged.low
    assert few.to_dict()["accuracy_against_dense"] == {"value": few.judged.value, "low": None, "high": None}


def test_texts_are_the_judge_where_there_are_some():
    truths = ["abcdefghiX", None, "abcdefghij"]
    verification = judge(choice(1), 1, 3, truths)
    assert verification.texts == 2 and verification.judged == verification.retention
    assert verification.retention.value > 1 > verification.against_dense.value  # it read better than dense


def test_texts_of_other_pages_are_refused_and_a_model_that_reads_badly_is_told(demo, tmp_path):
    assert dense_accuracy(readings(["abcd", "x"]), ["abcX", None]) == 0.75
    assert dense_accuracy(readings(["abcd"]), [None]) is None
    with pytest.raises(FastOCRError, match="accuracy of 0 on the 2 pages"):
        dense_accuracy(readings(["abcd", "efgh"]), ["zzzz", "zzzz"])
    told: list[str] = []
    pages = GeneratedPages(2, visual_tokens=64)
    options = module.Options(PROMPT, max_new_tokens=6, candidates=1)  # cut so early that most of the text is missing
    module.calibrate(demo, pages, options, tmp_path / "r.npz", False, Silent(), told.append)
    assert any("of the texts' characters right" in text for text in told)
