"""One file and one YAML file add an agent, an evolver or a meta-workflow, and the command line does the rest."""

import json

import pytest

import evorl
from evorl.cli import play, sanity, train

pytestmark = pytest.mark.program

FILES = {
    "reinforce.py": """
from typing import Any

from evorl import LogUniform, PolicyGradient, number, part
from evorl.returns import gae


@part
class Reinforce(PolicyGradient):
    learning_rate: Any = number(3e-3, 0, 1, "of Adam", LogUniform(1e-4, 1e-1))
    max_grad_norm: Any = number(1.0, 0)

    def estimate_advantages(self, t, ratio, value, next_value):
        advantage = gae(t.reward, value, next_value, t.terminated, t.is_done, self.discount, 1.0)
        return advantage, advantage + value

    def loss_of_rows(self, batch, log_prob, value, entropy):
        loss = -(log_prob * batch.advantage).mean() + 0.5 * ((value - batch.target) ** 2).mean()
        return loss, {"loss": loss}
""",
    "configs/agent/reinforce.yaml": """
name: reinforce
chunk: 4
workflow:
  _target_: OnPolicy
  num_envs: 16
  num_steps: 16
  num_epochs: 1
  batch_size: 256
  agent:
    _target_: reinforce.Reinforce
    hidden: [8]
""",
    "one_plus_one.py": """
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from evorl import LogUniform, number, part, tree
from evorl.types import Evolver


@struct.dataclass
class OnePlusOneState:
    parent: Any
    std: Any


@part
class OnePlusOne(Evolver):
    population_size = 2  # the parent, whose fitness may be luck, is evaluated again beside its child

    std: Any = number(0.3, 0, about="of the first child", prior=LogUniform(0.01, 1))
    growth: Any = number(1.5, 1, about="of the std after a success; its fourth root less after a failure")

    def init(self, key, mean):
        return OnePlusOneState(mean, jnp.float32(self.std))

    def ask(self, key, state):
        numbers, as_params = ravel_pytree(state.parent)
        child = as_params(numbers + state.std * jax.random.normal(key, numbers.shape))
        return tree.stack([state.parent, child]), state

    def tell(self, key, genomes, fitness, state):
        better = fitness[1] >= fitness[0]
        parent = tree.select(better, tree.index(genomes, 1), tree.index(genomes, 0))
        std = state.std * jnp.where(better, self.growth, self.growth**-0.25)
        return OnePlusOneState(parent, std), {"std": std}

    def solution(self, state):
        return state.parent
""",
    "configs/agent/one_plus_one.yaml": """
name: one_plus_one
chunk: 4
workflow:
  _target_: Evolution
  agent:
    _target_: MLPPolicy
    hidden: [8]
  evolver:
    _target_: one_plus_one.OnePlusOne
  fitness_episodes: 16
  same_episodes: true
  vbn_steps: 64
""",
    "copies.py": """
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl import Uniform, number, part, tree
from evorl.ec.shaping import sanitize_fitness
from evorl.parts import resolve_numbers
from evorl.workflows import BaseStagedWorkflow
from evorl.workflows.members import PopulationMetrics, PopulationPlan, train_and_evaluate


@struct.dataclass
class CopiesState:
    numbers: Any
    env_params: Any
    members: Any
    best: Any


@part
class Copies(BaseStagedWorkflow):
    population: Any
    margin: Any = number(0.0, 0, about="of the best over those that take over", prior=Uniform(0, 0.1))

    def init(self, key, numbers=None, env_params=None):
        env_params = self.env.default_params if env_params is None else env_params
        members = self.population.init(key, None, env_params)
        return CopiesState(resolve_numbers(self, numbers), env_params, members, jnp.int32(0))

    def plan(self, state, key):
        return PopulationPlan(2, 1), None

    def plan_evaluation(self, state, key):
        return PopulationPlan(0, 1)

    def rollout(self, state, plan, key):
        members, *results = train_and_evaluate(self.population, state.members, key, plan.steps, plan.evaluations)
        return replace(state, members=members), PopulationMetrics({}, self.population.has_no_nan(members), *results)

    def learn_from(self, state, carry, played, key):
        fitness = sanitize_fitness(played.fitness)
        best = fitness.argmax().astype(jnp.int32)
        behind = fitness < fitness[best] - self.margin
        source = jnp.where(behind, best, jnp.arange(len(fitness)))
        members = self.population.copy_members(state.members, source)
        return replace(state, members=members, best=best), played.metrics() | {"members/source": source}

    def evaluation_metrics(self, state, played):
        return tree.index(played.evaluation, state.best)

    def inherit(self, state, parent):
        return replace(state, members=self.population.inherit(state.members, parent.members), best=parent.best)

    @property
    def env(self):
        return self.population.inner.env

    @property
    def agent(self):
        return self.population.inner.agent

    def policy(self, state, explores=False):
        return self.population.inner.policy(tree.index(state.members, state.best), explores)
""",
    "configs/agent/copies.yaml": """
defaults:
  - _self_
  - /agent@inner: reinforce
  - population@_here_: vmapped
name: copies
chunk: 1
workflow:
  _target_: copies.Copies
  population:
    size: 3
""",
}
AGENTS = ("reinforce", "one_plus_one", "copies")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one_file")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("agent", AGENTS)
def test_it_trains_resumes_and_plays_side_by_side_with_another_seed(agent, own, capsys):
    run = own / agent
    trust = f"trust=[{agent},reinforce]"
    train.main([f"agent={agent}", "env=sanity_bandit", "iterations=2", "num_seeds=2", f"run_dir={run.name}"])
    train.main([f"resume={run.name}", "iterations=4", trust])
    assert len(rows(run)[-1]["seeds"]["return"]) == 2
    assert rows(run)[-1]["iteration"] == 4
    played = play.play_run(play.parse_play_options([run.name, "episodes=3", "out=null", trust]))
    assert played["returns"].shape == (3,)
    assert evorl.load(run, trust=(agent, "reinforce"))([0.0]).shape == ()
    capsys.readouterr()


@pytest.mark.parametrize("agent", AGENTS)
def test_a_population_of_it_is_trained(agent, own, capsys):
    size, run = "agent.workflow.population.size=3", f"pbt_{agent}"
    train.main(["agent=pbt", f"agent/inner={agent}", "env=sanity_bandit", size, "iterations=2", f"run_dir={run}"])
    last = rows(own / run)[-1]
    assert last["kind"] == "evaluation"
    assert len(last["members"]["return"][-1][-1]) == 3
    capsys.readouterr()


@pytest.mark.parametrize("agent", AGENTS)
def test_it_is_checked_for_sanity_and_passes_the_bandit(agent, own, capsys):
    sanity.main([f"agent={agent}", "only=bandit"])
    assert "failed" not in capsys.readouterr().out.lower()
