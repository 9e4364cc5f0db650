from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from evorl import tree
from evorl.agents import PPO, SAC, TD3
from evorl.errors import OptionError
from evorl.replay.state_replays import split_replays
from evorl.training.fit import Budget, fit
from evorl.training.nans import DivergenceMonitor
from evorl.training.program import Program
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.runs import RunCheckpoint
from evorl.types import Population
from evorl.workflows import SharedReplay, Vmapped
from tests.conftest import leaves_equal
from tests.tiny import Walk, off_policy, on_policy

INNER = off_policy(SAC)


def started(population, key, steps=1):
    state = jax.jit(population.init)(key)
    step = jax.jit(population.step)
    for i in range(steps):
        state, _ = step(state, jax.random.fold_in(key, i))
    return state


def contents(replay):
    return tree.index(replay.row.unpack(replay.tables), slice(0, int(replay.size)))


@pytest.mark.program
def test_the_replay_holds_what_all_members_did_and_the_random_steps_are_shared(key):
    shared = started(SharedReplay(INNER, 3), key)
    own = started(Vmapped(replace(INNER, random_steps=4), 3), key)  # 12 of 3 members
    assert isinstance(SharedReplay(INNER, 3), Population)
    assert int(shared.replay.size) == 12
    of_each = [contents(tree.index(own.replay, i)) for i in range(3)]
    assert leaves_equal(contents(shared.replay), tree.merge_axes(tree.stack(of_each)))
    assert leaves_equal(shared.envs, own.envs)


