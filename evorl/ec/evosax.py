"""Adapter that makes the algorithms of evosax available as evolvers."""

import inspect
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from evosax.algorithms.base import State as EvosaxAlgorithmState
from evosax.algorithms.distribution_based.base import DistributionBasedAlgorithm
from evosax.algorithms.distribution_based.sv.base import SV_ES
from evosax.algorithms.population_based.base import PopulationBasedAlgorithm
from flax import struct
from flax.core import FrozenDict, unfreeze
from jaxtyping import Array, Float, Int

from evorl import mesh, tree
from evorl.ec.flatten import flatten_member, unflatten_member
from evorl.ec.noise import normal
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.parts import number_mapping, part
from evorl.types import Evolver, Key, Metrics, Numbers, Params

TELL_BY_NOISE = ("xNES", "GuidedES", "NoiseReuseES", "PersistentES", "CR_FM_NES", "MA_ES", "LM_MA_ES")
INITIAL_STD = 0.1  # about the initial std of the weights of a layer with 100 inputs


@struct.dataclass
class EvosaxState:
    solution: Params
    initial_mean: Params  # the mean given to init
    evosax_state: EvosaxAlgorithmState  # the algorithm's own state
    generation: Int[Array, ""]  # number of calls of tell


def sample_params(key: Key, mean: Params, std: Any) -> Params:
    """Sample parameters from a normal distribution around `mean`."""
    flat = flatten_member(mean)
    return unflatten_member(flat + std * normal(key, flat.shape), mean)


