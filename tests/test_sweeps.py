"""What a sweep searches, how it is sampled, and when a trial is stopped."""

import importlib.util
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from evorl.errors import OptionError
from evorl.priors import Choice, LogUniform, PowerOfTwo, Uniform
from evorl.sweeps.gaussian_process import JITTER, GaussianProcess, compute_log_likelihood
from evorl.sweeps.protein import Protein, _SurrogateModels
from evorl.sweeps.random_search import RandomSearch
from evorl.sweeps.space import Parameter, SearchSpace
from evorl.sweeps.tpe import TPE
from evorl.sweeps.trials import (
    DONE,
    FAILED,
    RUNNING,
    STOPPED,
    Evaluation,
    SweepTrial,
    collect_observations,
    find_pareto_points,
    is_behind,
    select_informative,
    subsample_evenly,
    thin_curve,
)

RATE = Parameter("agent.workflow.agent.learning_rate", LogUniform(1e-5, 1e-1), 1e-3)
STEPS = Parameter("env_steps", LogUniform(1_000.0, 64_000.0), 8_000)
ENVS = Parameter("agent.workflow.num_envs", PowerOfTwo(4, 64), 16)
SPACE = SearchSpace((RATE, STEPS, ENVS))
SAMPLERS = [Protein(candidates=16), RandomSearch()] + [TPE()] * (importlib.util.find_spec("optuna") is not None)


def trial(number, point, score=1.0, cost=1.0, state=DONE):
    curve = tuple(Evaluation(part, cost * part, score * part) for part in (0.1, 0.25, 0.5, 0.75, 1.0))
    return SweepTrial(number, tuple(map(float, point)), SPACE.decode(np.array(point)), state, curve)


def tried(count, seed=0):
    rng = np.random.default_rng(seed)
    return [trial(i, rng.uniform(size=3), rng.uniform(), math.exp(rng.normal())) for i in range(count)]


def kernel(a, b, log):
    """Element by element, as Rasmussen and Williams have it."""
    matern, linear, bias = np.exp(log[:3])
    out = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            r = math.sqrt(sum(((x - y) / np.exp(log[4:])) ** 2))
            out[i, j] = matern * (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r) + linear * x @ y + bias
    return out


def test_the_process_is_that_of_the_textbook():
    rng = np.random.default_rng(0)
    x, y, at, log = rng.uniform(size=(12, 3)), rng.normal(size=12), rng.uniform(size=(4, 3)), rng.normal(size=7) / 2
    known = kernel(x, x, log) + (np.exp(log[3]) + JITTER) * np.eye(12)
    density = multivariate_normal(np.zeros(12), known).logpdf(y) + 6 * math.log(2 * math.pi)
    value, slope = compute_log_likelihood(x, y, log)
    assert value == pytest.approx(density)
    np.testing.assert_allclose(
        slope, approx_fprime(log, lambda log: compute_log_likelihood(x, y, log)[0], 1e-7), atol=1e-4
    )
    expected = kernel(at, x, log) @ np.linalg.inv(known) @ y
    np.testing.assert_allclose(GaussianProcess(x, y, log).mean(at), expected)
    split = GaussianProcess(x[:8], y[:8], log).condition_on(x[8:], y[8:])
    np.testing.assert_allclose(split.mean(at), expected)


def test_a_fitted_process_finds_the_line_and_the_coordinate_that_matters():
    x = np.random.default_rng(1).uniform(size=(40, 2))
    line = GaussianProcess.fit(x, 2 * x[:, 0] - 1)
    beyond = np.array([[1.3, 0.5], [-0.3, 0.5]])
    np.testing.assert_allclose(line.mean(beyond), [1.6, -1.6], atol=0.1)
    lengths = GaussianProcess.fit(x, np.sin(6 * x[:, 1])).log_params[4:]
    assert lengths[0] > lengths[1] + 1


