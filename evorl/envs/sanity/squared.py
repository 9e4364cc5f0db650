"""Targets on the edge of a square, which have to be hit from its center."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl.spaces import Discrete, MultiDiscrete
from evorl.types import Key, TimeStep

MOVES = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y], np.int32)


@struct.dataclass
class SquaredState:
    position: Int[Array, " 2"]
    targets: Int[Array, "targets 2"]
    hit: Bool[Array, " targets"]
    steps: Int[Array, ""]


@dataclass(frozen=True)
class Squared:
    """An agent with the moves of a chess king, in a square whose edge has targets.

    The square has side 2 `distance` + 1, and the agent starts at its center. The reward is 1 - d /
    `distance`, where d is the number of moves to the nearest target that has not been hit before. After this,
    an agent on the edge returns to the center. The episode ends after `targets` * `distance` moves, which
    suffice for all targets.

    The observation is the positions of the agent and of all targets, counted from the lower left corner, and
    the number of moves modulo `distance`. Without the last one, states near the end of an episode would look
    like other states. For one target, the observation is sufficient. For several, the agent must remember
    which targets it has hit, or act randomly.

    Args:
        distance: Moves from the center to the edge.
        targets: Number of targets.
    """

    distance: int = 3
    targets: int = 1

    default_params = None
    fresh_reset = True
    action_space = Discrete(len(MOVES))

    @property
    def max_episode_steps(self) -> int:
        return self.targets * self.distance

    @property
    def observation_space(self) -> MultiDiscrete:
        return MultiDiscrete(((2 * self.distance + 1,) * (2 + 2 * self.targets)) + (self.distance,))

    def reset(self, key: Key, params: Any) -> tuple[SquaredState, Int[Array, " numbers"]]:
        del params
        line = range(-self.distance, self.distance + 1)
        edge = np.array([(x, y) for x in line for y in line if max(abs(x), abs(y)) == self.distance], np.int32)
        targets = jax.random.choice(key, edge, (self.targets,), replace=False)
        state = SquaredState(jnp.zeros(2, jnp.int32), targets, jnp.zeros(self.targets, bool), jnp.int32(0))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: SquaredState, action: Int[Array, ""], params: Any
    ) -> tuple[SquaredState, TimeStep]:
        del key, params
        position = env_state.position + jnp.asarray(MOVES)[action]
        moves = jnp.abs(env_state.targets - position).max(-1)
        nearest = jnp.where(env_state.hit, 2 * self.distance, moves).min()
        at_edge = jnp.abs(position).max() >= self.distance
        hit = env_state.hit | (moves == 0)
        after = SquaredState(jnp.where(at_edge, 0, position), env_state.targets, hit, env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        reward = 1 - nearest.astype(jnp.float32) / self.distance
        return after, TimeStep(self.observe(after), reward, over, jnp.bool_(False))

    def observe(self, env_state: SquaredState) -> Int[Array, " numbers"]:
        """Return the observation of a state: positions of the agent and the targets, and moves modulo `distance`.

        Args:
            env_state: State to observe.
        """
        places = jnp.concatenate([env_state.position, env_state.targets.reshape(-1)]) + self.distance
        return jnp.append(places, env_state.steps % self.distance)

    def score(self, env_state: SquaredState) -> Float[Array, ""]:
        """Return the fraction of targets that were hit."""
        return env_state.hit.mean(dtype=jnp.float32)
