import warnings
from dataclasses import replace

import cma
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.ec import CMAES, DiagonalCovariance, FullCovariance
from evorl.ec.cma_es import compute_expected_norm, compute_rates, compute_raw_weights
from evorl.errors import OptionError
from evorl.parts import bind
from evorl.training import dry_run
from evorl.types import Evolver
from tests.conftest import leaves_equal


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cma.evolution_strategy.InjectionWarning)
        yield


def sphere(x):
    return (x**2).sum(-1)


def ellipsoid(x):
    return (1e6 ** np.linspace(0, 1, x.shape[-1]).astype(x.dtype) * x**2).sum(-1)


def rosenbrock(x):
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(-1)


def evaluations(function, start, population, n=10, seeds=20, generations=1000):
    """Of ours until f < 1e-6, of each seed."""
    evolver = CMAES(population, initial_std=0.5)

    def run(key):
        def generation(i, carry):
            state, _, _ = carry
            genomes, state = evolver.ask(jax.random.fold_in(key, i), state)
            values = function(genomes)
            return evolver.tell(key, genomes, -values, state)[0], i + 1, values.min()

        carry = evolver.init(key, jnp.full(n, start)), jnp.int32(0), jnp.float32(jnp.inf)
        return tree.masked_fori_loop(
            jnp.int32(generations), generation, tree.drop_weak_types(carry), lambda carry: carry[2] >= 1e-6
        )[1:]

    taken, best = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), seeds))
    return np.where(best < 1e-6, taken * population, np.inf)


def pycma_search(start, population, seed=1, sigma=0.5):
    return cma.CMAEvolutionStrategy(list(start), sigma, {"popsize": population, "seed": seed, "verbose": -9})


def pycma_evaluations(function, start, population, n=10, seeds=20, generations=1000):
    taken = np.full(seeds, np.inf)
    for seed in range(seeds):
        search = pycma_search(n * [start], population, seed + 1)
        for _ in range(generations):
            genomes = search.ask()
            values = function(np.array(genomes))
            search.tell(genomes, values.tolist())
            if values.min() < 1e-6:
                taken[seed] = search.countevals
                break
    return taken


@pytest.mark.program
@pytest.mark.parametrize(("function", "start"), [(sphere, 1.0), (ellipsoid, 1.0), (rosenbrock, 0.0)])
def test_it_takes_as_many_evaluations_as_pycma(function, start):
    ours, theirs = evaluations(function, start, 10), pycma_evaluations(function, start, 10)
    assert np.median(ours) == pytest.approx(np.median(theirs), rel=0.15)


@pytest.mark.parametrize(("n", "population"), [(10, 10), (40, 15), (100, 128), (3, 7)])
def test_weights_and_rates_are_pycmas(n, population):
    search = pycma_search(n * [0.0], population)
    ours = compute_rates(n, compute_raw_weights(population, population, population / 2), True, 1.0, 2.0, 1.0)
    theirs = search.sm.parameters(mueff=search.sp.weights.mueff, lam=population)
    np.testing.assert_allclose(ours.weights, list(search.sp.weights), rtol=2e-5, atol=1e-6)
    found = [ours.mu_eff, ours.c_covariance, ours.c_1, ours.c_mu]
    np.testing.assert_allclose(found, [search.sp.weights.mueff, search.sp.cc, theirs["c1"], theirs["cmu"]], rtol=1e-5)


def test_rates_of_a_traced_population_are_those_of_a_fixed_one():
    traced = jax.jit(lambda size: compute_rates(8, compute_raw_weights(64, size, size / 2), True, 1.0, 2.0, 1.0))(
        jnp.int32(16)
    )
    fixed = compute_rates(8, compute_raw_weights(16, 16, 8), True, 1.0, 2.0, 1.0)
    np.testing.assert_allclose(traced.weights, np.pad(fixed.weights, (0, 48)), rtol=1e-5)
    np.testing.assert_allclose(traced.c_mu, fixed.c_mu, rtol=1e-5)


