"""Which agents are members of which group, where a library has them by name."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evorl import tree

AgentGroups: TypeAlias = Mapping[str, Sequence[Any]]  # the agents of each group in their order


def group_agents(spaces: Mapping[Any, Any]) -> dict[str, tuple[Any, ...]]:
    """The agents of each group, by what spaces an agent has: those of equal ones whose names differ in a number alone.

    A group is named as its agents are without their numbers, so adversary_0 is of the group adversary; where agents of
    one such name have other spaces, each group of them is named as the first of its agents.
    """
    alike: dict[str, list[list[Any]]] = {}
    for agent, of in spaces.items():
        sets = alike.setdefault(re.sub(r"_?\d+$", "", str(agent)) or "agent", [])
        found = next((one for one in sets if spaces[one[0]] == of), None)
        if found is None:
            sets.append([agent])
        else:
            found.append(agent)
    return {name if len(sets) == 1 else str(one[0]): tuple(one) for name, sets in alike.items() for one in sets}


def stack_groups(agents: AgentGroups, values: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of agents by group, leaves [members, ...]."""
    return {group: tree.stack([values[agent] for agent in of]) for group, of in agents.items()}


def split_groups(agents: AgentGroups, values: Mapping[str, Any]) -> dict[Any, Any]:
    """The values of groups, leaves [members, ...], by agent."""
    return {agent: tree.index(values[group], i) for group, of in agents.items() for i, agent in enumerate(of)}
