"""A 2D world of circles that accelerate, collide and slow down (Lowe et al. 2017, arXiv:1706.02275; mpe2)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.types import Key, State

DT, DAMPING = 0.1, 0.25  # seconds per step; fraction of the velocity lost per step
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3
FEW_ENTITIES = 32  # up to this number, all pairs are computed at once, which is faster but grows with the third power

Color = tuple[float, ...]
GRAY, DARK, RED, GREEN, BLUE = (0.25,) * 3, (0.15,) * 3, (0.85, 0.35, 0.35), (0.35, 0.85, 0.35), (0.35, 0.35, 0.85)


@dataclass(frozen=True)
class EntityGroup:
    """Common properties of n entities (agents or landmarks)."""

    n: int
    size: float = 0.05  # radius
    color: Color = GRAY
    colors: tuple[Color, ...] = ()  # of each entity, if they differ
    collides: bool = False
    moves: bool = True
    accel: float = 5.0  # force of a full action
    max_speed: float = math.inf
    mass: float = 1.0
    num_words: int = 0  # size of the vocabulary; 0 if it cannot speak
    span: float = 1.0  # initial x and y are in [-span, span]


EntityGroups = Mapping[str, EntityGroup]  # by name, in the order of mpe2


@struct.dataclass
class MPEState:
    agent_positions: Float[Array, "2 agents"]  # x and y
    velocity: Float[Array, "2 agents"]
    landmark_positions: Float[Array, "2 landmarks"]  # x and y
    messages: Float[Array, "speakers words"] | None  # of the last step, one-hot or continuous; None if no agent speaks
    goal: Int[Array, " goals"] | None  # landmark indices or other random choices; None if there are none
    scenario_state: State  # further state of the scenario, or None
    steps: Int[Array, ""]


@runtime_checkable
class Scenario(Protocol):
    """A particle scenario: its entities, observations and rewards."""

    @property
    def agents(self) -> EntityGroups:
        """Return the groups of agents by name."""
        ...

    @property
    def landmarks(self) -> EntityGroups:
        """Return the groups of landmarks, which do not move, by name."""
        ...

    def init_state(self, key: Key) -> MPEState:
        """Return the state at the start of an episode.

        Args:
            key: Random key of the episode.
        """
        ...

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return the observations of the members of each group.

        Args:
            state: State to observe.

        Returns:
            Observations by group, shape [members, size].
        """
        ...

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return the rewards of the members of each group.

        Args:
            state: State after the step.

        Returns:
            Rewards by group, shape [members].
        """
        ...


@runtime_checkable
class SolvableScenario(Scenario, Protocol):
    """A scenario whose episodes may end with success."""

    @property
    def terminate_on_success(self) -> bool:
        """Return whether an episode terminates once the scenario is solved."""
        ...

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        """Return whether a state solves the scenario, bool [].

        Args:
            state: State after the step.
        """
        ...


@runtime_checkable
class EventfulScenario(Scenario, Protocol):
    """A scenario with events besides the movement and the messages of agents."""

    def chance(self, key: Key) -> Any:
        """Draw the random part of the events of a step.

        Args:
            key: Random key of the step.

        Returns:
            The random part, as `apply_events` takes it.
        """
        ...

    def apply_events(self, state: MPEState, chance: Any) -> MPEState:
        """Return the state after the events of a step.

        Args:
            state: State after agents have moved and spoken.
            chance: Random part of the events, as `chance` returns it.
        """
        ...


def init_entities(key: Key, agents: EntityGroups, landmarks: EntityGroups, choices: Iterable[int] = ()) -> MPEState:
    """Return a state with entities at rest, uniform within their spans, and uniform goals.

    Args:
        key: Random key.
        agents: Groups of agents.
        landmarks: Groups of landmarks.
        choices: Number of values that each goal can take.
    """
    choices = np.array([*choices], np.int32)
    spans = np.repeat(
        get_entity_values(agents, "span").tolist() + get_entity_values(landmarks, "span").tolist(), 2
    ).astype(np.float32)
    drawn = jax.random.uniform(key, (len(spans) + len(choices),))
    places = ((2 * drawn[: len(spans)] - 1) * spans).reshape(-1, 2).T
    at, marks = places[:, : count_entities(agents)], places[:, count_entities(agents) :]
    goal = (drawn[len(spans) :] * choices).astype(jnp.int32) if len(choices) else None
    speakers = [kind for kind in agents.values() if kind.num_words]
    said = jnp.zeros((sum(kind.n for kind in speakers), speakers[0].num_words)) if speakers else None
    return MPEState(at, jnp.zeros_like(at), marks, said, goal, None, jnp.int32(0))


def move_agents(
    state: MPEState, push: Float[Array, "2 agents"], agents: EntityGroups, landmarks: EntityGroups
) -> tuple[Float[Array, "2 agents"], Float[Array, "2 agents"]]:
    """Return the positions and the velocities of agents after a step; positions change by the old velocity."""
    force = (
        push + compute_contact_forces(state, agents, landmarks) if get_entity_values(agents, "collides").any() else push
    )
    velocity = state.velocity * (1 - DAMPING) + force * (DT / get_entity_values(agents, "mass")).astype(np.float32)
    fastest = get_entity_values(agents, "max_speed")
    if np.isfinite(fastest).any():
        speed = norm(velocity)
        velocity *= jnp.where(speed > fastest, fastest / speed, 1.0)
    return state.agent_positions + state.velocity * DT, velocity


def compute_contact_forces(state: MPEState, agents: EntityGroups, landmarks: EntityGroups) -> Float[Array, "2 agents"]:
    """Return the contact forces on agents, which push them away from agents and obstacles that they touch."""
    solid = get_entity_values(landmarks, "collides")  # obstacles, which come first
    sizes = np.concatenate([get_entity_values(agents, "size"), get_entity_values(landmarks, "size")[solid]])
    n = count_entities(agents)
    at = jnp.concatenate([state.agent_positions, state.landmark_positions[:, : len(sizes) - n]], axis=1)
    if len(sizes) > FEW_ENTITIES:  # a product with all pairs would grow with the third power
        away = at[:, :n, None] - at[:, None]
        return (away * compute_push(norm(away), sizes[:n, None] + sizes)).sum(-1)
    pairs = make_pair_incidence(n, len(sizes))
    away = jnp.matmul(at, pairs, precision=jax.lax.Precision.HIGHEST)
    push = compute_push(norm(away), np.abs(pairs).T @ sizes)
    return jnp.matmul(away * push, pairs[:n].T, precision=jax.lax.Precision.HIGHEST)


def compute_push(distance: Float[Array, "*pairs"], reach: Float[np.ndarray, "*pairs"]) -> Float[Array, "*pairs"]:
    """Return the contact force of pairs of entities divided by their distance, which touch closer than `reach`."""
    distance = jnp.maximum(distance, 1e-6)
    deep = reach - distance
    depth = jnp.maximum(deep, 0) + CONTACT_MARGIN * jnp.log(1 + jnp.exp(-jnp.abs(deep) / CONTACT_MARGIN))
    return CONTACT_FORCE * depth / distance


def make_pair_incidence(agents: int, entities: int) -> Float[np.ndarray, "entities pairs"]:
    """Return the incidence matrix of pairs: 1 for the first entity, an agent, and -1 for the second.

    With it, differences and sums over pairs are matrix products, which XLA does not compute repeatedly.
    """
    first, second = np.triu_indices(agents, 1, entities)
    each = np.arange(entities)[:, None]
    return (each == first).astype(np.float32) - (each == second)


def compute_offsets(at: Float[Array, "2 n"], others: Float[Array, "2 m"]) -> Float[Array, "2 n m"]:
    """Return the vectors from each of n points to each of m others."""
    return others[:, None, :] - at[:, :, None]


def norm(x: Float[Array, "2 ..."]) -> Float[Array, "..."]:
    """Return the lengths of vectors."""
    return jnp.sqrt(x[0] * x[0] + x[1] * x[1])


def compute_distances(at: Float[Array, "2 n"], others: Float[Array, "2 m"]) -> Float[Array, "n m"]:
    """Return the distances between each of n points and each of m others."""
    return norm(compute_offsets(at, others))


def count_entities(kinds: EntityGroups) -> int:
    """Return the number of entities in all groups."""
    return sum(kind.n for kind in kinds.values())


def get_entity_values(kinds: EntityGroups, name: str) -> np.ndarray:
    """Return a property of each entity, shape [n]."""
    values = np.array([getattr(kind, name) for kind in kinds.values()])
    values = np.repeat(values, [kind.n for kind in kinds.values()])
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def get_group_slice(kinds: EntityGroups, name: str) -> slice:
    """Return the slice of a group's entities among all entities."""
    names = list(kinds)
    first = sum(kinds[other].n for other in names[: names.index(name)])
    return slice(first, first + kinds[name].n)


def split_by_group(kinds: EntityGroups, values: Array) -> dict[str, Array]:
    """Split values, shape [agents, ...], by group."""
    return {name: values[get_group_slice(kinds, name)] for name in kinds}