@pytest.mark.program
def test_the_covariance_and_the_mean_after_tells_are_pycmas(key):
    start = np.linspace(-1.0, 1.0, 5)
    search = pycma_search(start, 12)
    evolver = CMAES(12, initial_std=0.5)
    state = evolver.init(key, jnp.float32(start))
    for i in range(3):
        genomes = np.asarray(evolver.ask(jax.random.fold_in(key, i), state)[0], np.float64)
        values = ellipsoid(genomes)
        search.sigma = float(state.sigma)  # pycma's c_sigma is another than the paper's
        search.ask(1)
        search.tell(list(genomes), values.tolist())
        state, _ = evolver.tell(key, jnp.float32(genomes), jnp.float32(-values), state)
        np.testing.assert_allclose(state.mean, search.mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state.path_covariance, search.pc, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(state.covariance, search.sm.C, rtol=1e-3, atol=1e-4)


def transcribed(mean, sigma, covariance, factor, path_sigma, path_c, generation, genomes, values, weights, mu_eff):
    """A generation of Hansen 2016, equations 38 to 47, in NumPy, with a factor of any kind."""
    n, c = len(mean), 2.0
    positive = np.maximum(weights, 0)
    c_s = (mu_eff + 2) / (n + mu_eff + 5)
    d_s = 1 + 2 * max(0, np.sqrt((mu_eff - 1) / (n + 1)) - 1) + c_s
    c_c = (4 + mu_eff / n) / (n + 4 + 2 * mu_eff / n)
    c_1 = c / ((n + 1.3) ** 2 + mu_eff)
    c_mu = min(1 - c_1, c * (0.25 + mu_eff + 1 / mu_eff - 2) / ((n + 2) ** 2 + mu_eff))
    y = (genomes[np.argsort(values)] - mean) / sigma
    inverse = np.linalg.inv(factor)
    y_w = positive @ y
    path_sigma = (1 - c_s) * path_sigma + np.sqrt(c_s * (2 - c_s) * mu_eff) * inverse @ y_w
    chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
    length = np.linalg.norm(path_sigma)
    h = length / np.sqrt(1 - (1 - c_s) ** (2 * (generation + 1))) < (1.4 + 2 / (n + 1)) * chi
    path_c = (1 - c_c) * path_c + h * np.sqrt(c_c * (2 - c_c) * mu_eff) * y_w
    covariance = (1 + c_1 * (1 - h) * c_c * (2 - c_c) - c_1 - c_mu * weights.sum()) * covariance
    covariance = covariance + c_1 * np.outer(path_c, path_c)
    for w, row in zip(weights, y, strict=True):
        w = w if w >= 0 else w * n / np.linalg.norm(inverse @ row) ** 2
        covariance = covariance + c_mu * w * np.outer(row, row)
    return mean + sigma * y_w, sigma * np.exp(c_s / d_s * (length / chi - 1)), covariance, path_sigma, path_c, h


@pytest.mark.parametrize("far", [1.0, 3.0])
def test_a_tell_is_the_papers(key, far):
    """With three times the steps h_sigma stalls."""
    rng = np.random.default_rng(0)
    n, population = 4, 8
    root = np.tril(rng.normal(size=(n, n))) / 2 + np.eye(n)
    start, path_sigma, path_c = rng.normal(size=(3, n))
    genomes, values = start + 0.3 * far * rng.normal(size=(population, n)), rng.normal(size=population)
    evolver = CMAES(population, initial_std=0.3)
    state = evolver.init(key, jnp.float32(start)).replace(
        covariance=jnp.float32(root @ root.T),
        factor=jnp.float32(root.T),
        path_sigma=jnp.float32(path_sigma),
        path_covariance=jnp.float32(path_c),
        generation=jnp.int32(3),
    )
    weights = pycma_search(start, population).sp.weights
    expected = transcribed(
        start, 0.3, root @ root.T, root, path_sigma, path_c, 3, genomes, values, np.array(weights), weights.mueff
    )
    assert expected[-1] == (far == 1.0)
    state, metrics = jax.jit(evolver.tell)(key, np.float32(genomes), np.float32(-values), state)
    found = state.mean, state.sigma, state.covariance, state.path_sigma, state.path_covariance
    for ours, theirs in zip(found, expected[:-1], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["variance"], expected[1] ** 2 * np.trace(expected[2]) / n, rtol=1e-4)


def test_a_diagonal_is_learned_n_plus_2_thirds_as_fast(key):
    """Ros & Hansen 2008, by hand: five parameters and two elites."""
    evolver = CMAES(4, active=False, covariance=DiagonalCovariance(), initial_std=0.5)
    genomes = jax.random.normal(key, (4, 5))
    state, _ = evolver.tell(key, genomes, jnp.array([1.0, 4.0, 2.0, 3.0]), evolver.init(key, jnp.zeros(5)))
    w = np.log(2.5) - np.log([1, 2])
    w /= w.sum()
    mu_eff = 1 / (w**2).sum()
    c_1 = 7 / 3 * 2 / (6.3**2 + mu_eff)
    c_mu = 7 / 3 * 2 * (0.25 + mu_eff + 1 / mu_eff - 2) / (49 + mu_eff)
    c_c = (4 + mu_eff / 5) / (9 + 2 * mu_eff / 5)
    y = np.asarray(genomes)[[1, 3]] / 0.5
    path = np.sqrt(c_c * (2 - c_c) * mu_eff) * w @ y
    expected = 1 - c_1 - c_mu + c_1 * path**2 + c_mu * w @ y**2
    np.testing.assert_allclose(state.covariance, expected, rtol=1e-5)
    np.testing.assert_allclose(state.factor, np.sqrt(expected), rtol=1e-5)


@pytest.mark.parametrize("covariance", [FullCovariance(0.0), DiagonalCovariance()])
def test_nan_is_the_worst_fitness_and_nan_parameters_do_no_harm(key, covariance):
    evolver = CMAES(6, covariance=covariance)
    state = evolver.init(key, jnp.zeros(3))
    genomes, _ = evolver.ask(key, state)
    fitness = jnp.array([1.0, jnp.nan, 3.0, 2.0, 0.0, -1.0])
    tell = jax.jit(lambda genomes, fitness: evolver.tell(key, genomes, fitness, state)[0])
    assert leaves_equal(tell(genomes, fitness), tell(genomes, fitness.at[1].set(-2.0)))
    broken = tell(genomes.at[1].set(jnp.nan), fitness)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(broken))


