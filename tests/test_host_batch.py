"""Environments on the host of which a step waits for some alone: what each slot did, and what became of the rest."""

import time
from dataclasses import replace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN, TD3, MLPPolicy, PolicyGradient
from evorl.ec.openes import OpenES
from evorl.envs.actions import Repeat, Sticky
from evorl.envs.host import HostEnv, pools
from evorl.envs.wrappers import Frames
from evorl.errors import HostError, OptionError
from evorl.n_step import Window
from evorl.replay import SequenceReplay
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.types import Transition
from evorl.vector_env import FromParams, Plan, Store, World, play
from evorl.workflows import Evolution, OffPolicy, OnPolicy, Vmapped
from evorl.workflows.trajectories import Trajectories
from tests.conftest import leaves_equal

SLOTS, STEPS = 4, 12


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    pools.close()


def told(batch, workers=4, restart=False, timeout_seconds=60.0, **options):
    return HostEnv("tests.hosted:Told-v0", options, workers, timeout_seconds, restart, batch=batch)


def slow(batch, tmp_path, seconds=0.1, workers=4, **options):
    """Environments of which one is slower than all others."""
    once = tmp_path / "once"
    once.touch()
    env = told(batch, workers, fault="slow", once=str(once), seconds=seconds, length=5, **options)
    _ = env.observation_space
    once.unlink()
    return env


def tagged(env):
    """A policy whose actions are drawn, and which says beside them which one it is."""

    def policy(tag):
        def act(obs, memory, keys):
            return jax.vmap(env.action_space.sample)(keys), memory, {"tag": jnp.full(len(keys), tag)}

        return act

    return policy


def program(env, steps=STEPS):
    """(slots or None, key, tag) -> the slots, their stats, and each slot's own steps, leaves [steps, n]."""
    world, policy = World(env, env.default_params, (), SLOTS), tagged(env)
    keys = jax.random.split(jax.random.key(0), SLOTS)

    def begin():
        slots = world.sending(policy(0), world.slots(world.reset(keys)))
        return slots, tree.index(world.interact(policy(0), slots, keys)[1], 0)

    blank, row = jax.eval_shape(begin)

    @jax.jit
    def run(slots, key, tag, restart):
        store = Store(5, Trajectories.empty(row, steps, SLOTS), Trajectories.add)
        plan = Plan(FromParams(), restart, steps=steps)
        slots, stats, into = play(world, policy(tag), plan, slots, key, store)
        return slots, stats, into.rollout, into.filled

    def one(slots, key, tag):
        return run(tree.zeros(blank) if slots is None else slots, jax.random.key(key), tag, slots is None)

    return one


def column(rows, slot, count):
    """The first steps of a slot."""
    return jax.tree.map(lambda x: x[:count, slot], rows)


def said(folder):
    """What each environment was asked, in the order of when it was made."""
    paths = sorted(folder.glob("*-*"), key=lambda path: path.stat().st_mtime)
    return [[line.split() for line in path.read_text().splitlines()] for path in paths]


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_each_slot_plays_what_it_plays_alone(batch, tmp_path):
    """Over three plays, in which one slot is slower by far: no step is lost or doubled, each slot's are in order."""
    env = slow(batch, tmp_path, seconds=0.03, log=str(tmp_path))
    run, slots, found = program(env), None, []
    for i in range(3):
        slots, stats, rows, filled = jax.device_get(run(slots, i, i))
        np.testing.assert_array_equal(stats.steps, filled)
        np.testing.assert_array_equal(rows.weight.sum(0), filled)
        assert (filled == STEPS).sum() > SLOTS - batch
        found.append((rows, filled))
    assert pools.fault() is None
    columns = []
    for slot in range(SLOTS):
        own = [column(rows, slot, filled[slot]) for rows, filled in found]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *own)
        k = np.arange(len(whole.reward))
        np.testing.assert_array_equal(whole.obs[:, 1], k % 5)
        np.testing.assert_array_equal(whole.next_obs[:, 1], k % 5 + 1)
        np.testing.assert_array_equal(whole.reward, k % 5 + 1)
        ends = np.cumsum([len(part.reward) for part in own])[[int(filled[slot]) < STEPS for _, filled in found]] - 1
        cut = np.isin(k, ends)  # a slot that has fewer steps in a play is valued at the last
        np.testing.assert_array_equal(whole.truncated, (k % 5 == 4) | cut)
        assert [len(set(whole.obs[k // 5 == i, 0])) for i in range(len(k) // 5)] == [1] * (len(k) // 5)
        columns.append([str(action) for action in whole.action])
    asked = [[words[1] for words in lines if words[0] == "step"] for lines in said(tmp_path)]
    for own in columns:
        assert any(own == one[: len(own)] and len(one) - len(own) <= 1 for one in asked)
    if batch < SLOTS:
        assert min(map(len, columns)) < STEPS * 3 or batch == 1


def test_what_acted_is_what_is_kept(tmp_path):
    """A step that is under way at the end of a play is the first of the next one, by the policy that took it."""
    env = slow(3, tmp_path, 0.3)
    run = program(env)
    slots, _, _, filled = jax.device_get(run(None, 0, 0))
    late = int(np.argmin(filled))
    waits = slots.env_state.waits & (slots.env_state.lease > 0)
    assert waits[late]
    time.sleep(0.4)
    _, _, rows, _ = jax.device_get(run(slots, 1, 1))
    np.testing.assert_array_equal(rows.extras["tag"][0], np.where(waits, 0, 1))
    np.testing.assert_array_equal(rows.action[0][waits], slots.sent[0][waits])
    np.testing.assert_array_equal(rows.obs[0, :, 1], filled % 5)
    assert (rows.extras["tag"][1][rows.weight[1] > 0] == 1).all()


def test_cartpole_is_what_it_is_in_lockstep_bit_for_bit():
    lockstep = HostEnv("CartPole-v1", workers=2, max_episode_steps=9)
    columns = []
    for env in (lockstep, replace(lockstep, batch=2)):
        _, _, rows, filled = jax.device_get(program(env)(None, 3, 0))
        columns.append([column(rows, i, filled[i] - 1) for i in range(SLOTS)])
    for one, other in zip(*columns, strict=True):
        same = min(len(one.reward), len(other.reward))
        assert same > 5
        assert leaves_equal(*(tree.index(x, slice(same)) for x in (one, other)))
