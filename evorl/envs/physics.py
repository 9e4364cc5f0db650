"""Environments whose physics is a level: lengths, masses, gravity or friction."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.wrappers import Wrapper
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.spaces import Box, Dict, Discrete
from evorl.types import Env, Key, Metrics, Prior, State, TimeStep

PhysicsLevel = Float[Array, " numbers"]  # of the unit cube
MUTATION_STD = 0.1  # of what an edit adds to each number


@runtime_checkable
class Adjustable(Env, Protocol):
    """An environment with numbers that may be other ones."""

    @property
    def physics(self) -> Mapping[str, float]:
        """Those numbers by name, as they are."""
        ...

    @property
    def positive_params(self) -> Collection[str]:
        """The names of those that make sense above 0 alone, such as masses."""
        ...

    def make_params(self, numbers: Mapping[str, Array]) -> Any:
        """The params with other numbers, by name, and with all that follows from them."""
        ...


@struct.dataclass
class PhysicsState:
    inner: State
    level: PhysicsLevel


@dataclass(frozen=True)
class Physics(Wrapper):
    """The inner environment, Gymnax or Brax, on levels: points of the unit cube, whose numbers, in the order of their
    names, each range decodes to a number of its physics.

    Of Gymnax it is a field of its params, of Brax how often its own gravity, mass or friction is taken. Levels are
    uniform in the cube, and those of which an episode returns solved_return or more are solved, by default none. An
    observation does not tell the level.
    """

    inner: Env
    ranges: Mapping[str, Prior]
    solved_return: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Adjustable):
            raise OptionError(f"inner={type(self.inner).__name__}: has no numbers to vary; Gymnax and Brax have")
        require(bool(self.ranges), "ranges", dict(self.ranges), f"must name some of {', '.join(self.inner.physics)}")
        for name, prior in self.ranges.items():
            if name not in self.inner.physics:
                raise unknown_name_error("number of physics", name, self.inner.physics)
            require(isinstance(prior, Prior), f"ranges.{name}", prior, "must be a range, such as Uniform(0.5, 2)")
            fits = name not in self.inner.positive_params or prior.bounds[0] > 0
            require(fits, f"ranges.{name}", prior, "must be above 0")
        object.__setattr__(self, "ranges", FrozenDict(sorted(self.ranges.items())))

    @property
    def default_params(self) -> None:
        """None: what the ranges do not name is as in the inner environment's own."""
        return None

    @property
    def fresh_reset(self) -> bool:
        """True, so that each episode has a level of its own."""
        return True

    def reset(self, key: Key, params: Any) -> tuple[PhysicsState, Any]:
        key_level, key_start = jax.random.split(key)
        return self.reset_to_level(key_start, self.sample_level(key_level, params))

    def step(self, key: Key, env_state: PhysicsState, action: Any, params: Any) -> tuple[PhysicsState, TimeStep]:
        del params
        inner, timestep = self.inner.step(key, env_state.inner, action, self.make_inner_params(env_state.level))
        return PhysicsState(inner, env_state.level), timestep

    def sample_level(self, key: Key, params: Any) -> PhysicsLevel:
        del params
        return jax.random.uniform(key, (len(self.ranges),))

    def get_level(self, env_state: PhysicsState) -> PhysicsLevel:
        return env_state.level

    def reset_to_level(self, key: Key, level: PhysicsLevel) -> tuple[PhysicsState, Any]:
        inner, obs = self.inner.reset(key, self.make_inner_params(level))
        return PhysicsState(inner, level), obs

    def is_same_level(self, a: PhysicsLevel, b: PhysicsLevel) -> Bool[Array, ""]:
        return (a == b).all()

    def mutate_level(self, key: Key, level: PhysicsLevel, num_edits: int) -> PhysicsLevel:
        """num_edits times normal numbers of standard deviation 0.1 more, reflected at 0 and 1.

        A reflected sum is distributed as the sum of reflections is, so it is drawn at once.
        """
        moved = (level + MUTATION_STD * math.sqrt(num_edits) * jax.random.normal(key, level.shape)) % 2
        return jnp.where(moved > 1, 2 - moved, moved)

    def crossover_levels(self, key: Key, a: PhysicsLevel, b: PhysicsLevel) -> PhysicsLevel:
        """Each number of either."""
        return jnp.where(jax.random.bernoulli(key, shape=a.shape), a, b)

    @property
    def genome_size(self) -> int:
        return len(self.ranges)

    def level_from_genome(self, genome: Float[Array, " size"]) -> PhysicsLevel:
        """By a logistic curve."""
        return jax.nn.sigmoid(genome)

    def is_solved(self, episode_return: Float[Array, "..."]) -> Bool[Array, "..."]:
        return episode_return >= self.solved_return

    def make_editor(self) -> "PhysicsEditor":
        return PhysicsEditor(self)

    def decode_level(self, level: PhysicsLevel) -> dict[str, Float[Array, ""]]:
        """Those that a level stands for, by name."""
        return {name: jnp.float32(prior.decode(level[i])) for i, (name, prior) in enumerate(self.ranges.items())}

    def encode_level(self, numbers: Mapping[str, Any]) -> PhysicsLevel:
        """The level of these numbers, by name; those outside of their range are at its end."""
        return jnp.stack([jnp.float32(prior.encode(jnp.float32(numbers[name]))) for name, prior in self.ranges.items()])

    def make_inner_params(self, level: PhysicsLevel) -> Any:
        """The params of the inner environment on a level."""
        assert isinstance(self.inner, Adjustable)
        return self.inner.make_params(self.decode_level(level))

    def state_metrics(self, env_state: PhysicsState) -> Metrics:
        """The numbers of the level that is being played."""
        here = {f"physics/{name}": number for name, number in self.decode_level(env_state.level).items()}
        return super().state_metrics(env_state) | here


