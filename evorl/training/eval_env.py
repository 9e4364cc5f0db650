"""Evaluation in another environment than that of the training."""

from dataclasses import dataclass
from typing import Any

import jax

from evorl import vector_env
from evorl.errors import OptionError
from evorl.training.policy import require_same_spaces
from evorl.training.suites.level_episodes import find_acting_workflow
from evorl.tree import as_arrays
from evorl.types import Env, EvolvingWorkflow, Key, Metrics, PolicyWorkflow, State, Workflow
from evorl.vector_env import EnvBatch, ResetStarts

DEFAULT_EPISODES = 64  # if the workflow does not define eval_episodes
LEARNERS = "student", "response", "workflow"  # of a curriculum, NFSP and a league, which define them


@dataclass(frozen=True)
class EvalEnvEvaluator:
    """Evaluator of the greedy policy of a workflow in another environment.

    For an evolving population, the fittest member plays.

    Raises:
        OptionError: The workflow does not train one policy, or the observation or action spaces differ.
    """

    workflow: Workflow
    env: Env

    def __post_init__(self) -> None:
        acts, _ = find_acting_workflow(self.workflow)
        if not isinstance(acts, PolicyWorkflow):
            raise OptionError(f"eval_env={type(self.env).__name__}: {type(acts).__name__} has no policy to evaluate")
        require_same_spaces(acts.env, self.env)

    def __call__(self, state: State, key: Key) -> Metrics:
        """Return the metrics of an evaluation, given the state of one run without replay buffers."""
        acts, state = find_acting_workflow(self.workflow, state)
        episodes, params = count_eval_episodes(self.workflow), as_arrays(self.env.default_params)
        world = EnvBatch(self.env, params, acts.agent.initial_memory(), episodes)
        policy = jax.vmap(acts.policy(state))
        return vector_env.run_episodes(world, policy, ResetStarts(), key).evaluation_metrics()


def count_eval_episodes(workflow: Any) -> int:
    """Return the number of episodes that an evaluation of the policy of a workflow plays, in all rounds."""
    rounds = 1
    while isinstance(workflow, EvolvingWorkflow):
        rounds, workflow = rounds * getattr(workflow, "eval_rounds", 1), workflow.population.inner
    for part in LEARNERS:
        workflow = getattr(workflow, part, workflow)
    return rounds * getattr(workflow, "eval_episodes", DEFAULT_EPISODES)
