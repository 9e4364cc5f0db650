"""Scenario in which predators with a leader chase prey that eats and hides in forests."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.observations import (
    broadcast_to_observers,
    concatenate_vectors,
    drop_self,
    flatten_vectors,
    require_members,
)
from evorl.envs.mpe.tag import compute_boundary_penalty, find_touches, make_chase_groups
from evorl.envs.mpe.world import (
    GRAY,
    EntityGroup,
    EntityGroups,
    MPEState,
    compute_distances,
    compute_offsets,
    count_entities,
    get_entity_values,
    get_group_slice,
    init_entities,
)
from evorl.types import Key

LEADER, FOOD, FOREST = (0.65, 0.15, 0.15), (0.15, 0.15, 0.65), (0.6, 0.9, 0.6)
NUM_WORDS = 4


@dataclass(frozen=True)
class SimpleWorldComm:
    """Predators led by a speaker that sees everything, and prey that eats and hides (mpe2's simple_world_comm).

    For each touch between a predator and a prey, all predators get 5 and that prey gets -5. A predator also
    gets -0.1 times its distance from the nearest prey. Prey gets 2 for each food that it touches, -0.05 times
    its distance from the nearest food, and twice the boundary penalty of `SimpleTag`.

    Predators are the groups `lead`, the one that speaks, and `adversary`; all predators hear it. An agent in
    a forest sees, and is seen by, only the agents in the same forest; the leader sees all.

    Args:
        num_good: Number of prey, the group `agent`.
        num_adversaries: Number of predators, including the leader.
        num_obstacles: Number of obstacles.
        num_food: Number of pieces of food.
        num_forests: Number of forests.

    Raises:
        OptionError: If a number is not allowed.
    """

    num_good: int = 2
    num_adversaries: int = 4
    num_obstacles: int = 1
    num_food: int = 2
    num_forests: int = 2

    def __post_init__(self) -> None:
        require_members(num_good=self.num_good, num_adversaries=self.num_adversaries, num_food=self.num_food)
        require_members(0, num_obstacles=self.num_obstacles, num_forests=self.num_forests)

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `lead`, `adversary` (if there is more than one predator) and `agent`."""
        kinds = make_chase_groups(self.num_adversaries - 1, self.num_good, 1.0, 0.045)
        lead = replace(kinds["adversary"], n=1, color=LEADER, num_words=NUM_WORDS)
        return {name: kind for name, kind in {"lead": lead, **kinds}.items() if kind.n}

    @property
    def landmarks(self) -> EntityGroups:
        """Return the groups `obstacle`, `food` and `forest`."""
        return {
            "obstacle": EntityGroup(self.num_obstacles, 0.2, GRAY, collides=True, span=0.9),
            "food": EntityGroup(self.num_food, 0.03, FOOD, span=0.9),
            "forest": EntityGroup(self.num_forests, 0.3, FOREST, span=0.9),
        }

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions."""
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return own state, landmarks, visible agents, forest membership, and for predators the leader's message."""
        assert state.messages is not None
        first = self.num_adversaries
        inside = find_touched_landmarks(self, state, slice(0, None), "forest")
        together = (inside[:, None] & inside).any(-1)
        open_air = ~inside.any(-1)
        leads = np.arange(count_entities(self.agents))[:, None] == 0
        visible = together | (open_air[:, None] & open_air) | leads
        places = drop_self(compute_offsets(state.agent_positions, state.agent_positions) * visible)
        velocity = broadcast_to_observers(state.velocity) * visible
        hidden = jnp.where(inside, 1.0, -1.0)
        known = concatenate_vectors(
            state.velocity,
            state.agent_positions,
            compute_offsets(state.agent_positions, state.landmark_positions),
            places,
        )
        heard = jnp.broadcast_to(state.messages, (first, NUM_WORDS))
        predators = [known[:first], flatten_vectors(velocity[:, :first, first:]), hidden[:first], heard]
        prey = [known[first:], hidden[first:], flatten_vectors(drop_self(velocity[:, first:, first:]))]
        hunting, agent = (jnp.concatenate(parts, axis=-1) for parts in (predators, prey))
        groups = {"lead": hunting[:1], "adversary": hunting[1:], "agent": agent}
        return {name: groups[name] for name in self.agents}

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return the rewards for touches, food and distances, and the boundary penalty of prey."""
        first, food = self.num_adversaries, state.landmark_positions[:, get_group_slice(self.landmarks, "food")]
        touches = find_touches(self.agents, state)
        hunting = 5.0 * touches.sum() - 0.1 * compute_distances(
            state.agent_positions[:, :first], state.agent_positions[:, first:]
        ).min(-1)
        prey = state.agent_positions[:, first:]
        eaten = 2.0 * find_touched_landmarks(self, state, slice(first, None), "food").sum(-1)
        agent = (
            eaten
            - 5.0 * touches.sum(0)
            - 2 * compute_boundary_penalty(prey)
            - 0.05 * compute_distances(prey, food).min(-1)
        )
        groups = {"lead": hunting[:1], "adversary": hunting[1:], "agent": agent}
        return {name: groups[name] for name in self.agents}


def find_touched_landmarks(scenario: SimpleWorldComm, state: MPEState, who: slice, what: str) -> Array:
    """Return which of some agents touch which landmarks of a group, bool [agents, landmarks]."""
    kinds = scenario.landmarks
    least = get_entity_values(scenario.agents, "size")[who, None] + kinds[what].size
    return (
        compute_distances(state.agent_positions[:, who], state.landmark_positions[:, get_group_slice(kinds, what)])
        < least
    )
