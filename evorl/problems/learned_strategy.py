"""Meta-learning of search strategies: the weights of a strategy are rated by the optima that it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jaxtyping import Array, Float, Int

from evorl import mesh
from evorl.bounds import BoundTransform
from evorl.errors import require, require_int, unknown_name_error
from evorl.parts import bind
from evorl.problems.bbob import BBOB
from evorl.types import Evolver, Key, Numbers, Params

TARGET_LOSS = 1e-8  # BBOB's target precision; lower losses count as this one


@dataclass(frozen=True)
class LearnedStrategy:
    """Weights of a learned search strategy, rated by the precision that it reaches on BBOB functions.

    An evaluation searches each function for a fixed number of generations, within the bounds as `Search`
    does. The key determines the position of the optimum, the rotations and the start. Fitness is the mean
    over functions of -log10 of the lowest loss of any individual, at most 8, which is BBOB's target
    precision.

    The paper uses the z-scores of a task's losses among the individuals of a generation instead. The
    logarithm also gives tasks of any scale the same weight, and it rates an individual independently of the
    others and of the generation.

    Args:
        evolver: Learned evolver; the weights are its hyperparameter `params`.
        numbers: Values of the evolver's other hyperparameters by name, which stay fixed.
        functions: Names of the BBOB functions.
        size: Number of parameters of each function, at least 2.
        generations: Number of generations of each search.

    Source: Lange et al. 2023, arXiv:2211.11260, section 4.
    """

    evolver: Evolver
    numbers: Mapping[str, Any] = field(default_factory=FrozenDict)
    functions: Sequence[str] = ("sphere", "rosenbrock", "discus", "rastrigin", "schwefel")
    size: int = 10
    generations: int = 50

    bounds = (-float("inf"), float("inf"))

    def __post_init__(self) -> None:
        from evosax.problems import bbob_fns

        object.__setattr__(self, "numbers", FrozenDict(self.numbers))
        object.__setattr__(self, "functions", tuple(self.functions))
        require(len(self.functions) > 0, "functions", [], "must name at least one")
        for name in self.functions:
            if name not in bbob_fns:
                raise unknown_name_error("BBOB function", name, bbob_fns)
        require_int("size", self.size, 2)
        require_int("generations", self.generations)

    @cached_property
    def tasks(self) -> Any:
        """Return the wrapped evosax.problems.MetaBBOBProblem with all functions."""
        from evosax.problems import MetaBBOBProblem

        with mesh.eager_mode():
            return MetaBBOBProblem(list(self.functions), self.size, self.size)

    def init(self, key: Key) -> Params:
        """Sample untrained weights: matrices [inputs, ...] have variance 1 / inputs, vectors are 0."""
        leaves, structure = jax.tree.flatten(self.evolver.weights(jnp.zeros(self.size)))
        keys = jax.random.split(key, len(leaves))
        drawn = [
            jax.random.normal(one, x.shape) / jnp.sqrt(x.shape[0]) if x.ndim > 1 else jnp.zeros(x.shape)
            for one, x in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, drawn)

    def evaluate(self, key: Key, params: Params) -> Float[Array, ""]:
        """Return the mean precision over functions, in digits."""
        return self.compute_digits(key, {"numbers": {**self.numbers, "params": params}}).mean()

    def compute_digits(self, key: Key, numbers: Numbers) -> Float[Array, " functions"]:
        """Return the precision, in digits, that an evolver reaches on each function.

        The functions are searched sequentially. Under vmap over weights, each of them is computed for all
        weights at once.

        Args:
            key: Random key.
            numbers: Hyperparameters of the evolver, including its weights.

        Returns:
            -log10 of the lowest loss on each function, shape [functions].
        """
        tasks = jnp.arange(len(self.functions)), jax.random.split(key, len(self.functions))
        losses = jax.lax.map(lambda task: self.loss(task[0], task[1], numbers), tasks)
        return -jnp.log10(jnp.maximum(losses, TARGET_LOSS))

    def loss(self, function: Int[Array, ""], key: Key, numbers: Numbers) -> Float[Array, ""]:
        """Return the lowest loss of any individual in the search of one function.

        Args:
            function: Index of the function, shape [].
            key: Random key, which determines the optimum, the rotations, the start and the search.
            numbers: Hyperparameters of the evolver, including its weights.
        """
        key_task, key_start, key_init, key = jax.random.split(key, 4)
        task = self.tasks.sample_params(key_task).replace(fn_id=function, f_opt=jnp.float32(0))
        evolver, box = bind(self.evolver, numbers), BoundTransform(*BBOB.bounds)

        def generation(state: Any, key: Key) -> tuple[Any, Array]:
            key_ask, key_play, key_tell = jax.random.split(key, 3)
            genomes, state = evolver.ask(key_ask, state)
            members = box.fold_array(jax.vmap(evolver.to_params, (None, 0))(state, genomes))
            losses, _, _ = self.tasks.eval(key_play, members, self.tasks.init(key_play, task), task)
            state, _ = evolver.tell(key_tell, genomes, -losses, state)
            return state, jnp.nanmin(losses)

        start = box.unfold(BBOB("sphere", self.size).init(key_start))
        state = evolver.init(key_init, start)
        return jnp.nanmin(jax.lax.scan(generation, state, jax.random.split(key, self.generations))[1])
