from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.sanity.probe import ObsDependentReward
from evorl.errors import OptionError
from evorl.vector_env import (
    EnvBatch,
    FixedStarts,
    LevelStarts,
    ResetStarts,
    RolloutPlan,
    StartQueue,
    TransitionStore,
    rollout,
)
from tests.counting import Counting


def policy(obs, memory, keys):
    return jax.vmap(lambda key: jax.random.uniform(key, (1,)))(keys), memory, {}


def played(env, n, key, store=None, chunk=4, most=8, **plan):
    """A play of n environments from their first starts; the store is of a chunk's number of rows."""
    store = store or TransitionStore(chunk, jnp.int32(0), lambda count, transitions, mask: count + mask.sum())
    starts = plan.pop("starts", ResetStarts(most, most))
    return jax.jit(
        lambda key: rollout(EnvBatch(env, None, None, n), policy, RolloutPlan(starts, **plan), None, key, store)
    )(key)


def unrolled(env, n, key, num_steps, most=8, **plan):
    """A play that stores all of its transitions, leaves [num_steps, n, ...], and their mask."""
    world, keys = EnvBatch(env, None, None, n), jax.random.split(key, n)
    row = jax.eval_shape(lambda: world.interact(policy, world.init_envs(world.reset(keys)), keys)[1])
    stored = jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), row), jnp.zeros((num_steps, n), bool)
    store = TransitionStore(num_steps, stored, lambda _, transitions, mask: (transitions, mask))
    starts = plan.pop("starts", ResetStarts(most, most))
    return jax.jit(lambda key: rollout(world, policy, RolloutPlan(starts, steps=num_steps, **plan), None, key, store))(
        key
    )


@dataclass(frozen=True)
class Measured(Counting):
    """Counting with rewards of three numbers, and with what is kept of an episode."""

    episode_info: ClassVar = {"energy": "sum", "speed": "mean", "place": "last"}

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        now = state[0]
        info = {"energy": now, "speed": now.astype(jnp.int32), "place": jnp.stack([now, 2 * now]), "unkept": now}
        return state, timestep.replace(reward={"time": timestep.reward, "ways": jnp.stack([now, -now])}, info=info)


def test_returns_and_what_an_environment_summarizes_are_of_whole_episodes(key):
    """In 8 steps environment 0 has 2 episodes of 3 steps, and 1 has 2 of 4: 1 + 2 + 3 is 6, and with 4 it is 10."""
    end, stats, _ = jax.jit(lambda: played(Measured(), 2, key, steps=8, starts=FixedStarts(starts_of([3, 4]))))()
    np.testing.assert_array_equal(stats.returns["time"], [6, 8])
    np.testing.assert_array_equal(stats.returns["ways"], [[12, -12], [20, -20]])
    np.testing.assert_array_equal(stats.episode_means["return"]["ways"], [[6, -6], [10, -10]])
    np.testing.assert_array_equal(stats.episode_means["energy"], [6, 10])
    np.testing.assert_array_equal(stats.episode_means["speed"], [2, 2.5])
    np.testing.assert_array_equal(stats.episode_means["place"], [[3, 6], [4, 8]])
    np.testing.assert_array_equal(end.episode_info["energy"], [1 + 2, 0])  # of the episode that goes on
    assert sorted(stats.info) == ["energy", "place", "speed"]
    metrics = stats.replace(returns=stats.returns["time"]).metrics()
    assert {name: float(x) for name, x in metrics.items() if "/" in name} == {
        "episode/energy": 8, "episode/speed": 2.25, "episode/place/0": 3.5, "episode/place/1": 7
    }  # fmt: skip


def test_envs_that_rest_summarize_nothing(key):
    _, stats, _ = played(Measured(), 3, key, starts=StartQueue(starts_of([2, 3])))
    np.testing.assert_array_equal(stats.info["energy"], [3, 6, 0])
    np.testing.assert_array_equal(stats.returns["ways"][:, 0], [3, 6, 0])


