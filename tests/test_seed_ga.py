"""A genetic algorithm of chains of seeds: who is kept, by what they change, and that a chain gives a parent back."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import MLPPolicy
from evorl.ec.seed_ga import SeedGA, SeedGenome, mutate_with_seed
from evorl.envs.maze.point_maze import PointMaze
from evorl.errors import OptionError
from evorl.workflows import Evolution
from tests.conftest import leaves_equal


@pytest.mark.program
def test_the_fittest_have_children_and_the_best_of_all_stays_as_it_is():
    ga = SeedGA(6, 2, 3, 0, std=0.5)
    state = ga.init(jax.random.key(0), jnp.arange(4.0))
    genomes, _ = ga.ask(jax.random.key(1), state)
    assert (int(genomes.parent[0]), genomes.words[0].tolist()) == (0, [0, 0])
    assert len({tuple(words) for words in genomes.words.tolist()}) == 6
    after, _ = ga.tell(jax.random.key(2), genomes, jnp.array([1.0, jnp.nan, 5.0, 4.0, -9.0, 2.0]), state)
    for i, member in enumerate((2, 3)):
        wanted = mutate_with_seed(state.parents[genomes.parent[member]], genomes.words[member], ga.std)
        np.testing.assert_array_equal(after.parents[i], wanted)
        np.testing.assert_array_equal(after.chain[i], [genomes.words[member], [0, 0], [0, 0]])
    np.testing.assert_array_equal(ga.solution(after), after.parents[0])
    members = ga.materialize(after, ga.ask(jax.random.key(3), after)[0])
    np.testing.assert_array_equal(members[0], after.parents[0])


@pytest.mark.program
def test_the_elite_is_the_best_of_the_candidates_when_they_play_again():
    """Seven members for three candidates: 0 and 3 and 6 are the first, 1 and 4 the second, 2 and 5 the third."""
    ga = SeedGA(7, 4, 3, 3, std=0.5)
    state = ga.init(jax.random.key(0), jnp.arange(4.0))
    genomes, _ = ga.ask(jax.random.key(1), state)
    found, _ = ga.tell(jax.random.key(2), genomes, jnp.arange(7.0), state)
    assert (int(found.generation), bool(found.confirming)) == (1, True)
    again, _ = ga.ask(jax.random.key(3), found)
    np.testing.assert_array_equal(ga.materialize(found, again), found.parents[np.arange(7) % 3])
    sure, _ = ga.tell(jax.random.key(4), again, jnp.array([0, 5, 1, 9, 5, 1.5, 3]), found)
    order = np.array([1, 0, 2, 3])  # by means of 4, 5 and 1.25; the fourth parent is none
    for after, before in ((sure.parents, found.parents), (sure.chain, found.chain), (sure.root, found.root)):
        np.testing.assert_array_equal(after, before[order])
    assert (int(sure.generation), bool(sure.confirming)) == (1, False)
    children, _ = ga.ask(jax.random.key(5), sure)
    fitness = jnp.arange(7.0)  # of which the elite has the lowest
    kept, _ = ga.tell(jax.random.key(6), children, fitness, sure)
    np.testing.assert_array_equal(kept.parents[0], sure.parents[0])
    np.testing.assert_array_equal(kept.chain[1:, 1], children.words[jnp.array([6, 5, 4])])


@pytest.mark.program
def test_of_noisy_episodes_candidates_make_an_elite_that_is_better_than_the_luckiest():
    """Equal evaluations, 32 seeds: the true values of what the searches stand for, in a noise of 1."""

    def worth(ga, key):
        def step(state, key):
            genomes, state = ga.ask(key, state)
            members = ga.materialize(state, genomes)
            fitness = -(members**2).sum(-1) + jax.random.normal(key, (len(members),))
            return ga.tell(key, genomes, fitness, state)

        state = ga.init(key, jnp.array([1.0, -1.0, 0.5]))
        state, _ = jax.lax.scan(step, state, jax.random.split(key, 20))
        return -(ga.solution(state) ** 2).sum()

    keys = jax.random.split(jax.random.key(0), 32)
    lucky, sure = (
        jax.jit(jax.vmap(lambda key: worth(SeedGA(64, 8, 20, n, std=0.2), key)))(keys)  # noqa: B023
        for n in (0, 4)
    )
    ahead = np.asarray(sure - lucky)
    assert ahead.mean() > 2 * ahead.std() / np.sqrt(len(ahead))


def test_a_seed_stands_for_normal_noise_of_its_std():
    from scipy import stats

    words = jax.random.bits(jax.random.key(0), (50, 2), np.uint32)
    noise = jax.vmap(lambda words: mutate_with_seed(jnp.zeros(400), words, jnp.float32(0.3)))(words)
    assert stats.kstest(np.asarray(noise).ravel() / 0.3, "norm").pvalue > 1e-3
    assert np.abs(np.corrcoef(noise)[np.triu_indices(50, 1)]).max() < 0.25


@pytest.mark.program
@pytest.mark.parametrize("candidates", [0, 2])
def test_a_policy_is_rebuilt_from_its_chain_bit_by_bit(candidates):
    env = PointMaze(max_episode_steps=5)
    agent = MLPPolicy(hidden=(5,))
    ga = SeedGA(8, 3, 10, candidates, std=0.5)
    workflow = Evolution(env, agent, ga, normalization="none", eval_episodes=2, members_at_once=4)
    first = jax.jit(workflow.init)(jax.random.key(0))
    step, state = jax.jit(workflow.step), first
    for i in range(6):
        state, metrics = step(state, jax.random.key(i))
    kept = state.evolver
    assert float(metrics["chain"]) == (3 if candidates else 6)
    for parent in range(3):
        again = jax.jit(ga.rebuild_parent)(kept, first.evolver.parents, parent)
        assert leaves_equal(again, jax.tree.map(lambda x: x[parent], kept.parents))  # noqa: B023
    other = replace(kept, chain=kept.chain.at[0, 2, 0].add(1))
    assert not leaves_equal(ga.rebuild_parent(other, first.evolver.parents, 0), ga.solution(kept))


@pytest.mark.parametrize("sizes", [(1,), (4, 5), (4, 0), (4, 2, 0), (4, 2, 1, 3), (4, 2, 1, -1)])
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(OptionError, match="must be"):
        SeedGA(*sizes)


def test_it_searches_for_a_point():
    ga, goal = SeedGA(64, 8, candidates=0, std=0.2), jnp.array([1.0, -2.0, 0.5])

    def step(state, key):
        genomes, state = ga.ask(key, state)
        members = ga.materialize(state, genomes)
        return ga.tell(key, genomes, -((members - goal) ** 2).sum(-1), state)

    state = ga.init(jax.random.key(0), jnp.zeros(3))
    state, _ = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 60)))(state)
    np.testing.assert_allclose(ga.solution(state), goal, atol=0.1)
    assert isinstance(ga.center_genome(state), SeedGenome)