def test_a_space_decodes_to_options_as_they_are_given():
    assert SPACE.decode(np.array([0.5, 0.0, 1.0])) == {RATE.name: 1e-3, "env_steps": 1_000, ENVS.name: 64}
    assert SPACE.decode(SPACE.center) == {RATE.name: 1e-3, "env_steps": 8_000, ENVS.name: 16}
    assert all(type(SPACE.decode(np.full(3, 0.3))[name]) is int for name in ("env_steps", ENVS.name))
    np.testing.assert_allclose(SPACE.center, [0.5, 0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(SPACE.compute_search_radius(0.25), [0.25, 1 / 12, 0.25])  # log2(64) = 6
    np.testing.assert_allclose(
        SPACE.truncate_budgets(np.array([[0.2, 0.5, 0.7]]), np.array([0.25])), [[0.2, 1 / 6, 0.7]], atol=1e-6
    )
    assert SPACE.compute_min_share(SPACE.defaults) == 1 / 8  # of 8,000 steps; the fewest are 1,000
    with pytest.raises(OptionError, match="has nothing to search"):
        SearchSpace(())


def test_values_are_whole_and_within_their_priors():
    envs = Parameter("num_envs", PowerOfTwo(2**16, 2**24), 2**16)
    assert [envs.decode((i + 0.5) / 9) for i in range(9)] == [2**i for i in range(16, 25)]
    steps = Parameter("env_steps", LogUniform(65_536.0, 1_048_576.0), 65_536)
    assert (steps.decode(0.0), steps.decode(1.0)) == (65_536, 1_048_576)
    assert Parameter("x", Uniform(1.0000004, 2.0), 1.5).decode(0.0) == 1.0000004  # not rounded to 1
    rates = Parameter("x", Choice((0.123456789, 0.3)), 0.3)
    assert [rates.decode(u) for u in (0.2, 0.8)] == [0.123456789, 0.3]


def test_the_budgets_of_a_list_are_those_of_the_list():
    """The search reaches the next budget, and no point of a curve counts as one with another budget."""
    space = SearchSpace((RATE, Parameter("env_steps", Choice((20_000, 200_000)), 200_000), ENVS))
    np.testing.assert_allclose(space.compute_search_radius(0.25), [0.25, 0.5, 0.25])
    found = collect_observations(space, [trial(0, [0.2, 0.75, 0.7])], 3)
    np.testing.assert_allclose(found.x[:, 1], [0.75])


def test_a_curve_counts_as_trials_that_ended_sooner():
    points = thin_curve(SPACE, trial(0, [0.2, 0.9, 0.7], score=8.0, cost=4.0), 3)
    assert points == [Evaluation(0.25, 1, 2), Evaluation(0.75, 3, 6), Evaluation(1, 4, 8)]
    found = collect_observations(SPACE, [trial(0, [0.2, 0.9, 0.7])], 3)
    np.testing.assert_allclose(found.x[:, 1], [0.9 - 1 / 3, 0.9 + math.log2(0.75) / 6, 0.9], atol=1e-5)
    assert [one.used_share for one in thin_curve(SPACE, trial(0, [0.2, 0.9, 0.7]), 10)] == [0.25, 0.5, 0.75, 1.0]
    fixed = SearchSpace((RATE, ENVS))
    assert len(thin_curve(fixed, replace(trial(0, [0.2, 0.9, 0.7]), point=(0.2, 0.7)), 10)) == 1


def test_without_a_searched_budget_all_trials_cost_the_same():
    """Only the score decides, also if trials are stopped, and if a training exceeds its budget of 10,000 steps."""
    rng, space = np.random.default_rng(0), SearchSpace((RATE, ENVS))
    trials = []
    for i, score in enumerate(rng.uniform(size=9)):
        ends = (0, 2_500 + i, 5_000 + 3 * i, *([10_048] if i % 2 else []))
        curve = tuple(Evaluation(min(end / 10_000, 1), float(end), score * end / 10_000) for end in ends)
        trials.append(SweepTrial(i, tuple(rng.uniform(size=2)), {}, DONE if i % 2 else STOPPED, curve))
    found = collect_observations(space, trials, 10)
    np.testing.assert_allclose(found.cost, 10_000, rtol=1e-12)
    assert np.flatnonzero(find_pareto_points(found.score, found.cost)).tolist() == [found.score.argmax()]
    assert _SurrogateModels.fit(found).cost is None


def test_what_has_failed_is_the_worst():
    lost = replace(trial(2, [0.1, 0.9, 0.1]), curve=(Evaluation(1.0, 3.0, math.nan),))
    failed = trial(3, [0.3, 0.9, 0.1], state=FAILED)
    found = collect_observations(
        SPACE, [trial(0, [0.5, 0.9, 0.5], 5.0), trial(1, [0.5, 0.9, 0.5], -2.0), lost, failed], 1
    )
    np.testing.assert_array_equal(found.score, [5.0, -2.0, -2.0, -2.0])
    np.testing.assert_array_equal(np.isnan(found.cost), [False, False, True, True])


def test_the_front_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    score, cost = rng.integers(0, 6, 40).astype(float), rng.integers(0, 6, 40).astype(float)
    pairs = set(zip(score, cost, strict=True))
    dominated = {(s, c) for s, c in pairs for t, d in pairs if t >= s and d <= c and (t, d) != (s, c)}
    front = find_pareto_points(score, cost)
    assert set(zip(score[front], cost[front], strict=True)) == pairs - dominated
    assert not find_pareto_points(np.zeros(2), np.full(2, np.nan)).any()


def test_what_tells_most_is_the_front_what_is_nearest_to_it_and_some_of_all():
    rng = np.random.default_rng(0)
    score, cost = rng.normal(size=300), rng.uniform(1, 10, size=300)
    cost[::50] = np.nan  # failed
    kept = select_informative(score, cost, 100)
    below = (
        np.array([max([s for s, c in zip(score, cost, strict=True) if c <= one], default=0) for one in cost]) - score
    )
    below[np.isnan(cost)] = np.inf
    nearest = np.argsort(below)[:50]
    assert set(np.flatnonzero(find_pareto_points(score, cost))) <= set(nearest) <= set(kept)
    rest = [i for i in range(300) if i not in nearest]
    even = [rest[int(np.rint(i * 249 / 49))] for i in range(50)]
    np.testing.assert_array_equal(subsample_evenly(np.array(rest), 50), even)
    assert set(kept) == {*nearest, *even}
    assert len(kept) == len(set(kept)) == 100
    np.testing.assert_array_equal(select_informative(score, cost, 300), np.arange(300))


def test_protein_of_many_trials_knows_so_many_points_and_no_more(monkeypatch):
    seen = []
    monkeypatch.setattr(Protein, "_sample_around", lambda self, space, centers, rng: seen.append(centers) or centers)
    fitted = GaussianProcess.fit
    monkeypatch.setattr(GaussianProcess, "fit", lambda x, y: seen.append(x) or fitted(x[:9], y[:9]))
    Protein(most_points=60, most_centers=3).suggest(SPACE, tried(200), 1, 0)
    score, cost, centers = seen
    assert (score.shape, cost.shape, centers.shape) == ((60, 3), (60, 3), (3, 3))


def test_a_score_between_two_evaluations_is_on_the_line():
    rng = np.random.default_rng(0)
    costs, scores = np.sort(rng.uniform(size=12)), rng.normal(size=12)
    lost = [Evaluation(0.5, 0.5, math.nan)]
    one = SweepTrial(0, (), {}, DONE, (*map(Evaluation, [1.0] * 12, costs, scores), *lost))
    at = np.concatenate([costs, rng.uniform(-0.1, 1.1, size=50)])
    np.testing.assert_allclose([one.interpolate_score(x) for x in at], np.interp(at, costs, scores))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda x: type(x).__name__)
def test_a_sampler_is_a_function_of_the_trials_and_the_seed(sampler):
    failed = [replace(one, state=FAILED) for one in tried(3)]
    for trials in ([], [trial(0, SPACE.center, state=RUNNING)], failed, tried(15)):
        first = sampler.suggest(SPACE, trials, 3, 5)
        assert first.shape == (3, 3)
        assert np.all((first >= 0) & (first <= 1))
        np.testing.assert_array_equal(sampler.suggest(SPACE, list(trials), 3, 5), first)
    assert not np.array_equal(sampler.suggest(SPACE, tried(15), 3, 6), first)
    running = [*tried(15), trial(15, first[0], state=RUNNING)]
    assert not np.array_equal(sampler.suggest(SPACE, running, 1, 5)[0], first[0])
    assert len({tuple(point) for point in first.tolist()}) == 3


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda x: type(x).__name__)
def test_a_search_begins_with_the_defaults(sampler):
    several = sampler.suggest(SPACE, [], 3, 5)
    np.testing.assert_array_equal(several[0], SPACE.center)
    np.testing.assert_array_equal(sampler.suggest(SPACE, [], 1, 5), several[:1])
    pending = [trial(0, SPACE.center, state=RUNNING)]
    assert not np.array_equal(sampler.suggest(SPACE, pending, 1, 5)[0], SPACE.center)


