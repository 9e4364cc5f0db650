"""Collectors that bring treasures to those they belong to."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.envs.mpe.sight import nearest, one_hot, others, require_members, row, rows, to_each
from evorl.envs.mpe.world import Color, Kind, Kinds, MPEState, distances, norm, relative, started
from evorl.errors import require
from evorl.types import Key

COLORS = (
    (0.212, 0.408, 0.776), (0.945, 0.553, 0.0), (0.169, 0.627, 0.173), (0.839, 0.149, 0.157), (0.58, 0.404, 0.741),
    (0.549, 0.337, 0.294),
)  # fmt: skip
PALE = (0.85,) * 3
COLLECTOR, DEPOSIT, TREASURE = 0.05, 0.075, 0.025  # sizes
AWAY = -999.0  # where a treasure lies for a step, that was picked up
LAST = 1e6  # where one is seen, nearest first, before it is hidden
NOTHING = -1  # held


@struct.dataclass
class Cargo:
    held: Any  # [collectors] int32, kinds of treasures, or NOTHING
    kinds: Any  # [treasures] int32
    alive: Any  # [treasures] bool
    earned: Any  # [] in the last step, for what was picked up and delivered


@dataclass(frozen=True)
class CollectTreasure:
    """All earn 5 for each treasure that is picked up or delivered to the deposit of its kind.

    A collector loses 5 for each other that it touches, and 0.1 of its distance from the nearest treasure, or from where
    what it holds belongs; a deposit 0.1 of that from the nearest collector that holds its kind, or from their middle.
    Others and treasures are seen nearest first. A treasure comes back the step after it was picked up.
    """

    num_collectors: int = 6
    num_deposits: int = 2  # and as many kinds of treasures
    num_treasures: int = 6

    def __post_init__(self) -> None:
        members = {"num_collectors": self.num_collectors, "num_treasures": self.num_treasures}
        require_members(**members, num_deposits=self.num_deposits)
        require(self.num_deposits <= len(COLORS), "num_deposits", self.num_deposits, f"must be at most {len(COLORS)}")

    @property
    def agents(self) -> Kinds:
        own = tuple((0.35 * r, 0.35 * g, 0.35 * b) for r, g, b in COLORS[: self.num_deposits])
        collector = Kind(self.num_collectors, COLLECTOR, PALE, accel=1.5, max_speed=1.0)
        return {
            "collector": collector,
            "deposit": replace(collector, n=self.num_deposits, size=DEPOSIT, colors=own, mass=2.25),
        }

    @property
    def landmarks(self) -> Kinds:
        return {"treasure": Kind(self.num_treasures, TREASURE, span=0.95)}

    def begin(self, key: Key) -> MPEState:
        state = started(key, self.agents, self.landmarks, (self.num_deposits,) * self.num_treasures)
        held, alive = jnp.full(self.num_collectors, NOTHING, jnp.int32), jnp.ones(self.num_treasures, bool)
        return replace(state, goal=(), cargo=Cargo(held, state.goal, alive, jnp.float32(0)))

    def chance(self, key: Key) -> tuple[Float[Array, "2 treasures"], Array]:
        """Where treasures come back that were picked up in the last step, and of which kinds."""
        state = self.begin(key)
        return state.marks, state.cargo.kinds

    def follow(self, state: MPEState, chance: tuple[Array, Array]) -> MPEState:
        """Treasures in turn are picked up by the first collector that touches them and holds none, or come back."""
        collectors, deposits = jnp.split(state.at, [self.num_collectors], axis=1)
        touched = (distances(state.marks, collectors) < TREASURE + COLLECTOR) & state.cargo.alive[:, None]

        def pick(held: Array, treasure: tuple[Array, Array]) -> tuple[Array, Array]:
            touches, kind = treasure
            free = touches & (held == NOTHING)
            first = free & (jnp.cumsum(free) == 1)
            return jnp.where(first, kind, held), free.any()

        held, picked = jax.lax.scan(pick, state.cargo.held, (touched, state.cargo.kinds), unroll=4)
        own = (distances(collectors, deposits) < COLLECTOR + DEPOSIT) & (held[:, None] == jnp.arange(self.num_deposits))
        delivered = own.any(-1)
        alive = state.cargo.alive
        marks = jnp.where(alive, jnp.where(picked, AWAY, state.marks), chance[0])
        kinds = jnp.where(alive, state.cargo.kinds, chance[1])
        earned = 5.0 * (picked.sum() + delivered.sum())
        cargo = Cargo(jnp.where(delivered, NOTHING, held), kinds, ~picked, earned.astype(jnp.float32))
        return replace(state, marks=marks, cargo=cargo)

    def seen(self, state: MPEState) -> dict[str, Array]:
        agents, treasures = state.at.shape[1], self.num_treasures
        n, cargo, first = self.num_deposits, state.cargo, self.num_collectors
        holds, none = one_hot(cargo.held, n).T, jnp.zeros((n, first))
        accepts = jnp.concatenate([none, jnp.eye(n)], axis=1)
        carries = jnp.concatenate([holds, jnp.zeros((n, n))], axis=1)
        about = to_each(jnp.concatenate([state.velocity, accepts, carries]))
        near = jnp.concatenate(nearest(others(relative(state.at, state.at)), agents - 1, others(about)))
        kinds = jnp.broadcast_to((one_hot(cargo.kinds, n) * cargo.alive[:, None]).T[:, None], (n, agents, treasures))
        away, kinds = nearest(jnp.where(cargo.alive, relative(state.at, state.marks), LAST), treasures, kinds)
        own = row(state.at, state.velocity)
        rest = [rows(near), rows(jnp.concatenate([jnp.where(away < LAST, away, 0.0), kinds]))]
        collector = [own[:first], rows(holds), *(x[:first] for x in rest)]
        deposit = [own[first:], *(x[first:] for x in rest)]
        return {"collector": jnp.concatenate(collector, -1), "deposit": jnp.concatenate(deposit, -1)}

    def colors(self, state: MPEState) -> list[Color]:
        """Of treasures."""
        return [COLORS[int(kind)] for kind in state.cargo.kinds]

    def rewards(self, state: MPEState) -> dict[str, Array]:
        cargo, far = state.cargo, jnp.inf
        collectors, deposits = jnp.split(state.at, [self.num_collectors], axis=1)
        overlaps = (distances(collectors, collectors) < 2 * COLLECTOR).sum(-1) - 1.0
        treasure = jnp.where(cargo.alive, distances(collectors, state.marks), far).min(-1)
        treasure = jnp.where(cargo.alive.any(), treasure, 0.0)
        own = cargo.held[:, None] == jnp.arange(self.num_deposits)
        apart = distances(collectors, deposits)
        home = jnp.where(own, apart, far).min(-1)
        of_collector = -5 * overlaps - 0.1 * jnp.where(cargo.held == NOTHING, treasure, home)
        carrier = jnp.where(own, apart, far).min(0)
        middle = norm(deposits - collectors.mean(1, keepdims=True))
        of_deposit = -0.1 * jnp.where(own.any(0), carrier, middle)
        return {"collector": of_collector + cargo.earned, "deposit": of_deposit + cargo.earned}
