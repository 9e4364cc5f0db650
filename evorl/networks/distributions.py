"""Action distributions, and the choice of a distribution for an action space.

Each distribution has the methods sample(key), mode(), log_prob(x) and entropy() over its batch [*batch],
where x is a sample. Continuous actions are in units of half the action range, relative to its center. A
sample is the value before the bounds are applied; `Head.to_action` maps it to an action of the environment.
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

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(8)  # quadrature rule of the standard normal distribution
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MAX_TANH = 0.9999  # largest action in from_action: one at a bound has no finite sample
CONTINUOUS_DISTRIBUTIONS = ("tanh_normal", "normal")  # for continuous actions


@runtime_checkable
class Distribution(Protocol):
    """Batch [*batch] of distributions."""

    def sample(self, key: Key) -> Array:
        """Draw one sample from each distribution of the batch.

        Args:
            key: Random key.

        Returns:
            Samples, leading axes [*batch].
        """
        ...

    def mode(self) -> Array:
        """Return the sample of the greedy action, leading axes [*batch]."""
        ...

    def log_prob(self, x: Array) -> Array:
        """Return the log-density of samples, or the log-probability of discrete ones.

        Args:
            x: Samples, leading axes [*batch].

        Returns:
            Log-densities, shape [*batch].
        """
        ...

    def entropy(self) -> Array:
        """Return the entropy in nats, shape [*batch]."""
        ...


@struct.dataclass
class Categorical:
    """Categorical distribution over n choices, with probabilities softmax(logits)."""

    logits: Float[Array, "*batch n"]

    def sample(self, key: Key) -> Int[Array, "*batch"]:
        return jax.random.categorical(key, self.logits)

    def mode(self) -> Int[Array, "*batch"]:
        return self.logits.argmax(-1).astype(jnp.int32)

    def log_probs(self) -> Float[Array, "*batch n"]:
        """Return the log-probability of every choice."""
        return jax.nn.log_softmax(self.logits)

    def probs(self) -> Float[Array, "*batch n"]:
        """Return the probability of every choice."""
        return jax.nn.softmax(self.logits)

    def log_prob(self, x: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.take_along_axis(self.log_probs(), x[..., None], axis=-1)[..., 0]

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = self.log_probs()
        return -(jnp.exp(log_probs) * log_probs).sum(-1)


def require_categorical(of: Distribution) -> Categorical:
    """Return the distribution; raise OptionError unless it is a Categorical."""
    if not isinstance(of, Categorical):
        raise OptionError("action_space: must be Discrete, so that actions have probabilities")
    return of


@struct.dataclass
class MultiCategorical:
    """Independent categorical distributions of several discrete choices."""

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
    """Sample several discrete choices, as concatenated one-hot vectors, with straight-through gradients.

    The gradient is that of the softmax of the noisy logits: straight-through Gumbel-softmax with temperature
    1 (Jang et al. 2017, arXiv:1611.01144).
    """
    noisy = jnp.split(logits + jax.random.gumbel(key, logits.shape), np.cumsum(choices)[:-1], axis=-1)
    soft = jnp.concatenate([jax.nn.softmax(part) for part in noisy], axis=-1)
    hard = jnp.concatenate([jax.nn.one_hot(part.argmax(-1), part.shape[-1]) for part in noisy], axis=-1)
    return jax.lax.stop_gradient(hard - soft) + soft


@struct.dataclass
class Normal:
    """Independent normal distributions of n numbers."""

    mean: Float[Array, "*batch n"]
    log_std: Float[Array, "*rows n"]  # [*batch, n], or [n] for all of the batch

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
    """Tanh of independent normal variables; samples are before the tanh, densities after it."""

    normal: Normal

    def sample(self, key: Key) -> Float[Array, "*batch n"]:
        return self.normal.sample(key)

    def mode(self) -> Float[Array, "*batch n"]:
        return self.normal.mode()

    def log_prob(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
        return self.normal.log_prob(x) - _log_slope(x).sum(-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """Return the normal entropy plus the expected log-derivative of tanh, by Gauss-Hermite quadrature.

        The error is below 1e-3 for a standard deviation of up to 1, and below 1e-2 for one of 1.5.
        """
        std = jnp.exp(self.normal.log_std)
        nodes = self.normal.mean[..., None] + std[..., None] * jnp.asarray(NODES, jnp.float32)
        return self.normal.entropy() + (_log_slope(nodes) @ jnp.asarray(WEIGHTS, jnp.float32)).sum(-1)


def _log_slope(x: Array) -> Array:
    """Compute log(1 - tanh(x)^2) without loss of precision for large x."""
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


@dataclass(frozen=True)
class Head:
    """Map from network outputs to the distribution of an action space, and from its samples to actions."""

    space: Space | None
    kind: str = CONTINUOUS_DISTRIBUTIONS[0]  # distribution of continuous actions

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
                raise OptionError(f"a policy needs actions with finite bounds, not {self.space}")
        if not is_simple(self.space) and any(isinstance(leaf, Box) for leaf in leaf_spaces(self.space)):
            raise OptionError(f"a policy with several actions needs all of them to be discrete, not {self.space}")

    @property
    def choice_sizes(self) -> list[int]:
        """Return the number of options of each discrete choice in an action."""
        assert self.space is not None
        return choice_counts(self.space)

    @property
    def size(self) -> int:
        """Return the number of network outputs that the distribution needs, without the log standard deviations."""
        return self.space.size if isinstance(self.space, Box) else sum(self.choice_sizes)

    @property
    def num_stds(self) -> int:
        """Return the number of standard deviations that the distribution needs; 0 for discrete actions."""
        return self.space.size if isinstance(self.space, Box) else 0

    def distribution(self, parameters: Float[Array, "*batch size"], log_std: Array | None = None) -> Distribution:
        """Return the distribution of samples; continuous actions need log_std, [*batch, n] or [n]."""
        match self.space:
            case Box():
                assert log_std is not None
                normal = Normal(parameters, log_std)
                return TanhNormal(normal) if self.kind == "tanh_normal" else normal
            case Discrete():
                return Categorical(parameters)
        ends = np.cumsum(self.choice_sizes)[:-1]
        return MultiCategorical(tuple(Categorical(part) for part in jnp.split(parameters, ends, axis=-1)))

    def from_action(self, action: Any) -> Array:
        """Return the sample that corresponds to an environment action.

        For "tanh_normal", an action at a bound has no finite sample and is first moved slightly inside.
        """
        assert self.space is not None
        if not isinstance(self.space, Box):
            return action_to_indices(self.space, action)
        low, high = self.space.float_bounds
        inside = (action - (low + high) / 2) / ((high - low) / 2)
        flat = jnp.asarray(inside).reshape(*inside.shape[: inside.ndim - len(self.space.shape)], -1)
        return jnp.arctanh(jnp.clip(flat, -MAX_TANH, MAX_TANH)) if self.kind == "tanh_normal" else flat

    def to_action(self, x: Array) -> Any:
        """Map a sample to an action of the environment."""
        assert self.space is not None
        if not isinstance(self.space, Box):
            return action_from_indices(self.space, x)
        low, high = self.space.float_bounds
        inside = jnp.tanh(x) if self.kind == "tanh_normal" else jnp.clip(x, -1, 1)
        return jnp.asarray((low + high) / 2 + (high - low) / 2 * inside.reshape(*x.shape[:-1], *self.space.shape))
