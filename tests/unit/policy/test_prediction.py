"""Prediction from earlier runs: the law of growth, an honest interval, the speed of nodes (K3), and what cannot be kept (C6)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.policy.feasibility import critical_path, too_long
from headway.policy.prediction import Law, Model, Prediction, Run, growth, learn

LAWS = list(Law)


def history(chance: random.Random, law: Law, count: int) -> tuple[list[Run], Callable[[], Run]]:
    """Runs of a made-up task on three machines of different speed, with noise and the odd run that took five times as long."""
    spread = chance.uniform(0.1, 0.35)
    speeds = [math.exp(chance.uniform(-0.5, 0.7)) for _ in range(3)]
    slope = chance.uniform(0.5, 50.0) / (growth(law, 1e4) or 1.0)
    base = chance.uniform(0.5, 50.0) if law is Law.CONSTANT else chance.uniform(0.0, 0.05) * slope * growth(law, 1e3)

    def one() -> Run:
        size, node = 10 ** chance.uniform(1.0, 4.5), chance.randrange(3)
        slow = 5.0 if chance.random() < 0.01 else 1.0
        return Run((base + slope * growth(law, size)) * speeds[node] * math.exp(chance.gauss(0.0, spread)) * slow, size, node)

    return [one() for _ in range(count)], one


def test_the_law_is_found_and_the_interval_holds_on_two_hundred_noisy_histories():
    chance = random.Random(20261115)
    right, inside, asked = 0, 0, 0
    for number in range(200):
        law = LAWS[number % len(LAWS)]
        runs, one = history(chance, law, chance.randrange(40, 121))
        model = learn(runs)
        assert model is not None
        right += model.law is law
        for _ in range(20):
            run = one()
            said = model.predict(run.size, run.node)
            inside += said.low <= run.seconds <= said.high
            asked += 1
    assert right >= 180, f"{right} of 200"
    assert 0.85 <= inside / asked <= 0.95, inside / asked


def test_a_slow_node_is_known_to_be_slow():
    chance = random.Random(1)
    runs = [Run((20.0 if node == 2 else 10.0) * chance.uniform(0.9, 1.1), None, node) for node in (1, 1, 2) * 30]
    model = learn(runs)
    assert model is not None
    assert model.predict(node=2).seconds / model.predict(node=1).seconds == pytest.approx(2.0, rel=0.1)
    assert 9.0 < model.predict().seconds < 12.0  # a node nobody knows is taken for a usual one


def test_one_outlier_does_not_decide():
    model = learn([Run(10.0)] * 20 + [Run(1000.0)])
    assert model is not None
    assert model.predict().seconds == pytest.approx(10.0)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_few_runs_are_a_guess_with_a_wide_interval(count):
    model = learn([Run(10.0 + at) for at in range(count)])
    assert model is not None
    said = model.predict()
    assert said.sure == "guess"
    assert said.low < said.seconds < said.high
    assert learn([]) is None


def test_many_alike_runs_are_good_and_many_different_ones_rough():
    alike, different = learn([Run(10.0 + at % 3) for at in range(50)]), learn([Run(2.0**at) for at in range(20)])
    assert alike is not None
    assert different is not None
    assert (alike.predict().sure, different.predict().sure) == ("good", "rough")


def test_a_size_far_beyond_what_was_seen_is_a_guess():
    model = learn([Run(size * 0.1, float(size)) for size in range(1, 100)])
    assert model is not None
    assert model.law is Law.LINEAR
    assert model.predict(50.0).sure == "good"
    assert model.predict(5000.0).sure == "guess"
    assert model.predict(200.0).seconds == pytest.approx(20.0, rel=0.05)


def test_sizes_that_hardly_differ_or_are_missing_mean_no_growth():
    for runs in ([Run(10.0, 100.0 + at % 5) for at in range(50)], [Run(10.0, None if at % 2 else 5.0 * at) for at in range(50)]):
        model = learn(runs)
        assert model is not None
        assert model.law is Law.CONSTANT


@pytest.mark.parametrize("seconds", [0.0, 1e-9, 1e12])
def test_strange_times_do_no_harm(seconds):
    model = learn([Run(seconds, float(at), at % 2) for at in range(1, 30)])
    assert model is not None
    said = model.predict(10.0)
    assert 0 <= said.low <= said.seconds <= said.high
    assert math.isfinite(said.high)


def test_memory_that_almost_all_runs_kept_to():
    model = learn([Run(1.0, memory=at) for at in range(1, 101)])
    assert model is not None
    assert model.memory == 96


def _known(seconds: float, sure: str = "good") -> Prediction:
    return Prediction(seconds, seconds * 0.8, seconds * 1.2, 50, Law.CONSTANT, sure)


AFTER = {"fetch": [], "clean": ["fetch"], "other": [], "report": ["clean", "other"]}


def test_a_path_that_is_too_long_is_told_with_its_chain_and_its_numbers():
    predicted = {"fetch": _known(40), "clean": _known(35), "other": _known(10), "report": _known(20)}
    path = critical_path(AFTER, predicted)
    assert path.names == ["fetch", "clean", "report"]
    text = too_long(path, predicted, 60.0)
    assert text == (
        "impossible: fetch (40s) → clean (35s) → report (20s) takes 1m35s (nine of ten times 1m16s to 1m54s), and the interval is 1m"
    )
    assert too_long(path, predicted, 95.0) is None


def test_what_nobody_knows_counts_as_nothing():
    predicted = {"fetch": _known(1000, sure="guess"), "report": _known(20)}
    path = critical_path(AFTER, predicted)
    assert (path.seconds, path.known) == (20, 1)


def test_a_model_is_a_value():
    assert learn([Run(10.0)] * 5) == learn([Run(10.0)] * 5)
    assert isinstance(learn([Run(1.0)]), Model)


runs = st.lists(
    st.builds(Run, st.floats(0, 1e6), st.none() | st.floats(0, 1e9), st.none() | st.integers(1, 3), st.none() | st.integers(0, 2**40)),
    min_size=1,
    max_size=40,
)


@given(runs, st.none() | st.floats(0, 1e9), st.none() | st.integers(1, 4))
def test_whatever_was_seen_a_prediction_is_a_number_inside_its_interval(seen, size, node):
    model = learn(seen)
    assert model is not None
    said = model.predict(size, node)
    assert 0 < said.low <= said.seconds <= said.high < math.inf
    assert said.runs == len(seen)
    assert (said.sure == "guess") or len(seen) >= 5
    assert list(model.times(size, node)) == sorted(model.times(size, node))


@given(st.sampled_from(Law), st.floats(0, 1e9), st.floats(0, 1e9))
def test_no_law_shrinks(law, one, other):
    assert growth(law, min(one, other)) <= growth(law, max(one, other))


@given(
    st.lists(
        st.tuples(st.floats(0.001, 1e5), st.sampled_from(["guess", "rough", "good"]), st.sets(st.integers(0, 9))), min_size=1, max_size=10
    ),
    st.floats(0.001, 1e6),
)
def test_a_tree_is_refused_only_for_a_chain_of_it_whose_known_tasks_take_longer(nodes, interval):
    after = {str(n): sorted(str(m) for m in before if m < n) for n, (_, _, before) in enumerate(nodes)}
    predicted = {str(n): Prediction(s, s / 2, s * 2, 9, Law.CONSTANT, sure) for n, (s, sure, _) in enumerate(nodes)}
    path = critical_path(after, predicted)
    known = [predicted[name] for name in path.names if predicted[name].sure != "guess"]
    assert path.seconds == pytest.approx(sum(one.seconds for one in known))
    assert path.low <= path.seconds <= path.high
    for upstream, downstream in zip(path.names, path.names[1:], strict=False):
        assert upstream in after[downstream]
    assert all(path.seconds >= one.seconds for one in predicted.values() if one.sure != "guess")
    assert (too_long(path, predicted, interval) is None) == (path.seconds <= interval)
