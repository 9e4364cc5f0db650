"""Levels as genomes: made of vectors for an evolver, or bred."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy, OpenES, tree
from evorl.agents import PPO
from evorl.envs.maze import Maze, RandomWalls, paths
from evorl.envs.physics import Physics
from evorl.envs.suites.gymnax import Gymnax
from evorl.errors import OptionError
from evorl.priors import Uniform
from evorl.types import DecodableLevelEnv, LevelCrossoverEnv
from evorl.ued.generators import BredLevels, BredLevelsState, EvolvedLevels
from evorl.ued.plr import PLR

ENV = Maze(RandomWalls(4, 5, fewest=4, most=4), view_size=3, max_episode_steps=20, num_actions=3)
PHYSICS = Physics(Gymnax("CartPole-v1"), {"length": Uniform(0.3, 0.7), "masspole": Uniform(0.1, 0.2)})


def test_a_maze_is_decoded_as_in_numpy():
    assert isinstance(ENV, DecodableLevelEnv)
    assert ENV.genome_size == 64
    genomes = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    genomes[0, 20:60] = 0  # all ties: goal on the first cell, start on the second
    found = jax.vmap(ENV.level_from_genome)(jnp.asarray(genomes))
    for i, genome in enumerate(genomes):
        walls, goals, starts, directions = np.split(genome, [20, 40, 60])
        goal = goals.argmax()
        order = np.argsort(-starts, kind="stable")
        start = order[0] if order[0] != goal else order[1]
        grid = walls > 0
        grid[[goal, start]] = False
        np.testing.assert_array_equal(found.grid[i].ravel(), grid)
        np.testing.assert_array_equal(found.goal[i], [goal % 5, goal // 5])
        np.testing.assert_array_equal(found.agent[i], [start % 5, start // 5])
        assert int(found.direction[i]) == directions.argmax()


def test_physics_are_decoded_into_the_unit_cube_and_crossed_by_number():
    assert isinstance(PHYSICS, DecodableLevelEnv)
    np.testing.assert_allclose(PHYSICS.level_from_genome(jnp.array([0.0, 2.0])), [0.5, 1 / (1 + np.exp(-2))], rtol=1e-6)
    assert isinstance(PHYSICS, LevelCrossoverEnv)
    a, b = jnp.array([0.1, 0.2]), jnp.array([0.3, 0.4])
    children = jax.vmap(lambda key: PHYSICS.crossover_levels(key, a, b))(jax.random.split(jax.random.key(0), 40))
    tenths = {tuple(row) for row in np.rint(10 * np.asarray(children)).astype(int).tolist()}
    assert tenths == {(1, 2), (1, 4), (3, 2), (3, 4)}


def bred(key, env, generator, score, rounds, n=16):
    """The mean and the best score of each round."""
    state, found = generator.init(key, env, n), []

    @jax.jit
    def round_of(state, key):
        levels, made_of, state = generator.ask(key, state, env, n, env.default_params)
        worth = score(levels)
        return generator.tell(key, made_of, worth, state), worth

    for i in range(rounds):
        state, worth = round_of(state, jax.random.fold_in(key, i))
        found.append((float(worth.mean()), float(worth.max())))
    return found


def lengths(levels):
    return jax.vmap(paths.path_length)(levels).astype(jnp.float32)


@pytest.mark.program
def test_breeding_finds_long_paths_and_never_loses_the_longest():
    env = Maze(RandomWalls(7, 7, fewest=20, most=20))
    found = bred(jax.random.key(0), env, BredLevels(), lengths, 40)
    best = [high for _, high in found]
    assert best == sorted(best)
    drawn = jax.vmap(env.sample_level, (0, None))(jax.random.split(jax.random.key(1), 16 * 40), env.default_params)
    assert best[-1] > float(lengths(drawn).max())  # of as many drawn levels
    assert found[-1][0] > 1.5 * float(lengths(drawn).mean())


@pytest.mark.program
def test_elites_come_again_unchanged_and_without_a_score_never():
    levels = jax.vmap(ENV.sample_level, (0, None))(jax.random.split(jax.random.key(0), 8), ENV.default_params)
    generator = BredLevels(elites=2)
    before = generator.init(jax.random.key(0), ENV, 8)
    told = generator.tell(jax.random.key(0), levels, jnp.array([1.0, 5, jnp.nan, 4, 0, 3, 2, jnp.nan]), before)
    asked, made_of, _ = generator.ask(jax.random.key(1), told, ENV, 8, ENV.default_params)
    jax.tree.map(np.testing.assert_array_equal, tree.index(asked, slice(0, 2)), tree.index(levels, jnp.array([1, 3])))
    jax.tree.map(np.testing.assert_array_equal, asked, made_of)
    same = BredLevels(
        elites=0, num_edits=0, crossover_rate=0, tournament=8
    )  # children without edits and crossover are their parents
    asked, *_ = same.ask(jax.random.key(2), told, ENV, 8, ENV.default_params)
    last = [bool(ENV.is_same_level(tree.index(asked, i), tree.index(levels, 2))) for i in range(8)]
    assert not any(last)


def test_winners_of_tournaments_are_distributed_as_the_least_of_so_many_ranks():
    n, tournament = 6, 3
    rank = BredLevels()._sample_tournament_winners(jax.random.key(0), 50_000, n, jnp.int32(tournament))
    found = np.bincount(np.asarray(rank).ravel(), minlength=n) / rank.size
    above = (1 - np.arange(n + 1) / n) ** tournament
    np.testing.assert_allclose(found, above[:-1] - above[1:], atol=5e-3)


AGENT = PPO(hidden=(4,))
STUDENT = OnPolicy(ENV, AGENT, num_envs=4, num_steps=0, batch_size=0)


@pytest.mark.program
@pytest.mark.parametrize("generator", [BredLevels(2), EvolvedLevels(OpenES(4))])
def test_a_curriculum_takes_them(generator):
    workflow = PLR(STUDENT, generator, capacity=8)
    state = workflow.init(jax.random.key(0))
    after, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
    assert int(metrics["env_steps"]) == 80
    assert isinstance(after.generator, BredLevelsState) == isinstance(generator, BredLevels)


class Plain(Gymnax):
    """An environment whose levels neither cross nor come from vectors."""

    def sample_level(self, key, params): ...

    def get_level(self, env_state): ...

    def reset_to_level(self, key, level): ...

    def is_same_level(self, a, b): ...


@pytest.mark.parametrize(("generator", "message"), [
    (BredLevels(elites=4), "elites=4: must be below the number of levels per iteration, 4"),
    (BredLevels(2), "generator=BredLevels: Plain does not implement evorl.types.LevelCrossoverEnv"),
    (EvolvedLevels(OpenES(4)), "decode=null: Plain does not implement evorl.types.DecodableLevelEnv"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(generator, message):
    with pytest.raises(OptionError, match=message):
        generator.init(jax.random.key(0), Plain("CartPole-v1"), 4)


@pytest.mark.parametrize("wrong", [{"elites": -1}, {"num_edits": -1}])
def test_negative_numbers_are_refused(wrong):
    with pytest.raises(OptionError, match="must not be negative"):
        BredLevels(**wrong)
