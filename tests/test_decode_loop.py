"""Prefill and decode against a session that only writes down what it is told."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.runtime.decode import PageState, decode
from fastocr_trt.runtime.prefill import prefill
from fastocr_trt.runtime.prompt import Chunk, PromptTokens
from fastocr_trt.runtime.sampling import Sampler

PAD = 96


class Notebook:
    """A session of B pages: keeps what each page was fed, in order, and plays a script of tokens."""

    def __init__(self, batch, script=()):
        self.banks = [{"text": [], "visual": [], "order": []} for _ in range(batch)]
        self.script, self.at = list(script), 0
        self.largest_chunk, self.active, self.modes, self.chosen = 0, [True] * batch, [], []

    def prefill(self, kind, input_ids, position_ids, counts):
        self.largest_chunk = max(self.largest_chunk, input_ids.shape[1])
        assert counts.max() == input_ids.shape[1], "a chunk no page fills"
        for bank, ids, positions, count in zip(self.banks, input_ids, position_ids.swapaxes(0, 1), counts, strict=True):
            assert (ids[count:] == PAD).all()
            assert ((ids[:count] < 0) == (kind == "visual")).all()
            bank[kind] += ids[:count].tolist()
            bank["order"] += zip(ids[:count].tolist(), positions[0, :count].tolist(), strict=True)

    def finish_prefill(self, input_ids, position_ids):
        assert input_ids.shape == (len(self.banks), 1)
        assert position_ids.shape == (3, len(self.banks), 1)
        for b, bank in enumerate(self.banks):
            bank["order"].append((int(input_ids[b, 0]), int(position_ids[0, b, 0])))

    def next_tokens(self):
        return np.array(self.script[self.at])

    def logits(self):
        return np.eye(200, dtype=np.float32)[self.script[self.at]] * 100

    def choose(self, tokens):
        self.chosen.append(tokens.tolist())

    def set_active(self, active):
        self.active = active.tolist()

    def step(self, mode):
        self.modes.append(mode)
        self.at += 1


@st.composite
def prompts(draw):
    """1 to 4 prompts of text and images in turn, some without images, some starting with one."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = draw(st.sampled_from(["t", "vt", "tvt", "tvtvt", "vvt"]))
        chunks, position, row = [], 0, 0
        for kind in kinds:
            count = draw(st.integers(1, 9))
            if kind == "v":
                ids = -1 - np.arange(row, row + count)
                row += count
            else:
                ids = np.array([draw(st.integers(0, 95)) for _ in range(count)])
            positions = np.tile(np.arange(position, position + count), (3, 1))
            chunks.append(Chunk("visual" if kind == "v" else "text", ids, positions))
            position += count
        made.append((PromptTokens(chunks, position, position), row))
    return made


@given(prompts(), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_every_prompt_token_is_fed_once_in_order(made, chunk):
    tokens = [p for p, _ in made]
    rows = [r for _, r in made]
    offsets = np.cumsum([0, *rows[:-1]]).tolist()
    session, seen = Notebook(len(made)), []
    prefill(session, tokens, offsets, chunk, PAD, lambda done, total: seen.append((done, total)))
    assert session.largest_chunk <= chunk
    for bank, prompt, offset in zip(session.banks, tokens, offsets, strict=True):
        ids = np.concatenate([c.input_ids for c in prompt.chunks])
        want = np.where(ids < 0, ids - offset, ids).tolist()
        assert [token for token, _ in bank["order"]] == want
        assert [position for _, position in bank["order"]] == list(range(len(want)))
    assert seen[-1][0] == seen[-1][1] == sum(len(b["order"]) for b in session.banks)
    assert seen == sorted(seen)


def run(script, limits, stops=(1,), **options):
    session = Notebook(len(limits), script)
    pages = [PageState(limit) for limit in limits]
    steps = list(decode(session, pages, stops, options.pop("mode", "fast"), Sampler(0.0, 1.0, 0), **options))
    return session, pages, steps


def test_a_page_stops_at_its_stop_token_while_the_others_go_on():
    session, pages, steps = run([[5, 6], [7, 1], [8, 9], [1, 9]], [10, 10])
    assert [p.token_ids for p in pages] == [[5, 7, 8], [6]]
    assert [p.finish_reason for p in pages] == ["stop", "stop"]
    assert session.active == [True, False]
    assert steps == [0, 1, 2, 3]


def test_the_limit_is_length_and_never_stop():
    _, pages, steps = run([[5], [6], [7]], [2])
    assert pages[0].token_ids == [5, 6]
    assert pages[0].finish_reason == "length"
    assert len(steps) == 2


def test_a_stop_token_on_the_last_place_is_stop():
    _, pages, _ = run([[5], [6], [1]], [3])
    assert pages[0].finish_reason == "stop"


def test_refresh_runs_a_dense_step():
    session, _, _ = run([[5]] * 7, [7], refresh_every=3)
    assert session.modes == ["fast", "fast", "dense", "fast", "fast", "dense"]


def test_sampling_puts_its_token_in_place_of_the_greedy_one():
    session = Notebook(1, [[5], [6], [1]])
    pages = [PageState(9)]
    for _ in decode(session, pages, (1,), "fast", Sampler(0.5, 0.9, 7)):
        pass
    assert session.chosen == [[5], [6], [1]]


class Host(Notebook):
    """Its logits are at hand: the scripted token has three times the mass of each of the 199 others together."""

    logits_on_host = True

    def logits(self):
        return super().logits() / 100 * np.float32(np.log(3 * 199))


def test_the_mean_probability_is_that_of_the_tokens_that_are_kept():
    pages = [PageState(9), PageState(9)]
    for _ in decode(Host(2, [[5, 1], [6, 7], [1, 7]]), pages, (1,), "fast", Sampler(0.0, 1.0, 0)):
        pass
    assert [len(page.token_ids) for page in pages] == [2, 0]
    assert pages[0].mean_probability == pytest.approx(0.75)
    assert pages[1].mean_probability is None
    pages[0].log_probabilities[1] = float(np.log(0.03))
    assert pages[0].mean_probability == pytest.approx(0.15)
    del pages[0].token_ids[1:]  # as a guard does
    assert pages[0].mean_probability == pytest.approx(0.75)


def test_logits_that_are_not_numbers_have_no_mean():
    class Broken(Host):
        def logits(self):
            return super().logits() * np.float32(np.nan)

    pages = [PageState(9)]
    for _ in decode(Broken(1, [[5], [1]]), pages, (1,), "fast", Sampler(0.0, 1.0, 0)):
        pass
    assert pages[0].token_ids == [5] and pages[0].mean_probability is None


def test_logits_on_a_device_are_not_fetched():
    class Far(Notebook):
        def logits(self):
            raise AssertionError("a copy from the device")

    pages = [PageState(9)]
    for _ in decode(Far(1, [[5], [1]]), pages, (1,), "fast", Sampler(0.0, 1.0, 0)):
        pass
    assert pages[0].mean_probability is None


def test_a_prompt_that_ends_with_an_image_is_refused():
    chunk = Chunk("visual", np.array([-1]), np.zeros((3, 1), int))
    with pytest.raises(ValueError, match="end with a text token"):
        prefill(Notebook(1), [PromptTokens([chunk], 1, 1)], [0], 4, PAD)
