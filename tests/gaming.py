"""Small games for tests."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask
from evorl.types import MemberEnds, TimeStep
from evorl.workflows import OffPolicy

SMALL = {"num_updates": 4, "batch_size": 8, "capacity": 64, "random_steps": 12, "eval_episodes": 4, "scan_length": 3}


@struct.dataclass
class ChaseState:
    place: Any  # [3] of two hunters and one hare
    steps: Any  # [] int32


@dataclass(frozen=True)
class Chase:
    """Two hunters step along a line towards a hare, who leaps every other step and rests in between.

    Resting is the only legal action then; after another one no reward is a number. Hunters earn what they are nearer
    than 2, the hare the opposite.
    """

    real: bool = False  # whether actions are real numbers, and all are legal

    default_params = None
    fresh_reset = True
    max_episode_steps = 4

    @property
    def observation_space(self) -> Dict:
        places = Box(-9.0, 9.0, (3,))
        hare = places if self.real else ObsWithActionMask(places, (3,))
        return Dict({"hunter": Members(places, 2), "hare": Members(hare, 1), "state": Box(-9.0, 9.0, (4,))})

    @property
    def action_space(self) -> Dict:
        action = Box(-1.0, 1.0, (1,)) if self.real else Discrete(3)
        return Dict({"hunter": Members(action, 2), "hare": Members(action, 1)})

    def observed(self, state: ChaseState) -> dict[str, Any]:
        place, steps = state.place, state.steps
        hare = place[None] - place[2]
        if not self.real:
            free = steps % 2 == 0
            hare = {"obs": hare, "legal": jnp.stack([free, jnp.bool_(True), free])[None]}
        whole = jnp.append(place, steps.astype(jnp.float32))
        return {"hunter": place[None] - place[:2, None], "hare": hare, "state": whole}

    def reset(self, key: jax.Array, params: Any) -> tuple[ChaseState, Any]:
        del params
        state = ChaseState(jax.random.uniform(key, (3,), minval=-1.0), jnp.int32(0))
        return state, self.observed(state)

    def step(self, key: jax.Array, env_state: ChaseState, action: Any, params: Any) -> tuple[ChaseState, TimeStep]:
        del key, params
        moves = jnp.concatenate([action["hunter"], action["hare"]]).astype(jnp.float32)
        moves = moves[:, 0] if self.real else moves - 1
        place = jnp.clip(env_state.place + moves * jnp.array([0.3, 0.3, 0.6]), -3.0, 3.0)
        state = ChaseState(place, env_state.steps + 1)
        near = 2 - jnp.abs(place[:2] - place[2])
        legal = self.real or (env_state.steps % 2 == 0) | (moves[2] == 0)
        near = jnp.where(legal, near, jnp.nan)
        reward = {"hunter": near, "hare": -near.mean(keepdims=True)}
        return state, TimeStep(self.observed(state), reward, jnp.bool_(False), state.steps >= self.max_episode_steps)


@struct.dataclass
class ButtonState:
    there: Any  # [] bool, whether the presser is
    steps: Any  # [] int32


@dataclass(frozen=True)
class Button:
    """A presser may press a button, which costs it 1 and ends it, while a clock goes on; both otherwise earn nothing.

    With `truncates` it is truncated; unless it `knows`, the game does not tell of the end of its member.
    """

    knows: bool = True
    truncates: bool = False
    fault: str = ""  # a mistake in what it tells

    default_params = None
    fresh_reset = False
    max_episode_steps = 100
    observation_space = Dict(
        {"clock": Members(Box(0.0, 1.0, (1,)), 1), "presser": Members(ObsWithActionMask(Box(0.0, 1.0, (1,)), (2,)), 1)}
    )
    action_space = Dict({"clock": Members(Discrete(2), 1), "presser": Members(Discrete(2), 1)})

    def observed(self, there: jax.Array) -> dict[str, Any]:
        presser = {"obs": there.astype(jnp.float32)[None, None], "legal": jnp.stack([jnp.bool_(True), there])[None]}
        return {"clock": jnp.ones((1, 1)), "presser": presser}

    def reset(self, key: jax.Array, params: Any) -> tuple[ButtonState, Any]:
        del key, params
        there = jnp.bool_(True)
        return ButtonState(there, jnp.int32(0)), self.observed(there)

    def step(self, key: jax.Array, env_state: ButtonState, action: Any, params: Any) -> tuple[ButtonState, TimeStep]:
        del key, params
        pressed = env_state.there & (action["presser"][0] == 1)
        state = ButtonState(env_state.there & ~pressed, env_state.steps + 1)
        over = state.steps >= self.max_episode_steps
        out, no = ~state.there[None], jnp.zeros(1, bool)
        if self.fault == "returns":
            out = pressed[None]
        terminated, truncated = (no, out) if self.truncates else (out, no)
        ends = MemberEnds({"clock": no, "presser": terminated}, {"clock": no, "presser": truncated})
        ends = {
            "both": MemberEnds(ends.terminated, ends.terminated),
            "all": MemberEnds({"clock": out, "presser": out}, ends.truncated),
        }.get(self.fault, ends)
        paid = -pressed.astype(jnp.float32) + (self.fault == "earns")
        reward = {"clock": jnp.zeros(1), "presser": paid[None]}
        obs = self.observed(env_state.there if self.truncates else state.there)  # one that is cut sees once more
        told = ends if self.knows else None
        return state, TimeStep(obs, reward, jnp.bool_(False), over, member_ends=told)


def off_policy(env, agent, **options):
    return OffPolicy(env, agent, num_envs=4, num_steps=4, **SMALL | options)


def after(workflow, steps=3):
    state = workflow.init(jax.random.key(0))
    step = jax.jit(workflow.step)
    for i in range(steps):
        state, metrics = step(state, jax.random.key(i))
    return state, metrics
