from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import SAC, TD3
from evorl.ec import GA, OpenES
from evorl.ec.variation import ERLMutation
from evorl.envs.sanity import probe
from evorl.errors import OptionError
from evorl.parts import part
from evorl.training.program import Program
from evorl.types import Evolver
from evorl.workflows import ERL
from evorl.workflows.base import step_or_evaluate
from tests.conftest import leaves_equal
from tests.counting import Counting


@part
class Remembering(Evolver):
    """Members of constant weights, 0, 1, 2 and so on; its state is what it was told last."""

    population_size: int = 4

    def init(self, key, mean):
        ranks = jnp.arange(float(self.population_size))
        members = jax.vmap(lambda rank: jax.tree.map(lambda x: jnp.full_like(x, rank), mean))(ranks)
        return {"asked": members, "told": members, "fitness": ranks}

    def ask(self, key, state):
        return state["asked"], state

    def tell(self, key, genomes, fitness, state):
        return state | {"told": genomes, "fitness": fitness}, {}

    def solution(self, state):
        return tree.index(state["asked"], 1)


REMEMBERING = Remembering()
STILL = TD3(hidden=(8,), actor_lr=0.0)


def erl(env, evolver=REMEMBERING, agent=STILL, **options):
    defaults = {"min_updates": 2, "max_updates": 50, "batch_size": 16, "capacity": 2048}
    return ERL(env, agent, evolver, **defaults | {"eval_episodes": 20, "scan_length": 4} | options)


def run(workflow, steps):
    """The states before and after each step, and its metrics."""
    state = jax.jit(workflow.init)(jax.random.key(0))
    step = jax.jit(workflow.step)
    states, metrics = [state], []
    for i in range(steps):
        state, row = step(state, jax.random.key(i))
        states.append(state)
        metrics.append({name: np.asarray(value) for name, value in row.items()})
    return states, metrics


@pytest.mark.program
def test_each_member_and_each_agent_plays_and_the_replay_holds_all():
    states, metrics = run(erl(Counting(), num_agents=2, fitness_episodes=2, agent_episodes=3), 2)
    for before, after, row in zip(states[:-1], states[1:], metrics, strict=True):
        assert row["episodes"] == 4 * 2 + 2 * 3
        assert after.replay.size - before.replay.size == row["env_steps"]
        assert row["return"] == pytest.approx(row["env_steps"] / 14)  # reward 1 a step
        assert row["return_best"] == after.evolver["fitness"].max()
    population = 2 * states[1].evolver["fitness"].sum()
    assert metrics[0]["return_agent"] == pytest.approx((metrics[0]["env_steps"] - population) / 6)
    assert int(states[0].replay.size) == 0


@pytest.mark.program
@pytest.mark.parametrize("follows", ["iteration", "all"])
def test_updates_follow_the_steps_of_this_iteration_or_of_all(follows):
    limits = {"min_updates": 15, "max_updates": 50}
    _, metrics = run(erl(Counting(), updates_follow=follows, random_steps=10, **limits), 6)
    steps = np.array([row["env_steps"] for row in metrics])
    assert steps[0] == 10
    expected = np.clip(np.cumsum(steps) if follows == "all" else steps, 15, 50)
    expected[0] = 0  # at random
    np.testing.assert_array_equal([row["gradient_steps"] for row in metrics], expected)
    assert len(set(expected)) > 2
    assert (50 in expected) == (follows == "all")


@pytest.mark.program
def test_updates_are_fixed_where_their_limits_are_one_number_and_optimizers_persist():
    states, metrics = run(erl(Counting(), min_updates=7, max_updates=7), 3)
    assert [int(row["gradient_steps"]) for row in metrics] == [7, 7, 7]
    assert [int(s.agent.critic.opt_state.count) for s in states] == [0, 7, 14, 21]
    assert [int(s.agent.actor.opt_state.count[0]) for s in states] == [0, 7, 14, 21]


@pytest.mark.program
@pytest.mark.parametrize("interval", [1, 2])
def test_the_agents_take_the_places_of_the_last_members(interval):
    agent = TD3(hidden=(8,), actor_lr=1e-2)
    states, metrics = run(erl(Counting(), agent=agent, num_agents=2, injection_interval=interval), 4)
    for i, (before, after, row) in enumerate(zip(states[:-1], states[1:], metrics, strict=True)):
        told, asked = after.evolver["told"], before.evolver["asked"]
        injected = (i + 1) % interval == 0
        last = before.agent.actor.params if injected else tree.index(asked, slice(2, None))
        assert leaves_equal(tree.index(told, slice(2, None)), last)
        assert leaves_equal(tree.index(told, slice(2)), tree.index(asked, slice(2)))
        best = np.argsort(-after.evolver["fitness"], kind="stable")[:2]
        assert row["gradient_elites"] == (np.sum(best >= 2) if injected else 0)
        assert not leaves_equal(before.agent.actor.params, after.agent.actor.params)


@pytest.mark.program
def test_an_agent_moves_to_a_fitter_elite_by_the_fraction_of_its_pull():
    states, metrics = run(erl(Counting(), injection_interval=99, elite_pull=0.25), 8)
    pulled = set()
    for before, after, row in zip(states[:-1], states[1:], metrics, strict=True):
        fitness = np.asarray(after.evolver["fitness"])
        fitter = bool(fitness.max() > row["return_agent"])
        pulled.add(fitter)
        fraction, best = 0.25 * fitter, float(fitness.argmax())  # the weights of member i are all i
        expected = jax.tree.map(lambda x, f=fraction, b=best: (1 - f) * x + f * b, before.agent.actor.params)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7), after.agent.actor.params, expected
        )
    assert pulled == {True, False}


