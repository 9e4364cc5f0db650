"""Archives against plain Python, emitters against their equations, novelty by hand, the trap by written policies."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster.vq import kmeans2

from evorl import Budget, fit, tree
from evorl.agents import TD3, MLPPolicy
from evorl.agents.base_agent import fill_spaces
from evorl.ec import CMAES, GA, OpenES, SeededES
from evorl.ec.archives import CELLS_PER_BLOCK, Elites, InsertionResult, write_elites
from evorl.ec.cells import CVTArchive, GridArchive
from evorl.ec.cma_me import ImprovementEmitter
from evorl.ec.emitters import EliteEmitter, GaussianEmitter, IsoLineEmitter, TwoEmitters
from evorl.ec.map_elites import MapElites
from evorl.ec.novelty import Novelty
from evorl.ec.novelty_es import NoveltyES
from evorl.ec.unstructured import UnstructuredArchive
from evorl.envs import check_env
from evorl.envs.maze.point_maze import PointMaze, crosses_wall
from evorl.errors import OptionError
from evorl.parts import read_numbers
from evorl.problems import Arm, LinearProjection
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.program import Program, make_run_args
from evorl.types import QDEvaluation
from evorl.workflows import PGAME, Evolution, Search

BOX = GridArchive((-1.0, 0.0), (1.0, 2.0), (3, 2))
ONE = jnp.float32(1)


def batches(seed, count, n=12):
    """Of genomes that are numbers, with ties, and with some that have no fitness or lie nowhere."""
    random = np.random.default_rng(seed)
    for i in range(count):
        fitness = random.integers(-4, 5, n).astype(np.float32)
        fitness[random.random(n) < 0.1] = random.choice([np.nan, np.inf, -np.inf])
        descriptor = random.uniform((-1.3, -0.3), (1.3, 2.3), (n, 2)).astype(np.float32)
        descriptor[random.random(n) < 0.05, 1] = np.nan
        yield np.arange(i * n, i * n + n, dtype=np.float32), fitness, descriptor


def fill(elites, cells, genomes):
    """Return elites with genomes of fitness 0 in some cells."""
    n = len(cells)
    return write_elites(elites, cells, genomes, QDEvaluation(jnp.zeros(n), jnp.zeros((n, elites.descriptor.shape[1]))))


def cell_of(x):
    """Of the grid, by hand: three columns of width 2/3, two rows of height 1; row-major, the first number leads."""
    column, row = (int(np.floor(v)) for v in ((x[0] + 1) / (2 / 3), x[1]))
    return 2 * min(max(column, 0), 2) + min(max(row, 0), 1)


@pytest.mark.parametrize("archive", [BOX, CVTArchive((-1.0, 0.0), (1.0, 2.0), cells=5, samples=200)])
def test_an_archive_keeps_the_first_of_the_fittest_of_each_cell(archive):
    nearest = lambda x: int(((archive.centroids - x) ** 2).sum(1).argmin())  # noqa: E731
    place = cell_of if isinstance(archive, GridArchive) else nearest
    elites, kept = archive.empty(jnp.zeros((3, 1))), {}
    add = jax.jit(archive.add)
    for genome, fitness, descriptor in batches(0, 30):
        before = dict(kept)
        elites, entry = add(elites, genome[:, None], QDEvaluation(fitness, descriptor), ONE)
        for i in range(len(genome)):
            sound = np.isfinite(fitness[i]) and np.isfinite(descriptor[i]).all()
            cell = place(descriptor[i]) if sound else None
            old = before.get(cell, (-np.inf,))[0]
            assert bool(entry.entered[i]) == bool(sound and fitness[i] > old)
            if sound:
                assert bool(entry.new_cell[i]) == (cell not in before)
                assert float(entry.gain[i]) == fitness[i] - (old if cell in before else 0)
                if fitness[i] > kept.get(cell, (-np.inf,))[0]:
                    kept[cell] = fitness[i], genome[i], descriptor[i]
        assert np.flatnonzero(elites.filled).tolist() == sorted(kept)
        for cell, (worth, number, where) in kept.items():
            assert (elites.fitness[cell], elites.genomes[cell, 0]) == (worth, number)
            np.testing.assert_array_equal(elites.descriptor[cell], where)
    assert len(kept) == archive.cells


@pytest.mark.parametrize(
    ("low", "cells", "samples"), [((0.0, -3.0), 60, 500), ((0.0,) * 5, 200, 1_000), ((2.0,), 7, 7)]
)
def test_centroids_are_those_of_scipys_k_means(low, cells, samples):
    high = tuple(x + 2 for x in low)
    random = np.random.default_rng(3)
    points = random.uniform(low, high, (samples, len(low)))
    first = points[random.choice(samples, cells, replace=False)]
    expected = kmeans2(points, first, iter=20, minit="matrix", missing="warn")[0]
    np.testing.assert_allclose(CVTArchive(low, high, cells, samples, seed=3).centroids, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batch", [2, 32])  # fewer and more than blocks
def test_statistics_of_an_archive_of_several_blocks_are_numpys(batch):
    """Batches that fill and replace cells of three blocks, of which the last is not full."""
    archive, random = GridArchive((0.0,), (1.0,), (2 * CELLS_PER_BLOCK + 50,)), np.random.default_rng(3)
    elites, add = archive.empty(jnp.zeros((1, 1))), jax.jit(archive.add)
    for scale in (1e30, 1.0, 10.0):  # sums of huge numbers leave no rounding error behind once these are replaced
        for _ in range(1280 // batch):
            fitness = random.uniform(-scale, 0, batch) if scale > 10 else random.uniform(0, scale, batch)
            quality = QDEvaluation(jnp.asarray(fitness, jnp.float32), jnp.asarray(random.uniform(0, 1, (batch, 1))))
            elites, _ = add(elites, jnp.asarray(fitness, jnp.float32)[:, None], quality, ONE)
        filled = np.asarray(elites.filled)
        fitness = np.where(filled, elites.fitness, 0.0)
        assert int(elites.count) == filled.sum()
        assert sorted(elites.order[: filled.sum()].tolist()) == np.flatnonzero(filled).tolist()
        np.testing.assert_allclose(elites.sum_fitness(-3.0), (fitness + 3.0)[filled].sum(dtype=np.float64), rtol=1e-6)
        assert float(elites.best[0]) == fitness[filled].max() == float(elites.blocks.best.max())
    assert filled.sum() > 250
    assert fitness.min() >= 0


def test_a_genome_with_nan_does_not_enter():
    """The fitness of a policy does not show a parameter that it does not read."""
    genomes, two = jnp.array([[1.0, jnp.nan], [1.0, 0.0]]), QDEvaluation(jnp.array([2.0, 1.0]), jnp.zeros((2, 2)))
    for archive in (BOX, UnstructuredArchive(0.4, 9)):
        elites, entry = archive.add(archive.empty(jnp.zeros((1, 2))), genomes, two, ONE)
        assert entry.entered.tolist() == [False, True]
        assert bool(jnp.isfinite(elites.genomes).all())


def test_an_archive_without_cells_keeps_its_elites_apart():
    """Beside plain Python, one genome after another, until it is full."""
    archive, kept = UnstructuredArchive(0.4, 9), []
    elites, add = archive.empty(jnp.zeros((2, 1))), jax.jit(archive.add)
    for genome, fitness, descriptor in batches(1, 20):
        elites, entry = add(elites, genome[:, None], QDEvaluation(fitness, descriptor), ONE)
        for i, (number, worth, where) in enumerate(zip(genome, fitness, descriptor, strict=True)):
            away = [float(np.linalg.norm(old[2] - where)) for old in kept]
            near = [j for j, far in enumerate(away) if far <= 0.4]
            if not (np.isfinite(worth) and np.isfinite(where).all()):
                enters = False
            elif not near:
                enters = len(kept) < 9
                kept += [(number, worth, where)] * enters
            else:
                enters = len(near) == 1 and worth > kept[near[0]][1]
                kept[near[0]] = (number, worth, where) if enters else kept[near[0]]
            assert bool(entry.entered[i]) == enters
        assert int(elites.filled.sum()) == len(kept)
        np.testing.assert_array_equal(elites.genomes[: len(kept), 0], [old[0] for old in kept])
        np.testing.assert_array_equal(elites.fitness[: len(kept)], [old[1] for old in kept])
    assert len(kept) == 9


def test_thresholds_move_part_of_the_way_and_what_is_above_them_becomes_the_elite():
    """CMA-MAE by hand: from 0, rate 0.5; 4 and 2 enter at once: 0.25 * 0 + 0.75 * 3; then 3 enters, less fit than 4."""
    archive = GridArchive((0.0,), (1.0,), (1,), threshold_min=0.0)
    elites, here = archive.empty(jnp.zeros((1, 1))), jnp.full((3, 1), 0.5)
    told = lambda *fitness: QDEvaluation(jnp.array(fitness), here)  # noqa: E731
    elites, entry = archive.add(elites, jnp.array([[1.0], [2.0], [3.0]]), told(4.0, 2.0, -1.0), jnp.float32(0.5))
    assert entry.entered.tolist() == [True, True, False]
    assert entry.gain.tolist() == [4.0, 2.0, -1.0]
    assert (elites.threshold.tolist(), elites.genomes.tolist()) == ([2.25], [[1.0]])
    elites, entry = archive.add(elites, jnp.array([[4.0], [5.0], [6.0]]), told(3.0, 2.0, 1.0), jnp.float32(0.5))
    assert entry.gain.tolist() == [0.75, -0.25, -1.25]
    assert (elites.threshold.tolist(), elites.fitness.tolist()) == ([2.625], [3.0])
    assert elites.genomes.tolist() == [[4.0]]


# of pyribs 0.12.0, NumPy 2.4.6: GridArchive(dims=(12,), ranges=[(0, 1)], learning_rate=0.3, threshold_min=0) after 80
RIBS_ELITES = [66, 77, 41, 44, 71, 40, 55, 50, 49, 54, 62, 76]
RIBS_THRESHOLDS = [2.254414, 1.333128, 0.35727, 0.31656, 1.052443, 1.609176]
RIBS_THRESHOLDS += [1.497678, 1.887955, 1.542063, 1.03071, 1.949801, 2.003215]
RIBS_RESULTS = [57, 12, 41, 44, 5, 32, 55, 9, 25, 54, 62, 47]  # of a second archive, without a learning rate


def test_elites_thresholds_and_results_of_cma_mae_are_pyribs():
    """Four batches of 20 into twelve cells: several come to one at once, and seven elites are not the fittest."""
    archive = GridArchive((0.0,), (1.0,), (12,), threshold_min=0.0)
    evolver, random = MapElites(archive, IsoLineEmitter(20), archive_learning_rate=0.3), np.random.default_rng(0)
    state = evolver.init(jax.random.key(0), jnp.zeros(1))
    metrics, tell = {}, jax.jit(evolver.tell)
    for batch in range(4):
        fitness, measure = np.round(random.uniform(-1, 3, 20), 3), np.round(random.uniform(0, 1, (20, 1)), 3)
        told = QDEvaluation(jnp.asarray(fitness, jnp.float32), jnp.asarray(measure, jnp.float32))
        genomes = jnp.arange(20.0)[:, None] + 20 * batch
        state, metrics = tell(jax.random.key(0), genomes, told, state)
    assert state.elites.genomes[:, 0].tolist() == RIBS_ELITES
    np.testing.assert_allclose(state.elites.threshold, RIBS_THRESHOLDS, rtol=1e-5)
    found = evolver.results(state)
    assert found.params[:, 0].tolist() == RIBS_RESULTS
    assert (found.fitness >= state.elites.fitness).all()
    np.testing.assert_allclose(metrics["archive/qd_score"], found.fitness.sum(), rtol=1e-6)
    assert evolver.solution(state) == found.params[found.fitness.argmax()]
    assert evolver.init(jax.random.key(0), jnp.zeros(1)).result_elites.threshold.tolist() == [-np.inf] * 12
    assert (
        MapElites(GridArchive(), archive_learning_rate=0.3).init(jax.random.key(0), jnp.zeros(1)).result_elites is None
    )


def test_elites_are_drawn_alike_and_the_first_members_where_there_are_none():
    from scipy import stats

    elites = BOX.empty(jnp.arange(4.0)[:, None])
    np.testing.assert_array_equal(elites.sample(jax.random.key(0), 8)[:, 0], [0, 1, 2, 3, 0, 1, 0, 1])
    some = fill(elites, jnp.array([3, 1, 4]), jnp.array([[3.0], [1.0], [4.0]]))
    drawn = np.asarray(jax.jit(lambda key: some.sample(key, 3000))(jax.random.key(1))[:, 0]).astype(int)
    counts = np.bincount(drawn, minlength=6)
    assert counts[[0, 2, 5]].sum() == 0
    assert stats.chisquare(counts[[1, 3, 4]]).pvalue > 1e-3


def test_iso_line_is_elites_with_noise_along_the_line_to_others():
    """Vary the elites 0 and e_1: line_sigma acts along the first axis alone (arXiv:1804.03906, eq. 1)."""
    n, size = 20_000, 3
    parents = jnp.array([[0.0, 0, 0], [1, 0, 0]])
    elites = fill(GridArchive((0.0,), (1.0,), (2,)).empty(parents), jnp.arange(2), parents)
    emitter = IsoLineEmitter(n)
    children = np.asarray(jax.jit(lambda key: emitter.ask(key, None, elites))(jax.random.key(0)))
    off = children - np.round(children)
    assert children.shape == (n, size)
    np.testing.assert_allclose(off[:, 1:].std(0), 0.005, rtol=0.03)
    np.testing.assert_allclose(off[:, 0].std(), np.sqrt(0.005**2 + 0.05**2 / 2), rtol=0.05)  # half had another parent


def test_the_gaussian_emitter_is_elites_with_noise_on_every_parameter():
    """Standard deviation 0.02, from both elites alike."""
    n, parents = 20_000, jnp.array([[0.0, 0, 0], [1, 0, 0]])
    elites = fill(GridArchive((0.0,), (1.0,), (2,)).empty(parents), jnp.arange(2), parents)
    children = np.asarray(jax.jit(lambda key: GaussianEmitter(n).ask(key, None, elites))(jax.random.key(0)))
    off = children - np.round(children)
    np.testing.assert_allclose(off.std(0), 0.02, rtol=0.03)
    np.testing.assert_allclose(np.round(children[:, 0]).mean(), 0.5, atol=0.015)


def improvement(ranking, new, gain, entered):
    """The state before and after one generation of four of a search in the plane, all members one apart from 0."""
    emitter = ImprovementEmitter(1, CMAES(4, active=False, initial_std=1.0), ranking)
    state = emitter.init(jax.random.key(0), jnp.zeros(2))
    elites = GridArchive((0.0,), (1.0,), (1,)).empty(jnp.array([[7.0, 7.0]]))
    elites = fill(elites, jnp.arange(1), jnp.array([[7.0, 7.0]]))
    members = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    told = (
        members,
        QDEvaluation(jnp.zeros(4), jnp.zeros((4, 1))),
        InsertionResult(jnp.array(new), jnp.array(entered), jnp.array(gain)),
    )
    return emitter.tell(jax.random.key(0), told, state, elites)


@pytest.mark.program
def test_cma_me_moves_to_new_cells_first_and_by_as_many_parents_as_entered():
    """Weights of two parents: log 2.5 - log 1 and log 2.5 - log 2, over their sum (Hansen 2016, equation 49)."""
    state = improvement("two_stage", [False, True, False, False], [9.0, -5.0, 1.0, 8.0], [True, True, False, False])
    first = np.log(2.5) / (np.log(2.5) + np.log(1.25))
    np.testing.assert_allclose(state.searches.mean[0], [1 - first, first], rtol=1e-5)
    assert int(state.restarts) == 0


@pytest.mark.program
def test_cma_mae_moves_by_gain_to_the_best_half_and_begins_anew_where_gains_are_equal():
    state = improvement("improvement", [False, True, False, False], [-1.0, -5.0, -9.0, -2.0], [False] * 4)
    first = np.log(2.5) / (np.log(2.5) + np.log(1.25))
    np.testing.assert_allclose(state.searches.mean[0], [first, first - 1], rtol=1e-5)  # (1, 0), then (0, -1)
    assert int(state.restarts) == 0
    assert int(improvement("improvement", [True] * 4, [1.0] * 4, [True] * 4).restarts) == 1


@pytest.mark.program
def test_a_search_of_which_none_entered_begins_anew_at_an_elite():
    state = improvement("two_stage", [False] * 4, [-1.0] * 4, [False] * 4)
    np.testing.assert_array_equal(state.searches.mean[0], [7.0, 7.0])
    assert (int(state.restarts), float(state.searches.sigma[0])) == (1, 1.0)


def run(workflow, iterations, seed=0):
    state = jax.jit(workflow.init)(jax.random.key(seed))
    keys = jax.random.split(jax.random.key(seed + 1), iterations)
    return jax.jit(lambda state: jax.lax.scan(workflow.step, state, keys))(state)


@pytest.mark.program
def test_map_elites_fills_what_an_arm_reaches():
    archive = GridArchive((-1.0, -1.0), (1.0, 1.0), (8, 8))
    state, metrics = run(Search(Arm(6), MapElites(archive, IsoLineEmitter(64), qd_score_offset=-4.0)), 60)
    elites: Elites = state.evolver.elites
    coverage, score = np.asarray(metrics["archive/coverage"]), np.asarray(metrics["archive/qd_score"])
    assert coverage[-1] > 0.7
    assert (np.diff(coverage) >= 0).all()
    assert (np.diff(score) >= -1e-3).all()
    np.testing.assert_allclose(score[-1], (np.asarray(elites.fitness) + 4)[np.asarray(elites.filled)].sum(), rtol=1e-5)
    assert float(jnp.abs(elites.genomes).max()) <= np.float32(np.pi)
    again = jax.vmap(lambda x: Arm(6).evaluate(jax.random.key(0), x))(elites.genomes)
    here = np.asarray(elites.filled)
    np.testing.assert_allclose(again.fitness[here], elites.fitness[here], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(again.descriptor[here], elites.descriptor[here], atol=1e-5)
    best = Arm(6).evaluate(jax.random.key(0), MapElites(archive).solution(state.evolver)).fitness
    np.testing.assert_allclose(best, elites.fitness[here].max(), atol=1e-5)


@pytest.mark.program
def test_a_search_whose_state_is_an_archive_alone_is_trained():
    search = Search(Arm(6), MapElites(GridArchive((-1.0, -1.0), (1.0, 1.0), (4, 4)), IsoLineEmitter(16)))
    training = fit(search, budget=Budget(iterations=4), evaluations=1, progress=False)
    assert training.rows[-1]["return"] > training.rows[0]["return"]


@pytest.mark.program
def test_elites_of_half_the_bytes_are_what_was_evaluated():
    archive = GridArchive((-1.0, -1.0), (1.0, 1.0), (4, 4))
    state, _ = run(Search(Arm(5), MapElites(archive, IsoLineEmitter(16), dtype="bfloat16")), 20)
    elites = state.evolver.elites
    assert elites.genomes.dtype == jnp.bfloat16
    again = jax.vmap(lambda x: Arm(5).evaluate(jax.random.key(0), x.astype(jnp.float32)))(elites.genomes)
    here = np.asarray(elites.filled)
    np.testing.assert_allclose(again.fitness[here], elites.fitness[here], rtol=1e-5, atol=1e-6)


def test_the_projected_sphere_is_that_of_cma_me():
    problem = LinearProjection(4)
    at = lambda *x: problem.evaluate(jax.random.key(0), jnp.array(x))  # noqa: E731
    np.testing.assert_allclose(at(2.048, 2.048, 2.048, 2.048).fitness, 100, rtol=1e-6)
    np.testing.assert_allclose(at(-5.12, -5.12, -5.12, -5.12).fitness, 0, atol=1e-4)
    np.testing.assert_allclose(at(1.0, 2.0, 10.24, -10.24).descriptor, [3.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(at(0.0, 5.12, 5.12, 20.48).descriptor, [5.12, 5.37], rtol=1e-6)


@pytest.mark.program
def test_novelty_is_the_mean_distance_to_the_nearest_seen_now_or_before():
    """Of 0, 1, 3 and 10 on a line, with two neighbours each, beside 4 and 20 that the archive holds."""
    novelty = Novelty(GA(4, 1), num_descriptors=1, neighbours=2, num_archived=1, capacity=3)
    state = novelty.init(jax.random.key(0), jnp.zeros(2))
    state = replace(state, archive=jnp.array([[4.0], [20.0], [0.0]]), count=jnp.int32(2))
    descriptor = jnp.array([[0.0], [1.0], [3.0], [10.0]])
    np.testing.assert_allclose(novelty.compute_novelty(descriptor, state), [2.0, 1.5, 1.5, 6.5])
    genomes = jnp.arange(8.0).reshape(4, 2)
    told = QDEvaluation(jnp.array([1.0, jnp.nan, 3.0, 2.0]), descriptor)
    after, _ = novelty.tell(jax.random.key(1), genomes, told, state)
    np.testing.assert_allclose(after.archive[:, 0], [4.0, 20.0, 10.0])
    assert (int(after.count), float(after.best_fitness)) == (3, 3.0)
    np.testing.assert_array_equal(novelty.solution(after), genomes[2])
    np.testing.assert_array_equal(after.evolver.members[0], genomes[3])  # the elite of the GA


@pytest.mark.program
def test_several_centers_by_hand():
    """Of two centers, which play 0 and 6, and members that play 1, 2, 3 and 9: all beside an archive of 0, 6."""
    evolver = NoveltyES(OpenES(4), 2, num_descriptors=1, neighbours=2, capacity=3, novelty_weight=1.0)
    members = jnp.arange(18.0).reshape(6, 3)
    state = evolver.from_members(jax.random.key(0), members, members[0])
    genomes, state = evolver.ask(jax.random.key(1), state)
    assert genomes.shape == (6, 3)
    np.testing.assert_array_equal(genomes[4:], members[:2])
    np.testing.assert_allclose(genomes[:4].mean(0), members[state.center_index], rtol=1e-5)
    told = QDEvaluation(
        jnp.array([1.0, 2.0, 3.0, 0.0, 9.0, 2.0]), jnp.array([[1.0], [2.0], [3.0], [9.0], [0.0], [6.0]])
    )
    after, metrics = evolver.tell(jax.random.key(2), genomes, told, state)
    np.testing.assert_allclose(after.archive[:, 0], [0, 6, 0])
    np.testing.assert_allclose(after.novelty, [3, 3])
    np.testing.assert_allclose(metrics["novelty"], np.mean([3, 3, 3, 6]))
    np.testing.assert_array_equal(after.archive_pending, np.arange(2) == state.center_index)
    np.testing.assert_array_equal(evolver.solution(after), genomes[4])
    alone, _ = OpenES(4).tell(
        jax.random.key(2),
        genomes[:4],
        jnp.array([0.0, 0, 0, 1]),
        tree.index(state.centers, state.center_index),
    )
    np.testing.assert_allclose(after.centers.mean[after.center_index], alone.mean, rtol=1e-6)
    np.testing.assert_array_equal(after.centers.mean[1 - after.center_index], members[1 - after.center_index])
    for key in jax.random.split(jax.random.key(3), 8):  # who is not new is never chosen
        assert int(evolver.ask(key, replace(after, novelty=jnp.array([0.0, 2.0])))[1].center_index) == 1


def walk(policy, steps=100):
    """A policy's way through the maze, and its return."""
    env = PointMaze()
    state, obs = env.reset(jax.random.key(0), None)
    way, total = [np.asarray(obs)], 0.0
    step = jax.jit(env.step)
    for _ in range(steps):
        state, timestep = step(jax.random.key(0), state, jnp.asarray(policy(way[-1]), jnp.float32), None)
        way.append(np.asarray(timestep.obs))
        total += float(timestep.reward)
        if timestep.terminated | timestep.truncated:
            break
    return np.array(way), total


