"""A plane with round entities that are pushed, collide and slow down (Lowe et al. 2017, arXiv:1706.02275; mpe2)."""

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

DT, DAMPING = 0.1, 0.25  # seconds of a step; the part of its velocity that an agent loses in one
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 1e-3

Color = tuple[float, ...]
GRAY, DARK, RED, GREEN, BLUE = (0.25,) * 3, (0.15,) * 3, (0.85, 0.35, 0.35), (0.35, 0.85, 0.35), (0.35, 0.35, 0.85)


@dataclass(frozen=True)
class EntityGroup:
    """What n entities have in common."""

    n: int
    size: float = 0.05  # radius
    color: Color = GRAY
    colors: tuple[Color, ...] = ()  # of each, where they differ
    collides: bool = False
    moves: bool = True
    accel: float = 5.0  # force of a full action
    max_speed: float = math.inf
    mass: float = 1.0
    num_words: int = 0  # it has to choose from; 0 where it is silent
    span: float = 1.0  # it begins between minus this and this


EntityGroups = Mapping[str, EntityGroup]  # by name, in the order of mpe2


@struct.dataclass
class MPEState:
    agent_positions: Float[Array, "2 agents"]  # x and y
    velocity: Float[Array, "2 agents"]
    landmark_positions: Float[Array, "2 landmarks"]  # x and y
    messages: Float[Array, "speakers words"] | None  # in the last step, one-hot or real numbers; None where none speak
    goal: Int[Array, " goals"] | None  # numbers of landmarks or what else a scenario chooses; None for nothing
    scenario_state: State  # what else changes in an episode; None for nothing
    steps: Int[Array, ""]


@runtime_checkable
class Scenario(Protocol):
    """Who is in a world, what they see and what they earn."""

    @property
    def agents(self) -> EntityGroups:
        """The groups."""
        ...

    @property
    def landmarks(self) -> EntityGroups:
        """What does not move."""
        ...

    def init_state(self, key: Key) -> MPEState:
        """The start of an episode."""
        ...

    def observe(self, state: MPEState) -> dict[str, Array]:
        """What the members of each group see, [members, size]."""
        ...

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """What the members of each group earn for having come to a state, [members]."""
        ...


@runtime_checkable
class SolvableScenario(Scenario, Protocol):
    """A scenario whose episodes may end with success."""

    @property
    def terminate_on_success(self) -> bool:
        """Whether they do."""
        ...

    def is_solved(self, state: MPEState) -> Bool[Array, ""]:
        """Whether a state is one."""
        ...


@runtime_checkable
class EventfulScenario(Scenario, Protocol):
    """A scenario in which more happens than that agents move."""

    def chance(self, key: Key) -> Any:
        """What a step leaves to chance."""
        ...

    def apply_events(self, state: MPEState, chance: Any) -> MPEState:
        """The state after agents have moved and spoken, and what follows from it has happened."""
        ...


def init_entities(key: Key, agents: EntityGroups, landmarks: EntityGroups, choices: Iterable[int] = ()) -> MPEState:
    """Entities at rest, each uniform within its span, and goals uniform of so many choices."""
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
    """Where agents are after a step, and their velocity: they move by the one they had."""
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
    """The force by which pairs of agents, or of one and an obstacle, push each other away where they touch."""
    solid = get_entity_values(landmarks, "collides")  # which come first
    sizes = np.concatenate([get_entity_values(agents, "size"), get_entity_values(landmarks, "size")[solid]])
    pairs, n = make_pair_incidence(count_entities(agents), len(sizes)), count_entities(agents)
    at = jnp.concatenate([state.agent_positions, state.landmark_positions[:, : len(sizes) - n]], axis=1)
    away = jnp.matmul(at, pairs, precision=jax.lax.Precision.HIGHEST)
    distance = jnp.maximum(norm(away), 1e-6)
    deep = np.abs(pairs).T @ sizes - distance
    depth = jnp.maximum(deep, 0) + CONTACT_MARGIN * jnp.log(1 + jnp.exp(-jnp.abs(deep) / CONTACT_MARGIN))
    return jnp.matmul(away * (CONTACT_FORCE * depth / distance), pairs[:n].T, precision=jax.lax.Precision.HIGHEST)


def make_pair_incidence(agents: int, entities: int) -> Float[np.ndarray, "entities pairs"]:
    """By pair, of which the first is an agent, 1 for this and -1 for the other: products that XLA need not repeat."""
    first, second = np.triu_indices(agents, 1, entities)
    each = np.arange(entities)[:, None]
    return (each == first).astype(np.float32) - (each == second)


def compute_offsets(at: Float[Array, "2 n"], others: Float[Array, "2 m"]) -> Float[Array, "2 n m"]:
    """Where others lie as seen from each of n places."""
    return others[:, None, :] - at[:, :, None]


def norm(x: Float[Array, "2 ..."]) -> Float[Array, "..."]:
    """The lengths of vectors."""
    return jnp.sqrt(x[0] * x[0] + x[1] * x[1])


def compute_distances(at: Float[Array, "2 n"], others: Float[Array, "2 m"]) -> Float[Array, "n m"]:
    """Of each of n from each of m."""
    return norm(compute_offsets(at, others))


def count_entities(kinds: EntityGroups) -> int:
    """How many entities there are."""
    return sum(kind.n for kind in kinds.values())


def get_entity_values(kinds: EntityGroups, name: str) -> np.ndarray:
    """A number of each entity, [n]."""
    values = np.array([getattr(kind, name) for kind in kinds.values()])
    values = np.repeat(values, [kind.n for kind in kinds.values()])
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def get_group_slice(kinds: EntityGroups, name: str) -> slice:
    """Where the entities of a name are among all."""
    names = list(kinds)
    first = sum(kinds[other].n for other in names[: names.index(name)])
    return slice(first, first + kinds[name].n)


def split_by_group(kinds: EntityGroups, values: Array) -> dict[str, Array]:
    """What each group has of values [agents, ...]."""
    return {name: values[get_group_slice(kinds, name)] for name in kinds}
