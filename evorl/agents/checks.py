"""Checks of the options and spaces of agents."""

from typing import Any

import numpy as np

from evorl.errors import OptionError, require_int
from evorl.networks.mlp import check_layers
from evorl.spaces import Box, Discrete


def check_critics(agent: Any) -> None:
    """Raise OptionError unless the number of critics and the hidden widths are whole numbers of at least 1."""
    require_int("num_critics", agent.num_critics)
    check_layers(agent.hidden)


def require_action_vector(agent: Any, hint: str = "") -> Box:
    """Return the action space of an agent; raise OptionError unless it is a Box with one axis and finite bounds.

    The error message ends with `hint`, which names an alternative.
    """
    space = agent.action_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise OptionError(f"{type(agent).__name__} needs continuous actions, a Box with one axis, not {space}{hint}")
    if not all(np.isfinite(bound).all() for bound in space.bounds):
        raise OptionError(f"{type(agent).__name__} needs actions with finite bounds, not {space}")
    return space


def require_choice(agent: Any, hint: str = "") -> Discrete:
    """Return the action space of an agent; raise OptionError unless it is Discrete.

    The error message ends with `hint`, which names an alternative.
    """
    space = agent.action_space
    if not isinstance(space, Discrete):
        raise OptionError(f"{type(agent).__name__} needs a discrete action space, not {space}{hint}")
    return space
