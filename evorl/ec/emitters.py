"""Emitters of quality-diversity: what is tried next, by what an archive holds."""

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from evorl import hyperparameters, tree
from evorl.ec.archives import Elites, Entry
from evorl.ec.cma_es import CMAES, CMAESHyperparams, CMAESState
from evorl.ec.noise import normal
from evorl.ec.rows import population, rows
from evorl.errors import require, unknown
from evorl.hyperparameters import Number, default, hyperparameter
from evorl.priors import LogUniform
from evorl.types import Hyperparams, Key, Params, Quality, State

RANKINGS = ("two_stage", "improvement")


@runtime_checkable
class Emitter(Protocol):
    """Asks for `size` genomes, leaves [size, ...], and is told how these fared."""

    @property
    def size(self) -> int:
        """How many."""
        ...

    def hyperparams(self) -> Hyperparams:
        """At their defaults."""
        ...

    def init(self, key: Key, mean: Params, hyperparams: Hyperparams) -> State:
        """Its state, of a search that begins around mean; () where it has none."""
        ...

    def ask(self, key: Key, state: State, elites: Elites, hyperparams: Hyperparams) -> Params:
        """Genomes."""
        ...

    def tell(
        self, key: Key, told: tuple[Params, Quality, Entry], state: State, elites: Elites, hyperparams: Hyperparams
    ) -> State:
        """The state after genomes, their quality and how they entered, by the elites after them."""
        ...


def stateless(self: Any, key: Key, mean: Params, hyperparams: Any) -> tuple[()]:
    """init of an emitter whose only memory is the archive."""
    del self, key, mean, hyperparams
    return ()


def forgets(self: Any, key: Key, told: Any, state: State, elites: Elites, hyperparams: Any) -> State:
    """tell of such an emitter."""
    del self, key, told, elites, hyperparams
    return state


def check_size(size: int) -> None:
    """Raises OptionError where it is no number of genomes."""
    require(size >= 1, "size", size, "must be at least 1")


@struct.dataclass
class IsoLineHyperparams:
    """Defaults: those of QDax's examples."""

    iso_std: Number = hyperparameter(0.005, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.1))
    line_std: Number = hyperparameter(0.05, 0, about="of the step along the line to another elite")


@dataclass(frozen=True)
class IsoLineEmitter:
    """Elites with noise, and a step towards or away from others (Vassiliades & Mouret 2018, arXiv:1804.03906)."""

    size: int = 128

    init, tell = stateless, forgets

    def __post_init__(self) -> None:
        check_size(self.size)

    def hyperparams(self) -> IsoLineHyperparams:
        return IsoLineHyperparams()

    def ask(self, key: Key, state: State, elites: Elites, hyperparams: IsoLineHyperparams) -> Params:
        key_first, key_second, key_iso, key_line = jax.random.split(key, 4)
        parents = elites.sample(key_first, self.size)
        x, other = rows(parents), rows(elites.sample(key_second, self.size))
        iso, line = normal(key_iso, x.shape), normal(key_line, (self.size, 1))
        children = x + hyperparams.iso_std * iso + hyperparams.line_std * line * (other - x)
        return population(children.astype(x.dtype), tree.index(parents, 0))


@struct.dataclass
class GaussianHyperparams:
    """Default: of the order of those of Such et al. 2017, which differ with the task."""

    std: Number = hyperparameter(0.02, 0, about="of the noise on every parameter", prior=LogUniform(1e-3, 0.5))


@dataclass(frozen=True)
class GaussianEmitter:
    """Elites with normal noise (Mouret & Clune 2015, arXiv:1504.04909)."""

    size: int = 128

    init, tell = stateless, forgets

    def __post_init__(self) -> None:
        check_size(self.size)

    def hyperparams(self) -> GaussianHyperparams:
        return GaussianHyperparams()

    def ask(self, key: Key, state: State, elites: Elites, hyperparams: GaussianHyperparams) -> Params:
        key_parents, key_noise = jax.random.split(key)
        parents = elites.sample(key_parents, self.size)
        x = rows(parents)
        children = x + hyperparams.std * normal(key_noise, x.shape)
        return population(children.astype(x.dtype), tree.index(parents, 0))


@struct.dataclass
class EliteHyperparams:
    """None."""


@dataclass(frozen=True)
class EliteEmitter:
    """Elites as they are, for a workflow that changes them itself, as PGA-MAP-Elites does."""

    size: int = 50

    init, tell = stateless, forgets

    def __post_init__(self) -> None:
        check_size(self.size)

    def hyperparams(self) -> EliteHyperparams:
        return EliteHyperparams()

    def ask(self, key: Key, state: State, elites: Elites, hyperparams: EliteHyperparams) -> Params:
        return elites.sample(key, self.size)


@struct.dataclass
class ImprovementState:
    searches: Any  # of CMA-ES, leaves [copies, ...]
    restarts: Any  # [] int32


