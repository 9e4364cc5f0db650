"""Predators with a leader who sees all, and prey that eats and hides."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from evorl.envs.mpe.sight import others, require_members, row, rows, to_each
from evorl.envs.mpe.tag import chase, outside, touching
from evorl.envs.mpe.world import GRAY, Kind, Kinds, MPEState, distances, of_each, part, relative, started, total
from evorl.types import Key

LEADER, FOOD, FOREST = (0.65, 0.15, 0.15), (0.15, 0.15, 0.65), (0.6, 0.9, 0.6)
WORDS = 4


@dataclass(frozen=True)
class SimpleWorldComm:
    """Predators earn 5 for each touch and lose 0.1 of their distance from the nearest prey.

    Prey loses 5 for each predator that touches it, twice what it loses in tag outside, and 0.05 of its distance from
    the nearest food, and earns 2 for each that it touches. Predators are the groups lead, one that speaks, and
    adversary; all hear it. Who is in a forest sees and is seen by those in the same one only, but the leader sees all.
    """

    num_good: int = 2
    num_adversaries: int = 4  # with the leader
    num_obstacles: int = 1
    num_food: int = 2
    num_forests: int = 2

    def __post_init__(self) -> None:
        require_members(num_good=self.num_good, num_adversaries=self.num_adversaries, num_food=self.num_food)
        require_members(0, num_obstacles=self.num_obstacles, num_forests=self.num_forests)

    @property
    def agents(self) -> Kinds:
        kinds = chase(self.num_adversaries - 1, self.num_good, 1.0, 0.045)
        lead = replace(kinds["adversary"], n=1, color=LEADER, words=WORDS)
        return {name: kind for name, kind in {"lead": lead, **kinds}.items() if kind.n}

    @property
    def landmarks(self) -> Kinds:
        return {
            "obstacle": Kind(self.num_obstacles, 0.2, GRAY, collides=True, span=0.9),
            "food": Kind(self.num_food, 0.03, FOOD, span=0.9),
            "forest": Kind(self.num_forests, 0.3, FOREST, span=0.9),
        }

    def begin(self, key: Key) -> MPEState:
        return started(key, self.agents, self.landmarks)

    def seen(self, state: MPEState) -> dict[str, Array]:
        first = self.num_adversaries
        inside = touched(self, state, slice(0, None), "forest")
        together = (inside[:, None] & inside).any(-1)
        open_air = ~inside.any(-1)
        leads = np.arange(total(self.agents))[:, None] == 0
        visible = together | (open_air[:, None] & open_air) | leads
        places = others(relative(state.at, state.at) * visible)
        velocity = to_each(state.velocity) * visible
        hidden = jnp.where(inside, 1.0, -1.0)
        known = row(state.velocity, state.at, relative(state.at, state.marks), places)
        heard = jnp.broadcast_to(state.said, (first, WORDS))
        predators = [known[:first], rows(velocity[:, :first, first:]), hidden[:first], heard]
        prey = [known[first:], hidden[first:], rows(others(velocity[:, first:, first:]))]
        hunting, agent = (jnp.concatenate(parts, axis=-1) for parts in (predators, prey))
        groups = {"lead": hunting[:1], "adversary": hunting[1:], "agent": agent}
        return {name: groups[name] for name in self.agents}

    def rewards(self, state: MPEState) -> dict[str, Array]:
        first, food = self.num_adversaries, state.marks[:, part(self.landmarks, "food")]
        touches = touching(self.agents, state)
        hunting = 5.0 * touches.sum() - 0.1 * distances(state.at[:, :first], state.at[:, first:]).min(-1)
        prey = state.at[:, first:]
        eaten = 2.0 * touched(self, state, slice(first, None), "food").sum(-1)
        agent = eaten - 5.0 * touches.sum(0) - 2 * outside(prey) - 0.05 * distances(prey, food).min(-1)
        groups = {"lead": hunting[:1], "adversary": hunting[1:], "agent": agent}
        return {name: groups[name] for name in self.agents}


def touched(scenario: SimpleWorldComm, state: MPEState, who: slice, what: str) -> Array:
    """Which of some agents touch which landmarks of a name, [agents, landmarks]."""
    kinds = scenario.landmarks
    least = of_each(scenario.agents, "size")[who, None] + kinds[what].size
    return distances(state.at[:, who], state.marks[:, part(kinds, what)]) < least
