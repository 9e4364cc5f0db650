"""The evolvers: what all of them keep, and each against its equations."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl import TD3, MLPPolicy, tree
from evorl.ec import (
    ARS,
    CEM,
    CSO,
    GA,
    NSGA2,
    XNES,
    LowRankES,
    MapElites,
    Noise,
    OpenES,
    SeededES,
    SeedGA,
    VanillaES,
    flatten,
    shaping,
)
from evorl.ec.flatten import flatten_population, leaf_indices
from evorl.ec.search import init_evolver_state, require_evolver
from evorl.ec.variation import (
    SBX,
    ERLMutation,
    GaussianMutation,
    NPointCrossover,
)
from evorl.errors import OptionError
from evorl.parts import bind, iterate_numbers, resolve_numbers
from evorl.spaces import Box, Discrete
from evorl.training import runs
from evorl.training.configuration import config
from tests.conftest import leaves_equal
from tests.contract import Case, moved, types

MEAN = {"w": jnp.array([[1.0, -2.0], [0.5, 3.0]]), "b": jnp.array([0.3, -0.7, 2.0])}
TARGET = {"w": jnp.array([[0.5, -1.5], [1.0, 2.5]]), "b": jnp.array([0.0, -0.5, 1.5])}
ERL = ERLMutation()
CASES = {
    "openes": OpenES(16, std=0.3),
    "openes_hash": OpenES(16, noise=Noise("hash"), std=0.3),
    "openes_table": OpenES(16, noise=Noise("table", 4096), std=0.3),
    "openes_seeds": SeededES(OpenES(16, noise=Noise("hash"), std=0.3)),
    "openes_low_rank": LowRankES(16, std=0.3),
    "vanilla_es": VanillaES(16, 4, std=0.1),
    "xnes": XNES(16),
    "ars": ARS(16, 4),
    "cem": CEM(16, initial_variance=0.1),
    "cso": CSO(16, social=0.1),
    "ga": GA(16, 2, initial_std=0.1, crossover_rate=0.5, mutation_rate=0.8),
    "ga_sbx": GA(16, 2, crossover=SBX(), initial_std=0.1, crossover_rate=0.5),
    "ga_erl": GA(16, 2, mutation=ERLMutation(fraction=0.5, super_rate=0.3, bound=4.0), initial_std=0.1),
}
every = pytest.mark.parametrize("name", CASES)


def quadratic(member):
    """Fitness, highest at TARGET."""
    return -sum(jnp.sum((x - y) ** 2) for x, y in zip(jax.tree.leaves(member), jax.tree.leaves(TARGET), strict=True))


def search(evolver, numbers, key, generations):
    """The state after so many generations and the fitness of its center."""
    bound = bind(evolver, numbers)

    def generation(i, state):
        key_ask, key_tell = jax.random.split(jax.random.fold_in(key, i))
        genomes, state = bound.ask(key_ask, state)
        members = jax.vmap(evolver.to_params, (None, 0))(state, genomes)
        return bound.tell(key_tell, genomes, jax.vmap(quadratic)(members), state)[0]

    state = jax.lax.fori_loop(0, generations, generation, bound.init(key, MEAN))
    return state, quadratic(evolver.solution(state))


@cache
def searches(name):
    """Four searches with the same numbers, as one program for any number of generations."""
    evolver = CASES[name]

    @jax.jit
    def run(key, numbers, generations):
        return jax.vmap(lambda key: search(evolver, numbers, key, generations))(jax.random.split(key, 4))

    return run


@every
def test_every_evolver_searches_under_scan_and_vmap(name, key):
    _, fitness = searches(name)(key, resolve_numbers(CASES[name]), 150)
    assert np.all(np.asarray(fitness) > 0.3 * float(quadratic(MEAN)))  # nearer than half way
    assert float(np.median(fitness)) > 0.1 * float(quadratic(MEAN))


@every
def test_states_keep_their_types_and_every_number_matters(name, key):
    case, evolver = Case(name, CASES[name]), CASES[name]
    state_of = jax.vmap(lambda key: bind(evolver, case.numbers).init(key, MEAN))
    first, program = jax.eval_shape(state_of, jax.random.split(key, 4)), searches(name)
    run = lambda numbers: program(key, numbers, 5)[0]  # noqa: E731
    base = run(case.numbers)
    assert types(base) == types(first)
    for one, *_ in iterate_numbers(evolver):
        others = [run(moved(case, one, up)) for up in (False, True)]
        assert not all(leaves_equal(base, other) for other in others), one
    assert program._cache_size() == 1


@every
def test_nan_is_the_worst(name, key):
    evolver = CASES[name]
    bound = bind(evolver, resolve_numbers(evolver))

    @jax.jit
    def told(fitness):
        genomes, state = bound.ask(key, bound.init(key, MEAN))
        state, _ = bound.tell(key, genomes, fitness, state)
        return state, evolver.solution(state)

    def with_two(value):
        fitness = np.arange(16, dtype=np.float32)
        fitness[[3, 15]] = value
        return told(fitness)

    found, solution = with_two(np.nan)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(solution))
    if name not in ("ars",):  # in whose difference of returns it counts as the worst that is finite
        worst = with_two(-1.0)[0]
        assert leaves_equal(found, worst) or name.startswith(("openes", "cso", "ga"))  # two NaN are equally bad
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(told(np.full(16, np.nan, np.float32))[1]))


def test_the_estimate_of_openes_is_the_gradient_of_a_quadratic(key):
    """Around m, the gradient of the mean of -(x - b)' A (x - b) / 2 is A (b - m), whatever the std."""
    size, runs = 6, 4000
    rng = np.random.default_rng(0)
    root = rng.normal(size=(size, size))
    a, b, m = root @ root.T, rng.normal(size=size), rng.normal(size=size)
    es = OpenES(32, "identity", std=0.3)

    def estimate(key):
        state = es.init(key, jnp.asarray(m, jnp.float32))
        genomes, _ = es.ask(key, state)
        off = genomes - b
        return es.estimate_gradient(state, genomes, -0.5 * (off @ a * off).sum(-1))

    found = np.asarray(jax.jit(jax.vmap(estimate))(jax.random.split(key, runs)), np.float64)
    error = found.std(0) / np.sqrt(runs)
    assert np.all(np.abs(found.mean(0) - a @ (b - m)) < 4 * error)
    assert np.all(4 * error < 0.2 * np.linalg.norm(a @ (b - m)))  # so that the check can fail


