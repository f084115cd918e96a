"""The choice of focal layers: sums against plain loops, the dynamic program against every combination."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.calibration import (
    LEAST_GAIN,
    Choice,
    MassRecorder,
    candidates,
    choose,
    frontier,
    pareto,
    recovered,
    select,
    sources,
    without_idle,
)
from fastocr_trt.errors import FastOCRError
from fastocr_trt.fixation import FixationPolicy


def masses(layers, kv, visual, steps, seed=0):
    """[steps,L,KV,Nv] of softmax mass, less than 1 a head, peaked and drifting."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (1, layers, kv, visual)) + np.cumsum(rng.normal(0, 0.7, (steps, layers, kv, visual)), 0)
    mass = np.exp(scores)
    return 0.6 * mass / mass.sum(-1, keepdims=True)


def record(layers=6, kv=2, visual=40, steps=5, keeps=(0.1,), seed=0):
    recorder = MassRecorder(layers, keeps, min_tokens=2)
    rng = np.random.default_rng(seed)
    for page in range(2):
        recorder.begin_page()
        for mass in masses(layers, kv, visual, steps, seed + page):
            recorder.step(mass, rng.random(layers))
    return recorder


@pytest.mark.parametrize("per_kv_head", [True, False])
def test_the_sums_are_the_means_over_steps_of_one_page_after_another(per_kv_head):
    got = record().result(0.1, per_kv_head)
    same, previous, own, overlap = [], [], [], []
    for page in range(2):
        chosen_before = None
        for mass in masses(6, 2, 40, 5, page):
            ranked = mass if per_kv_head else np.repeat(mass.sum(1, keepdims=True), 2, 1)
            chosen = [[set(np.argsort(-ranked[i, g], kind="stable")[:4]) for g in range(2)] for i in range(6)]

            def captured(sets, i, j, mass=mass):
                return sum(mass[j, g][list(sets[i][g])].sum() for g in range(2)) / 2

            same.append([[captured(chosen, i, j) for j in range(6)] for i in range(6)])
            own.append([captured(chosen, i, i) for i in range(6)])
            if chosen_before is not None:
                previous.append([[captured(chosen_before, i, j) for j in range(6)] for i in range(6)])
                overlap.append([sum(len(chosen[i][g] & chosen_before[i][g]) for g in range(2)) / 8 for i in range(6)])
            chosen_before = chosen
    np.testing.assert_allclose(got.same, np.mean(same, 0))
    np.testing.assert_allclose(got.previous, np.mean(previous, 0))
    np.testing.assert_allclose(got.own, np.mean(own, 0))
    np.testing.assert_allclose(got.overlap, np.mean(overlap, 0))
    np.testing.assert_allclose(got.visual, 0.6)
    assert (got.steps, got.visual_tokens) == (10, 40)