@pytest.mark.program
def test_the_maze_holds_who_comes_straight_and_lets_who_goes_around():
    way, total = walk(lambda at: (1.0, 1.0))
    np.testing.assert_allclose(way[-1], (1.0, 0.65), atol=0.02)  # below the second wall, along which it slid
    np.testing.assert_allclose(total, -np.linalg.norm(way[-1] - (0.9, 0.9)), atol=1e-5)

    def around(at):
        if at[1] < 0.33 or at[1] > 0.7:
            return (1.0, 0.25)
        return (-1.0, 0.0) if at[0] > 0.15 else (0.0, 1.0)

    way, total = walk(around)
    assert total == 0.0
    assert np.linalg.norm(way[-1] - (0.9, 0.9)) < 0.1
    assert PointMaze().is_solved(jnp.array([0.0, -0.3])).tolist() == [True, False]
    assert crosses_wall(jnp.array([0.5, 0.3]), jnp.array([0.5, 0.35]))
    assert crosses_wall(jnp.array([0.5, 0.35]), jnp.array([0.5, 0.33]))
    assert not crosses_wall(jnp.array([0.8, 0.3]), jnp.array([0.8, 0.35]))
    check_env(PointMaze(max_episode_steps=5), episodes=2)


@pytest.mark.program
def test_policies_are_archived_by_where_their_episodes_end():
    env = PointMaze(max_episode_steps=6)
    agent = MLPPolicy(hidden=(4,))
    archive = GridArchive((0.0, 0.0), (1.0, 1.0), (4, 4))
    workflow = Evolution(
        env, agent, MapElites(archive, IsoLineEmitter(8), ("position",)), normalization="none", eval_episodes=2
    )
    state, metrics = run(workflow, 4)
    elites = state.evolver.elites
    here = np.asarray(elites.filled)
    assert 1 <= here.sum() <= 16
    reached = np.linalg.norm(np.asarray(elites.descriptor) - (0.9, 0.9), axis=1)
    np.testing.assert_allclose(elites.fitness[here], -reached[here], atol=1e-5)
    assert float(metrics["archive/best"][-1]) == elites.fitness[here].max()