@pytest.mark.program
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_single_member_is_a_run_of_its_own(key, n_step):
    inner = off_policy(SAC, n_step=n_step)
    shared, own = (started(kind(inner, 1), key, steps=4) for kind in (SharedReplay, Vmapped))
    stored = contents(shared.replay), contents(tree.index(own.replay, 0))
    for a, b in zip(jax.tree.leaves(split_replays(shared)[0]), jax.tree.leaves(split_replays(own)[0]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(*map(jax.tree.leaves, stored), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.program
def test_seeds_side_by_side_each_have_their_replay(key):
    population = SharedReplay(INNER, 2)

    def run(key):
        return jax.lax.scan(population.step, population.init(key), jax.random.split(key, 3))[0]

    keys = jax.random.split(key)
    together, alone = jax.jit(jax.vmap(run))(keys), [jax.jit(run)(key) for key in keys]
    for i in range(2):
        for a, b in zip(jax.tree.leaves(tree.index(together, i)), jax.tree.leaves(alone[i]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.program
def test_copies_have_the_agent_of_their_source_and_act_differently(key):
    population = SharedReplay(INNER, 3)
    state = started(population, key, steps=2)
    copied = jax.jit(population.copy_members)(state, jnp.array([0, 0, 1]))
    assert leaves_equal(copied.agent, tree.index(state.agent, jnp.array([0, 0, 1])))
    assert leaves_equal((copied.replay, copied.envs), (state.replay, state.envs))
    after, _ = jax.jit(population.step)(copied, key)
    assert not leaves_equal(tree.index(after.agent, 0), tree.index(after.agent, 1))


def test_thirty_two_members_hold_one_replay_of_a_million():
    population = SharedReplay(replace(INNER, capacity=1_000_000), 32)
    state = jax.eval_shape(population.init, jax.random.key(0))
    light, replays = split_replays(state)
    row = 3 * 4 + 4 + 2  # observations, action and reward, and two flags
    assert tree.nbytes(replays) == 1_000_000 * row + 8
    assert all(leaf.shape[0] == 32 for leaf in jax.tree.leaves(light))


@pytest.mark.program
@pytest.mark.parametrize("seeds", [0, 2])
def test_steps_and_copies_make_no_second_replay(key, seeds):
    """seeds 0 is one alone."""
    population = SharedReplay(replace(INNER, capacity=500_000), 4)
    over_seeds = jax.vmap if seeds else lambda f, *_: f
    keys = jax.random.split(key, seeds) if seeds else key
    state = jax.eval_shape(over_seeds(population.init), keys)
    held = tree.nbytes(state.replay)
    source = jnp.zeros((seeds, 4) if seeds else 4, jnp.int32)
    advance = over_seeds(lambda state, key, flag: population.step_or_evaluate(state, key, flag)[0], (0, 0, None))
    for f, arguments in ((advance, (keys, jnp.bool_(False))), (over_seeds(population.copy_members), (source,))):
        memory = jax.jit(f, donate_argnums=0).lower(state, *arguments).compile().memory_analysis()
        assert memory.alias_size_in_bytes >= held
        assert memory.temp_size_in_bytes < 0.1 * held


@pytest.mark.program
def test_a_member_is_its_own_state_and_the_replay_of_all(key):
    population = SharedReplay(INNER, 3)
    state = started(population, key)
    inner, member = population.get_member(state, 1)
    assert inner is INNER
    assert leaves_equal(member.agent, tree.index(state.agent, 1))
    assert leaves_equal(member.replay, state.replay)
    light = population.get_member(split_replays(state)[0], 1)[1]  # as a checkpoint's policies are
    obs = jnp.zeros(1)
    act = [jax.jit(inner.policy(x))(obs, None, key)[0] for x in (member, light)]
    np.testing.assert_array_equal(*act)


@pytest.mark.program
def test_it_has_diverged_where_all_of_its_members_have(key):
    program = Program(SharedReplay(INNER, 2), [0], 1, False)
    state = program.init(program.keys, {})
    sentinel = DivergenceMonitor(program, state)
    for members, lost in (([0], None), ([0, 1], "agent.actor.params")):
        broken = state.replace(agent=spoil(state.agent, members))
        found = sentinel.find_diverged(np.asarray(sentinel.find_nonfinite(broken)))[0]
        assert found is lost is None or found.startswith(lost)


@pytest.mark.program
def test_a_training_goes_on_from_its_checkpoint_and_gives_its_best_member(tmp_path):
    population = SharedReplay(INNER, 2)

    def train(iterations, folder, **options):
        checkpoints = Checkpoints(folder)
        training = fit(population, 0, Budget(iterations=iterations), chunk=2, checkpoints=checkpoints, **options)
        checkpoints.close()
        return training

    whole = train(4, tmp_path / "whole")
    train(2, tmp_path / "half")
    resumed = train(4, tmp_path / "half")
    assert leaves_equal(resumed.state, whole.state)
    returns = np.asarray(whole.progress.best_returns)
    assert returns.shape == (2,)
    restored = RunCheckpoint(OmegaConf.create({"num_seeds": 1, "seed": 0}), population, whole.best, returns)
    best = int(returns.argmax())
    for member, chosen in ((None, best), (1 - best, 1 - best)):
        workflow, state = restored.select_policy(None, member)
        assert workflow is INNER
        assert leaves_equal(state.agent, tree.index(whole.best.agent, chosen))
    begun = fit(population, 1, Budget(iterations=1), init_from=whole.best)
    assert int(begun.state.replay.size) == 16  # 6 random steps of each member, rounded up to 4 environments


def test_impossible_sizes_are_refused():
    with pytest.raises(OptionError, match="size=0"):
        SharedReplay(INNER, 0)


class Moved(Walk):
    """Where the observation, too, depends on the action, so that NaN reaches all that an environment holds."""

    fresh_reset = False
    max_episode_steps = 1000

    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        obs = jnp.clip(env_state.obs + 0.1 * action, -1, 1)
        return after.replace(obs=obs), timestep.replace(obs=obs)


def spoil(agent, members):
    """The agent with NaN in every real leaf of these members."""
    return jax.tree.map(
        lambda x: x.at[jnp.array(members)].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x, agent
    )


MOVED = Moved()
REVIVALS = {
    "ppo": Vmapped(on_policy(PPO(), MOVED, num_epochs=2, batch_size=8), 3),
    "td3": Vmapped(off_policy(TD3, MOVED, n_step=3), 3),
    "sac": SharedReplay(off_policy(SAC, MOVED), 3),
}


@pytest.mark.program
def test_a_member_that_never_was_finite_learns_from_its_parent_and_its_own_rows_not_from_zeros(key):
    """Its replay is empty; with n steps it stays so for two iterations, in which it acts as its parent."""
    population = Vmapped(replace(off_policy(TD3, MOVED, n_step=3), num_steps=1, random_steps=0), 2)
    step, sick = jax.jit(population.step), jax.jit(population.init)(key)
    sick = sick.replace(agent=spoil(sick.agent, [1]))
    for i in range(4):
        sick, metrics = step(sick, jax.random.fold_in(key, i))
    assert (sick.replay.size[0] > 0, int(sick.replay.size[1])) == (True, 0)
    assert metrics["gradient_steps"].tolist()[1] == 0 < metrics["gradient_steps"].tolist()[0]
    state = jax.jit(population.copy_members)(sick, jnp.array([0, 0]))
    window, before = int(state.window.num_filled[1]), tree.index(state.agent, 0)
    for i in range(4):
        state, metrics = step(state, jax.random.fold_in(key, 10 + i))
        assert bool(tree.is_nan_free((state, metrics)))
        learned = not leaves_equal(tree.index(state.agent, 1), before)
        assert learned == (int(state.replay.size[1]) > 0) == (metrics["gradient_steps"].tolist()[1] > 0), (i, window)
        assert not leaves_equal(tree.index(state.agent, 0), before)
    assert learned


@pytest.mark.program
@pytest.mark.parametrize("name", REVIVALS)
def test_a_member_that_diverged_lives_on_what_it_inherits(name, key):
    population = REVIVALS[name]
    state = started(population, key, steps=2)
    step = jax.jit(population.step)
    sick = state.replace(agent=spoil(state.agent, [1]))
    for i in range(3):
        sick, _ = step(sick, jax.random.fold_in(key, 10 + i))
    np.testing.assert_array_equal(population.has_no_nan(sick), [True, False, True])
    assert not bool(tree.is_nan_free(sick.agent))
    assert bool(tree.is_nan_free(sick.envs))  # steps that are not finite begin anew
    revived = jax.jit(population.copy_members)(sick, jnp.array([0, 0, 2]))
    np.testing.assert_array_equal(population.has_no_nan(revived), [True, True, True])
    for i in range(4):
        revived, metrics = step(revived, jax.random.fold_in(key, 20 + i))
        assert bool(tree.is_nan_free((revived, metrics)))  # replays too
    assert not leaves_equal(tree.index(revived.agent, 0), tree.index(revived.agent, 1))
