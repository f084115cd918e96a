"""The demo engine read whole: against transformers, against the oracle, and in the corners where banks end."""

import json

import numpy as np
import pytest
from PIL import Image

from fastocr_trt.demo.pages import SEEDS, generate_page
from fastocr_trt.errors import EngineError, FastOCRError, PageError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from oracle import oracle_decode  # noqa: E402

from fastocr_trt.runtime import Engine  # noqa: E402
from fastocr_trt.runtime.batch import prepare_images, tokenize  # noqa: E402
from fastocr_trt.runtime.options import Reading  # noqa: E402
from fastocr_trt.runtime.vision_layout import vision_layout  # noqa: E402

SIZES = [64] * 9 + [128] * 7 + [384] * 3 + [768]


@pytest.fixture(scope="module")
def engine(demo_engine_dir):
    return Engine.load(demo_engine_dir, threads=2)


@pytest.fixture(scope="module")
def model():
    from importlib.resources import files

    torch.set_num_threads(1)  # so small a model is slower on several
    folder = str(files("fastocr_trt.demo"))
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def pages():
    return [generate_page(SEEDS["tests"][i], visual_tokens=size).image for i, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def dense(engine, pages):
    return engine.parse_batch(pages, mode="dense")


def prompt_of(engine, *images):
    prepared = prepare_images(engine.manifest, list(images), Reading())
    return prepared, tokenize(engine.manifest, engine.tokenizer, prepared, None)


def generate(model, engine, *images, limit):
    """Greedy token ids of transformers for one prompt of `images`, without the stop token."""
    prepared, prompt = prompt_of(engine, *images)
    image_token = model.config.image_token_id
    ids = np.concatenate([np.where(c.input_ids < 0, image_token, c.input_ids) for c in prompt.chunks])[None]
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.from_numpy(ids),
            attention_mask=torch.ones(ids.shape, dtype=torch.long),
            mm_token_type_ids=torch.from_numpy((ids == image_token).astype(np.int32)),
            pixel_values=torch.from_numpy(np.concatenate([p.pixel_values for p in prepared])),
            image_grid_thw=torch.tensor([[1, p.grid_h, p.grid_w] for p in prepared]),
            max_new_tokens=limit,
            do_sample=False,
        )
    new = out[0, ids.shape[1] :].tolist()
    stop = model.generation_config.eos_token_id
    return new[: new.index(stop)] if stop in new else new


def test_dense_is_transformers_token_for_token(engine, model, pages, dense):
    for image, result in zip(pages, dense, strict=True):
        assert result.finish_reason == "stop"
        assert result.token_ids == generate(model, engine, image, limit=len(result.token_ids) + 20)
        assert result.mean_visual_reads == 1.0


def test_fast_with_keep_one_is_dense_token_for_token(engine, pages, dense):
    fast = engine.parse_batch(pages, mode="fast", keep=1)
    assert [r.token_ids for r in fast] == [r.token_ids for r in dense]
    assert [r.mean_visual_reads for r in fast] == [1.0] * len(pages)


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.3])
def test_fast_is_the_oracle_at_every_step(engine, model, keep):
    """Tokens and fixations: a stale or misplaced fixation would show at the first step after it moved."""
    image = generate_page(SEEDS["tests"][50], visual_tokens=64).image
    (prepared,), prompt = prompt_of(engine, image)
    layout = vision_layout(prepared.grid_h, prepared.grid_w, engine.manifest.vision)
    embeds = engine.session.encode_image(
        prepared.pixel_values, layout.rotary_positions, layout.window_rows, layout.window_inverse
    )
    want, fixations = oracle_decode(model, embeds, prompt, engine.manifest.policy, keep, steps=24)
    seen = []
    stream = engine.stream(image, keep=keep, max_new_tokens=24, loop_guard=False)
    for _ in stream._run.steps():
        seen.append([sorted(head[head >= 0].tolist()) for head in engine.session.fixation()[0]])
    assert stream._run.pages[0].token_ids == [t for t in want if t != model.generation_config.eos_token_id]
    assert seen == fixations
    if keep:
        assert len({str(f) for f in seen}) > 3, "the fixation never moved: the test proves nothing"


