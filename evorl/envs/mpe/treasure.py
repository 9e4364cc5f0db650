"""Scenario in which collectors bring treasures to the deposits of their kind."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.envs.mpe.observations import (
    broadcast_to_observers,
    concatenate_vectors,
    drop_self,
    flatten_vectors,
    one_hot,
    require_members,
    select_nearest,
)
from evorl.envs.mpe.world import (
    Color,
    EntityGroup,
    EntityGroups,
    MPEState,
    compute_distances,
    compute_offsets,
    init_entities,
    norm,
)
from evorl.errors import require
from evorl.types import Key

DEPOSIT_COLORS = (
    (0.212, 0.408, 0.776), (0.945, 0.553, 0.0), (0.169, 0.627, 0.173), (0.839, 0.149, 0.157), (0.58, 0.404, 0.741),
    (0.549, 0.337, 0.294),
)  # fmt: skip
COLLECTOR_COLOR = (0.85,) * 3
COLLECTOR, DEPOSIT, TREASURE = 0.05, 0.075, 0.025  # sizes
PICKED_UP_POSITION = -999.0  # of a treasure in the step after it was picked up
HIDDEN_OFFSET = 1e6  # sorts picked up treasures last, before they are masked
NO_TREASURE = -1  # held


@struct.dataclass
class TreasureState:
    held_kinds: Int[Array, " collectors"]  # kinds of held treasures, or NO_TREASURE
    kinds: Int[Array, " treasures"]
    alive: Bool[Array, " treasures"]
    step_reward: Float[Array, ""]  # for treasures picked up or delivered in the last step


@dataclass(frozen=True)
class CollectTreasure:
    """Collectors that bring treasures to moving deposits of the right kind (mpe2's collect_treasure).

    All agents get 5 for each treasure that is picked up, and 5 for each one that is delivered to the deposit
    of its kind. A collector also gets -5 for each other collector that it touches, and -0.1 times its
    distance from the nearest treasure or, if it holds one, from the deposit of its kind. A deposit gets -0.1
    times its distance from the nearest collector that holds its kind or, if there is none, from the mean
    position of the collectors.

    Each agent observes the other agents and the treasures, nearest first. A treasure reappears one step after
    it was picked up.

    Args:
        num_collectors: Number of collectors.
        num_deposits: Number of deposits, and of kinds of treasures; at most 6.
        num_treasures: Number of treasures.

    Raises:
        OptionError: If a number is not allowed.
    """

    num_collectors: int = 6
    num_deposits: int = 2
    num_treasures: int = 6

    def __post_init__(self) -> None:
        members = {"num_collectors": self.num_collectors, "num_treasures": self.num_treasures}
        require_members(**members, num_deposits=self.num_deposits)
        require(
            self.num_deposits <= len(DEPOSIT_COLORS),
            "num_deposits",
            self.num_deposits,
            f"must be at most {len(DEPOSIT_COLORS)}",
        )

    @property
    def agents(self) -> EntityGroups:
        """Return the groups `collector` and `deposit`."""
        own = tuple((0.35 * r, 0.35 * g, 0.35 * b) for r, g, b in DEPOSIT_COLORS[: self.num_deposits])
        collector = EntityGroup(self.num_collectors, COLLECTOR, COLLECTOR_COLOR, accel=1.5, max_speed=1.0)
        return {
            "collector": collector,
            "deposit": replace(collector, n=self.num_deposits, size=DEPOSIT, colors=own, mass=2.25),
        }

    @property
    def landmarks(self) -> EntityGroups:
        """Return the group `treasure`."""
        return {"treasure": EntityGroup(self.num_treasures, TREASURE, span=0.95)}

    def init_state(self, key: Key) -> MPEState:
        """Return a state with random positions, random kinds of treasures, and empty collectors."""
        state = init_entities(key, self.agents, self.landmarks, (self.num_deposits,) * self.num_treasures)
        assert state.goal is not None
        held, alive = jnp.full(self.num_collectors, NO_TREASURE, jnp.int32), jnp.ones(self.num_treasures, bool)
        return replace(state, goal=None, scenario_state=TreasureState(held, state.goal, alive, jnp.float32(0)))

    def chance(self, key: Key) -> tuple[Float[Array, "2 treasures"], Array]:
        """Draw the positions and the kinds of treasures that may reappear.

        Args:
            key: Random key of the step.
        """
        state = self.init_state(key)
        return state.landmark_positions, state.scenario_state.kinds

    def apply_events(self, state: MPEState, chance: tuple[Array, Array]) -> MPEState:
        """Let collectors pick up and deliver treasures, and let treasures reappear.

        Treasures are processed in order; the first collector that touches one and holds none picks it up.

        Args:
            state: State after agents have moved.
            chance: Positions and kinds of treasures that reappear, as `chance` returns them.
        """
        collectors, deposits = jnp.split(state.agent_positions, [self.num_collectors], axis=1)
        touched = (
            compute_distances(state.landmark_positions, collectors) < TREASURE + COLLECTOR
        ) & state.scenario_state.alive[:, None]

        def pick_up(held: Array, treasure: tuple[Array, Array]) -> tuple[Array, Array]:
            touches, kind = treasure
            free = touches & (held == NO_TREASURE)
            first = free & (jnp.cumsum(free) == 1)
            return jnp.where(first, kind, held), free.any()

        held, picked = jax.lax.scan(
            pick_up, state.scenario_state.held_kinds, (touched, state.scenario_state.kinds), unroll=4
        )
        own = (compute_distances(collectors, deposits) < COLLECTOR + DEPOSIT) & (
            held[:, None] == jnp.arange(self.num_deposits)
        )
        delivered = own.any(-1)
        alive = state.scenario_state.alive
        marks = jnp.where(alive, jnp.where(picked, PICKED_UP_POSITION, state.landmark_positions), chance[0])
        kinds = jnp.where(alive, state.scenario_state.kinds, chance[1])
        earned = 5.0 * (picked.sum() + delivered.sum())
        cargo = TreasureState(jnp.where(delivered, NO_TREASURE, held), kinds, ~picked, earned.astype(jnp.float32))
        return replace(state, landmark_positions=marks, scenario_state=cargo)

    def observe(self, state: MPEState) -> dict[str, Array]:
        """Return position, velocity, the held kind (collectors), other agents and treasures, nearest first."""
        agents, treasures = state.agent_positions.shape[1], self.num_treasures
        n, cargo, first = self.num_deposits, state.scenario_state, self.num_collectors
        holds, none = one_hot(cargo.held_kinds, n).T, jnp.zeros((n, first))
        accepts = jnp.concatenate([none, jnp.eye(n)], axis=1)
        carries = jnp.concatenate([holds, jnp.zeros((n, n))], axis=1)
        about = broadcast_to_observers(jnp.concatenate([state.velocity, accepts, carries]))
        near = jnp.concatenate(
            select_nearest(
                drop_self(compute_offsets(state.agent_positions, state.agent_positions)), agents - 1, drop_self(about)
            )
        )
        kinds = jnp.broadcast_to((one_hot(cargo.kinds, n) * cargo.alive[:, None]).T[:, None], (n, agents, treasures))
        away, kinds = select_nearest(
            jnp.where(cargo.alive, compute_offsets(state.agent_positions, state.landmark_positions), HIDDEN_OFFSET),
            treasures,
            kinds,
        )
        own = concatenate_vectors(state.agent_positions, state.velocity)
        rest = [
            flatten_vectors(near),
            flatten_vectors(jnp.concatenate([jnp.where(away < HIDDEN_OFFSET, away, 0.0), kinds])),
        ]
        collector = [own[:first], flatten_vectors(holds), *(x[:first] for x in rest)]
        deposit = [own[first:], *(x[first:] for x in rest)]
        return {"collector": jnp.concatenate(collector, -1), "deposit": jnp.concatenate(deposit, -1)}

    def get_landmark_colors(self, state: MPEState) -> list[Color]:
        """Return the color of each treasure, which shows its kind.

        Args:
            state: State to render.
        """
        return [DEPOSIT_COLORS[int(kind)] for kind in state.scenario_state.kinds]

    def compute_rewards(self, state: MPEState) -> dict[str, Array]:
        """Return the rewards for treasures, shared by all, minus the penalties of each agent."""
        cargo, far = state.scenario_state, jnp.inf
        collectors, deposits = jnp.split(state.agent_positions, [self.num_collectors], axis=1)
        overlaps = (compute_distances(collectors, collectors) < 2 * COLLECTOR).sum(-1) - 1.0
        treasure = jnp.where(cargo.alive, compute_distances(collectors, state.landmark_positions), far).min(-1)
        treasure = jnp.where(cargo.alive.any(), treasure, 0.0)
        own = cargo.held_kinds[:, None] == jnp.arange(self.num_deposits)
        apart = compute_distances(collectors, deposits)
        home = jnp.where(own, apart, far).min(-1)
        of_collector = -5 * overlaps - 0.1 * jnp.where(cargo.held_kinds == NO_TREASURE, treasure, home)
        carrier = jnp.where(own, apart, far).min(0)
        middle = norm(deposits - collectors.mean(1, keepdims=True))
        of_deposit = -0.1 * jnp.where(own.any(0), carrier, middle)
        return {"collector": of_collector + cargo.step_reward, "deposit": of_deposit + cargo.step_reward}
