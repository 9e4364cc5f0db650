"""Pong for two players."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from evorl import tree
from evorl.envs.arcade import pong, screen
from evorl.envs.arcade.pong import BALL, BOTH, PADDLE_SPEED, WIDTH, Pong, PongState
from evorl.envs.games.player_groups import PlayerGroups
from evorl.spaces import Dict
from evorl.types import Key, TimeStep


@dataclass(frozen=True)
class PongDuel:
    """Pong with two players: the reward is 1 for a point, -1 for a lost point, and `hit` for hitting the ball.

    The rules are the same as in the arcade game `Pong`, with two exceptions: both paddles have the same speed
    and put spin on the ball, and the ball is served towards a random player, from the opposite side of the
    field. Each player observes the game like the agent of `Pong`, as if it were on the right. The rewards add
    up to zero only if `hit` is 0.

    Args:
        frameskip: Number of frames per step, all with the same actions.
        points: Number of points that wins the game.
        max_episode_steps: Steps after which an episode is truncated.
        hit: Reward for hitting the ball.
        image: Whether observations are pictures, uint8 [80, 68, 3], instead of vectors.
        together: Whether both players are members of one group, player; otherwise, they are the groups left
            and right.
    """

    frameskip: int = 8
    points: int = 21
    max_episode_steps: int = 3000
    hit: float = 0.0
    image: bool = False
    together: bool = False

    default_params = None
    fresh_reset = False
    action_meanings = Pong.action_meanings

    def __post_init__(self) -> None:
        _ = self.pong

    @cached_property
    def pong(self) -> Pong:
        """Return the single-agent game from the right player's view."""
        return Pong(self.frameskip, self.points, self.max_episode_steps, self.image)

    @cached_property
    def player_groups(self) -> PlayerGroups:
        """Return the grouping of the players."""
        return PlayerGroups(("left", "right"), self.together)

    @cached_property
    def observation_space(self) -> Dict:
        return self.player_groups.game_space(*[self.pong.observation_space] * 2)

    @cached_property
    def action_space(self) -> Dict:
        return self.player_groups.game_space(*[self.pong.action_space] * 2)

    def chance(self, key: Key) -> Int[Array, "2"]:
        """Sample the vertical direction of the next serve, -1 (down), 0 or 1 (up), and its side, 1 (right) or 0.

        Args:
            key: Random key of the step.

        Returns:
            Both numbers, int32 [2].
        """
        return jax.random.randint(key, (2,), jnp.array([-1, 0]), 2)

    def reset(self, key: Key, params: Any) -> tuple[PongState, Any]:
        del params
        state = start_round(jnp.zeros(2, jnp.int32), jnp.int32(0), self.chance(key))
        return state, self.observe(state)

    def step(self, key: Key, env_state: PongState, action: Any, params: Any) -> tuple[PongState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def advance(self, env_state: PongState, action: Any, chance: Int[Array, "2"]) -> tuple[PongState, TimeStep]:
        """Step the game with given random events.

        Args:
            env_state: State before the step.
            action: Actions by group, leaves [members].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        chosen = self.player_groups.concatenate(action)
        moves = (chosen == 1).astype(jnp.float32) - (chosen == 2)

        def step_frame(_: Any, carry: tuple[PongState, Array, Array]) -> tuple[PongState, Array, Array]:
            state, reward, scored = carry
            after, hits, points = pong.advance_frame(state, PADDLE_SPEED * moves, moves, BOTH)
            earned = reward + points - points[::-1] + self.hit * hits
            return tree.select(scored, state, after), jnp.where(scored, reward, earned), scored | points.any()

        begin = env_state, jnp.zeros(2), jnp.bool_(False)
        state, reward, scored = jax.lax.fori_loop(0, self.frameskip, step_frame, begin)
        over = (state.scores >= self.points).any()
        state = tree.select(scored, start_round(state.scores, state.steps, chance), state)
        state = replace(state, steps=state.steps + 1)
        late = ~over & (state.steps >= self.max_episode_steps)
        return state, TimeStep(self.observe(state), self.player_groups.split(reward), over, late)

    def observe(self, env_state: PongState) -> dict[str, Any]:
        """Return the observations of both players, by group.

        Args:
            env_state: State to observe.
        """
        return self.player_groups.split(
            jnp.stack([self.pong.observe(mirror_state(env_state)), self.pong.observe(env_state)])
        )

    def render(self, env_state: PongState) -> screen.Picture:
        """Render a state as a picture of 8 x 8 game units per pixel, uint8 [80, 68, 3].

        Args:
            env_state: State to render.
        """
        return self.pong.render(env_state)

    @property
    def render_fps(self) -> float:
        """Return the steps per second of an animation."""
        return 60 / self.frameskip

    def render_frames(self, states: Sequence[PongState]) -> list[np.ndarray]:
        """Render states as pictures.

        Args:
            states: States of one episode, in order.

        Returns:
            A picture for each state, uint8 [80, 68, 3].
        """
        return screen.render_screens(self, states)


def mirror_state(state: PongState) -> PongState:
    """Return the state with left and right swapped."""
    swapped = {"paddles": state.paddles[::-1], "scores": state.scores[::-1]}
    return replace(state, x=WIDTH - BALL - state.x, vx=-state.vx, **swapped)


def start_round(scores: Int[Array, "2"], steps: Int[Array, ""], chance: Int[Array, "2"]) -> PongState:
    """Return the state at the start of a round."""
    state = pong.serve_ball(scores, steps, chance[0])
    return tree.select(chance[1] > 0, state, replace(mirror_state(state), scores=scores))