def test_a_page_does_not_depend_on_the_pages_beside_it(engine, pages):
    """A tiny page beside a huge one keeps its own k, its own length and its own end."""
    chosen = [pages[0], pages[-1], pages[9], Image.new("RGB", (28, 28), "white")]
    together = engine.parse_batch(chosen, max_new_tokens=120)
    alone = [engine.parse(page, max_new_tokens=120) for page in chosen]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]
    assert [r.finish_reason for r in together] == [r.finish_reason for r in alone]
    assert len({r.visual_tokens for r in together}) == 4


def test_more_pages_than_a_batch_holds(engine, pages):
    limit = engine.manifest.capacities.max_batch
    many = [pages[i % 8] for i in range(limit + 3)]
    results = engine.parse_batch(many, max_new_tokens=5)
    assert [r.token_ids for r in results[:3]] == [r.token_ids for r in results[8:11]]
    assert len(results) == limit + 3


def test_two_images_in_one_prompt(engine, model, pages):
    result = engine.parse([pages[0], pages[9]], mode="dense", max_new_tokens=40)
    assert result.token_ids == generate(model, engine, pages[0], pages[9], limit=40)
    assert result.visual_tokens == 64 + 128


def test_text_before_and_after_the_image(engine, model, pages, monkeypatch):
    from dataclasses import replace

    before = replace(engine.manifest.prompt, before="Page: ", after=" end. {prompt}")
    monkeypatch.setattr(engine, "manifest", replace(engine.manifest, prompt=before))
    result = engine.parse(pages[1], mode="dense", max_new_tokens=30)
    assert result.token_ids == generate(model, engine, pages[1], limit=30)
    assert engine.parse(pages[1], keep=1, max_new_tokens=30).token_ids == result.token_ids


@pytest.fixture(scope="module")
def tight_engine(tmp_path_factory):
    """An engine that holds exactly one page of 64 visual tokens, and 40 text tokens with the prompt's 7."""
    from fastocr_trt.export.engine_directory import export_engine

    directory = tmp_path_factory.mktemp("tight") / "engine"
    export_engine("demo", directory, max_visual_tokens=64, max_text_tokens=40, max_batch=2, prefill_chunk=48)
    return Engine.load(directory, threads=2)


@pytest.mark.parametrize("mode", ["fast", "dense"])
def test_a_page_that_exactly_fills_the_bank(engine, tight_engine, pages, mode):
    roomy = engine.parse(pages[0], mode=mode, max_new_tokens=33)
    tight = tight_engine.parse(pages[0], mode=mode)
    assert tight.visual_tokens == tight_engine.manifest.capacities.max_visual_tokens
    assert tight.token_ids == roomy.token_ids
    assert not tight.resized_to_fit
    pair = tight_engine.parse_batch([pages[0], pages[1]], mode=mode)
    assert pair[0].token_ids == tight.token_ids


def test_the_text_bank_ends_the_page_as_length(tight_engine, pages, engine):
    result = tight_engine.parse(pages[0])
    _, prompt = prompt_of(engine, pages[0])
    text = sum(len(c.input_ids) for c in prompt.chunks if c.kind == "text")
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 40 - text


def test_a_page_beyond_the_bank(tight_engine, pages):
    result = tight_engine.parse(pages[9], max_new_tokens=3)
    assert result.resized_to_fit
    assert result.visual_tokens <= 64
    with pytest.raises(PageError, match="64"):
        tight_engine.parse(pages[9], resize_to_fit=False)
    two = tight_engine.parse([pages[0], pages[1]], max_new_tokens=3)
    assert two.resized_to_fit
    assert two.visual_tokens <= 64


