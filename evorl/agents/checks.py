"""Checks that agents share of what they are made with."""

from typing import Any

from evorl.errors import OptionError, require_int
from evorl.networks.mlp import check_layers
from evorl.spaces import Box, Discrete


def check_critics(agent: Any) -> None:
    """Refuse sizes of critics that are no whole numbers above 0; raises OptionError."""
    require_int("num_critics", agent.num_critics)
    check_layers(agent.hidden)


def require_action_vector(agent: Any, hint: str = "") -> Box:
    """Return the action space of an agent, a vector of real numbers.

    Args:
        agent: with an action space.
        hint: what may be used instead.

    Raises:
        OptionError: where it is another space.
    """
    space = agent.action_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise OptionError(f"{type(agent).__name__} needs actions that are vectors of real numbers, not {space}{hint}")
    return space


def require_choice(agent: Any, hint: str = "") -> Discrete:
    """Return the action space of an agent, one choice.

    Args:
        agent: with an action space.
        hint: what may be used instead.

    Raises:
        OptionError: where it is another space.
    """
    space = agent.action_space
    if not isinstance(space, Discrete):
        raise OptionError(f"{type(agent).__name__} needs an action that is one choice, not {space}{hint}")
    return space
