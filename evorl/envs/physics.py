"""Environments whose levels are physical parameters: lengths, masses, gravity or friction."""

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

PhysicsLevel = Float[Array, " numbers"]  # a point in the unit cube
MUTATION_STD = 0.1  # of the perturbation of each entry by one edit


@runtime_checkable
class Adjustable(Env, Protocol):
    """Protocol of an environment whose physical parameters can be changed."""

    @property
    def physics(self) -> Mapping[str, float]:
        """Return the default values of the physical parameters, by name."""
        ...

    @property
    def positive_params(self) -> Collection[str]:
        """Return the names of the parameters that must be above 0, such as masses."""
        ...

    def make_params(self, numbers: Mapping[str, Array]) -> Any:
        """Return env params with other physical parameters, and with all values that depend on them.

        Args:
            numbers: Physical parameters by name; those not given keep their default values.
        """
        ...


@struct.dataclass
class PhysicsState:
    inner: State
    level: PhysicsLevel


@dataclass(frozen=True)
class Physics(Wrapper):
    """Gymnax or Brax environment whose levels are values of its physical parameters.

    A level is a point in the unit cube. Its entries belong to the ranges in the order of their names, and
    each range decodes its entry to a value. In Gymnax, a physical parameter is a field of the env params. In
    Brax, it is a factor of the gravity, the masses or the friction. `reset` samples levels uniformly in the
    cube. The level is not part of the observation.

    Args:
        inner: Gymnax or Brax environment.
        ranges: Range of each physical parameter that varies, by name; the others keep their default values.
        solved_return: Lowest return with which an episode solves its level; by default infinite, so none
            does.

    Raises:
        OptionError: If the inner environment has no physical parameters, or if a range is not allowed.
    """

    inner: Env
    ranges: Mapping[str, Prior]
    solved_return: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Adjustable):
            raise OptionError(
                f"inner={type(self.inner).__name__}: has no physical parameters to vary; use Gymnax or Brax"
            )
        require(
            bool(self.ranges), "ranges", dict(self.ranges), f"must name at least one of {', '.join(self.inner.physics)}"
        )
        for name, prior in self.ranges.items():
            if name not in self.inner.physics:
                raise unknown_name_error("physical parameter", name, self.inner.physics)
            require(isinstance(prior, Prior), f"ranges.{name}", prior, "must be a prior, such as Uniform(0.5, 2)")
            fits = name not in self.inner.positive_params or prior.bounds[0] > 0
            require(fits, f"ranges.{name}", prior, "must be above 0")
        object.__setattr__(self, "ranges", FrozenDict(sorted(self.ranges.items())))

    @property
    def default_params(self) -> None:
        """Return None; parameters without a range have the default values of the inner environment."""
        return None

    @property
    def fresh_reset(self) -> bool:
        """Return True, so that each episode has a new level."""
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
        """Add `num_edits` normal perturbations of standard deviation 0.1 to each entry, reflected at 0 and 1.

        They are sampled as one normal perturbation, since the result has the same distribution if only the
        sum is reflected.
        """
        moved = (level + MUTATION_STD * math.sqrt(num_edits) * jax.random.normal(key, level.shape)) % 2
        return jnp.where(moved > 1, 2 - moved, moved)

    def crossover_levels(self, key: Key, a: PhysicsLevel, b: PhysicsLevel) -> PhysicsLevel:
        """Take each entry from one of the parents, with equal probability."""
        return jnp.where(jax.random.bernoulli(key, shape=a.shape), a, b)

    @property
    def genome_size(self) -> int:
        return len(self.ranges)

    def level_from_genome(self, genome: Float[Array, " size"]) -> PhysicsLevel:
        """Map the genome to the unit cube by the logistic function."""
        return jax.nn.sigmoid(genome)

    def is_solved(self, episode_return: Float[Array, "..."]) -> Bool[Array, "..."]:
        return episode_return >= self.solved_return

    def make_editor(self) -> "PhysicsEditor":
        return PhysicsEditor(self)

    def decode_level(self, level: PhysicsLevel) -> dict[str, Float[Array, ""]]:
        """Return the physical parameters of a level by name, [] each.

        Args:
            level: Level, shape [numbers].
        """
        return {name: jnp.float32(prior.decode(level[i])) for i, (name, prior) in enumerate(self.ranges.items())}

    def encode_level(self, numbers: Mapping[str, Any]) -> PhysicsLevel:
        """Return the level with given physical parameters, the inverse of `decode_level`.

        Args:
            numbers: Value of each parameter that has a range, by name; values outside of their ranges are
                clipped.
        """
        return jnp.stack([jnp.float32(prior.encode(jnp.float32(numbers[name]))) for name, prior in self.ranges.items()])

    def make_inner_params(self, level: PhysicsLevel) -> Any:
        """Return the params of the inner environment on a level.

        Args:
            level: Level, shape [numbers].
        """
        assert isinstance(self.inner, Adjustable)
        return self.inner.make_params(self.decode_level(level))

    def state_metrics(self, env_state: PhysicsState) -> Metrics:
        """Add the physical parameters of the current level to the metrics of the inner environment."""
        here = {f"physics/{name}": number for name, number in self.decode_level(env_state.level).items()}
        return super().state_metrics(env_state) | here


@struct.dataclass
class PhysicsEditorState:
    level: PhysicsLevel  # entries not chosen yet are 0
    steps: Int[Array, ""]


@dataclass(frozen=True)
class PhysicsEditor:
    """Environment in which a teacher builds a level of `Physics`, one entry per step.

    An action is one of num_bins evenly spaced values from 0 to 1, both included. The observation contains the
    entries chosen so far, the step, and num_random new uniform random numbers. All rewards are 0; the
    curriculum, which scores the level, adds the score to the last one.
    """

    physics: Physics
    num_bins: int = 21
    num_random: int = 50

    default_params = None
    fresh_reset = True

    def __post_init__(self) -> None:
        require(self.num_bins >= 2, "num_bins", self.num_bins, "must be at least 2")
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
        """Return the entries chosen so far, the step, and new random numbers."""
        seen = {"level": state.level, "step": state.steps}
        return seen | {"random": jax.random.uniform(key, (self.num_random,))} if self.num_random else seen