def test_a_prompt_longer_than_the_text_bank(tight_engine, pages):
    with pytest.raises(PageError, match="text tokens and the engine holds 40"):
        tight_engine.parse(pages[0], prompt="x" * 60)


def test_stream_is_parse(engine, pages):
    stream = engine.stream(pages[9])
    pieces = list(stream)
    whole = engine.parse(pages[9])
    assert len(pieces) > 10
    assert "".join(pieces) == whole.text == stream.result.text
    assert stream.result.token_ids == whole.token_ids


def test_seeded_sampling_repeats_itself_and_differs_from_greedy(engine, pages):
    draw = [engine.parse(pages[0], temperature=3.0, seed=s, max_new_tokens=30).token_ids for s in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    assert engine.parse(pages[0], temperature=1e-6, max_new_tokens=30).token_ids == (
        engine.parse(pages[0], max_new_tokens=30).token_ids
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep": 1.01}, "1.01"),
        ({"keep": -0.1}, "-0.1"),
        ({"mode": "quick"}, "quick"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"temperature": -1.0}, "-1"),
        ({"top_p": 0.0}, "top_p"),
        ({"prompt": 5}, "prompt is a int"),
        ({"prompt": b"x"}, "prompt is a bytes"),
        ({"resize_to_fit": "no"}, "resize_to_fit is 'no'"),
        ({"focus": 1}, "unknown options"),
    ],
)
def test_options_out_of_range(engine, pages, options, words):
    with pytest.raises(FastOCRError, match=words):
        engine.parse(pages[0], **options)


def test_numbers_of_numpy_are_numbers(engine, pages):
    result = engine.parse(pages[0], keep=np.float32(1.0), max_new_tokens=np.int64(3))
    assert len(result.token_ids) == 3


@pytest.mark.parametrize("pages", [None, 5, "page.png"])
def test_pages_that_are_no_list(engine, pages):
    with pytest.raises(FastOCRError, match="must be a list"):
        engine.parse_batch(pages)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"providers": ("tpu",)}, "must be a list of"),
        ({"providers": None}, "providers is None"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": 10**9}, "threads is 1000000000"),
        ({"threads": "x"}, "threads is 'x'"),
    ],
)
def test_load_options_out_of_range(demo_engine_dir, arguments, words):
    with pytest.raises(FastOCRError, match=words):
        Engine.load(demo_engine_dir, **arguments)


def test_load_from_what_is_no_path():
    with pytest.raises(EngineError, match="NoneType"):
        Engine.load(None)


def test_cuda_where_it_is_absent(demo_engine_dir):
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        with pytest.raises(EngineError, match="onnxruntime-gpu"):
            Engine.load(demo_engine_dir, providers=("cuda",))


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("decoder", "num_layers", 99),
        ("decoder", "num_layers", 3),
        ("decoder", "num_key_value_heads", 1),
        ("decoder", "head_dim", 32),
        ("decoder", "vocab_size", 10),
        ("decoder", "hidden_size", 128),
        ("vision", "patch_size", 16),
        (None, "dtype", "fp16"),
    ],
)
def test_graphs_that_are_not_the_manifests(demo_engine_dir, tmp_path, part, field, value):
    for file in demo_engine_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text())
    (data if part is None else data[part])[field] = value
    if value == 3:
        data["policy"] |= {"focal_layers": [2], "dense_layers": [0]}
    path.unlink()
    path.write_text(json.dumps(data))
    with pytest.raises(EngineError, match="manifest"):
        Engine.load(tmp_path)


def test_graphs_in_each_others_place(demo_engine_dir, tmp_path):
    for file in demo_engine_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "manifest.json"
    data = json.loads(path.read_text())
    data["files"]["vision"], data["files"]["dense"] = data["files"]["dense"], data["files"]["vision"]
    path.unlink()
    path.write_text(json.dumps(data))
    with pytest.raises(EngineError, match="not the vision graph"):
        Engine.load(tmp_path)
