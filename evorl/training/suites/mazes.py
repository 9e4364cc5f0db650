"""Evaluation on a test suite of mazes. Mazes up to 19 x 19 are evaluated in one compiled program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from evorl.envs.maze import Maze, suite
from evorl.envs.on_level import find_leveled_env
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.metrics import MEASURED_STEPS
from evorl.training.suites.level_episodes import find_acting_workflow, run_on_levels
from evorl.types import Key, Metrics, PolicyWorkflow, State, Workflow
from evorl.vector_env import EpisodeStats

MODES = {False: "", True: "sampled/"}  # from whether the policy explores to the prefix of its metrics


@dataclass(frozen=True)
class MazeSuite:
    """Test of the policy of a workflow on the mazes of a suite, with greedy and with sampled actions.

    Calling it with a state returns metrics of the mazes up to 19 x 19, which `fit` takes as `measure`. The
    levels are the same in every call. Each episode has its own level and counts once, however short it is.
    For an evolving population, the fittest member plays.

    Args:
        workflow: Workflow that trains one policy on mazes.
        name: Name of the suite, "ood" or "minimax".
        episodes: Number of episodes on each maze, both with greedy and with sampled actions.

    Raises:
        OptionError: There is no such suite, or the workflow does not train one policy on mazes.
    """

    workflow: Workflow
    name: str = "ood"
    episodes: int = 10

    def __post_init__(self) -> None:
        if self.name not in suite.SUITES:
            raise unknown_name_error("suite", str(self.name), suite.SUITES)
        require_int("episodes", self.episodes)
        acts, _ = find_acting_workflow(self.workflow)
        if not isinstance(acts, PolicyWorkflow):
            raise OptionError(f"suite={self.name}: {type(acts).__name__} has no policy to evaluate")
        env, _ = find_leveled_env(acts.env, acts.env.default_params)
        if not isinstance(env, Maze):
            raise OptionError(f"suite={self.name}: is for agents trained on mazes, not on {type(env).__name__}")
        require(not env.full_view, "suite", self.name, "needs full_view=false, because its mazes differ in size")

    def play_episodes(
        self, state: State, key: Key, names: Sequence[str] = suite.SMALL_MAZES
    ) -> dict[bool, EpisodeStats]:
        """Run the episodes of each maze, with greedy and with sampled actions.

        Args:
            state: State of the workflow.
            key: Random key.
            names: Names of the mazes, by default those up to 19 x 19.

        Returns:
            Statistics of the episodes, leaves [names, episodes], under False for greedy and True for sampled
            actions.
        """
        workflow, state = find_acting_workflow(self.workflow, state)
        env, params = find_leveled_env(workflow.env, state.env_params)
        assert isinstance(env, Maze)
        key_levels, key_play = jax.random.split(key)
        levels = suite.sample_test_levels(key_levels, names, self.episodes, self.name, env, params)
        keys = jax.random.split(key_play, len(names))

        def evaluate_mode(explores: bool) -> EpisodeStats:
            one = lambda given: run_on_levels(workflow, state, given[0], explores, given[1])  # noqa: E731
            if jax.default_backend() == "cpu":  # under vmap, each maze would wait for the longest episode of all
                return jax.lax.map(one, (levels, keys))
            return jax.vmap(one)((levels, keys))

        return {explores: evaluate_mode(explores) for explores in MODES}

    def __call__(self, state: State) -> Metrics:
        """Return the solved rate of each maze, and the solved rate and the return averaged over the mazes."""
        metrics: Metrics = {}
        steps = jnp.int32(0)
        for explores, stats in self.play_episodes(state, jax.random.key(0)).items():
            begin, rates = f"{self.name}/{MODES[explores]}", (stats.returns > 0).mean(-1)
            metrics |= {f"{begin}solved": rates.mean(), f"{begin}return": stats.returns.mean()}
            metrics |= {f"{begin}solved/{name}": rates[i] for i, name in enumerate(suite.SMALL_MAZES)}
            steps = steps + stats.steps.sum()
        return metrics | {MEASURED_STEPS: steps}


def make_suite_measure(name: Any, workflow: Any) -> MazeSuite | None:
    """Return the measure that `fit` takes for the option suite=name; None if the name is None.

    The name may have any type, as given by the user.

    Raises:
        OptionError: There is no such suite, or the workflow cannot play it.
    """
    return None if name is None else MazeSuite(workflow, str(name))