def test_openes_takes_a_step_of_adam_with_decay(key):
    es = OpenES(4, learning_rate=0.1, std=0.5, weight_decay=0.2)
    mean = np.array([1.0, -2.0], np.float32)
    state = es.init(key, jnp.asarray(mean))
    genomes = mean + 0.5 * np.array([[1, 0.5], [-0.3, 2], [-1, -0.5], [0.3, -2]], np.float32)
    after, metrics = es.tell(key, jnp.asarray(genomes), jnp.array([3.0, -1.0, 0.0, 9.0]), state)
    utility = np.array([2 / 3, 0, 1 / 3, 1]) - 0.5  # ranks 2, 0, 1, 3 of 3
    gradient = utility @ (genomes - mean) / (4 * 0.25)
    np.testing.assert_allclose(metrics["gradient_norm"], np.linalg.norm(gradient), rtol=1e-5)
    ascent = gradient - 0.2 / 0.5 * mean
    np.testing.assert_allclose(after.mean, mean + 0.1 * ascent / (np.abs(ascent) + 1e-8), rtol=1e-5)  # Adam's first


@pytest.mark.parametrize("block", [2**24, 6])  # numbers that are copied at a time: all, and those of one pair
def test_ars_equals_numpy(key, block, monkeypatch):
    monkeypatch.setattr(flatten, "BLOCK_NUMBERS", block)
    ars = ARS(6, 2, learning_rate=0.5, std=0.2)
    mean = np.array([1.0, 2.0], np.float32)
    noise = np.array([[1.0, 0.0], [0.5, -1.0], [2.0, 1.0]], np.float32)
    genomes = np.stack([mean + 0.2 * noise, mean - 0.2 * noise], 1).reshape(6, 2)
    returns = np.array([1.0, 5.0, 7.0, 3.0, 2.0, 4.0])  # the best of the pairs: 5, 7, 4
    state, metrics = ars.tell(key, jnp.asarray(genomes), jnp.asarray(returns), ars.init(key, jnp.asarray(mean)))
    spread = np.std([7, 3, 1, 5])
    step = ((7 - 3) * noise[1] + (1 - 5) * noise[0]) / (2 * spread)
    np.testing.assert_allclose(state.mean, mean + 0.5 * step, rtol=1e-5)
    np.testing.assert_allclose(metrics["return_std"], spread, rtol=1e-6)


def test_vanilla_es_moves_to_the_weighted_elites(key):
    es = VanillaES(4, 2)
    genomes = jnp.array([[1.0, 1.0], [5.0, 2.0], [3.0, -4.0], [9.0, 9.0]])
    state, _ = es.tell(key, genomes, jnp.array([0.0, 4.0, 6.0, jnp.nan]), es.init(key, jnp.zeros(2)))
    weights = np.array([np.log(2.5), np.log(2.5) - np.log(2)])
    weights /= weights.sum()
    np.testing.assert_allclose(state.mean, weights[0] * np.array([3, -4]) + weights[1] * np.array([5, 2]), rtol=1e-5)


