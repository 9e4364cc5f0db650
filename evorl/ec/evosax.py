"""evosax's distribution-based algorithms as evolvers."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from evosax.algorithms.distribution_based.base import DistributionBasedAlgorithm
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Float

from evorl import tree
from evorl.errors import OptionError, require, unknown
from evorl.types import Hyperparams, Key, Metrics, Params


@struct.dataclass
class EvosaxState:
    center: Any
    inner: Any  # the algorithm's own state


@dataclass(frozen=True)
class Evosax:
    """Any distribution-based algorithm of evosax (Lange 2022, arXiv:2212.04180), such as Evosax(SNES).

    Its hyperparameters are a dict of numbers: fields of the algorithm's own params (`std_init`, ...) and, where its
    constructor takes an optimizer or a schedule of the std, `learning_rate` (Adam) and `std`. What is not named keeps
    the algorithm's default. options go to its constructor.
    """

    algorithm: Any  # a subclass of DistributionBasedAlgorithm
    population_size: int = 128
    options: Mapping[str, Any] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        require(self.population_size >= 2, "population_size", self.population_size, "must be at least 2")
        if not (isinstance(self.algorithm, type) and issubclass(self.algorithm, DistributionBasedAlgorithm)):
            raise OptionError(f"algorithm={self.algorithm}: must be a distribution-based algorithm of evosax")
        object.__setattr__(self, "options", FrozenDict(self.options))

    def init(self, key: Key, mean: Params, hyperparams: Hyperparams) -> EvosaxState:
        algorithm, params = self._build(mean, hyperparams)
        return tree.strong(EvosaxState(mean, algorithm.init(key, mean, params)))

    def ask(self, key: Key, state: EvosaxState, hyperparams: Hyperparams) -> tuple[Params, EvosaxState]:
        algorithm, params = self._build(state.center, hyperparams)
        genomes, inner = algorithm.ask(key, state.inner, params)
        return genomes, self._like(state, EvosaxState(state.center, inner))

    def express(self, state: EvosaxState, genome: Params, hyperparams: Hyperparams) -> Params:
        del state, hyperparams
        return genome

    def tell(
        self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: EvosaxState, hyperparams: Hyperparams
    ) -> tuple[EvosaxState, Metrics]:
        algorithm, params = self._build(state.center, hyperparams)
        loss = jnp.where(jnp.isnan(fitness), jnp.inf, -fitness)  # evosax minimizes
        worst = jnp.max(jnp.where(jnp.isinf(loss), -jnp.inf, loss))
        loss = jnp.where(loss == jnp.inf, jnp.where(jnp.isfinite(worst), worst, 0.0), loss)  # it also averages
        inner, _ = algorithm.tell(key, genomes, loss, state.inner, params)
        return self._like(state, EvosaxState(algorithm.get_mean(inner), inner)), {}

    def center(self, state: EvosaxState) -> Params:
        return state.center

    def _build(self, mean: Params, hyperparams: Hyperparams) -> tuple[DistributionBasedAlgorithm, Any]:
        """The algorithm for parameters like mean, and its params, with the given hyperparameters in their places."""
        accepted = inspect.signature(self.algorithm.__init__).parameters
        given, options = dict(hyperparams), dict(self.options)
        if "optimizer" in accepted and "learning_rate" in given:
            options["optimizer"] = optax.adam(given.pop("learning_rate"))
        if "std_schedule" in accepted and "std" in given:
            std = given.pop("std")
            options["std_schedule"] = lambda _: std
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), mean)
        with jax.ensure_compile_time_eval():  # some algorithms derive sizes from what they compute
            algorithm = self.algorithm(population_size=self.population_size, solution=shapes, **options)
            params = algorithm.default_params
        for name in given:
            if name not in vars(params):
                extra = [n for n, o in (("learning_rate", "optimizer"), ("std", "std_schedule")) if o in accepted]
                raise unknown(f"hyperparameter of {self.algorithm.__name__}:", name, [*vars(params), *extra])
        return algorithm, params.replace(**given)

    @staticmethod
    def _like(old: EvosaxState, new: EvosaxState) -> EvosaxState:
        """new in the dtypes of old: some algorithms change theirs as they go."""
        return jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), old, new)