@pytest.mark.program
def test_offspring_of_pga_learns_and_the_greedy_actor_is_told():
    env = PointMaze(max_episode_steps=6)
    agent = fill_spaces(TD3(hidden=(8,)), env)
    archive = GridArchive((0.0, 0.0), (1.0, 1.0), (4, 4))
    evolver = MapElites(archive, TwoEmitters(IsoLineEmitter(3), EliteEmitter(3)), ("position",))
    sizes = {
        "num_learners": 3,
        "critic_updates": 4,
        "policy_updates": 5,
        "batch_size": 8,
        "capacity": 64,
        "eval_episodes": 2,
    }
    workflow = PGAME(env, agent, evolver, **sizes)
    state, _ = run(workflow, 1)
    workflow = workflow.bound(state)
    (plan, (after, _, metrics)) = jax.jit(workflow.plan)(state, jax.random.key(5))
    assert int(metrics["gradient_steps"]) == 4
    greedy = jax.tree.map(lambda x: x[-1], plan.params)
    for a, b in zip(jax.tree.leaves(greedy), jax.tree.leaves(after.actor.params), strict=True):
        np.testing.assert_array_equal(a, b)
    value = lambda params: agent.actor_loss(params, after, rows, jax.random.key(0))[0]  # noqa: E731
    rows = state.replay.sample(jax.random.key(0), (64,)).rows
    still = jax.jit(
        lambda: workflow.train_offspring(
            state, after, jax.tree.map(lambda x: x[3:], plan.params), jax.random.key(1), jnp.int32(0)
        )
    )()
    moved = jax.jit(lambda: workflow.train_offspring(state, after, still, jax.random.key(1), jnp.int32(50)))()
    assert (np.asarray(jax.vmap(value)(moved)) < np.asarray(jax.vmap(value)(still))).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: GridArchive((0.0,), (1.0, 2.0), (4, 4)), "high"),
        (lambda: GridArchive((0.0, 0.0), (1.0, 0.0), (4, 4)), "must be above low"),
        (lambda: GridArchive((0.0, 0.0), (1.0, 1.0), (4,)), "shape"),
        (lambda: GridArchive(shape=(0, 3)), "at least 1"),
        (lambda: CVTArchive(cells=100, samples=10), "samples=10"),
        (lambda: ImprovementEmitter(ranking="by_gain"), "unknown ranking by_gain"),
        (lambda: MapElites(dtype="float16"), "unknown dtype float16"),
        (lambda: MapElites(descriptors=()), "descriptors"),
        (lambda: Novelty(OpenES(8), neighbours=8), "neighbours=8"),
        (lambda: NoveltyES(capacity=4), "capacity=4: must be at least 10"),
        (lambda: NoveltyES(SeededES()), "evolver=SeededES: has no from_params"),
        (lambda: evolution(MapElites(), normalization="running"), "normalization=running"),
        (
            lambda: jax.eval_shape(*stepping(MapElites())),
            "descriptor is none of the episode statistics of the environment; use position",
        ),
        (
            lambda: jax.eval_shape(*stepping(MapElites(descriptors=("position", "return")))),
            "must have 2 values in total, not 3",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(wrong, says):
    with pytest.raises(OptionError, match=says):
        wrong()


def evolution(evolver, normalization="none"):
    env = PointMaze(max_episode_steps=3)
    agent = MLPPolicy(hidden=(2,))
    return Evolution(env, agent, evolver, normalization=normalization, eval_episodes=2)


def stepping(evolver):
    """A step, and its arguments by their shapes."""
    workflow, key = evolution(evolver), jax.random.key(0)
    return workflow.step, jax.eval_shape(workflow.init, key), key


@pytest.mark.program
def test_no_archive_is_copied_in_a_chunk_of_training_and_evaluation():
    """By the memory of the compiled program, donated: it needs less than half of the archive beside its state."""
    env = PointMaze(max_episode_steps=3)
    agent = MLPPolicy(hidden=(64,))
    evolver = MapElites(GridArchive(shape=(100, 100)), IsoLineEmitter(8), ("position",))
    program = Program(Evolution(env, agent, evolver, normalization="none", eval_episodes=8), [0], 2, True)
    state = jax.eval_shape(program.init, program.keys, {})
    run = jax.jit(program.run, donate_argnums=0).lower(state, program.keys, *make_run_args(0, 2, False)).compile()
    archive = tree.nbytes(state.evolver.elites.genomes)
    assert archive > 10e6
    assert run.memory_analysis().temp_size_in_bytes < archive / 2


@pytest.mark.parametrize("agent", ["map_elites", "cma_me", "pga_me", "novelty", "nsr_es"])
def test_what_is_searched_by_name_is_built_with_its_own_hyperparameters(agent):
    where = "agent.workflow.evolver.descriptors=[position]"
    workflow, _ = runs.build(config.compose_config([f"agent={agent}", "env=point_maze", where]))
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    jax.eval_shape(workflow.step, state, jax.random.key(0))
    assert jax.tree.structure(state.numbers["evolver"]) == jax.tree.structure(read_numbers(workflow.evolver))


@pytest.mark.parametrize("offset", [0.0, 10.0, 1000.0])
def test_the_nearest_centroid_is_found_wherever_the_bounds_are(offset):
    archive = CVTArchive((offset, offset), (offset + 1, offset + 1), cells=64, samples=2000)
    x = offset + np.random.default_rng(0).uniform(size=(200, 2)).astype(np.float32)
    distance = ((x[:, None].astype(float) - archive.centroids.astype(float)) ** 2).sum(-1)
    np.testing.assert_array_equal(archive.find_cells(jnp.asarray(x, jnp.float32)), distance.argmin(1))
