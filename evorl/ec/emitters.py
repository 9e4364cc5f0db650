"""Emitters of quality-diversity algorithms, which propose genomes from the content of an archive."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.ec.archives import Elites, InsertionResult
from evorl.ec.flatten import flatten_population, unflatten_population
from evorl.ec.noise import normal
from evorl.errors import require_int
from evorl.parts import Number, number, part
from evorl.priors import LogUniform
from evorl.types import Key, Params, QDEvaluation, State


@runtime_checkable
class Emitter(Protocol):
    """Protocol of emitters, which propose `size` genomes per generation and learn how they fared in the archive."""

    @property
    def size(self) -> int:
        """Return the number of genomes per generation."""
        ...

    def init(self, key: Key, mean: Params) -> State:
        """Return the initial state.

        Args:
            key: Random key.
            mean: Parameters around which the search begins.

        Returns:
            The state, or None for an emitter without state.
        """
        ...

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        """Return the genomes to be evaluated, leaves [size, ...].

        Args:
            key: Random key.
            state: State of the emitter.
            elites: Content of the archive.
        """
        ...

    def tell(
        self,
        key: Key,
        told: tuple[Params, QDEvaluation, InsertionResult],
        state: State,
        elites: Elites,
    ) -> State:
        """Return the state after the genomes were evaluated and inserted into the archive.

        `told` has the genomes, their fitness and descriptors, and the results of their insertion, leaves
        [size, ...]. `elites` is the content of the archive after the insertion.
        """
        ...


def init_stateless(self: Any, key: Key, mean: Params) -> None:
    """Return None, the state of an emitter without state."""
    del self, key, mean
    return None


def tell_stateless(self: Any, key: Key, told: Any, state: State, elites: Elites) -> State:
    """Return the state unchanged: the emitter does not learn from how its genomes fared."""
    del self, key, told, elites
    return state


def check_size(size: int) -> None:
    """Raise OptionError if the number of genomes is not a whole number of at least 1."""
    require_int("size", size)


@part
class IsoLineEmitter:
    """Iso+line emitter: elites with isotropic noise and a random step along the line to another elite.

    A child of the elites x and y is x + iso_sigma * e1 + line_sigma * e2 * (y - x), with standard normal noise e1
    for each parameter and a standard normal number e2. The defaults are from QDax's examples.

    Args:
        size: Number of genomes per generation.

    Source: Vassiliades & Mouret 2018, arXiv:1804.03906.
    """

    size: int = 128
    iso_sigma: Number = number(
        0.005, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(1e-3, 0.1)
    )
    line_sigma: Number = number(
        0.05, 0, about="standard deviation of the step along the line to another elite, relative to their distance"
    )

    init, tell = init_stateless, tell_stateless

    def __post_init__(self) -> None:
        check_size(self.size)

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        key_first, key_second, key_iso, key_line = jax.random.split(key, 4)
        parents = elites.sample(key_first, self.size)
        x, other = flatten_population(parents), flatten_population(elites.sample(key_second, self.size))
        iso, line = normal(key_iso, x.shape), normal(key_line, (self.size, 1))
        children = x + self.iso_sigma * iso + self.line_sigma * line * (other - x)
        return unflatten_population(children.astype(x.dtype), tree.index(parents, 0))


@part
class GaussianEmitter:
    """Emitter of elites with normal noise on every parameter.

    The default of std is of the order of the values of Such et al. 2017, which depend on the task.

    Args:
        size: Number of genomes per generation.

    Source: Mouret & Clune 2015, arXiv:1504.04909.
    """

    size: int = 128
    std: Number = number(
        0.02, 0, about="standard deviation of the noise on every parameter", prior=LogUniform(1e-3, 0.5)
    )

    init, tell = init_stateless, tell_stateless

    def __post_init__(self) -> None:
        check_size(self.size)

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        key_parents, key_noise = jax.random.split(key)
        parents = elites.sample(key_parents, self.size)
        x = flatten_population(parents)
        children = x + self.std * normal(key_noise, x.shape)
        return unflatten_population(children.astype(x.dtype), tree.index(parents, 0))


@part
class EliteEmitter:
    """Emitter of unchanged elites, for a workflow that varies them itself, such as PGA-MAP-Elites.

    Args:
        size: Number of genomes per generation.
    """

    size: int = 50

    init, tell = init_stateless, tell_stateless

    def __post_init__(self) -> None:
        check_size(self.size)

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        return elites.sample(key, self.size)


@part
class TwoEmitters:
    """Combination of two emitters, each of which proposes its own share of the genomes.

    To combine more than two, nest this class.

    Args:
        first: Emitter of the first genomes.
        second: Emitter of the remaining genomes.
    """

    first: Emitter = field(default_factory=IsoLineEmitter)
    second: Emitter = field(default_factory=GaussianEmitter)

    @property
    def size(self) -> int:
        return self.first.size + self.second.size

    def init(self, key: Key, mean: Params) -> tuple[State, State]:
        keys = jax.random.split(key)
        return (
            self.first.init(keys[0], mean),
            self.second.init(keys[1], mean),
        )

    def ask(self, key: Key, state: tuple[State, State], elites: Elites) -> Params:
        keys = jax.random.split(key)
        first = self.first.ask(keys[0], state[0], elites)
        second = self.second.ask(keys[1], state[1], elites)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), first, second)

    def tell(
        self,
        key: Key,
        told: tuple[Params, QDEvaluation, InsertionResult],
        state: tuple[State, State],
        elites: Elites,
    ) -> tuple[State, State]:
        keys, n = jax.random.split(key), self.first.size
        ours, others = (tree.index(told, part) for part in (slice(n), slice(n, None)))
        return (
            self.first.tell(keys[0], ours, state[0], elites),
            self.second.tell(keys[1], others, state[1], elites),
        )
