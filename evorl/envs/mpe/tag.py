"""Scenario in which predators chase faster prey among obstacles."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from evorl.envs.mpe.observations import (
    broadcast_to_observers,
    concatenate_vectors,
    drop_self,
    require_members,
    require_neighbors,
    select_nearest,
)
from evorl.envs.mpe.world import (
    GRAY,
    GREEN,
    RED,
    EntityGroup,
    EntityGroups,
    MPEState,
    compute_distances,
    compute_offsets,
    get_entity_values,
    get_group_slice,
    init_entities,
    split_by_group,
)
from evorl.errors import require
from evorl.types import Key

PREY_SPEED_FACTORS = (0.5, 0.75, 1.0)  # by stage, fraction of the full speed


@dataclass(frozen=True)
class SimpleTag:
    """Predators that chase faster prey among obstacles (mpe2's simple_tag).

    For each touch between a predator and a prey, all predators get 10 and that prey gets -10. Prey also gets
    a penalty near and beyond the border. Each agent observes itself, the obstacles, the other agents, and the
    velocities of other prey.

    Args:
        num_good: Number of prey, the group `agent`.
        num_adversaries: Number of predators, the group `adversary`.
        num_obstacles: Number of obstacles.
        stage: Stage of mpe2's curriculum: in stages 0 and 1 prey is slower than in stage 2.
        terminate_on_success: Whether an episode terminates once every prey is touched.
        num_agent_neighbors: Number of nearest agents that each agent observes; None observes all.
        num_landmark_neighbors: Number of nearest obstacles that each agent observes; None observes all.

    Raises:
        OptionError: If a value is not allowed.
    """

    num_good: int = 1
    num_adversaries: int = 3
    num_obstacles: int = 2
    stage: int = 2
    terminate_on_success: bool = False
    num_agent_neighbors: int | None = None
    num_landmark_neighbors: int | None = None

    def __post_init__(self) -> None:
        require_members(num_good=self.num_good, num_adversaries=self.num_adversaries)
        require_members(0, num_obstacles=self.num_obstacles)
        require(self.stage in (0, 1, 2), "stage", self.stage, "must be 0 (slow prey), 1 or 2 (fast prey)")
        near = {"num_agent_neighbors": self.num_agent_neighbors, "num_landmark_neighbors": self.num_landmark_neighbors}
        require_neighbors(**near)

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `adversary` (predators) and `agent` (prey)."""
        return make_chase_groups(self.num_adversaries, self.num_good, PREY_SPEED_FACTORS[self.stage], 0.05)

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `obstacle`."""
        return {"obstacle": EntityGroup(self.num_obstacles, 0.2, GRAY, collides=True, span=0.9)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions."""
        return init_entities(key, self.agents, self.landmarks)

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return velocity, position, relative obstacles and agents, and the velocities of other prey."""
        marks = select_nearest(
            compute_offsets(state.agent_positions, state.landmark_positions), self.num_landmark_neighbors
        )[0]
        agents = drop_self(compute_offsets(state.agent_positions, state.agent_positions))
        known = [state.velocity, state.agent_positions, marks]
        if self.num_agent_neighbors is None:
            return build_group_observations(self.agents, [*known, agents], state.velocity)
        prey = state.velocity * (jnp.arange(state.agent_positions.shape[1]) >= self.num_adversaries)
        near = select_nearest(agents, self.num_agent_neighbors, drop_self(broadcast_to_observers(prey)))
        return split_by_group(self.agents, concatenate_vectors(*known, *near))

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return 10 per touch of any pair for predators; -10 per touch minus the boundary penalty for prey."""
        touches = find_touches(self.agents, state)
        prey = -10.0 * touches.sum(0) - compute_boundary_penalty(
            state.agent_positions[:, get_group_slice(self.agents, "agent")]
        )
        return {"adversary": (10.0 * touches.sum()).repeat(self.num_adversaries), "agent": prey}

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        return find_touches(self.agents, state).any(0).all()


def make_chase_groups(predators: int, prey: int, factor: float, size: float) -> EntityGroups:
    """Return the groups of predators and of prey, whose acceleration and maximum speed are scaled by a factor."""
    return {
        "adversary": EntityGroup(predators, 0.075, RED, collides=True, accel=3.0, max_speed=1.0),
        "agent": EntityGroup(prey, size, GREEN, collides=True, accel=4.0 * factor, max_speed=1.3 * factor),
    }


def find_touches(agents: EntityGroups, state: MPEState) -> Bool[Array, "predators prey"]:
    """Return which predators touch which prey; prey comes last among the agents."""
    first, size = get_group_slice(agents, "agent").start, get_entity_values(agents, "size")
    return (
        compute_distances(state.agent_positions[:, :first], state.agent_positions[:, first:])
        < size[:first, None] + size[first:]
    )


def compute_boundary_penalty(at: Float[Array, "2 n"]) -> Float[Array, " n"]:
    """Return the penalty of agents near or beyond the border of the screen, summed over x and y.

    It is 0 for |x| < 0.9, 10 (|x| - 0.9) up to 1, and min(exp(2 |x| - 2), 10) beyond.
    """
    x = jnp.abs(at)
    near = jnp.where(x < 0.9, 0.0, (x - 0.9) * 10)
    return jnp.where(x < 1.0, near, jnp.minimum(jnp.exp(2 * x - 2), 10.0)).sum(0)


def build_group_observations(
    agents: EntityGroups, known: list[Array], velocity: Float[Array, "2 agents"]
) -> dict[str, Array]:
    """Return the rows `known` followed by the velocities of other prey, by group.

    A predator observes one prey more than prey does.
    """
    first = get_group_slice(agents, "agent").start
    prey = broadcast_to_observers(velocity[:, first:])
    known_rows = concatenate_vectors(*known)
    of_predators = jnp.broadcast_to(velocity[:, None, first:], (2, first, prey.shape[-1]))
    return {
        "adversary": jnp.concatenate([known_rows[:first], concatenate_vectors(of_predators)], axis=-1),
        "agent": jnp.concatenate([known_rows[first:], concatenate_vectors(drop_self(prey))], axis=-1),
    }