@struct.dataclass
class PhysicsEditorState:
    level: PhysicsLevel  # 0 where nothing was chosen yet
    steps: Int[Array, ""]


@dataclass(frozen=True)
class PhysicsEditor:
    """Each action is the next number of a level: one of num_bins from 0 to 1, both among them, at equal distances.

    It sees what was chosen so far, the step, and num_random new uniform numbers at each. Rewards are 0: who knows a
    score puts it on the last step.
    """

    physics: Physics
    num_bins: int = 21
    num_random: int = 50

    default_params = None
    fresh_reset = True

    def __post_init__(self) -> None:
        require(self.num_bins >= 2, "num_bins", self.num_bins, "must be at least 2, the ends")
        require_int("num_random", self.num_random, 0)

    @property
    def max_episode_steps(self) -> int:
        return len(self.physics.ranges)

    @property
    def observation_space(self) -> Dict:
        steps = self.max_episode_steps
        parts = {"level": Box(0.0, 1.0, (steps,)), "step": Discrete(steps + 1)}
        return Dict(parts | {"random": Box(0.0, 1.0, (self.num_random,))} if self.num_random else parts)

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_bins)

    def reset(self, key: Key, params: Any) -> tuple[PhysicsEditorState, dict[str, Array]]:
        del params
        state = PhysicsEditorState(jnp.zeros(self.max_episode_steps), jnp.int32(0))
        return state, self.observe(key, state)

    def step(
        self, key: Key, env_state: PhysicsEditorState, action: Int[Array, ""], params: Any
    ) -> tuple[PhysicsEditorState, TimeStep]:
        del params
        level = env_state.level.at[env_state.steps].set(action / jnp.float32(self.num_bins - 1))
        after = PhysicsEditorState(level, env_state.steps + 1)
        over = after.steps >= self.max_episode_steps
        return after, TimeStep(self.observe(key, after), jnp.float32(0), over, jnp.bool_(False))

    def get_level(self, env_state: PhysicsEditorState) -> PhysicsLevel:
        return env_state.level

    def observe(self, key: Key, state: PhysicsEditorState) -> dict[str, Array]:
        """What was chosen so far, the step, and new random numbers."""
        seen = {"level": state.level, "step": state.steps}
        return seen | {"random": jax.random.uniform(key, (self.num_random,))} if self.num_random else seen
