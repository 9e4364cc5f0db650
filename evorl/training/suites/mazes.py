"""First episodes on a test set of mazes, those up to 19 x 19 in one program."""

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

MODES = {False: "", True: "sampled/"}  # whether the policy explores, and how its metrics begin


@dataclass(frozen=True)
class MazeSuite:
    """Episodes of a workflow's policy on the mazes of a suite, "ood" or "minimax": so many on each, greedy and sampled.

    Called on a state, it gives metrics of the mazes up to 19 x 19, whose levels are the same at every call: `fit` takes
    it as `measure`. Each episode has a level of its own and counts once, however short it is. Of a population that
    evolves the fittest member plays. Raises OptionError where the workflow does not train one policy on mazes.
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
            raise OptionError(f"suite={self.name}: {type(acts).__name__} keeps no policy to be tested")
        env, _ = find_leveled_env(acts.env, acts.env.default_params)
        if not isinstance(env, Maze):
            raise OptionError(f"suite={self.name}: is for agents trained on mazes, not on {type(env).__name__}")
        require(not env.full_view, "suite", self.name, "its mazes have several sizes, which full_view cannot show")

    def play_episodes(
        self, state: State, key: Key, names: Sequence[str] = suite.SMALL_MAZES
    ) -> dict[bool, EpisodeStats]:
        """By whether the policy explores, what came of the episodes on each of names, leaves [names, episodes]."""
        workflow, state = find_acting_workflow(self.workflow, state)
        env, params = find_leveled_env(workflow.env, state.env_params)
        assert isinstance(env, Maze)
        key_levels, key_play = jax.random.split(key)
        levels = suite.sample_test_levels(key_levels, names, self.episodes, self.name, env, params)
        keys = jax.random.split(key_play, len(names))

        def evaluate_mode(explores: bool) -> EpisodeStats:
            one = lambda given: run_on_levels(workflow, state, given[0], explores, given[1])  # noqa: E731
            if jax.default_backend() == "cpu":  # where each would wait for the longest episode of all
                return jax.lax.map(one, (levels, keys))
            return jax.vmap(one)((levels, keys))

        return {explores: evaluate_mode(explores) for explores in MODES}

    def __call__(self, state: State) -> Metrics:
        """The mean over the mazes of the solved rate and of the return, and of each the solved rate."""
        metrics: Metrics = {}
        steps = jnp.int32(0)
        for explores, stats in self.play_episodes(state, jax.random.key(0)).items():
            begin, rates = f"{self.name}/{MODES[explores]}", (stats.returns > 0).mean(-1)
            metrics |= {f"{begin}solved": rates.mean(), f"{begin}return": stats.returns.mean()}
            metrics |= {f"{begin}solved/{name}": rates[i] for i, name in enumerate(suite.SMALL_MAZES)}
            steps = steps + stats.steps.sum()
        return metrics | {MEASURED_STEPS: steps}


def make_suite_measure(name: Any, workflow: Any) -> MazeSuite | None:
    """Return what `fit` measures for the option suite=name, of whatever type it was given.

    Raises:
        OptionError: There is no such suite, or the workflow cannot play it.
    """
    return None if name is None else MazeSuite(workflow, str(name))
