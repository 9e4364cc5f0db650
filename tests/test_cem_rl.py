import itertools
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from evosax.algorithms import SNES

from evorl import tree
from evorl.agents import SAC, TD3, TrainState
from evorl.agents.base_agent import fill_spaces
from evorl.ec import (
    CEM,
    CMAES,
    GA,
    DiagonalCovariance,
    OpenES,
)
from evorl.ec.evosax import Evosax
from evorl.envs.sanity import probe
from evorl.errors import OptionError
from evorl.replay.ring import RingBuffer
from evorl.training.program import Program
from evorl.types import Transition
from evorl.workflows import CEMRL, shared_replay_learning
from evorl.workflows.base import step_or_evaluate
from tests.conftest import leaves_equal
from tests.counting import Counting
from tests.tiers import program_fixture


def cem_rl(env, evolver=CEM(6), of_agent=(), **options):  # noqa: B008
    agent = TD3(hidden=(16, 16), layer_norm=True, **dict(of_agent))
    defaults = {"min_updates": 4, "max_updates": 8, "batch_size": 16, "capacity": 2048, "random_steps": 60}
    return CEMRL(env, agent, evolver, **defaults | {"eval_episodes": 20, "scan_length": 4} | options)


@program_fixture(scope="module")
def run():
    """Three iterations of a small CEM-RL: what was passed between them."""
    workflow = cem_rl(Counting())
    state = jax.jit(workflow.init)(jax.random.key(0))
    step = jax.jit(workflow.step)
    states, metrics = [state], []
    for i in range(3):
        state, row = step(state, jax.random.key(i))
        states.append(state)
        metrics.append(row)
    return workflow, states, metrics


def test_the_first_iteration_only_fills_the_replay(run):
    _, states, metrics = run
    assert int(metrics[0]["env_steps"]) == 60 == int(states[1].replay.size)
    assert int(metrics[0]["gradient_steps"]) == 0
    assert leaves_equal(states[1].evolver, states[0].evolver)
    assert leaves_equal(states[1].agent.critic, states[0].agent.critic)


def test_updates_are_the_steps_of_the_last_generation_within_their_limits(run):
    _, _, metrics = run
    assert int(metrics[1]["gradient_steps"]) == 4  # no generation before it: the fewest
    collected = int(metrics[1]["env_steps"])
    assert int(metrics[2]["gradient_steps"]) == min(max(collected, 4), 8)


@pytest.mark.program
def test_each_member_plays_one_episode_and_all_rows_are_kept(run):
    _, states, metrics = run
    assert int(metrics[1]["episodes"]) == 6
    assert int(states[2].replay.size - states[1].replay.size) == int(metrics[1]["env_steps"])
    assert float(metrics[1]["return"]) == pytest.approx(int(metrics[1]["env_steps"]) / 6)  # reward 1 a step
    assert 0 <= int(metrics[1]["gradient_elites"]) <= 3


def test_the_evolver_moves_and_the_actor_is_its_center(run):
    workflow, states, _ = run
    assert not leaves_equal(states[2].evolver.mean, states[1].evolver.mean)
    assert leaves_equal(states[2].agent.actor.params, workflow.evolver.solution(states[2].evolver))
    # noise 1e-3 decayed once by hand
    assert float(states[2].evolver.noise) == pytest.approx(0.95 * 1e-3 + 0.05 * 1e-5)