@pytest.mark.parametrize(("info", "message"), [
    ({"energy": "least"}, r"episode_info\['energy'\]=least: must be one of sum, mean, last"),
    ({"enregy": "sum"}, "unknown episode_info enregy; did you mean energy?"),
])  # fmt: skip
def test_a_summary_of_what_is_not_there_is_refused(key, info, message):
    class Wrong(Measured):
        episode_info = info

    with pytest.raises(OptionError, match=message):
        played(Wrong(), 1, key, steps=1)


@pytest.mark.parametrize("fresh_reset", [False, True])
def test_play_begins_a_new_episode_after_each_end_and_keeps_the_true_successor(key, fresh_reset):
    env = Counting(fresh_reset=fresh_reset)
    end, stats, (transitions, _) = jax.jit(lambda: unrolled(env, 16, key, 40))()
    t = jax.tree.map(np.asarray, transitions)
    ended = t.terminated | t.truncated
    np.testing.assert_array_equal(t.next_obs[ended][:, 0], t.next_obs[ended][:, 1])  # the end, not a reset
    np.testing.assert_array_equal(t.obs[1:][ended[:-1]][:, 0], 0)
    np.testing.assert_array_equal(t.obs[1:][~ended[:-1]], t.next_obs[:-1][~ended[:-1]])
    np.testing.assert_array_equal(t.terminated[ended], t.next_obs[ended][:, 1] % 2 == 1)
    assert not (t.terminated & t.truncated).any()
    np.testing.assert_array_equal(stats.episodes, ended.sum(0))
    np.testing.assert_array_equal(stats.steps, 40)
    np.testing.assert_array_equal(stats.returns, (t.next_obs[..., 1] * ended).sum(0))  # reward 1 a step
    np.testing.assert_array_equal(end.episode_length, np.where(ended[-1], 0, t.next_obs[-1, :, 0]))


def test_one_step_episodes_of_a_fresh_environment_all_differ(key):
    """8 environments x 128 one-step episodes: every start is new; the mean of +-1 is within 4 standard errors of 0."""
    env = ObsDependentReward()
    _, stats, (transitions, _) = unrolled(env, 8, key, 128)
    assert int(stats.episodes.sum()) == 8 * 128
    assert abs(float(transitions.reward.mean())) < 4 / np.sqrt(8 * 128)
    assert len(np.unique(np.asarray(transitions.action))) > 8 * 128 - 4  # float32 draws may coincide


@dataclass(frozen=True)
class NoisyLevels(Counting):
    """Episodes whose length is the level, with a random number at the start as the second entry of the observation."""

    fresh_reset: bool = True

    def sample_level(self, key, params):
        return jax.random.randint(key, (), 1, self.longest + 1)

    def get_level(self, env_state):
        return env_state[1].astype(jnp.int32)

    def reset(self, key, params):
        return self.reset_to_level(key, self.sample_level(key, params))

    def reset_to_level(self, key, level):
        return jnp.stack([0.0, jnp.float32(level)]), jnp.stack([0.0, jax.random.uniform(key)])

    def is_same_level(self, a, b):
        return a == b

    def mutate_level(self, key, level, num_edits):
        return level

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        return state, replace(timestep, obs=jnp.stack([state[0], 0.0]))