@given(st.integers(2, 7), st.integers(1, 4), st.booleans(), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_program_finds_the_best_of_all_combinations(layers, count, layer_0_dense, per_kv_head, seed):
    dense = (0,) if layer_0_dense else ()
    count = min(count, layers - len(dense))
    result = record(layers, 2, 20, 3, seed=seed).result(0.1, per_kv_head)
    choice = choose(result, count, dense)
    others = [
        recovered(result, FixationPolicy(focal, dense, per_kv_head=per_kv_head))
        for focal in combinations([i for i in range(layers) if i not in dense], count)
    ]
    assert choice.recovered == pytest.approx(max(others))
    assert choice.policy.dense_layers == dense and len(choice.policy.focal_layers) == count


def test_layers_before_the_first_focal_layer_use_the_last_ones_former_selection():
    result = record().result(0.1, True)
    lost = result.loss(result.previous)[4, :3], result.loss(result.same)[3, 3:4], result.loss(result.same)[4, 5:]
    weight = result.weight()
    expected = 1 - (lost[0] @ weight[:3] + lost[2] @ weight[5:])
    assert recovered(result, FixationPolicy((3, 4), ())) == pytest.approx(expected)
    assert recovered(result, FixationPolicy((0, 1, 2, 3, 4, 5), ())) == pytest.approx(1)


@pytest.mark.parametrize(
    ("focal", "dense", "busy"),
    [
        ((0, 2, 5), (), (0, 2)),  # layer 1 reads what 0 selects, so that nothing reads what 5 selects
        ((2, 5), (0,), (2, 5)),  # layer 1 reads what 5 selected a step earlier
        ((0, 1, 2, 5), (), (2,)),  # no layer lies between 0, 1 and 2, and none comes after 5 or before 0
        ((1, 2, 5), (0,), (2,)),
        ((1, 2), (), (2,)),  # layer 0 reads what 2 selected, as 3 to 5 do
        ((0, 1, 2, 3, 4, 5), (), (5,)),  # no layer reads a selection, but a policy must have a focal layer
    ],
)
def test_a_selection_that_nothing_reads_is_left_out(focal, dense, busy):
    policy = FixationPolicy(focal, dense)
    same = without_idle(policy, 6)
    assert same.focal_layers == busy
    assert sources(same, 6) == sources(policy, 6)
    assert same.mean_visual_reads(100, 6) == policy.mean_visual_reads(100, 6)
    result = record().result(0.1, True)
    assert recovered(result, same) == pytest.approx(recovered(result, policy))


def test_the_frontier_is_the_best_of_every_number_of_whole_layers_each_listed_once():
    recorder = record(keeps=(0.1, 0.5))
    choices = frontier(recorder, most_focal=4)
    assert [c.reads for c in choices] == sorted(c.reads for c in choices)
    assert len({c.policy for c in choices}) == len(choices)
    by_kind: dict = {}
    for choice in choices:
        policy = choice.policy
        assert without_idle(policy, 6) == policy
        assert choice.reads == pytest.approx(policy.mean_visual_reads(40, 6))
        assert choice.recovered == pytest.approx(recovered(recorder.result(policy.keep, policy.per_kv_head), policy))
        whole = len(policy.focal_layers) + len(policy.dense_layers)
        kind = by_kind.setdefault((policy.keep, policy.per_kv_head), {})
        kind[whole] = max(kind.get(whole, 0), choice.recovered)
    assert len(by_kind) == 4
    for kind in by_kind.values():
        assert sorted(kind) == [1, 2, 3, 4, 5]
        assert all(kind[count + 1] >= kind[count] - 1e-12 for count in range(1, 5))


def test_ties_go_to_the_lower_row_and_a_selection_may_be_empty():
    assert select(np.array([[0.2, 0.5, 0.5, 0.5]]), 2).tolist() == [[False, True, True, False]]
    assert not select(np.ones((2, 3)), 0).any()
    assert select(np.ones((2, 3)), 9).all()


def test_a_recording_can_be_put_away_and_taken_up_again():
    whole, half = record(), MassRecorder(6, (0.1,), min_tokens=2)
    half.restore(whole.state())
    np.testing.assert_array_equal(half.result(0.1, True).same, whole.result(0.1, True).same)
    with pytest.raises(FastOCRError, match="another model"):
        MassRecorder(5, (0.1,)).restore(whole.state())


def test_recordings_of_pages_read_side_by_side_add_up():
    parts = [MassRecorder(6, (0.1,), min_tokens=2) for _ in range(2)]
    rng = np.random.default_rng(0)
    importance = [rng.random((5, 6)), rng.random((5, 6))]
    for page, part in enumerate(parts):
        for mass, step in zip(masses(6, 2, 40, 5, page), importance[page], strict=True):
            part.step(mass, step)
    total, whole = MassRecorder(6, (0.1,), min_tokens=2), MassRecorder(6, (0.1,), min_tokens=2)
    for page, part in enumerate(parts):
        total.add(part)
        whole.begin_page()
        for mass, step in zip(masses(6, 2, 40, 5, page), importance[page], strict=True):
            whole.step(mass, step)
    for name, array in whole.state().items():
        np.testing.assert_allclose(total.state()[name], array)
    with pytest.raises(FastOCRError, match="other keeps"):
        total.add(MassRecorder(6, (0.2,)))


def test_the_front_leaves_out_what_costs_more_for_nothing():
    def made(reads, recovered_mass):
        return Choice(FixationPolicy((1,)), recovered_mass, reads)

    cheap, fair, dear = made(0.1, 0.5), made(0.2, 0.8), made(0.4, 0.95)
    worse, hardly_better = made(0.2, 0.7), made(0.3, 0.8 + LEAST_GAIN / 2)
    choices = [dear, worse, hardly_better, cheap, fair]
    assert pareto(choices) == [cheap, fair, dear]
    assert candidates(choices, 0.75, 4) == [fair, dear]
    assert candidates(choices, 0.75, 1) == [fair]
    assert candidates(choices, 0.99, 4) == [dear]


def test_of_equal_reads_the_one_with_fewer_focal_layers_is_taken_where_it_recovers_as_much():
    def made(focal, dense, recovered_mass, reads=0.5, per_kv_head=True):
        return Choice(FixationPolicy(focal, dense, per_kv_head=per_kv_head), recovered_mass, reads)

    many, few = made((1, 2, 4), (), 0.99), made((2, 5), (0,), 0.99 - LEAST_GAIN / 2)
    layer_0 = made((0, 2), (5,), 0.99 - LEAST_GAIN / 4)
    far, better = made((5,), (0, 2), 0.99 - 2 * LEAST_GAIN), made((2, 4), (0,), 0.99 - LEAST_GAIN / 3)
    shared = made((2, 5), (0,), 0.99, per_kv_head=False)
    dear = made((2, 4, 5), (0,), 0.99 + 3 * LEAST_GAIN, reads=0.7)
    assert pareto([many, few, far, dear]) == [few, dear]
    assert pareto([many, layer_0, few]) == [few]
    assert pareto([many, few, better]) == [better]
    assert pareto([shared, few]) == [few]
    assert pareto([many, far]) == [many]
    assert candidates([many, few, dear], 0.9, 1) == [few]


def test_what_cannot_be_calibrated_on_is_told():
    recorder = MassRecorder(2, (0.1,))
    with pytest.raises(FastOCRError, match="visual tokens"):
        recorder.step(np.zeros((2, 1, 0)), np.ones(2))
    recorder.begin_page()
    recorder.step(np.full((2, 1, 5), 0.1), np.ones(2))
    with pytest.raises(FastOCRError, match="more text"):
        recorder.result(0.1, True)
    with pytest.raises(FastOCRError, match="3 focal layers"):
        choose(record(2).result(0.1, True), 3)
