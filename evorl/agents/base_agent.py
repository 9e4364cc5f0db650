"""Base class of agents, and a function that sets their spaces."""

from dataclasses import KW_ONLY, replace
from typing import Any, TypeVar

from evorl.parts import part
from evorl.types import Memory

SPACES = "observation_space", "action_space"
T = TypeVar("T")


@part
class BaseAgent:
    """Base class of agents.

    The workflow sets the spaces to those of its environment, unless the agent is created with them.

    Args:
        observation_space: Space of the observations; None until a workflow sets it.
        action_space: Space of the actions; None until a workflow sets it.
    """

    _: KW_ONLY
    observation_space: Any = None  # a Space
    action_space: Any = None  # a Space

    def __post_init__(self) -> None:
        if all(getattr(self, name) is not None for name in SPACES):
            self.check_spaces()

    def check_spaces(self) -> None:
        """Raise an error if the agent does not support its spaces.

        Called once both spaces are known. The base class supports all spaces.

        Raises:
            OptionError: If the agent cannot act in these spaces.
        """

    def initial_memory(self) -> Memory:
        """Return the recurrent state at the start of an episode.

        Returns:
            A pytree of arrays for one environment; None, as here, for an agent without recurrent state.
        """
        return None


def fill_spaces(agent: T, env: Any) -> T:
    """Return the agent with its missing spaces set to those of an environment.

    Args:
        agent: Agent, a dataclass; spaces that are not None stay as they are.
        env: Environment that has the attributes observation_space and action_space.

    Returns:
        A copy of the agent, or the agent itself if no space is missing.
    """
    known: Any = agent
    lacking = {name: getattr(env, name) for name in SPACES if getattr(agent, name, env) is None}
    return replace(known, **lacking) if lacking else agent
