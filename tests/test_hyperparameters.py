"""Parts declare their hyperparameters, of which a workflow's are put together."""

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
    ERLMutation,
    Evolution,
    MLPPolicy,
    OffPolicy,
    OnPolicy,
    OpenES,
    PBTHyperparams,
    PolicyGradient,
    Restarts,
    SharedReplay,
    Vmapped,
    fit,
    hyperparameters,
)
from evorl.agents import PPOHyperparams, SACHyperparams
from evorl.ec import CEMHyperparams, GAHyperparams
from evorl.ec.variation import ERLMutationHyperparams
from evorl.errors import OptionError
from evorl.population.variation import Evolved
from evorl.priors import LogUniform
from tests.test_contract import CHOICES, ENV, SMALL, UPDATES

SPACES = ENV.observation_space, ENV.action_space
SAC_AGENT = SAC(*SPACES, hidden=(8, 8))
CEM_RL = CEMRL(ENV, SAC_AGENT, CEM(4), **UPDATES, **SMALL)


def test_those_of_a_hybrid_are_those_of_its_own_parts():
    assert CEM_RL.hyperparams().agent == SACHyperparams()
    assert CEM_RL.hyperparams().evolver == CEMHyperparams()
    training = fit(CEM_RL, budget=Budget(iterations=2), evaluations=1)
    assert training.progress.iteration == 2


def test_those_of_parts_within_parts():
    assert ERL(ENV, SAC_AGENT).hyperparams().evolver == GAHyperparams(0.0, 0.0, 0.9, ERLMutationHyperparams())
    assert GA(4, 1, mutation=ERLMutation()).hyperparams().mutation == ERLMutationHyperparams()
    assert Restarts(CMAES(4)).hyperparams().search == CMAES(4).hyperparams()
    policy = MLPPolicy(*SPACES, hidden=(4,))
    assert Evolution(ENV, policy, OpenES(4)).hyperparams().evolver == OpenES(4).hyperparams()
    assert Evolved(CEM(4)).hyperparams() == CEMHyperparams()
    agent = PolicyGradient(CHOICES.observation_space, CHOICES.action_space, PPO())
    assert OnPolicy(CHOICES, agent).hyperparams() == PPOHyperparams()


def test_a_population_searches_what_its_members_have_declared():
    pbt = PBT(Vmapped(CEM_RL, 4), variation=Evolved(CEM(4)))
    assert pbt.hyperparams() == PBTHyperparams(CEMHyperparams())
    assert isinstance(pbt.searched.hyperparams.agent.critic_lr, LogUniform)
    assert pbt.searched.hyperparams == hyperparameters.searched(CEM_RL.hyperparams())
    members = SharedReplay(OffPolicy(ENV, SAC_AGENT), 3).hyperparams()
    assert members.critic_lr.shape == (3,)
    assert float(members.critic_lr[0]) == pytest.approx(SACHyperparams().critic_lr)


def test_a_part_that_declares_none_says_so():
    with pytest.raises(OptionError, match=r"object: has no hyperparams\(\)"):
        hyperparameters.of(object())
