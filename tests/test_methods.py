"""The compared ways of reading: each sees the rows that its paper's rule says, and dense where it sees all of them."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from _methods import keep_for, sizes  # noqa: E402
from _methods_adaptive import CoveredMass, FixedShare, Widening, at_keep  # noqa: E402
from _methods_eviction import H2O, FastV, RandomRows, SnapKV, Window  # noqa: E402
from _methods_fixation import EvenlySpaced, NoReuse, SingleLayer, TextWindow, TwoPass  # noqa: E402
from retention import methods  # noqa: E402

from fastocr_trt.demo.pages import generate_page  # noqa: E402
from fastocr_trt.errors import FastOCRError  # noqa: E402
from fastocr_trt.export.masked_reading import Batch, Dense, MaskedReader, View  # noqa: E402
from fastocr_trt.export.source import find_checkpoint  # noqa: E402
from fastocr_trt.export.transformers_reader import TransformersReader  # noqa: E402
from fastocr_trt.fixation import FixationPolicy  # noqa: E402

POLICY = FixationPolicy((2, 5), keep=1.0)
SPARSE = FixationPolicy((2, 5), dense_layers=(), keep=0.25, min_tokens=1)
PROMPT = "OCR:\n"
BEFORE, AFTER = 1, 2  # text columns of the prompt around the page, in views made by hand

WHOLE = {
    "NoReuse": lambda: NoReuse(POLICY),
    "TwoPass": lambda: TwoPass(POLICY),
    "SingleLayer": lambda: SingleLayer(POLICY),
    "EvenlySpaced": lambda: EvenlySpaced(POLICY, 4),
    "TextWindow": lambda: TextWindow(POLICY, 1_000),
    "SnapKV": lambda: SnapKV(1.0),
    "FastV": lambda: FastV(1.0),
    "H2O": lambda: H2O(1.0, expected=1_000),
    "Window": lambda: Window(1.0),
    "RandomRows": lambda: RandomRows(1.0),
    "FixedShare": lambda: FixedShare(POLICY),
    "CoveredMass": lambda: CoveredMass(POLICY, 1.0, least=1.0, most=1.0),
    "Widening": lambda: Widening(POLICY, 0.5),
}


@pytest.fixture(scope="module")
def reader():
    return MaskedReader(TransformersReader(find_checkpoint("demo"), threads=1))


@pytest.fixture(scope="module")
def pages():
    return [generate_page(seed, visual_tokens=size).image for seed, size in ((1_100, 64), (1_101, 128))]


@pytest.fixture(scope="module")
def dense(reader, pages):
    return reader.read(pages, PROMPT, Dense(), 12)


@pytest.mark.parametrize("name", WHOLE)
def test_a_method_that_may_see_every_row_is_dense(reader, pages, dense, name):
    readings = reader.read(pages, PROMPT, WHOLE[name](), 12)
    assert [r.token_ids for r in readings] == [r.token_ids for r in dense]
    assert [r.mean_visual_reads for r in readings] == pytest.approx([1, 1])


@pytest.mark.parametrize("reads", [0.375, 0.75])
def test_methods_read_the_budget_they_were_solved_for(reader, pages, reads):
    layers = reader.num_layers
    policy = FixationPolicy((2, 5), dense_layers=(), keep=(layers * reads - 2) / (layers - 2), min_tokens=1)
    for method, _ in methods(policy, layers, reads, expected=7):
        if isinstance(method, NoReuse | TwoPass):
            continue  # those read what they read, as they say
        for reading in reader.read(pages, PROMPT, method, 8):
            # Shares are rounded up to whole rows; the cache of H2O loses one of them a step.
            assert reads - 0.02 <= reading.mean_visual_reads <= reads + 0.03, method.name


@pytest.mark.parametrize("make", [lambda: SnapKV(0.3), lambda: FastV(0.3), lambda: H2O(0.3, 10), lambda: Window(0.3)])
def test_a_page_reads_alone_as_it_reads_beside_a_larger_one(reader, pages, make):
    together = reader.read(pages, PROMPT, make(), 10)
    alone = reader.read(pages[:1], PROMPT, make(), 10)
    assert together[0].token_ids == alone[0].token_ids
    assert together[0].mean_visual_reads == pytest.approx(alone[0].mean_visual_reads)


def batch(*visual_lengths, num_layers=6):
    widest = max(visual_lengths)
    return Batch(num_layers, slice(BEFORE, BEFORE + widest), torch.tensor(visual_lengths), BEFORE + widest + AFTER)


def view(of, mass, written=1):
    """A view whose softmax weights on the page are mass [B,KV,Nv] (one query head each), the rest on all text alike."""
    mass = torch.as_tensor(mass, dtype=torch.float64)
    pages, heads, _ = mass.shape
    text = (1 - mass.sum(-1, keepdim=True)) / (BEFORE + AFTER + written)
    parts = [text.expand(-1, -1, BEFORE), mass, text.expand(-1, -1, AFTER + written)]
    weights = torch.cat(parts, -1).clamp(min=1e-9)
    columns = weights.shape[-1]
    valid = torch.ones(pages, columns, dtype=torch.bool)
    valid[:, of.visual] = of.visual_valid()
    keys = torch.eye(columns).expand(pages, heads, -1, -1)
    return View(of, weights.log().float()[:, :, None], keys, valid, 1.0)


def prompt_weights(of, votes):
    """[B,KV,1,AFTER,columns]: the rows after the page, each with votes [B,KV,Nv] on the page."""
    votes = torch.as_tensor(votes)
    weights = torch.zeros(*votes.shape[:2], 1, AFTER, of.prompt)
    weights[..., of.visual] = votes[:, :, None, None]
    return weights


def seen(method, layer, shown):
    """Visual rows that each page's KV heads see, as lists; the text must be seen whole."""
    columns = method.columns(layer, shown)
    if columns is None:
        columns = shown.columns(shown.batch.visual_valid()[:, None])
    visual = shown.batch.visual
    text = torch.cat([columns[..., : visual.start], columns[..., visual.stop :]], -1)
    assert text.all()
    return [[head.nonzero()[:, 0].tolist() for head in page[:, visual]] for page in columns]


