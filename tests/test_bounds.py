"""Bounds: the map to a box beside pycma's, and searches whose optimum lies on an edge beside pycma's and by hand."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.bounds import BoundTransform, reflect
from evorl.ec import ARS, CEM, CMAES, CSO, GA, NSGA2, XNES, DiagonalCovariance, OpenES, Restarts, VanillaES
from evorl.errors import OptionError
from evorl.workflows import Search

KEY = jax.random.key(0)
INF = float("inf")
BOXES = [
    ((0.0,) * 6, (2.0,) * 6),
    ((-5.0,) * 6, (5.0,) * 6),
    ((0.0, -3.0, 10.0, -INF, 0.0, -INF), (1e-3, 4.0, 11.0, 3.0, INF, INF)),
]


@pytest.mark.parametrize(("low", "high"), BOXES)
def test_the_map_to_a_box_is_pycmas_and_has_an_inverse(low, high):
    cma = pytest.importorskip("cma")
    ends = [[None if np.isinf(x) else x for x in end] for end in (low, high)]
    width = np.where(np.isfinite(np.subtract(high, low)), np.subtract(high, low), 5)
    points = np.random.default_rng(0).normal(size=(200, 6)) * 1.5 * width
    theirs = np.array([cma.boundary_handler.BoundTransform(ends).transform(list(x)) for x in points])
    box = BoundTransform(low, high)
    ours = box.fold_array(jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ((ours >= np.float32(low)) & (ours <= np.float32(high))).all()
    np.testing.assert_allclose(box.fold_array(box.unfold_array(ours)), ours, rtol=1e-6, atol=1e-7)


def test_the_map_is_the_identity_in_the_middle_and_stays_inside_whatever_comes():
    box = BoundTransform(0.0, 2.0)  # margins of 0.05 and 0.1
    x = jnp.linspace(0.051, 1.899, 100)
    np.testing.assert_array_equal(box.fold_array(x), x)
    np.testing.assert_allclose(box.fold_array(jnp.array([-0.05, 0.0, 2.0, 2.1])), [0, 0.0125, 1.975, 2], atol=1e-6)
    far = box.fold_array(jnp.array([1e20, -3e37, 12345.6, jnp.nan]))
    assert (far[:3] >= 0).all()
    assert (far[:3] <= 2).all()
    assert jnp.isnan(far[3])
    params = {"a": jnp.array([[-3.0], [0.5]]), "b": jnp.float32(9.0)}
    folded = jax.jit(BoundTransform((0.0, 0.0, -1.0), (1.0, 1.0, INF)).fold)(params)
    assert jax.tree.structure(folded) == jax.tree.structure(params)
    np.testing.assert_array_equal([folded["a"][1, 0], folded["b"]], [0.5, 9.0])
    assert not BoundTransform(-INF, INF).is_bounded
    with pytest.raises(OptionError, match=r"^bounds=2.0, 1.0: low must be below high$"):
        BoundTransform(2.0, 1.0)


def test_mirrored_numbers_by_hand():
    x = jnp.array([-0.1, 1.1, 2.3, -3.2, 0.5, 0.0, 1.0])
    np.testing.assert_allclose(reflect(x, 0.0, 1.0), [0.1, 0.9, 0.3, 0.8, 0.5, 0, 1], atol=1e-6)
    np.testing.assert_allclose(reflect(x, 0.0, INF), np.abs(x), atol=1e-6)


@dataclass(frozen=True)
class Edge:
    """A quadratic function, or a linear one where curvature is 0, whose best point in the box is not inside it.

    Of z = rotation (x - center): -sum(curvature z^2) - slope . x.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    start: tuple[float, ...]
    center: tuple[float, ...]
    curvature: tuple[float, ...]
    slope: tuple[float, ...]
    turned: float = 0.0  # radians, in each plane of neighbouring numbers

    @property
    def bounds(self) -> Any:
        return self.low, self.high

    @property
    def rotation(self):
        n = len(self.low)
        matrix = np.eye(n)
        for i in range(n - 1):
            turn = np.eye(n)
            c, s = np.cos(self.turned), np.sin(self.turned)
            turn[i : i + 2, i : i + 2] = [[c, -s], [s, c]]
            matrix = turn @ matrix
        return matrix

    def init(self, key):
        return jnp.array(self.start)

    def evaluate(self, key, x):
        z = jnp.matmul(jnp.asarray(self.rotation, jnp.float32), x - jnp.array(self.center), precision="highest")
        return -(jnp.array(self.curvature) * z**2).sum() - (jnp.array(self.slope) * x).sum()

    def value(self, x):
        z = self.rotation @ (np.asarray(x, float) - np.array(self.center))
        return -(np.array(self.curvature) * z**2).sum() - (np.array(self.slope) * x).sum()

    def best(self):
        """The highest value in the box, by SciPy's quasi-Newton method for bounds: the functions are concave."""
        from scipy.optimize import minimize

        pairs = [tuple(None if np.isinf(x) else x for x in pair) for pair in zip(self.low, self.high, strict=True)]
        options = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 10_000}
        return -minimize(lambda x: -self.value(x), self.start, bounds=pairs, method="L-BFGS-B", options=options).fun