def test_members_are_drawn_from_the_distribution(key):
    evolver = CMAES(50000)
    root = jnp.array([[2.0, 0.0], [1.0, 0.5]])
    state = evolver.init(key, {"a": jnp.array([3.0]), "b": jnp.array([-1.0])}).replace(factor=root.T)
    genomes, _ = evolver.ask(key, state)
    drawn = np.concatenate([genomes["a"], genomes["b"]], 1)
    np.testing.assert_allclose(drawn.mean(0), [3.0, -1.0], atol=4 * 0.2 / np.sqrt(50_000))
    np.testing.assert_allclose(np.cov(drawn.T), 0.01 * np.array([[4.0, 2.0], [2.0, 1.25]]), rtol=0.05)


def test_vmap_over_settings_and_scan_are_separate_runs(key):
    evolver = CMAES(8)
    settings = {
        "initial_std": jnp.array([0.1, 0.5]),
        "mean_rate": jnp.array([1.0, 0.8]),
        "covariance_rate": jnp.array([2.0, 1.0]),
        "step_damping": jnp.array([1.0, 3.0]),
    }

    def run(numbers):
        bound = bind(evolver, numbers)

        def generation(state, key):
            genomes, state = bound.ask(key, state)
            state, metrics = bound.tell(key, genomes, -ellipsoid(genomes), state)
            return state, metrics

        return jax.lax.scan(generation, bound.init(key, jnp.ones(5)), jax.random.split(key, 12))[0]

    together = jax.jit(jax.vmap(run))(settings)
    for i in range(2):
        alone = jax.jit(run)(tree.index(settings, i))
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-6), together, alone)
    assert float(abs(together.mean[0] - together.mean[1]).max()) > 1e-3


def test_the_factor_follows_when_it_is_due_and_stays_where_there_is_none():
    definite, not_definite = jnp.array([[4.0, 2.0], [2.0, 5.0]]), jnp.array([[1.0, 2.0], [2.0, 1.0]])
    covariances, old = jnp.stack([definite, not_definite, definite]), jnp.eye(2)
    found = jax.vmap(FullCovariance().factorize, (0, None, 0))(covariances, old, jnp.array([True, True, False]))
    np.testing.assert_allclose(found, [[[2.0, 1.0], [0.0, 2.0]], old, old], rtol=1e-6)


