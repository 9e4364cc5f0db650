"""Emitters of quality-diversity: what is tried next, by what an archive holds."""

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
    """Asks for `size` genomes, leaves [size, ...], and is told how these fared."""

    @property
    def size(self) -> int:
        """How many."""
        ...

    def init(self, key: Key, mean: Params) -> State:
        """Its state, of a search that begins around mean; None where it has none."""
        ...

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        """Genomes."""
        ...

    def tell(
        self,
        key: Key,
        told: tuple[Params, QDEvaluation, InsertionResult],
        state: State,
        elites: Elites,
    ) -> State:
        """The state after genomes, their quality and how they entered, by the elites after them."""
        ...


def init_stateless(self: Any, key: Key, mean: Params) -> None:
    """init of an emitter whose only memory is the archive."""
    del self, key, mean
    return None


def tell_stateless(self: Any, key: Key, told: Any, state: State, elites: Elites) -> State:
    """tell of such an emitter."""
    del self, key, told, elites
    return state


def check_size(size: int) -> None:
    """Raises OptionError where it is no number of genomes."""
    require_int("size", size)


@part
class IsoLineEmitter:
    """Elites with noise, and a step towards or away from others (Vassiliades & Mouret 2018, arXiv:1804.03906).

    Defaults: those of QDax's examples.
    """

    size: int = 128
    iso_std: Number = number(0.005, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.1))
    line_std: Number = number(0.05, 0, about="of the step along the line to another elite")

    init, tell = init_stateless, tell_stateless

    def __post_init__(self) -> None:
        check_size(self.size)

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        key_first, key_second, key_iso, key_line = jax.random.split(key, 4)
        parents = elites.sample(key_first, self.size)
        x, other = flatten_population(parents), flatten_population(elites.sample(key_second, self.size))
        iso, line = normal(key_iso, x.shape), normal(key_line, (self.size, 1))
        children = x + self.iso_std * iso + self.line_std * line * (other - x)
        return unflatten_population(children.astype(x.dtype), tree.index(parents, 0))


@part
class GaussianEmitter:
    """Elites with normal noise (Mouret & Clune 2015, arXiv:1504.04909).

    Default: of the order of those of Such et al. 2017, which differ with the task.
    """

    size: int = 128
    std: Number = number(0.02, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.5))

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
    """Elites as they are, for a workflow that changes them itself, as PGA-MAP-Elites does."""

    size: int = 50

    init, tell = init_stateless, tell_stateless

    def __post_init__(self) -> None:
        check_size(self.size)

    def ask(self, key: Key, state: State, elites: Elites) -> Params:
        return elites.sample(key, self.size)


@part
class TwoEmitters:
    """Two emitters side by side, either of which may be two again."""

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