def fitness_to_losses(fitness: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return losses for evosax, which minimizes them and averages over them.

    NaN and -inf become the highest finite loss, and inf the lowest.
    """
    loss = jnp.where(jnp.isnan(fitness), jnp.inf, -fitness)
    finite = jnp.isfinite(loss)
    return jnp.clip(loss, jnp.where(finite, loss, jnp.inf).min(), jnp.where(finite, loss, -jnp.inf).max())


def _to_arrays(named: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a nested mapping of numbers or lists to one of float32 arrays."""
    return {k: _to_arrays(v) if isinstance(v, Mapping) else jnp.asarray(v, jnp.float32) for k, v in named.items()}


def _leaf_shapes(numbers: Any) -> Any:
    """Return the shapes of a nested mapping of arrays, with None for values that are not numeric."""
    if isinstance(numbers, Mapping):
        return {name: _leaf_shapes(value) for name, value in numbers.items()}
    try:
        return np.asarray(numbers, np.float32).shape
    except (TypeError, ValueError, OverflowError):
        return None


def _fill_unknown(state: EvosaxState) -> EvosaxState:
    """Return the state with 0 in place of NaN in what is not known yet, so that NaN marks a lost search alone.

    An algorithm has no best solution before the first generation, and GuidedES takes NaN for a gradient of 0.
    """

    def fill(path: Any, x: Array) -> Array:
        name = jax.tree_util.keystr(path)
        return jnp.where(jnp.isnan(x), 0, x).astype(x.dtype) if "best_solution" in name or name == ".grad" else x

    return replace(state, evosax_state=jax.tree_util.tree_map_with_path(fill, state.evosax_state))


@part
class Evosax(Evolver):
    """Adapter for any algorithm of evosax, as in Evosax(SNES) or Evosax(PSO).

    Hyperparameters are given by name and otherwise have the algorithm's defaults. They are the fields of the
    algorithm's own params (`std_init`, ...). If its constructor takes an optimizer, `learning_rate` sets the
    learning rate of Adam; if it takes a schedule of the standard deviation, `std` sets a constant one. A
    generation without any finite fitness does not change the state. To use other weights of a learned
    algorithm, set the hyperparameter `params` or options.params; lists in it become arrays.

    The start of the search and the solution depend on the kind of algorithm:

    - Distribution-based: the search starts at the mean. The solution is the mean of the distribution.
    - Population-based: the first population is drawn around the mean with standard deviation `initial_std`
      (0.1). The solution is the fittest individual of the stored population. Differential evolution and PSO
      search on the scale of the first population. DiffusionEvolution searches near 0, and only for
      options.num_generations (128 by default).
    - Stein variational: the population is divided among options.num_populations distributions, whose initial
      means are drawn as such a population. The solution is the mean of the distribution whose individuals had
      the highest mean fitness.
    - RandomSearch: each individual is drawn around the mean with standard deviation `initial_std`, unless
      options has a sampling_fn. The solution is the best individual so far.

    Args:
        algorithm: Class of the algorithm in evosax, a subclass of DistributionBasedAlgorithm or
            PopulationBasedAlgorithm.
        population_size: Number of individuals per generation.
        options: Keyword arguments of the algorithm's constructor.
        numbers: Hyperparameters by name.

    Source: Lange 2022, arXiv:2212.04180.
    """

    algorithm: type[Any]
    population_size: int = 128
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    numbers: Numbers = number_mapping()

    def __post_init__(self) -> None:
        n, bases = self.population_size, (DistributionBasedAlgorithm, PopulationBasedAlgorithm)
        require_int("population_size", n, 2)
        if not (isinstance(self.algorithm, type) and issubclass(self.algorithm, bases)):
            raise OptionError(f"algorithm={self.algorithm}: must be an algorithm of evosax")
        object.__setattr__(self, "options", FrozenDict(self.options))
        object.__setattr__(self, "numbers", FrozenDict(self.numbers))
        name, accepted = self.algorithm.__name__, self._constructor_options
        for option in self.options:
            if option not in accepted:
                raise unknown_name_error(
                    f"option of {name}:", f"options.{option}", [f"options.{one}" for one in accepted]
                )
        for option, parameter in accepted.items():
            given = parameter.default is not parameter.empty or option in (*self.options, "sampling_fn")  # see _build
            require(given, "options", dict(self.options), f"{name} needs options.{option}")
        if self.options.get("params") is not None:
            own = {option: value for option, value in self.options.items() if option != "params"}
            shapes = _leaf_shapes(replace(self, options=own).weights(np.zeros(2, np.float32)))
            given = _leaf_shapes(self.options["params"])
            require(
                given == shapes,
                "options.params",
                "other weights",
                f"must have the names and shapes of the weights of {name}",
            )
        if self._variational:
            k = self.options["num_populations"]
            fits = isinstance(k, int) and k > 0 and n % k == 0 and n > k
            require(fits, "population_size", n, f"must be a multiple of options.num_populations={k}, and larger")

    @property
    def tells_by_noise(self) -> bool:
        teller = next(base for base in self.algorithm.__mro__ if "_tell" in vars(base))
        return teller.__name__ in TELL_BY_NOISE

    @property
    def keeps_best(self) -> bool:
        return self._population_based or "sampling_fn" in self._constructor_options

    def init(self, key: Key, mean: Params) -> EvosaxState:
        algorithm, params = self._build(mean)
        if not (self._population_based or self._variational):
            inner = algorithm.init(key, mean, params)
        else:
            key_start, key = jax.random.split(key)
            keys = jax.random.split(key_start, self.options.get("num_populations", self.population_size))
            start = jax.vmap(sample_params, (0, None, None))(keys, mean, self.numbers.get("initial_std", INITIAL_STD))
            fitness = (jnp.zeros(self.population_size),) if self._population_based else ()  # until the first tell
            inner = algorithm.init(key, start, *fitness, params)
        return _fill_unknown(tree.drop_weak_types(EvosaxState(mean, mean, inner, jnp.int32(0))))

    def ask(self, key: Key, state: EvosaxState) -> tuple[Params, EvosaxState]:
        algorithm, params = self._build(state.initial_mean)
        genomes, inner = algorithm.ask(key, state.evosax_state, params)
        if self._population_based:
            genomes = tree.select(state.generation == 0, algorithm.get_population(state.evosax_state), genomes)
        return genomes, self._cast_like(state, replace(state, evosax_state=inner))

    def tell(
        self, key: Key, genomes: Params, fitness: Float[Array, " n"], state: EvosaxState
    ) -> tuple[EvosaxState, Metrics]:
        algorithm, params = self._build(state.initial_mean)
        loss = fitness_to_losses(fitness)
        if self._variational:
            groups = (self.options["num_populations"], -1)
            members = jax.tree.map(lambda x: x.reshape(*groups, *x.shape[1:]), genomes)
            inner, _ = algorithm.tell(key, members, loss, state.evosax_state, params)
            center = tree.index(algorithm.get_mean(inner), loss.reshape(groups).mean(1).argmin())
        else:
            inner, _ = algorithm.tell(key, genomes, loss, state.evosax_state, params)
            if self._population_based:
                inner = tree.select(state.generation == 0, algorithm.init(key, genomes, loss, params), inner)
            center = algorithm.get_best_solution(inner) if self._population_based else algorithm.get_mean(inner)
        new = self._cast_like(state, EvosaxState(center, state.initial_mean, inner, state.generation + 1))
        return tree.select(jnp.isfinite(fitness).any(), new, state), {}

    def solution(self, state: EvosaxState) -> Params:
        return state.solution

    def weights(self, like: Params) -> Params:
        """Return the weights that a learned algorithm comes with.

        Raises:
            OptionError: If the algorithm has no learned weights that can be replaced by `params`.
        """
        _, params = replace(self, numbers={})._build(like)
        learned = hasattr(params, "params")
        require(learned, "algorithm", self.algorithm.__name__, "has no learned weights; use LearnedES")
        return _to_arrays(params.params)

    @property
    def _population_based(self) -> bool:
        return issubclass(self.algorithm, PopulationBasedAlgorithm)

    @property
    def _variational(self) -> bool:
        return issubclass(self.algorithm, SV_ES)

    @property
    def _constructor_options(self) -> dict[str, inspect.Parameter]:
        """Return the constructor parameters that `options` may set.

        Parameters that this class sets itself are excluded, and so is the path of a file that evosax would
        unpickle.
        """
        parameters = dict(inspect.signature(self.algorithm).parameters)
        return {n: one for n, one in parameters.items() if n not in ("population_size", "solution", "params_path")}

    @property
    def _wrapper_numbers(self) -> list[str]:
        """Return the names of the hyperparameters that are not fields of the algorithm's params."""
        takes = {"learning_rate": "optimizer", "std": "std_schedule", "initial_std": "sampling_fn"}
        own = [
            name for name, option in takes.items() if option in self._constructor_options and option not in self.options
        ]
        return [*own, "initial_std"] if self._population_based or self._variational else own

    def _build(self, origin: Params) -> tuple[Any, Any]:
        """Return the algorithm for parameters like `origin`, and its params with the given hyperparameters."""
        frozen: Any = self.numbers
        numbers = unfreeze(frozen)
        own = {name: value for name, value in numbers.items() if name in self._wrapper_numbers}
        given = {name: value for name, value in numbers.items() if name not in self._wrapper_numbers}
        options = {
            name: _to_arrays(value) if isinstance(value, Mapping) else value for name, value in self.options.items()
        }
        if "learning_rate" in own:
            options["optimizer"] = optax.adam(own["learning_rate"])
        if "std" in own:
            options["std_schedule"] = lambda _: own["std"]
        if "sampling_fn" in self._constructor_options:
            options.setdefault(
                "sampling_fn", lambda key: sample_params(key, origin, own.get("initial_std", INITIAL_STD))
            )
        algorithm, params = self._construct(origin, options)
        for name in given:
            if name not in vars(params):
                raise unknown_name_error(
                    f"hyperparameter of {self.algorithm.__name__}:", name, [*vars(params), *self._wrapper_numbers]
                )
        return algorithm, params.replace(**given)

    def _construct(self, origin: Params, options: dict[str, Any]) -> tuple[Any, Any]:
        """Return the algorithm and its default params."""
        size = self.population_size // options.get("num_populations", 1)
        shapes = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), origin)
        with mesh.eager_mode():  # some algorithms derive sizes from computed values
            try:
                algorithm = self.algorithm(population_size=size, solution=shapes, **options)
            except AssertionError as error:  # evosax rejects the sizes
                name, given = self.algorithm.__name__, dict(self.options)
                raise OptionError(f"{name} of {size} members, options={given}: {error}") from error
            return algorithm, algorithm.default_params

    @staticmethod
    def _cast_like(old: EvosaxState, new: EvosaxState) -> EvosaxState:
        """Return `new` with the dtypes of `old`, since some algorithms change the dtypes of their state."""
        return _fill_unknown(jax.tree.map(lambda a, b: jnp.asarray(b, a.dtype), old, new))
