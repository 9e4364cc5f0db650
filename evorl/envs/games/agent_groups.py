"""Grouping of the named agents of a multi-agent library."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from evorl import tree

AgentGroups: TypeAlias = Mapping[str, Sequence[Any]]  # agents of each group, in order


def group_agents(spaces: Mapping[Any, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the agents of each group: agents with equal spaces whose names differ only in a number.

    A group has the name of its agents without the number: adversary_0 belongs to the group adversary. If
    agents with the same name without the number have different spaces, each of their groups has the name of
    its first agent.
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
    """Stack the values of agents by group, leaves [members, ...]."""
    return {group: tree.stack([values[agent] for agent in of]) for group, of in agents.items()}


def split_groups(agents: AgentGroups, values: Mapping[str, Any]) -> dict[Any, Any]:
    """Split the values of groups, leaves [members, ...], by agent."""
    return {agent: tree.index(values[group], i) for group, of in agents.items() for i, agent in enumerate(of)}