def edge(low, high, center, curvature=None, slope=None, start=None, turned=0.0):
    n = len(low)
    inside = [np.clip(0.5 * (a + b) if np.isfinite(a + b) else 0.7, a, b) for a, b in zip(low, high, strict=True)]
    numbers = (start or inside, center, curvature or [1.0] * n, slope or [0.0] * n)
    return Edge(*(tuple(map(float, x)) for x in (low, high, *numbers)), turned)


PROBLEMS = {
    "edge": edge([0, 0], [2, 2], [1, 2.5]),
    "corner": edge([0, 0], [2, 2], [2, 2]),
    "beyond a corner": edge([0] * 5, [2] * 5, [-1, -1, 3, 3, 1]),
    "ten numbers": edge([-1] * 10, [1] * 10, [2.0] * 5 + [0.3] * 5),
    "ellipsoid": edge([-2] * 4, [1] * 4, [1.5] * 4, [1, 10, 100, 1000]),
    "rotated ellipsoid": edge([-2] * 4, [1] * 4, [1.5, -0.5, 0.2, 0.1], [1, 3, 10, 30], turned=0.6),
    "linear": edge([-1] * 3, [3] * 3, [0] * 3, [0] * 3, [1, -2, 0.5]),
    "scales": edge([0, 0, -100], [1e-2, 1, 100], [2e-2, 0.5, 150], [1e4, 1, 1e-4]),
    "one bound": edge([0, -INF, -INF], [INF, 1, INF], [-1, 2, 0.5]),
    "at 100": edge([100, 100], [101, 101], [99, 100.5], start=[100.5, 100.2]),
}


def searched(problem, evolver, iterations, seeds=1):
    """The states of a search, leaves [seeds, ...], the solutions and the members of the last generation."""
    workflow = Search(problem, evolver)

    def run(key):
        key_init, key_run, key_ask = jax.random.split(key, 3)
        state = workflow.init(key_init)
        state, _ = jax.lax.scan(workflow.step, state, jax.random.split(key_run, iterations))
        bound = workflow.bound(state)
        return state, bound.plan_evaluation(state, key)[0], bound.plan(state, key_ask)[0]

    return jax.jit(jax.vmap(run))(jax.random.split(KEY, seeds))


def within(problem, x):
    low, high = (np.asarray(end, np.float32) for end in problem.bounds)
    return bool(((np.asarray(x) >= low) & (np.asarray(x) <= high)).all())


def peers(problem):
    """What pycma finds with its default boundaries, from the same start and step."""
    cma = pytest.importorskip("cma")
    bounds = [[None if np.isinf(x) else x for x in end] for end in problem.bounds]
    options = {"bounds": bounds, "seed": 1, "popsize": 16, "verbose": -9, "maxfevals": 16 * 400}
    found, search = cma.fmin2(lambda x: -problem.value(x), problem.start, 0.1, options)
    return problem.value(found), search.sigma * search.sm.D.max() if hasattr(search.sm, "D") else search.sigma


@pytest.mark.program
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("covariance", [None, DiagonalCovariance()], ids=["full", "diagonal"])
def test_cma_es_finds_optima_on_edges_as_pycma_does_and_its_steps_shrink(name, covariance, optimized):
    problem = PROBLEMS[name]
    evolver = CMAES(16) if covariance is None else CMAES(16, covariance=covariance)
    state, solution, members = searched(problem, evolver, 600, seeds=2)
    best, (theirs, _) = problem.best(), peers(problem)
    scale = max(1.0, abs(best))
    assert theirs == pytest.approx(best, abs=1e-5 * scale)
    search, variances = state.evolver, jax.vmap(evolver.covariance.variances)(state.evolver.covariance)
    spread = np.asarray(search.sigma * jnp.sqrt(variances.max(1)))
    for seed in range(2):
        assert problem.value(np.float64(solution[seed])) == pytest.approx(max(best, theirs), abs=2e-4 * scale)
        assert within(problem, solution[seed])
        assert within(problem, members[seed])
        assert spread[seed] < 0.02
    assert (np.asarray(search.sigma) < 0.1).all()  # that of the start


EVOLVERS = {
    "restarts": (Restarts(CMAES(8), 2), 400, 0.01),
    "cem": (CEM(32), 400, 0.05),
    "openes": (OpenES(32), 600, 0.1),
    "vanilla_es": (VanillaES(32), 400, 0.1),
    "xnes": (XNES(32), 400, 0.01),
    "ars": (ARS(32), 400, 0.1),
    "cso": (CSO(32), 400, 0.02),
    "ga": (GA(32), 400, 0.05),
    "nsga2": (NSGA2(32), 200, 0.02),
}


@pytest.mark.program
@pytest.mark.parametrize("name", EVOLVERS)
def test_any_evolver_finds_the_edge_and_answers_within_the_bounds(name, optimized):
    evolver, iterations, short = EVOLVERS[name]
    problem = PROBLEMS["edge"]
    state, solution, members = searched(problem, evolver, iterations)
    assert within(problem, solution[0])
    assert within(problem, members[0])
    assert problem.value(np.float64(solution[0])) > -0.25 - short
    found = Search(problem, evolver).results(jax.tree.map(lambda x: x[0], state))
    assert within(problem, found.params[found.valid_mask])