FLAT, FLAT_FOUR = [[[0.1] * 8]], [[[0.1] * 4]]


def test_snapkv_keeps_the_neighbours_of_what_the_prompt_voted_for():
    of = batch(8)
    method = SnapKV(3 / 8, pool=3)
    method.begin(of)
    method.prefill(0, prompt_weights(of, [[[0.0, 0, 0.1, 0.4, 0.2, 0, 0, 0.3]]]))
    method.prefill(1, prompt_weights(of, [[[0.5, 0, 0, 0, 0, 0, 0, 0]]]))
    assert seen(method, 0, view(of, FLAT)) == [[[2, 3, 4]]]
    assert seen(method, 1, view(of, FLAT)) == [[[0, 1, 2]]]


def test_snapkv_counts_no_votes_of_the_page_itself():
    of = batch(8)
    method = SnapKV(1 / 8, pool=1)
    method.begin(of)
    text = prompt_weights(of, [[[0.0, 0, 0, 0, 0, 0.1, 0, 0]]])
    page = torch.zeros(1, 1, 1, 3, of.prompt)
    page[..., BEFORE] = 0.9
    method.prefill(0, torch.cat([page, text], 3))
    assert seen(method, 0, view(of, FLAT)) == [[[5]]]


def test_fastv_prunes_one_set_for_all_heads_after_its_layer():
    of = batch(4)
    method = FastV(0.25, first=2)
    method.begin(of)
    for layer, votes in enumerate(([[[0.9, 0, 0, 0]] * 2], [[[0, 0.3, 0, 0], [0, 0, 0.2, 0]]], [[[0, 0, 0, 0.9]] * 2])):
        method.prefill(layer, prompt_weights(of, torch.tensor(votes))[..., -1:, :])
    shown = view(of, [[[0.1] * 4] * 2])
    assert seen(method, 1, shown) == [[[0, 1, 2, 3]] * 2]
    assert seen(method, 2, shown) == seen(method, 5, shown) == [[[1]] * 2]


def test_h2o_loses_one_row_a_step_and_never_sees_it_again():
    of = batch(4)
    method = H2O(0.5, expected=2)
    method.begin(of)
    method.prefill(0, prompt_weights(of, [[[0.05, 0.04, 0.03, 0.02]]]))
    heavy_last = [[[0.01, 0.01, 0.3, 0.5]]]
    assert seen(method, 0, view(of, heavy_last)) == [[[0, 1]]]  # what the prompt saw little of is gone
    assert seen(method, 0, view(of, [[[0.0, 0.5, 0.3, 0.0]]])) == [[[0]]]
    assert seen(method, 0, view(of, heavy_last)) == [[[]]]


def test_h2o_ranks_by_what_decoding_added():
    of = batch(4)
    method = H2O(0.75, expected=2)
    method.begin(of)
    method.prefill(0, prompt_weights(of, [[[0.05, 0.04, 0.03, 0.02]]]))
    assert seen(method, 0, view(of, [[[0.0, 0.0, 0.5, 0.3]]])) == [[[0, 1, 2]]]
    assert seen(method, 0, view(of, FLAT_FOUR)) == [[[0, 2]]]


def test_a_window_is_sinks_and_the_last_rows_of_each_page():
    of = batch(8, 5)
    method = Window(0.5, sinks=1)
    method.begin(of)
    assert seen(method, 3, view(of, FLAT * 2)) == [[[0, 5, 6, 7]], [[0, 3, 4]]]


def test_random_rows_follow_from_the_seed_and_change_every_step():
    of = batch(8, 4)
    draws = []
    for seed in (1, 1, 2):
        method = RandomRows(0.5, seed)
        method.begin(of)
        draws.append([seen(method, 0, view(of, FLAT * 2)) for _ in range(6)])
    assert draws[0] == draws[1] != draws[2]
    assert len({str(draw) for draw in draws[0]}) > 1
    assert all([len(page[0]) for page in draw] == [4, 2] and max(draw[1][0]) < 4 for draw in draws[0])