def test_xnes_is_that_of_evox(key):
    """Three generations of EvoX 1.4.0's XNES: the means, and the factors of the covariance after the last."""
    noise = np.random.default_rng(0).standard_normal((3, 8, 4)).astype(np.float32)
    es, scale, best = XNES(8, initial_std=0.3), jnp.array([1, 3, 10, 0.5]), jnp.array([1, -1, 0.5, 2])
    state = es.init(key, jnp.zeros(4))
    means = [
        [0.07087717, -0.034044, 0.28380665, 0.12185855],
        [0.01378524, -0.23716554, 0.52337366, 0.42694569],
        [0.09940496, -0.54207492, 0.39654985, 0.38316995],
    ]
    for z, mean in zip(noise, means, strict=True):
        genomes = state.mean + z @ state.factor.T
        loss = ((genomes - best) ** 2 * scale).sum(1) + genomes[:, 0] * genomes[:, 1]
        state, metrics = es.tell(key, genomes, -loss, state)
        np.testing.assert_allclose(state.mean, mean, atol=2e-6)
    factor = [
        [0.23492183, -0.01834574, -0.01953389, 0.03150628],
        [-0.01698166, 0.33612284, -0.004221, -0.06847012],
        [-0.01014786, -0.02305361, 0.28407526, 0.06174589],
        [0.0527829, -0.09901442, 0.0588272, 0.35257801],
    ]
    np.testing.assert_allclose(state.factor, factor, atol=2e-6)
    np.testing.assert_allclose(metrics["variance"], np.diag(state.factor @ state.factor.T).mean(), rtol=1e-5)


def test_xnes_keeps_its_distribution_where_fitness_says_nothing(key):
    es = XNES(6)
    state = es.init(key, MEAN)
    genomes, _ = es.ask(key, state)
    after, _ = es.tell(key, genomes, jnp.full(6, 3.0), state)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_xnes_survives_individuals_from_elsewhere(key):
    es = XNES(6)
    state = es.init(key, jnp.zeros(3))
    after, _ = es.tell(key, 1e6 * jnp.ones((6, 3)).at[1:].set(0.0), jnp.arange(6.0)[::-1], state)
    spread = np.linalg.svd(after.factor, compute_uv=False) / 0.1
    assert np.all((spread > np.exp(-3.01)) & (spread < np.exp(3.01)))


def test_losers_of_cso_move_towards_their_winners(key):
    cso = CSO(10, social=0.0)
    state = cso.init(key, jnp.zeros(5))
    fitness = jnp.arange(10.0)
    after, _ = cso.tell(key, state.swarm, fitness, state)
    changed = np.flatnonzero(np.abs(np.asarray(after.swarm - state.swarm)).max(1) > 0)
    assert len(changed) == 5
    before, now = np.asarray(state.swarm), np.asarray(after.swarm)
    winners = set(range(10)) - set(changed.tolist())
    for loser in changed:  # its first velocity is 0, so it lands in the box between itself and its winner
        r2 = [(now[loser] - before[loser]) / (before[w] - before[loser]) for w in winners if w > loser]
        assert any(np.all((r >= 0) & (r < 1)) for r in r2)
    np.testing.assert_allclose(after.velocity[changed], now[changed] - before[changed], rtol=1e-5, atol=1e-6)
    assert leaves_equal(cso.solution(after), state.swarm[9])


def test_velocity_and_the_pull_of_the_mean_of_cso(key):
    """Two members, the second fitter: the loser's velocity is r1 v + r2 (winner - loser) + phi r3 (mean - loser)."""
    cso, size = CSO(2, social=0.5), 20_000
    swarm = jnp.stack([jnp.zeros(size), jnp.full(size, 2.0)])
    state = cso.init(key, jnp.zeros(size)).replace(
        swarm=swarm, velocity=jnp.stack([jnp.full(size, 4.0), jnp.zeros(size)])
    )
    after, _ = cso.tell(key, swarm, jnp.array([0.0, 1.0]), state)
    velocity = np.asarray(after.velocity[0])  # 4 r1 + 2 r2 + 0.5 r3
    np.testing.assert_allclose(velocity.mean(), 3.25, atol=0.04)
    np.testing.assert_allclose(velocity.var(), (16 + 4 + 0.25) / 12, rtol=0.05)


