"""Distributions of actions, and which one an action space has.

Each has sample(key), mode(), log_prob(x) and entropy() over its batch [*batch]; x is a sample. Real actions are in
units of half the range of the action space, from its middle, and a sample is what lies before the bounds:
`Head.to_action` takes it to the environment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int
from typing_extensions import Protocol, runtime_checkable

from evorl.errors import OptionError, require
from evorl.networks.features import require_space
from evorl.spaces import (
    Box,
    Discrete,
    Space,
    action_from_indices,
    action_to_indices,
    choice_counts,
    is_simple,
    leaf_spaces,
)
from evorl.types import Key

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(8)  # of the standard normal
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MAX_TANH = 0.9999  # of actions whose samples are asked for, as those at a bound have none
CONTINUOUS_DISTRIBUTIONS = ("tanh_normal", "normal")  # of real actions


@runtime_checkable
class Distribution(Protocol):
    """A distribution for each place of a batch [*batch]."""

    def sample(self, key: Key) -> Array:
        """One sample for each place."""
        ...

    def mode(self) -> Array:
        """The sample of a greedy action."""
        ...

    def log_prob(self, x: Array) -> Array:
        """The log density of samples, of choices their log probability, [*batch]."""
        ...

    def entropy(self) -> Array:
        """The entropy in nats, [*batch]."""
        ...


@struct.dataclass
class Categorical:
    """One of n choices with probabilities softmax(logits)."""

    logits: Float[Array, "*batch n"]

    def sample(self, key: Key) -> Int[Array, "*batch"]:
        return jax.random.categorical(key, self.logits)

    def mode(self) -> Int[Array, "*batch"]:
        return self.logits.argmax(-1).astype(jnp.int32)

    def log_probs(self) -> Float[Array, "*batch n"]:
        """The log probability of every choice."""
        return jax.nn.log_softmax(self.logits)

    def probs(self) -> Float[Array, "*batch n"]:
        """The probability of every choice."""
        return jax.nn.softmax(self.logits)

    def log_prob(self, x: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.take_along_axis(self.log_probs(), x[..., None], axis=-1)[..., 0]

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = self.log_probs()
        return -(jnp.exp(log_probs) * log_probs).sum(-1)


def require_categorical(of: Distribution) -> Categorical:
    """A distribution that is of one choice; raises OptionError for another."""
    if not isinstance(of, Categorical):
        raise OptionError("action_space: must be Discrete, so that actions have probabilities")
    return of


@struct.dataclass
class MultiCategorical:
    """Several independent choices."""

    parts: tuple[Categorical, ...]

    def sample(self, key: Key) -> Int[Array, "*batch parts"]:
        keys = jax.random.split(key, len(self.parts))
        return jnp.stack([part.sample(key) for part, key in zip(self.parts, keys, strict=True)], axis=-1)

    def mode(self) -> Int[Array, "*batch parts"]:
        return jnp.stack([part.mode() for part in self.parts], axis=-1)

    def log_prob(self, x: Int[Array, "*batch parts"]) -> Float[Array, "*batch"]:
        return jnp.stack([part.log_prob(x[..., i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.stack([part.entropy() for part in self.parts]).sum(0)


def sample_straight_through(
    logits: Float[Array, "*batch n"], choices: Sequence[int], key: Key
) -> Float[Array, "*batch n"]:
    """A sample of several choices, one-hot and side by side, with the gradient of the softmax of their noisy logits.

    Straight-through Gumbel-softmax of temperature 1 (Jang et al. 2017, arXiv:1611.01144).
    """
    noisy = jnp.split(logits + jax.random.gumbel(key, logits.shape), np.cumsum(choices)[:-1], axis=-1)
    soft = jnp.concatenate([jax.nn.softmax(part) for part in noisy], axis=-1)
    hard = jnp.concatenate([jax.nn.one_hot(part.argmax(-1), part.shape[-1]) for part in noisy], axis=-1)
    return jax.lax.stop_gradient(hard - soft) + soft


@struct.dataclass
class Normal:
    """Independent normal numbers."""

    mean: Float[Array, "*batch n"]
    log_std: Float[Array, "*rows n"]  # of each place of the batch, or [n] for all

    def sample(self, key: Key) -> Float[Array, "*batch n"]:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape)

    def mode(self) -> Float[Array, "*batch n"]:
        return self.mean

    def log_prob(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
        scaled = (x - self.mean) * jnp.exp(-self.log_std)
        return -(0.5 * scaled**2 + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Float[Array, "*batch"]:
        each = jnp.broadcast_to(self.log_std, self.mean.shape)
        return (each + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


@struct.dataclass
class TanhNormal:
    """The tanh of independent normal numbers; samples are those numbers, densities those of their tanh."""

    normal: Normal

    def sample(self, key: Key) -> Float[Array, "*batch n"]:
        return self.normal.sample(key)

    def mode(self) -> Float[Array, "*batch n"]:
        return self.normal.mode()

    def log_prob(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
        return self.normal.log_prob(x) - _log_slope(x).sum(-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """That of the normal numbers and the mean logarithm of tanh's slope, by Gauss-Hermite quadrature.

        Its error is below 1e-3 for a standard deviation of up to 1, and 1e-2 for one of 1.5.
        """
        std = jnp.exp(self.normal.log_std)
        nodes = self.normal.mean[..., None] + std[..., None] * jnp.asarray(NODES, jnp.float32)
        return self.normal.entropy() + (_log_slope(nodes) @ jnp.asarray(WEIGHTS, jnp.float32)).sum(-1)


def _log_slope(x: Array) -> Array:
    """log(1 - tanh(x)^2) without loss for large x."""
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


@dataclass(frozen=True)
class Head:
    """The distribution of an action space, from numbers that a network gives."""

    space: Space | None
    kind: str = CONTINUOUS_DISTRIBUTIONS[0]  # of real actions

    def __post_init__(self) -> None:
        require_space(self.space, "action_space")
        assert self.space is not None
        require(
            self.kind in CONTINUOUS_DISTRIBUTIONS,
            "distribution",
            self.kind,
            f"must be one of {', '.join(CONTINUOUS_DISTRIBUTIONS)}",
        )
        if isinstance(self.space, Box):
            bounded = all(np.isfinite(bound).all() for bound in self.space.bounds)
            if not bounded:
                raise OptionError(f"a policy needs actions between finite bounds, not {self.space}")
        if not is_simple(self.space) and any(isinstance(leaf, Box) for leaf in leaf_spaces(self.space)):
            raise OptionError(f"a policy with several actions needs each to be a choice, not {self.space}")

    @property
    def choice_sizes(self) -> list[int]:
        """How many there are in each choice of an action."""
        assert self.space is not None
        return choice_counts(self.space)

    @property
    def size(self) -> int:
        """How many numbers it takes, besides the logarithms of standard deviations."""
        return self.space.size if isinstance(self.space, Box) else sum(self.choice_sizes)

    @property
    def num_stds(self) -> int:
        """How many standard deviations the distribution takes."""
        return self.space.size if isinstance(self.space, Box) else 0

    def distribution(self, numbers: Float[Array, "*batch size"], log_std: Array | None = None) -> Distribution:
        """log_std [*batch, n] or [n] is for real actions."""
        match self.space:
            case Box():
                assert log_std is not None
                normal = Normal(numbers, log_std)
                return TanhNormal(normal) if self.kind == "tanh_normal" else normal
            case Discrete():
                return Categorical(numbers)
        ends = np.cumsum(self.choice_sizes)[:-1]
        return MultiCategorical(tuple(Categorical(part) for part in jnp.split(numbers, ends, axis=-1)))

    def from_action(self, action: Any) -> Array:
        """Return the sample of an action as the environment takes it; one at a bound is moved a little inside."""
        assert self.space is not None
        if not isinstance(self.space, Box):
            return action_to_indices(self.space, action)
        low, high = self.space.bounds
        inside = (action - (low + high) / 2) / ((high - low) / 2)
        flat = jnp.asarray(inside).reshape(*inside.shape[: inside.ndim - len(self.space.shape)], -1)
        return jnp.arctanh(jnp.clip(flat, -MAX_TANH, MAX_TANH)) if self.kind == "tanh_normal" else flat

    def to_action(self, x: Array) -> Any:
        """A sample as the environment takes it."""
        assert self.space is not None
        if not isinstance(self.space, Box):
            return action_from_indices(self.space, x)
        low, high = self.space.bounds
        inside = jnp.tanh(x) if self.kind == "tanh_normal" else jnp.clip(x, -1, 1)
        return jnp.asarray((low + high) / 2 + (high - low) / 2 * inside.reshape(*x.shape[:-1], *self.space.shape))