@pytest.mark.program
def test_it_begins_at_random_and_then_evolves_alone():
    states, metrics = run(erl(Counting(), random_steps=50, warmup_generations=2), 5)
    assert [int(row["gradient_steps"]) > 0 for row in metrics] == [False, False, False, True, True]
    assert int(metrics[0]["env_steps"]) == 50 == int(states[1].replay.size)
    assert leaves_equal(states[1].evolver, states[0].evolver)
    assert [int(row["episodes"]) for row in metrics[1:]] == [4, 4, 5, 5]
    assert leaves_equal(states[3].agent, states[0].agent)
    assert leaves_equal(states[3].evolver["told"], states[3].evolver["asked"])  # no agent among them yet
    assert [int(s.generation) for s in states] == [0, 0, 1, 2, 3, 4]


@pytest.mark.program
def test_evaluation_plays_the_center_and_the_agents_and_changes_nothing():
    workflow = erl(Counting(), num_agents=2)
    states, _ = run(workflow, 2)
    after, _, evaluation = jax.jit(partial(step_or_evaluate, workflow))(states[-1], jax.random.key(1), True)
    assert leaves_equal(after, states[-1])
    assert int(evaluation["episodes"]) == 20
    assert float(evaluation["return"]) == pytest.approx(float(evaluation["episode_length"]))
    for name in ("return", "return_agent"):
        assert float(evaluation[name]) == pytest.approx(4.0, abs=4 * 2 / np.sqrt(20))  # lengths uniform on 1..7
    exam = workflow.plan_evaluation(states[-1], jax.random.key(1))
    played = exam.params
    agents = states[-1].agent.actor.params
    assert leaves_equal(tree.index(played, slice(3)), tree.broadcast(workflow.evolver.solution(states[-1].evolver), 3))
    assert leaves_equal(tree.index(played, slice(3, None)), tree.index(agents, jnp.array([0, 1, 0])))
    np.testing.assert_array_equal(exam.episodes, [7, 7, 6, 7, 7, 6])


@pytest.mark.program
def test_physics_is_lowered_once():
    program = Program(erl(Counting(), random_steps=20), [0, 1], chunk=2, vectorized=True)
    state = jax.eval_shape(program.init, program.keys, {})
    text = jax.jit(program.run).lower(state, program.keys, jnp.uint32(0), jnp.int32(1), jnp.bool_(False)).as_text()
    assert text.count("chlo.lgamma") + text.count("call @lgamma") == 1, "env.step"
    assert text.count("chlo.digamma") + text.count("call @digamma") == 1, "env.reset"


@pytest.mark.program
def test_a_step_keeps_one_copy_of_the_replay(key):
    workflow = erl(probe.ObsActionReward(), capacity=500_000)
    state = jax.eval_shape(workflow.init, key)
    compiled = (
        jax.jit(partial(step_or_evaluate, workflow), donate_argnums=0).lower(state, key, jnp.bool_(False)).compile()
    )
    memory, replay = compiled.memory_analysis(), tree.nbytes(state.replay)
    assert memory.alias_size_in_bytes >= replay
    assert memory.temp_size_in_bytes < 0.1 * replay


FAST = {"hidden": (8,), "actor_lr": 3e-3, "critic_lr": 3e-3}


@pytest.mark.program
@pytest.mark.parametrize(
    ("agent", "evolver"),
    [
        (TD3(**FAST), GA(6, 1, mutation=ERLMutation())),
        (SAC(temperature=0.01, temperature_lr=0.0, **FAST), OpenES(6)),
    ],
    ids=["TD3 and GA", "SAC and OpenES"],
)
def test_agent_and_population_learn_to_choose(agent, evolver):
    """Two vmapped seeds on the fifth probe: the action is half the observation, return 1; at random it is 0.4."""
    workflow = erl(
        probe.ObsActionReward(), evolver, agent, batch_size=64, min_updates=16, max_updates=16, agent_episodes=8
    )

    def train(key):
        state, _ = jax.lax.scan(workflow.step, workflow.init(key), jax.random.split(key, 120))
        return workflow.evaluate(state, key)

    evaluation = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2))
    assert (evaluation["return_agent"] > 0.9).all()
    if isinstance(evolver, GA):  # its elites are injected agents; a mean moves too little in this time
        assert (evaluation["return"] > 0.9).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"updates_follow": "iterations"}, "unknown updates_follow iterations; did you mean iteration?"),
        ({"num_agents": 0}, "num_agents=0"),
        ({"num_agents": 4}, "num_agents=4: must be below population_size, 4"),
        ({"agent_episodes": 0}, "agent_episodes=0"),
        ({"injection_interval": 0}, "injection_interval=0"),
        ({"max_updates": 1}, "max_updates=1: must be at least min_updates, 2"),
        ({"warmup_generations": -1}, "warmup_generations=-1"),
        ({"batch_size": 4096}, "capacity=2048"),
        ({"evolver": Remembering(1)}, "population_size=1"),
    ],
)
def test_impossible_sizes_are_refused(options, named):
    with pytest.raises(OptionError, match=named.replace("?", r"\?")):
        erl(probe.ConstantReward(), **options)
