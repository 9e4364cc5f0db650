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


def require_action_vector(agent: Any) -> Box:
    """Return the action space of an agent; raise OptionError unless it is a Box with one axis and finite bounds."""
    space = agent.action_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        what = f"{type(agent).__name__} needs continuous actions, a Box with one axis, not {space}"
        raise OptionError(f"{what}; {_suggest_agents(space)}")
    if not all(np.isfinite(bound).all() for bound in space.bounds):
        raise OptionError(f"{type(agent).__name__} needs actions with finite bounds, not {space}")
    return space


def require_discrete(agent: Any) -> Discrete:
    """Return the action space of an agent; raise OptionError unless it is Discrete."""
    space = agent.action_space
    if not isinstance(space, Discrete):
        raise OptionError(
            f"{type(agent).__name__} needs a discrete action space, not {space}; {_suggest_agents(space)}"
        )
    return space


def _suggest_agents(space: Any) -> str:
    """Return algorithms for an action space."""
    if isinstance(space, Discrete):
        names = "ppo, dqn, discrete_sac or openes"
    elif isinstance(space, Box) and len(space.shape) == 1:
        names = "ppo, sac, td3 or openes"
    else:
        names = "ppo or openes"
    return f"for these actions, use agent={names}"