def started(method, of, first):
    """The method after a prefill whose last row left the fixation of mass `first` [B,KV,Nv]."""
    method.begin(of)
    method.prefill(method.policy.focal_layers[-1], prompt_weights(of, first))
    return method


def test_without_reuse_only_layers_after_the_first_focal_one_are_sparse():
    of = batch(8)
    method = started(NoReuse(SPARSE), of, FLAT)
    shown = view(of, [[[0.0, 0, 0, 0, 0, 0, 0.2, 0.3]]])
    counts = [len(seen(method, layer, shown)[0][0]) for layer in range(6)]
    assert counts == [8, 8, 8, 2, 2, 8]
    assert seen(method, 3, shown) == [[[6, 7]]]


def test_the_second_pass_begins_with_what_the_first_one_selected():
    of = batch(8)
    early, late = view(of, [[[0.2, 0.3, 0, 0, 0, 0, 0, 0]]]), view(of, [[[0.0, 0, 0, 0, 0, 0, 0.2, 0.3]]])
    carried = started(TwoPass(SPARSE), of, early.visual_mass())
    first_pass = [len(seen(carried, layer, late)[0][0]) for layer in range(6)]
    assert first_pass == [8] * 6
    assert seen(carried, 0, late) == [[[6, 7]]]
    assert [len(seen(carried, layer, late)[0][0]) for layer in range(1, 6)] == [2, 8, 2, 2, 8]
    assert len(seen(carried, 0, late)[0][0]) == 8  # the next step looks again


def test_a_window_of_text_hides_old_words_but_no_prompt():
    of = batch(8)
    method = started(TextWindow(SPARSE, 2), of, FLAT)
    for layer in (0, 2):
        columns = method.columns(layer, view(of, FLAT, written=5))[0, 0]
        assert columns[of.prompt :].tolist() == [False, False, False, True, True]
        assert columns[:BEFORE].all() and columns[of.visual.stop : of.prompt].all()


def test_covered_mass_takes_the_fewest_rows_that_hold_it():
    of = batch(8, 6)
    sharp, spread = [0.4, 0, 0.05, 0, 0, 0, 0, 0.05], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0, 0]
    method = started(CoveredMass(SPARSE, 0.75, least=0.125, most=0.5), of, [[sharp], [spread]])
    assert seen(method, 0, view(of, [[sharp], [spread]])) == [[[0]], [[0, 1, 2]]]  # the second at most 3 of 6
    method.covered = 0.85
    seen(method, 2, view(of, [[sharp], [spread]]))
    assert seen(method, 3, view(of, FLAT * 2))[0] == [[0, 2]]


def test_covered_mass_counts_for_each_head_and_keeps_its_floor():
    of = batch(8)
    mass = [[[0.8] + [0.0] * 7, [0.1] * 8]]
    method, shown = started(CoveredMass(SPARSE, 0.45, least=0.25, most=1.0), of, mass), view(of, mass)
    assert [len(rows) for rows in seen(method, 0, shown)[0]] == [2, 4]


def test_a_fixed_share_is_met_to_the_fraction_over_the_steps():
    of = batch(8)
    method = started(FixedShare(at_keep(FixationPolicy((2,), dense_layers=()), 0.3)), of, FLAT)
    sizes = []
    for _ in range(10):
        rows = [seen(method, layer, view(of, FLAT))[0][0] for layer in range(6)]
        sizes.append(len(rows[3]))
    assert set(sizes) == {2, 3} and sum(sizes) == 24  # of 2.4 rows a step


def test_a_lost_place_widens_the_fixation_until_it_is_found_again():
    of = batch(8, 8)
    left, right = [0.3, 0.2, 0, 0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0, 0.1, 0.2, 0.3]
    policy = at_keep(FixationPolicy((2,), dense_layers=()), 1 / 8)
    method = started(Widening(policy, trusted=0.5, factor=3), of, [[left], [left]])
    shown = view(of, [[right], [left]])
    assert seen(method, 0, shown) == [[[0]], [[0]]]
    seen(method, 2, shown)
    assert seen(method, 3, shown) == [[[5, 6, 7]], [[0]]]
    assert seen(method, 0, shown) == [[[5, 6, 7]], [[0]]]
    seen(method, 2, shown)
    assert seen(method, 3, shown) == [[[7]], [[0]]]


def test_evenly_spaced_layers_are_as_many_as_the_policy_has():
    policy = EvenlySpaced(FixationPolicy((9, 14, 20), keep=0.1), 28).policy
    assert policy.focal_layers == (7, 14, 21) and policy.dense_layers == (0,) and policy.keep == 0.1
    assert SingleLayer(FixationPolicy((9, 14, 20))).policy.focal_layers == (9,)


def test_a_budget_gives_the_keep_or_says_why_not():
    assert keep_for(0.55, 3, 6) == pytest.approx(0.1)
    assert keep_for(0.3, 0, 6) == pytest.approx(0.3)
    assert keep_for(1.0, 6, 6) == keep_for(1.0, 2, 6) == 1
    with pytest.raises(FastOCRError, match=r"3 of 6 layers.*50\.0%"):
        keep_for(0.4, 3, 6)
    assert sizes(batch(100, 7), 0.07).tolist() == [7, 1]