def test_protein_begins_with_the_defaults_and_then_stays_within_reach_of_what_is_best():
    first = Protein().suggest(SPACE, [], 4, 0)
    np.testing.assert_array_equal(first[0], SPACE.center)
    assert np.all(np.abs(first - SPACE.center) <= SPACE.compute_search_radius(0.25) + 1e-9)
    trials = [trial(0, [0.5, 0.9, 0.5], 9.0, 1.0), trial(1, [0.1, 0.2, 0.1], 1.0, 5.0)]
    ends = Protein(curve_points=1)
    found = np.array([ends.suggest(SPACE, trials, 1, seed)[0] for seed in range(8)])
    assert np.all(np.abs(found - trials[0].point) <= SPACE.compute_search_radius(0.25) + 1e-9)


def test_protein_finds_a_peak_where_all_cost_the_same():
    space, trials = SearchSpace((Parameter("agent.workflow.agent.x", Uniform(0.0, 1.0), 0.1),)), []
    for i in range(20):
        u = Protein(candidates=64).suggest(space, trials, 1, 0)[0]
        curve = (Evaluation(1.0, 100.0, -((float(u[0]) - 0.8) ** 2)),)
        trials.append(SweepTrial(i, tuple(u), space.decode(u), DONE, curve))
    assert max(one.score for one in trials) > -1e-3


