"""What an environment is, and may be beside."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.spaces import Space
from evorl.types.data import Array, Key, Level, Metrics, State, TimeStep


@runtime_checkable
class Env(Protocol):
    """One environment, unbatched; the caller vmaps."""

    @property
    def observation_space(self) -> Space:
        """What observations are."""
        ...

    @property
    def action_space(self) -> Space:
        """What actions are."""
        ...

    @property
    def max_episode_steps(self) -> int:
        """After how many steps time runs out at the latest."""
        ...

    @property
    def default_params(self) -> Any:
        """The numbers of the environment that may differ between runs, as a pytree; None where there are none."""
        ...

    @property
    def fresh_reset(self) -> bool:
        """Whether each episode needs a start that nothing used before; else starts may be drawn once and come again."""
        ...

    def reset(self, key: Key, params: Any) -> tuple[State, Any]:
        """The state at the start of an episode, and its observation."""
        ...

    def step(self, key: Key, env_state: State, action: Any, params: Any) -> tuple[State, TimeStep]:
        """The state after an action, and what is seen of it; never resets itself."""
        ...


@runtime_checkable
class HasStateMetrics(Protocol):
    """An environment that tells what is being played in a state, such as how hard its level is, as metrics."""

    def state_metrics(self, env_state: State) -> Metrics:
        """What is being played, leaves []."""
        ...


@runtime_checkable
class HasRankingGroup(Protocol):
    """A game that says whose return is what a policy for it is judged by."""

    @property
    def ranked(self) -> str:
        """The group's name."""
        ...


@runtime_checkable
class HasEpisodeInfo(Protocol):
    """An environment of whose episodes more than their return is kept, such as energy spent, or a win."""

    @property
    def episode_info(self) -> Mapping[str, str]:
        """By the name in TimeStep.info what it becomes of an episode: the "sum", the "mean" or the "last" of its steps.

        Arrays of numbers, of any shape.
        """
        ...


@runtime_checkable
class LevelEnv(Env, Protocol):
    """An environment whose episodes are each played on a level, a pytree of arrays."""

    def sample_level(self, key: Key, params: Any) -> Level:
        """The level of which an episode begins with reset."""
        ...

    def get_level(self, env_state: State) -> Level:
        """The level that is being played."""
        ...

    def reset_to_level(self, key: Key, level: Level) -> tuple[State, Any]:
        """The state at the start of an episode on a level, and its observation."""
        ...

    def is_same_level(self, a: Level, b: Level) -> Array:
        """Whether two levels are the same, []."""
        ...


@runtime_checkable
class MutableLevelEnv(LevelEnv, Protocol):
    """One whose levels can be changed a little."""

    def mutate_level(self, key: Key, level: Level, num_edits: int) -> Level:
        """A child of a level."""
        ...


@runtime_checkable
class LevelCrossoverEnv(MutableLevelEnv, Protocol):
    """One of whose levels two can have a child."""

    def crossover_levels(self, key: Key, a: Level, b: Level) -> Level:
        """A child of two levels."""
        ...


@runtime_checkable
class DecodableLevelEnv(LevelEnv, Protocol):
    """One whose levels can be made of vectors, so that an evolver searches them."""

    @property
    def genome_size(self) -> int:
        """Numbers of a vector."""
        ...

    def level_from_genome(self, genome: Array) -> Level:
        """The level that a vector [genome_size] stands for, whatever its numbers."""
        ...


@runtime_checkable
class HasOptimalReturn(LevelEnv, Protocol):
    """One that knows how well its levels can be played."""

    def optimal_return(self, level: Level) -> Array:
        """The most that an episode can give, []."""
        ...


@runtime_checkable
class SolvableLevelEnv(LevelEnv, Protocol):
    """One that tells whether an episode has solved its level."""

    def is_solved(self, episode_return: Array) -> Array:
        """By the returns of ended episodes, [...]."""
        ...


@runtime_checkable
class EditorEnv(Env, Protocol):
    """An environment in which a teacher makes a level: that of the state in which the episode ends."""

    def get_level(self, env_state: State) -> Level:
        """What was made so far."""
        ...


@runtime_checkable
class EditableLevelEnv(LevelEnv, Protocol):
    """One whose levels a teacher can make."""

    def make_editor(self) -> EditorEnv:
        """Where it makes them."""
        ...
