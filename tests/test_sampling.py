"""The next token: greedy, or drawn; reproducible, each page by itself, and clear words for bad values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fastocr_trt.errors import EngineError, FastOCRError
from fastocr_trt.runtime.sampling import Sampler


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((logits - logits.max()) / temperature)
    return weights / weights.sum()


def draws(sampler: Sampler, logits: np.ndarray, count: int) -> np.ndarray:
    """[count,B] tokens of `count` steps with the same logits."""
    return np.stack([sampler.sample(logits) for _ in range(count)])


def test_greedy_takes_the_largest_and_the_lower_of_equals():
    sampler = Sampler()
    assert sampler.greedy
    tokens = sampler.sample(np.array([[0, 3, 3], [-1, -2, -1], [-np.inf, -5, -np.inf]], np.float32))
    assert tokens.tolist() == [1, 0, 1] and tokens.dtype == np.int64


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_frequencies_are_the_softmax(temperature):
    logits = np.array([0.0, 1.0, 2.0, 0.5, -np.inf])
    sampler = Sampler(temperature, seed=3)
    assert not sampler.greedy
    counts = np.bincount(draws(sampler, logits[None], 4000)[:, 0], minlength=5)
    np.testing.assert_allclose(counts / 4000, softmax(logits, temperature), atol=0.03)
    assert counts[4] == 0


@given(
    arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(-8, 8, width=32)),
    st.floats(0.05, 1.0, exclude_max=True),
    st.integers(0, 9),
)
def test_top_p_draws_from_the_fewest_likeliest_tokens(logits, top_p, seed):
    weights = softmax(logits.astype(np.float64), 1.0)
    order = np.argsort(-weights, kind="stable")
    kept = order[: int(np.searchsorted(np.cumsum(weights[order]), top_p - 1e-9)) + 1]
    assert set(draws(Sampler(1.0, top_p, seed), logits[None], 20)[:, 0]) <= set(kept.tolist())


@pytest.mark.parametrize("spread", [0.001, 1.0, 6.0])
def test_top_p_of_a_large_vocabulary(spread):
    """Flat, where the nucleus is most of the vocabulary, and sharp, where it is a few of it."""
    logits = np.random.default_rng(0).normal(0, spread, 3000).astype(np.float32)
    weights = softmax(logits.astype(np.float64), 0.8)
    order = np.argsort(-weights, kind="stable")
    kept = set(order[: int(np.searchsorted(np.cumsum(weights[order]), 0.9)) + 1].tolist())
    drawn = draws(Sampler(0.8, 0.9, 1), logits[None], 300)[:, 0]
    assert set(drawn.tolist()) <= kept
    assert len(set(drawn.tolist())) > min(len(kept), 300) / 5


def test_top_p_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers").generation.logits_process
    logits = np.random.default_rng(1).normal(0, 2, (1, 30)).astype(np.float32)
    warped = process.TemperatureLogitsWarper(0.7)(None, torch.from_numpy(logits))
    kept = torch.isfinite(process.TopPLogitsWarper(0.6)(None, warped))[0].numpy()
    drawn = draws(Sampler(0.7, 0.6, 5), logits, 3000)[:, 0]
    assert set(drawn.tolist()) == set(np.flatnonzero(kept).tolist())


def test_same_seed_same_tokens_other_seed_others():
    logits = np.zeros((2, 1000), np.float32)
    first, again, other = (draws(Sampler(1.0, 1.0, seed), logits, 8) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    assert (first[:, 0] != first[:, 1]).any(), "two pages of a batch do not share their draws"


def test_a_page_draws_the_same_alone_and_in_any_batch():
    logits = np.random.default_rng(2).normal(size=(3, 50)).astype(np.float32)
    together = draws(Sampler(1.0, 0.9, 4), logits, 10)
    for page in range(3):
        alone = draws(Sampler(1.0, 0.9, 4, first_page=page), logits[page : page + 1], 10)
        assert (alone[:, 0] == together[:, page]).all()


def test_temperature_near_zero_is_greedy():
    logits = np.random.default_rng(3).normal(size=(1, 50)).astype(np.float32)
    assert set(draws(Sampler(1e-300), logits, 20)[:, 0].tolist()) == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers(temperature, bad):
    logits = np.zeros((3, 5), np.float32)
    logits[1, 2] = bad
    with pytest.raises(EngineError, match=r"page 2 of the batch.*--dtype"):
        Sampler(temperature).sample(logits)
    with pytest.raises(EngineError, match="page 1 of the batch"):
        Sampler(temperature).sample(np.full((1, 5), -np.inf))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.01),
        ("top_p", float("nan")),
        ("top_p", None),
        ("seed", -1),
        ("seed", 1.0),
        ("seed", True),
    ],
)
def test_values_out_of_range(name, value):
    with pytest.raises(FastOCRError, match=rf"{name} is .*; it must be"):
        Sampler(**{name: value})
