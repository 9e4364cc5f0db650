"""Evaluations in another environment than that of the training."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.agents import PPO
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.training.configuration import config, parts
from evorl.training.eval_env import EvalEnvEvaluator, count_eval_episodes
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.training.runs import build
from evorl.ued import PLR
from evorl.workflows import PBT, OnPolicy, Vmapped
from tests.contract_cases import LEVELS
from tests.counting import Counting


@dataclass(frozen=True)
class Paid(Counting):
    """Counting whose episodes all have `longest` steps, each worth `worth`."""

    worth: float = 1.0

    def reset(self, key, params):
        state = jnp.array([0.0, self.longest])
        return state + 0 * super().reset(key, params)[0], state

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        return state, timestep.replace(reward=self.worth * timestep.reward)


def workflow(env, **options):
    agent = PPO(hidden=(4,))
    return OnPolicy(env, agent, 2, 4, 1, 8, eval_episodes=2, **options)


@pytest.mark.program
@pytest.mark.parametrize("num_seeds", [1, 2])
def test_evaluations_and_the_best_policy_are_of_the_other_environment(num_seeds):
    """An episode of training is worth its length, at most 7; one of the other environment 5 steps of 10."""
    training = fit(
        workflow(Counting()),
        budget=Budget(iterations=2),
        evaluations=2,
        num_seeds=num_seeds,
        eval_env=Paid(5, 5, worth=10),
    )
    rows = [row for row in training.rows if row["kind"] == "evaluation"]
    assert [row["iteration"] for row in rows] == [0, 2]
    assert {(row["return"], row["episode_length"]) for row in rows} == {(50.0, 5.0)}
    assert (rows[-1]["best_return"], rows[-1]["best_return_error"]) == (50.0, 0.0)
    np.testing.assert_allclose(training.progress.best_returns, 50)
    assert all(0 < row["return"] <= 7 for row in training.rows if row["kind"] == "train" and row["episodes"])


@pytest.mark.program
def test_what_is_learned_is_the_same_bits_wherever_it_is_evaluated():
    alike = [
        jax.tree.leaves(fit(workflow(Counting()), budget=Budget(iterations=3), evaluations=2, eval_env=env).state.agent)
        for env in (None, Paid(5, 5, worth=10))
    ]
    for a, b in zip(*alike, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_environment_that_the_policy_cannot_play_in_is_refused():
    with pytest.raises(
        OptionError, match=r"eval_env=FrameStack: its observation_space is .*, must be .* as in training"
    ):
        EvalEnvEvaluator(workflow(Counting()), FrameStack(Counting(), 2))
    cfg = config.compose_config(["agent=search", "problem=zdt1", "eval_env=cartpole"])
    with pytest.raises(OptionError, match="eval_env=given: cannot be combined with a problem"):
        build(cfg)
    with pytest.raises(OptionError, match="unknown env cartpol; did you mean cartpole"):
        config.compose_config(["agent=ppo", "env=cartpole", "eval_env=cartpol"])


def test_it_is_composed_as_the_environment_is_and_within_its_wrappers():
    given = ["agent=ppo", "env=cartpole", "wrappers=[{frames: {count: 2}}, {rewards: {scale: 0.1}}]"]
    data = config.to_plain_data(config.compose_config([*given, "eval_env=cartpole", "eval_env.max_episode_steps=77"]))
    found = parts.make_eval_env(data)
    assert (found.max_episode_steps, parts.make_task(data).max_episode_steps) == (77, 500)
    assert found.observation_space == parts.make_task(data).observation_space
    assert parts.make_eval_env(config.to_plain_data(config.compose_config([*given, "eval_env=null"]))) is None
    assert parts.make_eval_env(config.to_plain_data(config.compose_config(given))) is None


def test_as_many_episodes_are_played_as_in_an_evaluation_of_the_workflow():
    student = replace(LEVELS, eval_episodes=7)
    assert count_eval_episodes(student) == count_eval_episodes(PLR(student, capacity=8)) == 7
    assert count_eval_episodes(PBT(Vmapped(student, 2), eval_rounds=3)) == 21
    assert count_eval_episodes(PBT(Vmapped(PLR(student, capacity=8), 2), eval_rounds=3)) == 21
