"""What every curriculum keeps, with every core and inside a population, by the shapes of what it computes."""

import jax
import jax.numpy as jnp
import pytest

from evorl import OnPolicy
from evorl.agents import PPO
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.physics import Physics
from evorl.envs.suites.gymnax import Gymnax
from evorl.networks.network import FEEDFORWARD
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.population import Resample, Truncation
from evorl.priors import LogUniform
from evorl.ued import PAIRED, PLR, SFL
from evorl.ued.generators import BredLevels
from evorl.workflows import PBT, Vmapped
from evorl.workflows.base import step_or_evaluate

pytestmark = pytest.mark.program

MAZE = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
POLES = Physics(Gymnax("CartPole-v1", max_episode_steps=8), {"length": LogUniform(0.1, 2.0)}, solved_return=8.0)
CORES = {"none": FEEDFORWARD, "gru": GRU(3), "lstm": LSTM(3), "s5": S5(4, 1, 4, 1)}


def student(env, core):
    agent = PPO(hidden=(4,), core=core)
    return OnPolicy(env, agent, 4, num_steps=0, num_epochs=1, batch_size=0, eval_episodes=6)


def curricula(env, core):
    learner, editor = student(env, core), env.make_editor()
    teacher = PPO(hidden=(4,), core=core)
    return {
        "plr": PLR(learner, capacity=8, num_edits=2, parallel=True),
        "bred": PLR(learner, BredLevels(2), capacity=8),
        "paired": PAIRED(learner, OnPolicy(editor, teacher, 2, num_steps=0, batch_size=0)),
        "sfl": SFL(learner, capacity=4, num_candidates=6, num_batches=2, episodes=2, trial_interval=2),
    }


NAMES = tuple(curricula(MAZE, FEEDFORWARD))


def types(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)


def shapes_of(workflow):
    """The state, the state after a step, and the metrics of an evaluation."""
    key = jax.random.key(0)
    state = jax.eval_shape(workflow.init, key)
    after, _, evaluation = jax.eval_shape(lambda s: step_or_evaluate(workflow, s, key, jnp.bool_(False)), state)
    return state, after, evaluation


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("core", list(CORES))
@pytest.mark.parametrize("env", [MAZE, POLES], ids=["maze", "poles"])
def test_a_step_keeps_the_state_with_every_core_in_every_environment(env, core, name):
    state, after, evaluation = shapes_of(curricula(env, CORES[core])[name])
    assert types(after) == types(state)
    assert {"return", "episodes"} <= set(evaluation)


@pytest.mark.parametrize("name", NAMES)
def test_a_population_trains_with_them(name):
    workflow = curricula(MAZE, GRU(3))[name]
    pbt = PBT(Vmapped(workflow, 4), selection=Truncation(0.25), variation=Resample(), steps_per_generation=2)
    state, after, _ = shapes_of(pbt)
    assert types(after) == types(state)