def test_critics_learn_the_mean_over_learners_each_with_its_own_target_actor(run):
    """The first update of the shared critic, again by hand from the learners' separate losses."""
    workflow, states, _ = run
    state, agent = states[1], workflow.agent
    actors = tree.index(workflow.evolver.ask(jax.random.key(5), state.evolver)[0], slice(0, 3))
    learned, params, _ = jax.jit(workflow.train_learners)(state, actors, jax.random.key(6), jnp.int32(1))

    key_batch, key_critic, _ = jax.random.split(jax.random.fold_in(jax.random.key(6), 0), 3)
    batches = state.replay.sample(key_batch, (3, 16)).rows
    gradients, stepped = [], []
    for i, key in enumerate(jax.random.split(key_critic, 3)):
        own = state.agent.replace(actor=TrainState.create(tree.index(actors, i)))
        own_loss = jax.grad(agent.critic_loss, has_aux=True)
        gradients.append(own_loss(state.agent.critic.params, own, tree.index(batches, i), key)[0])
    mean = jax.tree.map(lambda *g: sum(g) / 3, *gradients)
    adam = optax.adam(3e-4)
    updates, _ = adam.update(mean, adam.init(state.agent.critic.params))
    critic = optax.apply_updates(state.agent.critic.params, updates)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)  # noqa: E731
    jax.tree.map(close, learned.critic.params, critic)
    jax.tree.map(
        lambda t, old, new: close(t, 0.995 * old + 0.005 * new),
        learned.critic.target_params,
        state.agent.critic.target_params,
        critic,
    )
    for i in range(3):  # each actor then follows that critic on its own batch

        def minus_value(params, obs):
            return -agent.critic.apply(critic, obs, agent.to_action(agent.actor.apply(params, obs)))[:, 0].mean()

        actor = tree.index(actors, i)
        updates, _ = adam.update(jax.grad(minus_value)(actor, tree.index(batches, i).obs), adam.init(actor))
        stepped.append(optax.apply_updates(actor, updates))
    jax.tree.map(close, params, tree.stack(stepped))


def test_evaluation_plays_the_center_and_changes_nothing(run):
    workflow, states, _ = run
    after, _, evaluation = jax.jit(partial(step_or_evaluate, workflow))(states[2], jax.random.key(1), True)
    assert leaves_equal(after, states[2])
    assert int(evaluation["episodes"]) == 20
    assert float(evaluation["return"]) == pytest.approx(float(evaluation["episode_length"]))
    assert float(evaluation["return"]) == pytest.approx(4.0, abs=4 * 2 / np.sqrt(20))  # lengths uniform on 1..7


def test_physics_is_lowered_once(run):
    """Prefill, rollout and evaluation of a whole training program share one env.step and one env.reset."""
    workflow = run[0]
    for seeds, vectorized in (([0], True), ([0, 1], True), ([0, 1], False)):
        program = Program(workflow, seeds, chunk=2, vectorized=vectorized)
        state = jax.eval_shape(program.init, program.keys, {})
        job = jnp.uint32(0), jnp.int32(1), jnp.bool_(False)
        text = jax.jit(program.run).lower(state, program.keys, *job).as_text()
        assert text.count("chlo.lgamma") + text.count("call @lgamma") == 1, "env.step"
        assert text.count("chlo.digamma") + text.count("call @digamma") == 1, "env.reset"
    init = jax.jit(program.init).lower(program.keys, {}).as_text()
    assert "gamma" not in init


@pytest.mark.program
def test_a_step_keeps_one_copy_of_the_replay(key):
    workflow = cem_rl(probe.ObsActionReward(), capacity=500_000)
    state = jax.eval_shape(workflow.init, key)
    compiled = (
        jax.jit(partial(step_or_evaluate, workflow), donate_argnums=0).lower(state, key, jnp.bool_(False)).compile()
    )
    memory, replay = compiled.memory_analysis(), tree.nbytes(state.replay)
    assert memory.alias_size_in_bytes >= replay
    assert memory.temp_size_in_bytes < 0.1 * replay


@pytest.mark.program
@pytest.mark.parametrize("evolver", [CEM(6), Evosax(SNES, 6, numbers={"std_init": 0.05})], ids=["CEM", "SNES"])
def test_it_learns_to_choose_with_any_evolver(evolver):
    """Three vmapped seeds on the fifth probe: the action is half the observation, return 1; at random it is 0.4."""
    fast = {"actor_lr": 3e-3, "critic_lr": 3e-3}
    sizes = {"batch_size": 64, "min_updates": 16, "max_updates": 16, "random_steps": 300}
    workflow = cem_rl(probe.ObsActionReward(), evolver, fast, **sizes)

    def train(key):
        state, _ = jax.lax.scan(workflow.step, workflow.init(key), jax.random.split(key, 40))
        return workflow.evaluate(state, key)["return"]

    assert (jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 3)) > 0.9).all()


