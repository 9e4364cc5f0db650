"""The numbers of a workflow are those of its parts, and a search has its space from there."""

from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

from evorl import (
    CEM,
    CEMRL,
    CMAES,
    ERL,
    GA,
    PBT,
    PPO,
    SAC,
    Budget,
    Evolution,
    MetaES,
    MLPPolicy,
    OffPolicy,
    OnPolicy,
    OpenES,
    SharedReplay,
    Uniform,
    Vmapped,
    fit,
)
from evorl.ec import ERLMutation, Restarts
from evorl.parts import read_numbers
from evorl.population import Perturb
from evorl.population.search import PriorSpace
from evorl.population.variation import EvolverVariation
from evorl.priors import LogUniform
from evorl.schedules import Linear
from tests.conftest import leaves_equal
from tests.tiny import CHOICES, ENV, SMALL, UPDATES

SPACES = ENV.observation_space, ENV.action_space
SAC_AGENT = SAC(hidden=(8, 8), observation_space=SPACES[0], action_space=SPACES[1])
CEM_RL = CEMRL(ENV, SAC_AGENT, CEM(4), **UPDATES, **SMALL)


@pytest.mark.program
def test_those_of_a_hybrid_are_those_of_its_own_parts():
    assert read_numbers(CEM_RL) == {"agent": read_numbers(SAC()), "evolver": read_numbers(CEM())}
    training = fit(CEM_RL, budget=Budget(iterations=2), evaluations=1)
    assert training.progress.iteration == 2


def test_those_of_parts_within_parts():
    erl = read_numbers(ERL(ENV, SAC_AGENT))
    assert erl["evolver"] == read_numbers(GA()) | {"mutation_rate": 0.9, "mutation": read_numbers(ERLMutation())}
    assert read_numbers(GA(4, 1, mutation=ERLMutation()))["mutation"] == read_numbers(ERLMutation())
    assert read_numbers(Restarts(CMAES(4)))["evolver"] == read_numbers(CMAES(4))
    policy = MLPPolicy(hidden=(4,), observation_space=SPACES[0], action_space=SPACES[1])
    assert read_numbers(Evolution(ENV, policy, OpenES(4))) == {"evolver": read_numbers(OpenES(4))}
    assert read_numbers(EvolverVariation(CEM(4))) == {"evolver": read_numbers(CEM())}
    assert read_numbers(OnPolicy(CHOICES, PPO())) == {"agent": read_numbers(PPO())}


def test_a_population_searches_what_its_members_have_declared():
    pbt = PBT(Vmapped(CEM_RL, 4), variation=EvolverVariation(CEM(4)))
    assert read_numbers(pbt) == {"variation": {"evolver": read_numbers(CEM())}}
    assert isinstance(pbt.search_space.priors["agent.critic_lr"], LogUniform)
    assert pbt.search_space == PriorSpace(CEM_RL)
    members = jax.eval_shape(SharedReplay(OffPolicy(ENV, SAC_AGENT), 3).init, jax.random.key(0)).numbers
    assert members["agent"]["critic_lr"].shape == (3,)


FALLING_ES = OpenES(4, learning_rate=Linear(0.01, 0, over=30.0))
FALLING_SAC = SAC(hidden=(8, 8), critic_lr=Linear(3e-4, 0, over=30.0))
FALLING_FACTOR = Perturb(factor=Linear(0.2, 0, over=100.0))
ERL_SAC = ERL(ENV, SAC_AGENT, **UPDATES, **SMALL)
POPULATION = Vmapped(OffPolicy(ENV, SAC_AGENT, num_envs=4, num_steps=2, num_updates=4, **SMALL), 4)
DISCOUNTED = replace(POPULATION, inner=replace(POPULATION.inner, agent=replace(SAC_AGENT, discount=Uniform(0.5, 0.9))))
SEARCH = Evolution(ENV, MLPPolicy(hidden=(4,)), FALLING_ES, normalization="none", eval_episodes=4)
FALLING = {
    "evolution": (SEARCH, lambda state: state.agent.actor.params),
    "cem_rl": (replace(CEM_RL, agent=FALLING_SAC), lambda state: state.agent.critic.params),
    "erl": (ERL(ENV, FALLING_SAC, **UPDATES, **SMALL), lambda state: state.agent.critic.params),
    "pbt": (PBT(POPULATION, variation=FALLING_FACTOR, steps_per_generation=1), lambda state: state.points),
    "meta_es": (
        MetaES(DISCOUNTED, FALLING_ES, lifetime=1, search=("discount",)),
        lambda state: state.evolver.mean,
    ),
}


@pytest.mark.program
@pytest.mark.parametrize("name", FALLING)
def test_a_schedule_of_a_part_works_in_every_workflow(name):
    """What falls to 0 over the first env steps still moves something at the first step, and nothing after the third."""
    workflow, moved = FALLING[name]
    step = jax.jit(workflow.step)
    states = [jax.jit(workflow.init)(jax.random.key(0))]
    for i in range(6):
        state, metrics = step(states[-1], jax.random.key(i))
        states.append(state)
    assert float(states[-1].env_steps) == float(states[-2].env_steps) + float(metrics["env_steps"])
    assert any(not leaves_equal(moved(a), moved(b)) for a, b in pairwise(states[:4]))
    if name == "pbt":  # whose children still take over
        assert np.isin(states[-1].points, states[-2].points).all()
        assert not np.isin(states[1].points, states[0].points).all()
    else:
        assert leaves_equal(moved(states[-1]), moved(states[-2]))
    assert leaves_equal(states[-1].numbers, states[0].numbers)