@dataclass(frozen=True)
class ImprovementEmitter:
    """`copies` CMA-ES of `each` genomes that climb by how much an archive improves (CMA-ME: arXiv:1912.02400).

    Parents are those that entered. With ranking two_stage new cells come first, then the others by gain; with
    improvement all by gain, as CMA-MAE has it, whose archive has a finite lowest threshold (arXiv:2205.10752). A search
    of which none entered, or that has become a point, starts again at a random elite.
    """

    copies: int = 15
    each: int = 36
    ranking: str = "two_stage"

    def __post_init__(self) -> None:
        require(self.copies >= 1, "copies", self.copies, "must be at least 1")
        require(self.each >= 2, "each", self.each, "must be at least 2")
        if self.ranking not in RANKINGS:
            raise unknown("ranking", self.ranking, RANKINGS)

    @property
    def size(self) -> int:
        return self.copies * self.each

    @property
    def cma_es(self) -> CMAES:
        """Of one search."""
        return CMAES(self.each, active=False)

    def hyperparams(self) -> CMAESHyperparams:
        return CMAESHyperparams()

    def init(self, key: Key, mean: Params, hyperparams: CMAESHyperparams) -> ImprovementState:
        search = self.cma_es.init(key, mean, hyperparams)
        return ImprovementState(tree.broadcast(search, self.copies), jnp.int32(0))

    def ask(self, key: Key, state: ImprovementState, elites: Elites, hyperparams: CMAESHyperparams) -> Params:
        ask = lambda key, search: self.cma_es.ask(key, search, hyperparams)[0]  # noqa: E731
        return tree.merge_axes(jax.vmap(ask)(jax.random.split(key, self.copies), state.searches))

    def tell(
        self,
        key: Key,
        told: tuple[Params, Quality, Entry],
        state: ImprovementState,
        elites: Elites,
        hyperparams: CMAESHyperparams,
    ) -> ImprovementState:
        genomes, _, entry = told
        first = entry.entered.astype(jnp.int32) + (entry.entered & entry.new)
        stage = first if self.ranking == "two_stage" else jnp.zeros_like(first)
        of_each = jax.tree.map(
            lambda x: x.reshape(self.copies, self.each, *x.shape[1:]), (rows(genomes), stage, entry.gain, entry.entered)
        )
        start = elites.sample(key, self.copies)

        def move(search: CMAESState, start: Params, members: Array, stage: Array, gain: Array, entered: Array) -> Any:
            order = jnp.lexsort((gain, stage))
            utility = jnp.zeros(self.each).at[order].set(jnp.arange(self.each, dtype=jnp.float32))
            count = entered.sum()
            moved = self.cma_es.update(members, utility, self.each, search, hyperparams, jnp.maximum(count, 1))
            over = (count == 0) | self.ended(moved)
            return tree.where(over, self.cma_es.start(start, hyperparams.initial_std), moved), over

        searches, over = jax.vmap(move)(state.searches, start, *of_each)
        return replace(state, searches=searches, restarts=state.restarts + over.sum())

    def ended(self, search: CMAESState) -> Bool[Array, ""]:
        """Whether a search is a point, or flat in some direction, or no numbers."""
        spread = jnp.abs(self.cma_es.covariance.spread(search.factor))
        good = (search.sigma * spread.max() > 1e-11) & ((spread.max() / spread.min()) ** 2 < 1e14)
        return ~(good & tree.has_no_nan(search.mean))


@struct.dataclass
class TwoEmittersHyperparams:
    """Those of the two."""

    first: Any = default(IsoLineHyperparams)
    second: Any = default(GaussianHyperparams)


@dataclass(frozen=True)
class TwoEmitters:
    """Two emitters side by side, either of which may be two again."""

    first: Emitter
    second: Emitter

    @property
    def size(self) -> int:
        return self.first.size + self.second.size

    def hyperparams(self) -> TwoEmittersHyperparams:
        return TwoEmittersHyperparams(hyperparameters.of(self.first), hyperparameters.of(self.second))

    def init(self, key: Key, mean: Params, hyperparams: TwoEmittersHyperparams) -> tuple[State, State]:
        keys = jax.random.split(key)
        return (
            self.first.init(keys[0], mean, hyperparams.first),
            self.second.init(keys[1], mean, hyperparams.second),
        )

    def ask(self, key: Key, state: tuple[State, State], elites: Elites, hyperparams: TwoEmittersHyperparams) -> Params:
        keys = jax.random.split(key)
        first = self.first.ask(keys[0], state[0], elites, hyperparams.first)
        second = self.second.ask(keys[1], state[1], elites, hyperparams.second)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), first, second)

    def tell(
        self,
        key: Key,
        told: tuple[Params, Quality, Entry],
        state: tuple[State, State],
        elites: Elites,
        hyperparams: TwoEmittersHyperparams,
    ) -> tuple[State, State]:
        keys, n = jax.random.split(key), self.first.size
        ours, others = (tree.index(told, part) for part in (slice(n), slice(n, None)))
        return (
            self.first.tell(keys[0], ours, state[0], elites, hyperparams.first),
            self.second.tell(keys[1], others, state[1], elites, hyperparams.second),
        )
