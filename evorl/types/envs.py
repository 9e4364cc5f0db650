"""What an environment is, and may be beside."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from evorl.spaces import Space
from evorl.types.data import Key, Metrics, State, TimeStep


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
        """The numbers of the environment that may differ between runs, as a pytree; () where there are none."""
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
class Describes(Protocol):
    """An environment that tells what is being played in a state, such as how hard its level is, as metrics."""

    def describe(self, env_state: State) -> Metrics:
        """What is being played, leaves []."""
        ...


@runtime_checkable
class Summarizes(Protocol):
    """An environment of whose episodes more than their return is kept, such as energy spent, or a win."""

    @property
    def episode_info(self) -> Mapping[str, str]:
        """By the name in TimeStep.info what it becomes of an episode: the "sum", the "mean" or the "last" of its steps.

        Arrays of numbers, of any shape.
        """
        ...