@pytest.mark.program
def test_elites_live_on_and_the_fittest_is_the_center(key):
    ga = GA(8, 3, initial_std=0.1)
    state = ga.init(key, MEAN)
    fitness = jnp.array([1.0, 7.0, jnp.nan, 5.0, 3.0, 0.0, 6.0, 2.0])
    after, _ = ga.tell(key, state.members, fitness, state)
    assert leaves_equal(tree.index(after.members, slice(0, 3)), tree.index(state.members, jnp.array([1, 6, 3])))
    assert leaves_equal(ga.solution(after), tree.index(state.members, 1))


def test_a_genetic_algorithm_begins_with_members_that_are_each_initialized(key):
    """As in Such et al. 2017 and in ERL: of its own key, without noise; where there is one mean, around that."""
    policy = MLPPolicy(hidden=(4,), observation_space=Box(-1.0, 1.0, (2,)), action_space=Discrete(3))
    draw = lambda key: policy.init(key).actor.params  # noqa: E731
    mean = draw(key)
    state = init_evolver_state(GA(6, 2), key, mean, draw)
    drawn = jax.vmap(draw)(jax.random.split(jax.random.split(key)[0], 6))
    assert leaves_equal(state.members, drawn)
    assert leaves_equal(state.solution, mean)
    noisy = init_evolver_state(GA(6, 2, initial_std=0.5), key, mean, draw)
    noise = flatten_population(noisy.members) - flatten_population(drawn)
    np.testing.assert_allclose(noise.std(), 0.5, rtol=0.2)
    around = GA(6, 2).init(key, mean)
    assert leaves_equal(around.members, tree.broadcast(mean, 6))
    cem = CEM(6)
    assert leaves_equal(init_evolver_state(cem, key, mean, draw), cem.init(key, mean))


def test_parents_win_tournaments(key):
    ga = GA(5, 0, tournament=3)
    parents = np.asarray(ga.select_parents(key, jnp.array([4.0, 0.0, 3.0, 1.0, 2.0]), 50_000))
    share = np.bincount(parents, minlength=5)[[1, 3, 4, 2, 0]] / 50_000  # from the least to the most fit
    places = np.arange(1, 6)
    np.testing.assert_allclose(share, (places**3 - (places - 1) ** 3) / 5**3, atol=0.01)


def test_n_point_crossover_changes_parents_at_so_many_places(key):
    a, b = jnp.zeros((2000, 50)), jnp.ones((2000, 50))
    children = np.asarray(NPointCrossover(3)(key, a, b))
    changes = np.abs(np.diff(children)).sum(1)
    assert changes.max() == 3
    assert np.all(children[:, 0] == 0)
    assert set(np.unique(changes)) <= {1, 3}  # two at one place cancel
    one = np.asarray(NPointCrossover(1)(key, a, b))
    assert stats.chisquare(np.bincount(50 - one.sum(1).astype(int), minlength=50)[1:]).pvalue > 1e-3


def test_the_spread_of_sbx_has_its_distribution(key):
    eta = 2.0
    a, b = jnp.full((200, 100), 3.0), jnp.ones((200, 100))
    spread = np.asarray(SBX(eta)(key, a, b)).ravel() - 2.0  # around the middle, in units of half of a - b
    cdf = lambda s: np.where(s <= 1, 0.5 * s ** (eta + 1), 1 - 0.5 * np.maximum(s, 1) ** -(eta + 1))  # noqa: E731
    assert stats.kstest(spread, cdf).pvalue > 1e-3


@pytest.mark.program
def test_the_mutation_of_erl_changes_what_it_says(key):
    layer = np.repeat([0, 1], 10_000)
    after = np.asarray(ERL(key, jnp.full((200, 20_000), 5.0), layer))
    changes = after.reshape(400, 10_000) - 5.0
    layers = np.abs(changes).max(1) > 0
    assert abs(layers.mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 400)  # u < 2 v of two uniform numbers
    changed = changes[layers][changes[layers] != 0]
    assert changed.size / (layers.sum() * 10_000) == pytest.approx(0.1, abs=0.002)
    reset = np.abs(changed + 5) < 1  # standard normal numbers, of which 0.683 lie there; few others do
    assert reset.mean() == pytest.approx(0.05 * 0.683, abs=0.003)
    assert (np.abs(changed) > 10).mean() == pytest.approx(0.05 * 2 * stats.norm.sf(10 / 50), abs=0.004)