def test_an_undue_factor_is_not_computed():
    """XLA moves out of a loop what the loop does not change."""
    program = jax.jit(FullCovariance().factorize).lower(jnp.eye(3), jnp.eye(3), jnp.bool_(True)).compile().as_text()
    main = program[program.index("ENTRY") :]
    assert "potrf" in program
    assert "potrf" not in main


def test_the_gap_between_factors_is_what_the_rate_allows():
    assert (
        float(FullCovariance(0.1).factorization_interval(1000, jnp.float32(6.6e-5))) == 2
    )  # as pycma's 1.5 generations, at population 128
    assert float(FullCovariance().factorization_interval(10, jnp.float32(0.5))) == 1


def test_sigma_grows_at_most_e_times_at_once(key):
    evolver = CMAES(4)
    far = lambda state: evolver.tell(key, jnp.full((4, 3), 1e4), jnp.arange(4.0), state)  # noqa: E731
    state, metrics = jax.jit(far)(evolver.init(key, jnp.zeros(3)))
    assert float(metrics["sigma"]) == pytest.approx(0.1 * np.e)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("values", [np.zeros(6), np.array([0.0, 0, 0, 0, 0, 1])])
def test_sigma_grows_as_pycmas_does_where_all_members_are_equally_fit(key, values):
    search = pycma_search(np.zeros(3), 6)
    search.tell(search.ask(), values.tolist())
    before = search.sigma
    search.manage_plateaus(1.5, sample_fraction=1)
    evolver = CMAES(6)
    state = jax.jit(lambda: evolver.init(key, jnp.zeros(3)))()
    genomes = jax.jit(evolver.ask)(key, state)[0]
    of_fitness = jax.jit(lambda fitness: evolver.tell(key, genomes, fitness, state)[0])
    found, ordered = of_fitness(jnp.float32(-values)), of_fitness(-jnp.arange(6.0))
    assert float(found.sigma / ordered.sigma) == pytest.approx(search.sigma / before, rel=1e-6)
    assert leaves_equal(replace(found, sigma=ordered.sigma), ordered)  # the order of the members is that of ties


def test_it_is_an_evolver_whose_norm_is_the_expected_one(key):
    assert isinstance(CMAES(), Evolver)
    assert compute_expected_norm(3) == pytest.approx(np.sqrt(8 / np.pi), rel=1e-3)  # of Maxwell's distribution


@pytest.mark.parametrize("options", [{"population_size": 1}, {"num_elites": 129}])
def test_impossible_sizes_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        CMAES(**options)


def test_a_covariance_beyond_the_memory_is_refused_before_anything_is_made(key):
    shapes = jax.eval_shape(lambda: CMAES().init(key, jnp.zeros(3_000_000)))
    with pytest.raises(OptionError, match=r"need 144 TB of memory, .* largest field is covariance, 36 TB") as error:
        dry_run.require_memory(shapes)
    assert "\n" not in str(error.value)


def test_the_constants_are_those_of_many_parameters_too():
    """70,000 squared is no 32-bit integer; c_mu of Hansen 2016, equation 58, by hand."""
    found = jax.jit(lambda: compute_rates(70_000, compute_raw_weights(10, 10, 5), True, 1.0, 2.0, 1.0))()
    mu = float(found.mu_eff)
    assert float(found.c_mu) == pytest.approx(2 * (0.25 + mu + 1 / mu - 2) / (70_002.0**2 + mu), rel=1e-5)


def test_sigma_is_bounded_on_a_plateau():
    search = CMAES(8)
    state = search.init(jax.random.key(0), jnp.zeros(3))

    def step(state, key):
        genomes, state = search.ask(key, state)
        return search.tell(key, genomes, jnp.full(8, -200.0), state)

    state, _ = jax.jit(lambda: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 400)))()
    assert jnp.isfinite(state.mean).all()
    assert 1e9 < float(state.sigma) < 1e12
