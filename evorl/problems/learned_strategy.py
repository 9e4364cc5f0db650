"""A search strategy as a function of its weights: how near it gets to the optima of functions that it has not seen."""

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

TARGET_LOSS = 1e-8  # BBOB's precision, beyond which nothing counts


@dataclass(frozen=True)
class LearnedStrategy:
    """The weights of a search strategy, by the digits of precision that it reaches (Lange et al. 2023).

    arXiv:2211.11260, section 4. An evaluation searches each of these functions of BBOB, of `size` numbers, with an
    optimum, rotations and a start that the key draws, for so many generations, within the bounds as `Search` does.
    Fitness is the mean over functions of -log10 of the lowest loss of any member, at most 8, BBOB's target. The paper
    takes z-scores of a task's losses among the members of a generation instead: a log weighs tasks of any scale as
    well, and says the same of one member alone and in every generation.
    numbers are those of the evolver's field `numbers` beside its weights, by name, as they stay.
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
        """The wrapped evosax.problems.MetaBBOBProblem, of all functions."""
        from evosax.problems import MetaBBOBProblem

        with mesh.eager_mode():
            return MetaBBOBProblem(list(self.functions), self.size, self.size)

    def init(self, key: Key) -> Params:
        """Weights that have learned nothing: matrices [inputs, ...] of variance 1 / inputs, and vectors of 0."""
        leaves, structure = jax.tree.flatten(self.evolver.weights(jnp.zeros(self.size)))
        keys = jax.random.split(key, len(leaves))
        drawn = [
            jax.random.normal(one, x.shape) / jnp.sqrt(x.shape[0]) if x.ndim > 1 else jnp.zeros(x.shape)
            for one, x in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, drawn)

    def evaluate(self, key: Key, params: Params) -> Float[Array, ""]:
        """The mean number of digits over functions."""
        return self.compute_digits(key, {"numbers": {**self.numbers, "params": params}}).mean()

    def compute_digits(self, key: Key, numbers: Numbers) -> Float[Array, " functions"]:
        """Those on each function by an evolver with these hyperparameters, one function after another: vmapped over
        weights each is computed alone.
        """
        tasks = jnp.arange(len(self.functions)), jax.random.split(key, len(self.functions))
        losses = jax.lax.map(lambda task: self.loss(task[0], task[1], numbers), tasks)
        return -jnp.log10(jnp.maximum(losses, TARGET_LOSS))

    def loss(self, function: Int[Array, ""], key: Key, numbers: Numbers) -> Float[Array, ""]:
        """The lowest of any member in a search of one function, by its number, of which the key draws all else."""
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
