"""Protocols of environments, and of their optional features, such as levels."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.spaces import Space
from evorl.types.data import Array, Key, Level, Metrics, State, TimeStep


@runtime_checkable
class Env(Protocol):
    """Protocol of an environment: pure functions of one environment, which the caller vectorizes with vmap."""

    @property
    def observation_space(self) -> Space:
        """Return the observation space."""
        ...

    @property
    def action_space(self) -> Space:
        """Return the action space."""
        ...

    @property
    def max_episode_steps(self) -> int:
        """Return the maximum number of steps of an episode, after which it is truncated."""
        ...

    @property
    def default_params(self) -> Any:
        """Return the default environment parameters: a pytree of numbers that may differ between runs, or None."""
        ...

    @property
    def fresh_reset(self) -> bool:
        """Return whether each episode needs a new initial state.

        If False, a few initial states may be sampled in advance and used for several episodes.
        """
        ...

    def reset(self, key: Key, params: Any) -> tuple[State, Any]:
        """Start an episode.

        Args:
            key: Random key of the initial state.
            params: Environment parameters, like `default_params`.

        Returns:
            The environment state and the first observation.
        """
        ...

    def step(self, key: Key, env_state: State, action: Any, params: Any) -> tuple[State, TimeStep]:
        """Take one step. The environment is never reset, even if the episode ends.

        Args:
            key: Random key of the step.
            env_state: State of the environment.
            action: Action, an element of `action_space`.
            params: Environment parameters, like `default_params`.

        Returns:
            The next state and the time step.
        """
        ...


@runtime_checkable
class HasStateMetrics(Protocol):
    """Protocol of an environment that reports metrics of its state, such as the difficulty of its level."""

    def state_metrics(self, env_state: State) -> Metrics:
        """Return the metrics of a state, leaves [].

        Args:
            env_state: State of the environment.
        """
        ...


@runtime_checkable
class HasRankingGroup(Protocol):
    """Protocol of a multi-agent environment that names the group by whose return policies are ranked."""

    @property
    def ranked(self) -> str:
        """Return the name of the group; an empty string stands for all groups."""
        ...


@runtime_checkable
class HasEpisodeInfo(Protocol):
    """Protocol of an environment that reports episode statistics besides the return, such as energy or success."""

    @property
    def episode_info(self) -> Mapping[str, str]:
        """Return how entries of `TimeStep.info` are summarized over an episode.

        Returns:
            For each name, "sum", "mean" or "last": the sum or the mean over the steps, or the value of the
            last step. The entries are arrays of numbers, of any shape.
        """
        ...


@runtime_checkable
class LevelEnv(Env, Protocol):
    """Protocol of an environment in which each episode is played on a level, a pytree of arrays."""

    def sample_level(self, key: Key, params: Any) -> Level:
        """Sample a level as `reset` does at the start of an episode.

        Args:
            key: Random key.
            params: Environment parameters, like `default_params`.

        Returns:
            The level.
        """
        ...

    def get_level(self, env_state: State) -> Level:
        """Return the level of the current episode.

        Args:
            env_state: State of the environment.
        """
        ...

    def reset_to_level(self, key: Key, level: Level) -> tuple[State, Any]:
        """Start an episode on a given level.

        Args:
            key: Random key of the initial state.
            level: Level to play.

        Returns:
            The environment state and the first observation.
        """
        ...

    def is_same_level(self, a: Level, b: Level) -> Array:
        """Return whether two levels are the same, bool [].

        Levels that are the same must be equal in all bits: a buffer of levels compares only those with equal
        hashes.

        Args:
            a: A level.
            b: Another level.
        """
        ...


@runtime_checkable
class MutableLevelEnv(LevelEnv, Protocol):
    """Protocol of an environment whose levels can be mutated by small edits."""

    def mutate_level(self, key: Key, level: Level, num_edits: int) -> Level:
        """Return a mutated copy of a level.

        Args:
            key: Random key.
            level: Level to mutate.
            num_edits: Number of edits.
        """
        ...


@runtime_checkable
class LevelCrossoverEnv(MutableLevelEnv, Protocol):
    """Protocol of an environment that has a crossover of two levels."""

    def crossover_levels(self, key: Key, a: Level, b: Level) -> Level:
        """Return a child of two levels.

        Args:
            key: Random key.
            a: First parent.
            b: Second parent.
        """
        ...


@runtime_checkable
class DecodableLevelEnv(LevelEnv, Protocol):
    """Protocol of an environment whose levels can be decoded from vectors, so that an evolver can search for levels."""

    @property
    def genome_size(self) -> int:
        """Return the number of entries of a vector."""
        ...

    def level_from_genome(self, genome: Array) -> Level:
        """Decode a vector into a level. Every vector is valid.

        Args:
            genome: Vector of real numbers, shape [genome_size].

        Returns:
            The level.
        """
        ...


@runtime_checkable
class HasOptimalReturn(LevelEnv, Protocol):
    """Protocol of an environment that can compute the optimal return of a level."""

    def optimal_return(self, level: Level) -> Array:
        """Return the highest return that an episode on a level can reach, [].

        Args:
            level: The level.
        """
        ...


@runtime_checkable
class SolvableLevelEnv(LevelEnv, Protocol):
    """Protocol of an environment in which the return shows whether an episode solved its level."""

    def is_solved(self, episode_return: Array) -> Array:
        """Return whether episodes solved their levels, bool [...].

        Args:
            episode_return: Returns of completed episodes, shape [...].
        """
        ...


@runtime_checkable
class EditorEnv(Env, Protocol):
    """Protocol of an environment in which a teacher builds a level.

    The result is the level of the state in which the episode ends.
    """

    def get_level(self, env_state: State) -> Level:
        """Return the level that has been built so far.

        Args:
            env_state: State of the environment.
        """
        ...


@runtime_checkable
class EditableLevelEnv(LevelEnv, Protocol):
    """Protocol of an environment whose levels can be built by a teacher."""

    def make_editor(self) -> EditorEnv:
        """Return the environment in which a teacher builds levels."""
        ...