def test_a_trial_is_stopped_below_the_quantile_of_eight_at_its_cost():
    others = [trial(i, [0.5, 0.9, 0.5], score=float(i + 1), cost=4.0) for i in range(8)]  # at a cost of 2 half of that
    bar = np.quantile(np.arange(1, 9) / 2, 0.3)

    def running(score, used=0.5, cost=2.0):
        return SweepTrial(8, (0.5, 0.9, 0.5), {}, RUNNING, (Evaluation(used, cost, score),))

    assert is_behind(running(bar - 0.01), others)
    assert not is_behind(running(bar + 0.01), others)
    assert is_behind(running(math.nan), others)
    assert not is_behind(running(bar - 0.01), others[:7])
    assert not is_behind(running(bar - 0.01), [*others[:7], replace(others[7], state=FAILED)])
    assert not is_behind(running(bar - 0.01, used=0.2), others)
    assert not is_behind(running(0.0, cost=5.0), others)  # none has come that far


KIND = Parameter("agent.workflow.agent.activation", Choice((0, 1, 2, 3)), "tanh", ("relu", "tanh", "swish", None))
LAYERS = Parameter("agent.workflow.agent.hidden", Choice((0, 1, 2)), [64], ([64], [64, 64], [1]))
MIXED = SearchSpace((RATE, KIND, LAYERS))


def test_categories_are_values_of_their_own():
    assert [KIND.decode(u) for u in (0.0, 0.24, 0.26, 0.6, 1.0)] == ["relu", "relu", "tanh", "swish", None]
    assert [KIND.decode(KIND.encode(value)) for value in KIND.categories] == list(KIND.categories)
    assert MIXED.decode(MIXED.center) == {RATE.name: 1e-3, KIND.name: "tanh", LAYERS.name: [64]}
    truth = Parameter("agent.workflow.x", Choice((0, 1, 2)), 1, (1, True, "1"))
    assert [truth.decode(truth.encode(value)) for value in (1, True, "1")] == [1, True, "1"]
    for value in (1.0, False, "x", [1]):
        with pytest.raises(OptionError, match="must be one of 1, true, 1"):
            truth.require_allowed(value)


def test_two_categories_are_as_far_apart_as_any_other_two():
    rows = MIXED.to_features(np.array([[0.3, (i + 0.5) / 4, 0.1] for i in range(4)]))
    assert rows.shape == (4, 1 + 4 + 3)
    far = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    np.testing.assert_allclose(far, 1 - np.eye(4))


def test_categories_are_drawn_anew_with_the_probability_that_is_asked_for():
    rng, alike = np.random.default_rng(0), []
    changed = []
    for _ in range(400):
        drawn = MIXED.explore_categories(np.tile(MIXED.center, (50, 1)), 0.25, rng)
        np.testing.assert_array_equal(drawn[:, 0], MIXED.center[0])
        same = [len(set(drawn[:, i])) == 1 for i in (1, 2)]
        alike.append(sum(same))
        changed += [(drawn[:, 1] != MIXED.center[1]).mean()] * (not any(same))
    assert np.mean(alike) == pytest.approx(0.25, abs=3 * np.sqrt(0.25 * 0.75 / 400))
    assert np.mean(changed) == pytest.approx(0.25 * 3 / 4, abs=0.01)


@pytest.mark.parametrize("sampler", [Protein(), *SAMPLERS[2:]], ids=lambda x: type(x).__name__)
def test_samplers_find_the_best_of_unordered_categories(sampler):
    """Twelve combinations: one scores 2, those that share a category with it 1, all others 0."""
    hits = 0
    for seed in range(5):
        trials = []
        for i in range(24):
            u = sampler.suggest(MIXED, trials, 1, seed)[0]
            values = MIXED.decode(u)
            score = float(values[KIND.name] is None) + float(values[LAYERS.name] == [64, 64])
            trials.append(SweepTrial(i, tuple(u), values, DONE, (Evaluation(1.0, 100.0, score),)))
        hits += sum(one.score == 2 for one in trials)
    by_chance = 5 * 24 / 12
    assert hits > 2 * by_chance
