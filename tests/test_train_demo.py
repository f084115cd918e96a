"""The training program: the twin is the Hugging Face model, a run trains and goes on, its reader loads."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # tools/ is not installed

from fastocr_trt.demo import layouts  # noqa: E402
from fastocr_trt.demo.pages import SEEDS, SIZES, generate_page  # noqa: E402
from tools.train_demo import architecture, curriculum, data, evaluate, losses, lost, twin  # noqa: E402
from tools.train_demo.characters import CHARACTERS, END, ID, NEWLINE, PROMPT  # noqa: E402
from tools.train_demo.cli import main  # noqa: E402
from tools.train_demo.optimiser import rate_factor  # noqa: E402

SIZES_FOR_TWIN = architecture.Sizes(
    vision_depth=3, vision_width=32, vision_heads=2, vision_mlp=48, full_attention=(1,), layers=3, width=64, heads=4,
    kv_heads=2, mlp=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def reader():
    """A small random reader whose norms and biases are random too, so that none of them can be forgotten."""
    reader = architecture.new_reader(SIZES_FOR_TWIN, seed=3).eval()
    with torch.no_grad():
        for parameter in reader.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return reader


@pytest.fixture(scope="module")
def batch():
    """Two table pages of 16 x 8 visual tokens: several windows, wider than high."""
    pages = [layouts.compose(Random(seed), 16, 8, "table") for seed in (1, 2)]
    return data.collate(pages, 16, 8, Random(0))


def hugging_face_logits(reader, batch):
    inputs = evaluate.model_inputs(batch.pages.numpy())
    ids = torch.cat([inputs["input_ids"][:, : -len(PROMPT)], batch.input_ids], 1)
    inputs |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["mm_token_type_ids"] = (ids == reader.config.image_token_id).int()
    return reader(**inputs).logits[:, -batch.input_ids.shape[1] :]


def test_twin_equals_hugging_face_in_logits_and_gradients(reader, batch):
    visual = twin.see(reader, batch.pages)
    ours = twin.read(reader, visual, batch.input_ids, batch.columns, batch.rows, guided=(1,))
    theirs = hugging_face_logits(reader, batch)
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours.logits, theirs, atol=2e-4, rtol=1e-4)
    assert ours.attention[0].shape == (2, 4, batch.input_ids.shape[1], 128)
    torch.testing.assert_close(ours.attention[0].exp().sum(-1), torch.ones(2, 4, batch.input_ids.shape[1]))

    parameters = dict(reader.named_parameters())
    # Padding is asked for nothing; as an input Hugging Face gives it no gradient.
    weight = torch.randn_like(theirs) * (batch.labels != data.IGNORED)[..., None]
    for name, a, b in zip(
        parameters,
        torch.autograd.grad((ours.logits * weight).sum(), parameters.values()),
        torch.autograd.grad((theirs * weight).sum(), parameters.values()),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-3 * b.abs().max().item() + 1e-5, rtol=1e-2, msg=name)


def test_full_reader_has_the_promised_shape():
    config = architecture.configuration(architecture.FULL)
    with torch.device("meta"):
        reader = transformers.Qwen2_5_VLForConditionalGeneration(config)
    assert config.text_config.num_hidden_layers >= 10
    assert len(config.vision_config.fullatt_block_indexes) == 1
    assert sum(parameter.numel() for parameter in reader.parameters()) * 2 <= 16e6


@pytest.mark.parametrize(
    "earlier_sizes",
    [
        architecture.Sizes(vision_depth=3, vision_mlp=320, full_attention=(), layers=6),
        architecture.Sizes(vision_mlp=320),
        architecture.FULL,
    ],
    ids=["fewer layers", "narrower vision", "the same"],
)
def test_grown_reader_reads_as_the_earlier_one(earlier_sizes):
    earlier = architecture.new_reader(earlier_sizes, seed=1).eval()
    with torch.no_grad():
        for name, parameter in earlier.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    grown = architecture.grown_reader(earlier, seed=2).eval()
    assert grown.config.text_config.num_hidden_layers == architecture.FULL.layers
    page = data.collate([layouts.compose(Random(5), 8, 8, "column")], 8, 8, Random(0))
    with torch.no_grad():
        before, after = (
            twin.read(model, twin.see(model, page.pages), page.input_ids, 8, 8).logits for model in (earlier, grown)
        )
    torch.testing.assert_close(before, after, atol=1e-4, rtol=1e-4)


def test_tokenizer_of_the_demo_has_these_characters():
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "fastocr_trt" / "demo")
    assert tokenizer("".join(CHARACTERS))["input_ids"] == list(range(len(CHARACTERS)))
    assert tokenizer.eos_token_id == END


@pytest.mark.parametrize("layout", layouts.NAMES)
def test_labels_and_places_follow_the_page(layout):
    page = layouts.compose(Random(7), 24, 16, layout)
    batch = data.collate([page], 24, 16, Random(0))
    labels = batch.labels[0, len(PROMPT) - 1 :]
    assert labels.tolist() == [*(ID[character] for character in page.text), END]
    assert batch.input_ids[0].tolist() == PROMPT + labels[:-1].tolist()
    # Wherever a printed character is looked for, it is what is printed there.
    places = batch.places[0, len(PROMPT) - 1 :]
    printed = {place: set() for place in range(24 * 16)}
    for character, place in page.drawn:
        printed[place].add(character)
    found = [character in printed[here.item()] for character, (here, _) in zip(page.text, places, strict=False)]
    assert sum(found) >= len(page.drawn)
    # A line's end is looked for at this line's start and at the next one's, and these chain through the page.
    ends = [tuple(pair) for label, pair in zip(labels.tolist(), places.tolist(), strict=True) if label == NEWLINE]
    assert all(first[1] == second[0] for first, second in pairwise(ends))


def test_pages_of_a_step_are_the_same_every_time_and_differ_between_steps_and_shards():
    task = data.Task(64, "columns", 4)

    def texts(seed, step, shard):
        return [text for batch in data.batches(task, seed, step, shard, 0.03) for text in batch.texts]

    assert texts(0, 5, 0) == texts(0, 5, 0)
    assert len(texts(0, 5, 0)) == 2
    assert len({tuple(texts(*which)) for which in ((0, 5, 0), (0, 5, 1), (0, 6, 0), (1, 5, 0))}) == 4


def test_noise_changes_inputs_and_never_labels():
    page = layouts.compose(Random(3), 16, 8, "column")
    labels = [*(ID[character] for character in page.text), END]
    changed = 0
    for seed in range(20):
        noisy = data.collate([page], 16, 8, Random(seed), noise=0.2)
        asked = noisy.labels[0][noisy.labels[0] != data.IGNORED].tolist()
        changed += noisy.input_ids[0].tolist() != PROMPT + labels[:-1]
        # Labels come in the order of the text, some of them twice, some not at all.
        rest = iter(labels)
        assert all(any(label == other for other in rest) for label, last in zip(asked, [None, *asked], strict=False)
                   if label != last)  # fmt: skip
        assert asked[-1] == END
    assert 5 <= changed < 20


def test_noise_puts_other_words_of_the_page_in_the_place_of_some():
    text = "one house and one horse\nwith nine chairs"
    ids = [ID[character] for character in text]
    given = data._other_words(ids, Random(1), 0.5)
    written = "".join(CHARACTERS[one] for one in given)
    lengths = [len(word) for word in text.split()]
    assert [len(word) for word in written.split()] == lengths and written.index("\n") == text.index("\n")
    assert written != text
    whole = {*text.split()}
    assert all(any((other * 8)[: len(word)] == word for other in whole) for word in written.split())
    assert data._other_words(ids, Random(1), 0.0) == ids


def test_guidance_is_least_where_attention_is_on_the_places(batch):
    weights = losses.weigh(batch)
    tokens = batch.under.shape[1]
    even = torch.full((2, 1, batch.labels.shape[1], tokens), 1 / tokens).log()
    right = torch.full_like(even, 1e-9)
    right.scatter_(3, batch.places[:, None, :, :1], 1.0)
    at_even = losses.guidance_loss([even], batch, weights).loss / weights.places.sum()
    at_right = losses.guidance_loss([right.log()], batch, weights).loss / weights.places.sum()
    assert at_right < 0.01 < 4 < at_even


def test_line_starts_are_linked_to_those_before_them(batch):
    links = losses.line_links(batch)
    for page, labels, places in zip(links, batch.labels, batch.places, strict=True):
        found = [tuple(link) for link in page.tolist() if link != [0, 0]]
        chain = [tuple(pair) for pair in places[labels == NEWLINE].tolist()]
        assert found == [(there, here) for here, there in chain if there > here] and found
    weights = losses.weigh(batch)
    ninth = torch.full((len(links), 2, links.shape[1]), 1 / 9).log()
    assert losses.link_loss([ninth], links, weights) / weights.places.sum() == pytest.approx(np.log(9), rel=1e-4)


def test_link_shares_are_those_of_the_attention(reader, batch):
    visual = twin.see(reader, batch.pages)
    tokens = torch.tensor([[[9, 3], [63, 0]]]).expand(len(batch.pages), -1, -1)
    (shares,) = twin.read(reader, visual, batch.input_ids, 16, 8, links=twin.Links((0,), tokens)).links
    for link in range(2):
        start = int(tokens[0, link, 0])
        every = torch.arange(start + 1)
        all_of_it = torch.stack([torch.full_like(every, start), every], -1).expand(len(batch.pages), -1, -1)
        (whole,) = twin.read(reader, visual, batch.input_ids, 16, 8, links=twin.Links((0,), all_of_it)).links
        torch.testing.assert_close(whole.exp().sum(-1), torch.ones(whole.shape[:2]))
        torch.testing.assert_close(whole[..., int(tokens[0, link, 1])], shares[..., link])


def test_places_are_asked_of_visual_tokens_and_of_the_text(batch):
    weights, tokens = losses.weigh(batch), batch.under.shape[1]
    heads = losses.PlaceHeads(32, 1)
    pages, text = batch.labels.shape

    def loss(visual, written):
        return float(losses.place_loss(heads, [(visual, written)], batch, weights) / weights.places.sum())

    unknown = loss(torch.ones(pages, tokens, 32), torch.ones(pages, text, 32))
    assert unknown == pytest.approx(2 * np.log(heads.ROWS * heads.COLUMNS), rel=1e-4)
    # Heads that read rows and columns off two numbers, where these are the right ones.
    for head in (heads.visual[0], heads.text[0]):
        for start, count, at in ((0, heads.ROWS, 0), (heads.ROWS, heads.COLUMNS, 1)):
            angle = torch.arange(count) / count * torch.pi
            head.weight.data[start : start + count, 2 * at] = 1e4 * angle.cos()
            head.weight.data[start : start + count, 2 * at + 1] = 1e4 * angle.sin()

    def known(places):
        row = places // batch.columns / heads.ROWS * torch.pi
        column = places % batch.columns / heads.COLUMNS * torch.pi
        numbers = torch.stack([row.cos(), row.sin(), column.cos(), column.sin()], -1)
        return torch.nn.functional.pad(numbers, (0, 28))

    everywhere = known(torch.arange(tokens).expand(pages, -1))
    there = known(batch.places[..., 1])
    assert loss(everywhere, there) < 0.01
    assert loss(everywhere, known(batch.places[..., 1] + 1)) > 1 < loss(everywhere.flip(1), there)


def test_a_run_trains_stops_and_goes_on_as_if_it_had_not_stopped(tmp_path):
    options = "--sizes tiny --begin nothing --guided-layers 1 --linked-layers 0 --pages 0.15 --processes 1"
    main(["train", str(tmp_path / "whole"), "--steps", "6", *options.split()])
    main(["train", str(tmp_path / "parts"), "--steps", "3", *options.split()])
    main(["train", str(tmp_path / "parts"), "--steps", "6", "--processes", "1"])
    records = {
        name: [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "parts")
    }
    assert [record["step"] for record in records["parts"]] == [1, 2, 3, 4, 5, 6]
    whole, parts = (torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("whole", "parts"))
    for name, value in whole["reader"].items():
        torch.testing.assert_close(parts["reader"][name], value, msg=name)

    # The reader is an ordinary checkpoint: it loads by the exact class, with its tokenizer and processor, and reads.
    folder = tmp_path / "parts" / "reader"
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    assert type(model) is transformers.Qwen2_5_VLForConditionalGeneration
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    page = generate_page(1_500, "column", 64)
    made = processor(images=[page.image], return_tensors="pt")
    inputs = evaluate.model_inputs(np.array(page.image.convert("L"))[None])
    torch.testing.assert_close(made["pixel_values"], inputs["pixel_values"])
    ids = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer.decode(ids), str)
    for name, average in zip([name for name, _ in model.named_parameters()], parts["average"], strict=True):
        torch.testing.assert_close(dict(model.named_parameters())[name], average.bfloat16().float(), msg=name)

    scores = evaluate.evaluate(folder, 1, ["column"], [64], 1_500, 1, 0, type_sizes=[14, 24])
    assert set(scores) == {("column", 64, 14), ("column", 64, 24)}
    assert scores["column", 64, 14].characters > scores["column", 64, 24].characters

    counts = lost.lost(folder, 2, ["table"], 64, [1], 1)
    texts = [layouts.compose(Random(f"lost table 64 {seed}"), 8, 8, "table").text for seed in SEEDS["benchmarks"][:2]]
    asked = {name: count for (_, name), (_, count) in counts.items()}
    breaks = sum(text.count("\n") for text in texts)
    assert (asked["start of a line"], asked["end of a line"], asked["end of the page"]) == (breaks + 2, breaks, 2)
    assert sum(asked.values()) == sum(len(text) + 1 for text in texts)


def test_guidance_ends_where_it_is_told_to_and_is_logged_on(tmp_path):
    options = (
        "--sizes tiny --begin nothing --guided-layers 1 --linked-layers 0 --pages 0.15 --processes 1 --stage 1 --seed 2"
    )
    until, without = tmp_path / "until", tmp_path / "without"
    main(["train", str(until), "--steps", "4", *options.split(), "--guidance-steps", "2"])
    main(["train", str(without), "--steps", "2", *options.split()])
    main(["train", str(without), "--steps", "4", "--processes", "1", "--guidance", "0"])
    logs = [[json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()] for run in (until, without)]
    assert all(record["guidance"] > 0 < record["place"] for record in logs[0])
    assert [record["loss"] for record in logs[0]] == [record["loss"] for record in logs[1]]


def test_a_small_reader_learns(tmp_path):
    options = "--sizes tiny --begin nothing --guided-layers 1 --linked-layers 0 --pages 0.15 --processes 1 --stage 1"
    main(["train", str(tmp_path), *options.split(), "--steps", "40", "--half-life", "1000", "--muon-rate", "0.02"])
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    read = [record["loss"] for record in records if record["kind"] == "read"]
    assert sum(read[-5:]) / 5 < 0.9 * sum(read[:3]) / 3


def test_rate_rises_falls_and_cools_down():
    assert rate_factor(0, 1000, None, 0) < 0.05
    assert rate_factor(100, 1000, None, 0) > rate_factor(3000, 1000, None, 0) == pytest.approx(0.5)
    cooled = [rate_factor(step, 1000, 3000, 200) for step in (3000, 3100, 3200, 9000)]
    assert cooled[0] == pytest.approx(0.5)
    assert cooled[1] == pytest.approx(0.25, rel=0.03)
    assert cooled[2] < 0.02 and cooled[3] > 0


def test_curriculum_promotes_on_accuracy_and_gets_to_large_pages():
    progress = curriculum.Progress()
    for _ in range(200):
        assert not progress.promote()
    progress.note("read 384", 0.9)
    assert not progress.promote()
    progress.note("under 384", 0.9)
    assert progress.promote() and progress.stage == 1
    tasks = [curriculum.task(len(curriculum.STAGES) - 1, 0, step) for step in range(200)]
    assert {task.layout for task in tasks} == set(layouts.NAMES)
    assert all(task.visual_tokens in SIZES for task in tasks)
    assert sum(task.visual_tokens == 768 and task.reading for task in tasks) > 50


def test_scores_count_ends_and_repeats():
    text = "one line\nanother line\na third line\nthe last line"
    once = evaluate.score([text], [(text, True)])
    assert (once.error_rate, once.exact, once.ended, once.repeating) == (0, 1, 1, 0)
    again = evaluate.score([text], [(text + "\n" + text, False)])
    assert again.error_rate > 1
    assert (again.exact, again.ended, again.repeating) == (0, 0, 1)
    early = evaluate.score([text], [("one line\nanother line", True)])
    assert (early.ended, early.repeating) == (0, 0)
