"""Checks that agents share of what they are made with."""

from typing import Any

from evorl.errors import OptionError, require_int
from evorl.networks.mlp import check_layers
from evorl.spaces import Box


def check_critics(agent: Any) -> None:
    """Refuse sizes of critics that are no whole numbers above 0; raises OptionError."""
    require_int("num_critics", agent.num_critics)
    check_layers(agent.hidden)


def require_action_vector(agent: Any, hint: str = "") -> None:
    """Refuse an action space that is no vector of real numbers; raises OptionError.

    Args:
        agent: with an action space.
        hint: what may be used instead.
    """
    space = agent.action_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        name = type(agent).__name__
        raise OptionError(f"{name} needs actions that are vectors of real numbers, not {space}{hint}")