def test_mutations_change_each_layer_in_its_own_way(key):
    layer = np.repeat([0, 1], 1000)
    gaussian = np.asarray(GaussianMutation(std=0.5)(key, jnp.zeros((3, 2000)), layer))
    erl = np.asarray(dataclasses.replace(ERL, fraction=1.0)(key, jnp.ones((3, 2000)), layer))
    for after in (gaussian, erl):
        assert not np.array_equal(after[:, :1000], after[:, 1000:])
        assert not np.array_equal(after[0], after[1])
    assert gaussian.std() == pytest.approx(0.5, rel=0.05)


def test_layers_are_leaves():
    np.testing.assert_array_equal(leaf_indices({"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)}), [0] * 6 + [1] * 2)


def test_elites_by_hand():
    fitness, among = jnp.array([3.0, jnp.nan, 7.0, 4.0, -1.0]), jax.jit(shaping.count_elites)
    assert [int(among(fitness, np.array(each))) for each in ([2, 3, 4], [0, 1, 4], [3, 2, 0])] == [2, 1, 3]


def test_shapings_by_hand():
    fitness = jnp.array([3.0, jnp.nan, 7.0, 3.0, -1.0])
    np.testing.assert_allclose(shaping.compute_ranks(fitness), [2.5, 0, 4, 2.5, 1])
    np.testing.assert_allclose(shaping.center_ranks(fitness), np.array([2.5, 0, 4, 2.5, 1]) / 4 - 0.5)
    replaced = np.array([3, -1, 7, 3, -1])
    np.testing.assert_allclose(shaping.identity(fitness), replaced)
    np.testing.assert_allclose(shaping.z_score(fitness), (replaced - replaced.mean()) / replaced.std(), rtol=1e-6)
    distinct = jnp.array([5.0, 1.0, 4.0, 2.0, 3.0])
    raw = np.maximum(0, np.log(3.5) - np.log([1, 5, 2, 4, 3]))
    np.testing.assert_allclose(shaping.nes_utilities(distinct), 5 * raw / raw.sum() - 1, rtol=1e-5)
    np.testing.assert_allclose(shaping.z_score(jnp.full(4, jnp.nan)), 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OpenES(7), "population_size=7: must be even"),
        (lambda: OpenES(8, "centred_rank"), "unknown shaping centred_rank; did you mean centered_rank"),
        (lambda: ARS(8, 5), "num_elites=5: must be from 1 to the number of mirrored pairs, 4"),
        (lambda: ARS(9), "population_size=9: must be even"),
        (lambda: VanillaES(8, 9), "num_elites=9: must be from 1 to population_size, 8"),
        (lambda: CSO(9), "population_size=9: must be even"),
        (lambda: GA(8, 8), "num_elites=8"),
        (lambda: GA(8, 2, 0), "tournament=0"),
        (lambda: NPointCrossover(0), "points=0"),
        (lambda: SBX(-1.0), "eta=-1"),
    ],
)
def test_mistakes_are_told(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_evolvers_are_settings_that_compare_and_hash():
    for evolver in CASES.values():
        assert dataclasses.replace(evolver) == evolver
        assert hash(evolver) == hash(dataclasses.replace(evolver))


class Halves(OpenES):
    """Parameters are twice the genome, and there is no way back."""

    def to_params(self, state, genome):
        return jax.tree.map(lambda x: 2 * x, genome)


class Back(Halves):
    def from_params(self, state, params):
        return jax.tree.map(lambda x: x / 2, params)

    def to_params(self, state, genome):
        return super().to_params(state, genome)


def test_what_an_evolver_overrides_says_what_it_does():
    flags = "begins_with_members", "takes_params", "takes_objectives", "keeps_many", "keeps_bounds"
    said = lambda evolver: [name for name in flags if getattr(evolver, name)]  # noqa: E731
    assert said(OpenES()) == ["takes_params"]
    assert said(GA()) == ["begins_with_members", "takes_params"]
    assert said(SeedGA()) == ["begins_with_members"]
    assert said(SeededES()) == said(Halves()) == []
    assert said(Back()) == ["takes_params"]
    assert said(NSGA2()) == [*flags]
    assert said(MapElites()) == [name for name in flags if name != "takes_objectives"]


def test_what_is_no_evolver_is_refused_in_a_line():
    with pytest.raises(OptionError, match=r"evolver=TD3: must be a subclass of evorl\.types\.Evolver"):
        require_evolver(TD3())
    with pytest.raises(OptionError, match="evolver=OpenES: has no learned weights; use LearnedES"):
        OpenES().weights(MEAN)
    with pytest.raises(OptionError, match=r"agent\.workflow\.evolver=TD3: must be a subclass of evorl\.types\.Evolver"):
        runs.build(config.compose_config(["agent=openes", "env=fast", "agent.workflow.evolver._target_=TD3"]))