def test_each_episode_on_a_level_has_a_start_of_its_own_if_resets_are_fresh(key):
    """4 environments x 60 steps on two levels each, in turn, whose lengths differ between environments."""
    levels = jnp.array([[1, 2, 5, 7], [3, 2, 1, 7]])

    def play(env):
        return unrolled(env, 4, key, 60, starts=LevelStarts(levels, jnp.int32(2)))

    transitions = jax.jit(lambda: play(NoisyLevels()))()[2][0]
    is_first = np.asarray(transitions.obs[..., 0]) == 0
    starts = np.asarray(transitions.obs[..., 1])
    for i, (a, b) in enumerate(levels.T.tolist()):
        begins = np.flatnonzero(is_first[:, i])
        expected = [0, *np.cumsum([a, b] * 60)]
        np.testing.assert_array_equal(begins, [x for x in expected if x < 60])
    assert len(np.unique(starts[is_first])) == is_first.sum()
    cached = jax.jit(lambda: play(NoisyLevels(fresh_reset=False)))()[2][0]
    assert len(np.unique(np.asarray(cached.obs[..., 1])[is_first])) == 8


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_play_stops_within_a_chunk_of_the_longest_episode(key, chunk):
    store = TransitionStore(chunk, (0, 0), lambda stored, transitions, mask: (stored[0] + 1, stored[1] + mask.sum()))
    _, stats, (chunks, rows) = jax.jit(lambda: played(Counting(), 32, key, store, episodes=1))()
    longest = int(stats.steps.max())
    assert int(chunks) == -(-longest // chunk)
    np.testing.assert_array_equal(stats.episodes, 1)
    np.testing.assert_array_equal(stats.steps, stats.lengths)
    assert int(rows) == int(stats.steps.sum())
    np.testing.assert_array_equal(stats.mean_return, stats.lengths)


def test_play_gives_each_env_its_own_number_of_episodes(key):
    quota = jnp.array([0, 1, 5])
    _, stats, _ = played(Counting(), 3, key, episodes=quota)
    np.testing.assert_array_equal(stats.episodes, quota)


def test_play_counts_steps_whatever_the_chunk(key):
    _, stats, rows = played(Counting(), 3, key, steps=10)
    np.testing.assert_array_equal(stats.steps, 10)
    assert int(rows) == 30


@pytest.mark.program
def test_a_run_among_others_is_the_run_alone(key):
    """Early exit under vmap: a run that ends first waits, unchanged, for the one that ends last."""

    def run(key):
        add = lambda stored, transitions, mask: stored + (transitions.action[..., 0] * mask).sum()  # noqa: E731
        return played(Counting(), 2, key, TransitionStore(2, jnp.float32(0), add), most=4, episodes=1)

    keys = jax.random.split(key, 5)
    together = jax.jit(jax.vmap(run))(keys)
    for i in range(5):
        alone = jax.jit(run)(keys[i])
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), together, alone)


def starts_of(lengths):
    """States and observations of Counting at the start of episodes of these lengths."""
    states = jnp.stack([jnp.zeros(len(lengths)), jnp.asarray(lengths, jnp.float32)], 1)
    return states, states


def test_a_table_of_starts_gives_each_once_in_order_and_envs_without_one_rest(key):
    """Environment 0 plays 3 steps and 4, and 1 plays 1 and 2: when both end, the one in front takes the last start."""
    _, stats, (transitions, mask) = unrolled(Counting(), 2, key, 9, starts=StartQueue(starts_of([3, 1, 2, 4])))
    np.testing.assert_array_equal(stats.steps, [7, 3])
    np.testing.assert_array_equal(stats.episodes, [2, 2])
    np.testing.assert_array_equal(mask.sum(0), [7, 3])
    np.testing.assert_array_equal(transitions.obs[:3, 1, 1], [1, 2, 2])
    np.testing.assert_array_equal(transitions.obs[:7, 0, 1], [3, 3, 3, 4, 4, 4, 4])


def test_more_envs_than_starts_rest_from_the_beginning(key):
    _, stats, rows = played(Counting(), 4, key, starts=StartQueue(starts_of([2, 3])))
    np.testing.assert_array_equal(stats.steps, [2, 3, 0, 0])
    assert int(rows) == 5


def test_envs_with_the_same_starts_begin_each_episode_at_their_own(key):
    _, stats, (transitions, _) = unrolled(Counting(), 2, key, 12, starts=FixedStarts(starts_of([3, 4])))
    np.testing.assert_array_equal(stats.episodes, [4, 3])
    np.testing.assert_array_equal(transitions.obs[..., 1], np.tile([3, 4], (12, 1)))