EVOLVERS = {
    "CEM": CEM(6),
    "OpenES": OpenES(6),
    "GA": GA(6, 2),
    "CMAES": CMAES(6, covariance=DiagonalCovariance()),
}
LEARNERS = {
    "DDPG": TD3(hidden=(8,), num_critics=1, policy_noise=0.0),
    "TD3": TD3(hidden=(8,)),
    "SAC": SAC(hidden=(8,), temperature_lr=1e-2),
}


QUICK = {("DDPG", "OpenES"), ("TD3", "GA"), ("SAC", "CMAES"), ("SAC", "CEM")}  # each at least once
PAIRS = [
    pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.program)
    for pair in itertools.product(LEARNERS, EVOLVERS)
]


@pytest.mark.program
@pytest.mark.parametrize(("learner", "evolver"), PAIRS)
def test_any_agent_learns_beside_any_evolver(learner, evolver):
    sizes = {"batch_size": 8, "capacity": 256, "random_steps": 30, "eval_episodes": 6, "scan_length": 4}
    workflow = CEMRL(Counting(), LEARNERS[learner], EVOLVERS[evolver], min_updates=3, max_updates=3, **sizes)
    start = jax.jit(workflow.init)(jax.random.key(0))
    step = jax.jit(workflow.step)
    filled, _ = step(start, jax.random.key(1))
    after, metrics = step(filled, jax.random.key(2))
    types = jax.tree.map(lambda x: (x.dtype, x.shape, x.weak_type), start)
    assert jax.tree.map(lambda x: (x.dtype, x.shape, x.weak_type), after) == types
    assert int(metrics["gradient_steps"]) == 3
    for part in ("critic", "actor"):
        assert not leaves_equal(getattr(after.agent, part).params, getattr(filled.agent, part).params)
    if learner == "SAC":
        assert leaves_equal(filled.agent.temperature, start.agent.temperature)
        assert int(after.agent.temperature.opt_state.count) == 3
        assert 0.0 < abs(float(after.agent.temperature.params)) <= 3.01e-2  # Adam steps by at most its rate


@pytest.mark.program
def test_the_temperature_moves_by_the_mean_over_learners():
    """By hand from the entropies of the learners: one step of Adam is its rate against the sign of the surplus."""
    env = Counting()
    agent = fill_spaces(SAC(hidden=(8,), temperature_lr=1e-2, actor_lr=0.0), env)
    state = agent.init(jax.random.key(0))
    row = jax.eval_shape(lambda: Transition(jnp.zeros(2), jnp.zeros(1), 0.0, jnp.zeros(2), False, False))
    replay = RingBuffer.empty(4, row).add(
        Transition(*(jnp.ones(x) for x in [(4, 2), (4, 1), 4, (4, 2)]), jnp.ones(4, bool), jnp.zeros(4, bool)),
        jnp.ones(4, bool),
    )
    learning = SimpleNamespace(agent=agent, batch_size=64)
    narrow, wide = (jax.tree.map(lambda x: 0 * x, state.actor.params) for _ in range(2))
    narrow["params"]["Dense_1"]["bias"] = jnp.array([0.0, -5.0])  # an entropy far below the target, -1
    wide["params"]["Dense_1"]["bias"] = jnp.array([0.0, 0.0])
    for members, expected in (([narrow, narrow, wide], 1e-2 / 3), ([wide, wide, wide], -1e-2), ([narrow], 1e-2)):
        learners = state.replace(actor=jax.vmap(state.actor.reset_with_params)(tree.stack(members)))
        moved, _, _ = shared_replay_learning.update_actors_and_critic(
            learning, learners, replay, jax.random.key(1), jnp.int32(1)
        )
        assert float(moved.temperature.params) == pytest.approx(expected, rel=1e-3)
        assert moved.temperature.opt_state.count.dtype == jnp.int32
        assert int(moved.temperature.opt_state.count) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"learners": 0.0}, "learners=0.0"),
        ({"learners": 1.5}, "learners=1.5"),
        ({"max_updates": 2}, "max_updates=2"),
        ({"batch_size": 4096}, "capacity=2048"),
        ({"random_steps": 4096}, "random_steps=4096"),
        ({"fitness_episodes": 0}, "fitness_episodes=0"),
    ],
)
def test_impossible_sizes_are_refused(options, named):
    with pytest.raises(OptionError, match=named):
        cem_rl(probe.ConstantReward(), **options)
