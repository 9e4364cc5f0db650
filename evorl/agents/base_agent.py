"""The base of agents, and the spaces in which they act."""

from dataclasses import KW_ONLY, replace
from typing import Any, TypeVar

from evorl.parts import part
from evorl.types import Memory

SPACES = "observation_space", "action_space"
T = TypeVar("T")


@part
class BaseAgent:
    """An agent whose spaces are filled in by its workflow, unless it is made with them.

    Args:
        observation_space: what it sees.
        action_space: what it does.
    """

    _: KW_ONLY
    observation_space: Any = None  # a Space; None until a workflow gives that of its environment
    action_space: Any = None  # likewise

    def __post_init__(self) -> None:
        if all(getattr(self, name) is not None for name in SPACES):
            self.check_spaces()

    def check_spaces(self) -> None:
        """Raise OptionError where it cannot act in its spaces, which are both known."""

    def initial_memory(self) -> Memory:
        """Return the memory at the start of an episode."""
        return None


def fill_spaces(agent: T, env: Any) -> T:
    """Return an agent with the spaces of an environment in place of those that it lacks."""
    known: Any = agent
    lacking = {name: getattr(env, name) for name in SPACES if getattr(agent, name, env) is None}
    return replace(known, **lacking) if lacking else agent
