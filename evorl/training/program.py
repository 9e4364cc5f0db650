"""The compiled program of a training: chunks of steps and evaluations of one or several runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import PyTree

from evorl import mesh, tree
from evorl.errors import require
from evorl.replay import distribution
from evorl.training import processes
from evorl.training.demonstrations import preload_replay
from evorl.training.device_mesh import choose_mesh_shape, make_mesh
from evorl.training.devices import fast_compile_options
from evorl.types import Key, Metrics, Numbers, State, Transition, Workflow
from evorl.workflows import base

MAX_COUNT = 2**31 - 1  # metrics are int32
Measure = Callable[[State], Metrics]  # from the state of one run, without replay buffers, to further metrics
Evaluator = Callable[[State, Key], Metrics]  # evaluates one run, given its state without replay buffers


@dataclass(frozen=True)
class ProgramTrace:
    """Traced functions of a program, for the devices that will run them."""

    init: jax.stages.Traced
    run: jax.stages.Lowered
    shapes: PyTree[jax.ShapeDtypeStruct]  # of the state, with their shardings
    shardings: PyTree[NamedSharding]  # of every leaf of the state


@dataclass(frozen=True)
class Program:
    """Program of a workflow: the initial states of its runs, and a chunk of steps or one evaluation of each run.

    Several runs are vectorized (vmap) or executed sequentially in a loop. On a CPU, one run keeps the cores
    busy. Vectorizing gains nothing there, and each run would wait for the longest episode and the most
    updates of all runs.
    """

    workflow: Workflow
    seeds: Sequence[int]
    chunk: int
    vectorized: bool
    devices: int | None = 1  # see choose_mesh_shape

    def __post_init__(self) -> None:
        most = max(base.max_env_steps(self.workflow))
        why = f"must be at most {MAX_COUNT:,} in an iteration, as they are counted in int32; use fewer or shorter runs"
        require(math.isinf(most) or most <= MAX_COUNT, "env steps", f"up to {most:,.0f}", why)

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """Return the device mesh; devices are distributed over seeds first, then members, then environments."""
        return make_mesh(choose_mesh_shape(self.workflow, len(self.seeds), self.devices))

    @property
    def of_metrics(self) -> NamedSharding | None:
        """Return the sharding of metrics: with several processes, whole on each device, so that each can read them."""
        return NamedSharding(self.mesh, PartitionSpec()) if processes.count() > 1 else None

    def get_shardings(self, state: Any) -> Any:
        """Return the sharding of every leaf of a state, given its arrays or their shapes."""
        seeds = [mesh.SEEDS] * (len(self.seeds) > 1)
        rows = distribution.find_row_specs(distribution.divide_rows(state, self.mesh.shape[mesh.ENVS]))

        def shard(axis: str, of_rows: PartitionSpec) -> NamedSharding:
            own = [axis] if axis else [*of_rows][len(seeds) :]
            return NamedSharding(self.mesh, PartitionSpec(*seeds, *own))

        axes = jax.tree.broadcast(base.state_sharding(self.workflow, state), state)
        return jax.tree.map(shard, axes, distribution.join_rows(rows))

    @cached_property
    def keys(self) -> jax.Array:
        """Return the random keys of each run, shape [seeds, 3], for its initial state, steps and evaluations."""
        split = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))
        return jax.jit(split, compiler_options=fast_compile_options())(np.asarray(self.seeds, np.uint32))

    def init(self, keys: jax.Array, numbers: Numbers) -> State:
        """Return the initial state; with several seeds, its leaves have a leading axis [seeds]."""
        if len(self.seeds) == 1:
            return self.workflow.init(keys[0, 0], numbers)
        return jax.vmap(lambda key: self.workflow.init(key, numbers))(keys[:, 0])

    def trace(self, numbers: Numbers) -> ProgramTrace:
        """Trace `init` and `run` without compiling them."""
        once = jax.jit(self.init)  # one trace gives both shapes and code
        with jax.set_mesh(self.mesh):
            shapes = jax.eval_shape(once, self.keys, numbers)
            places = self.get_shardings(shapes)

            def init_sharded(keys: jax.Array, numbers: Numbers) -> State:
                return once(keys, numbers)

            init = jax.jit(init_sharded, out_shardings=places).trace(self.keys, numbers)
            shapes = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
            run = jax.jit(self.run, donate_argnums=0, out_shardings=(places, self.of_metrics, self.of_metrics))
            lowered = run.lower(shapes, self.keys, *make_run_args(0, 0, False))
            return ProgramTrace(init, lowered, shapes, places)

    def inherit(self, state: State, parent: State) -> State:
        """Return the state with the weights of `parent`, which has the same leading axes.

        The parent may lack replay buffers.
        """

        def inherit_one(state: State, parent: State) -> State:
            return replace(self.workflow.inherit(state, parent), numbers=state.numbers)

        if len(self.seeds) == 1:
            return inherit_one(state, parent)
        return jax.vmap(inherit_one)(state, parent)

    def preload(self, state: State, demonstrations: Transition) -> State:
        """Return the state with demonstrations in its replay buffers, the same ones in each run."""

        def preload_one(state: State) -> State:
            return preload_replay(self.workflow, state, demonstrations)

        return preload_one(state) if len(self.seeds) == 1 else jax.vmap(preload_one)(state)

    def compile_measure(self, measure: Measure, state: State, options: dict[str, Any]) -> Measure:
        """Compile a measure for all runs, for states like the given one, without replay buffers."""
        evaluate = self.compile_evaluator(lambda state, key: measure(state), state, options)
        return lambda state: evaluate(state, self.keys, np.uint32(0))

    def compile_evaluator(self, evaluator: Evaluator, state: State, options: dict[str, Any]) -> Callable[..., Metrics]:
        """Compile an evaluator for all runs, for states like the given one, without replay buffers.

        The compiled function takes the state, the keys of the program and the number of the first iteration,
        as `run` does.
        """

        def evaluate_one(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            return evaluator(state, jax.random.fold_in(keys[2], first))

        def evaluate_all(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            if self.vectorized:
                return jax.vmap(evaluate_one, (0, 0, None))(state, keys, first)
            return jax.lax.map(lambda given: evaluate_one(given[0], given[1], first), (state, keys))

        def evaluate_single(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            return evaluate_one(state, keys[0], first)

        with jax.set_mesh(self.mesh):
            spread = mesh.shard_over_axis(evaluate_all, mesh.SEEDS, (True, True, False), True)
            each = evaluate_single if len(self.seeds) == 1 else spread
            evaluate = jax.jit(each, out_shardings=self.of_metrics)
            return evaluate.lower(state, self.keys, jnp.uint32(0)).compile(options)

    def run(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """Run `count` <= chunk steps of every run, or one evaluation of each.

        Step i uses the key fold_in(key, first + i).

        Returns:
            The state, the metrics of the steps [(seeds,) chunk, ...] with `count` filled rows, and the
            metrics of the evaluation.
        """

        def run_all(state: State, keys: jax.Array, *job: jax.Array) -> tuple[State, Metrics, Metrics]:
            def run_seed(state: State, keys: jax.Array) -> tuple[State, Metrics, Metrics]:
                return self.run_one(state, keys, *job)

            return jax.vmap(run_seed)(state, keys) if self.vectorized else map_sequentially(run_seed, state, keys)

        if len(self.seeds) == 1:
            return self.run_one(state, keys[0], first, count, evaluating)
        whole = mesh.shard_over_axis(run_all, mesh.SEEDS, (True, True, False, False, False), True)
        return whole(state, keys, first, count, evaluating)

    def run_one(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """Run the steps or the evaluation of `run` for a single run, with keys [3]."""
        key = jnp.where(evaluating, keys[2], keys[1])

        @jax.jit
        def advance(state: State, i: jax.Array) -> tuple[State, Metrics, Metrics]:
            return base.step_or_evaluate(self.workflow, state, jax.random.fold_in(key, first + i), evaluating)

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, state, rows, _ = loop
            state, metrics, evaluation = advance(state, i)
            return i + 1, state, tree.set_row(rows, i, metrics), evaluation

        _, metrics, evaluation = jax.eval_shape(advance, state, jnp.int32(0))
        rows = jax.tree.map(lambda x: jnp.zeros((self.chunk, *x.shape), x.dtype), metrics)
        loop = jnp.int32(0), state, rows, tree.zeros_like(evaluation)
        return jax.lax.while_loop(lambda loop: loop[0] < count, step, loop)[1:]


def map_sequentially(
    function: Callable[[State, Any], tuple[State, Metrics, Metrics]], state: State, given: Any
) -> tuple[State, Metrics, Metrics]:
    """Apply a function to each copy in a sequential loop; the result has the form of vmap."""
    function = jax.jit(function)  # one trace gives both shapes and code
    count = tree.leading_size(given)
    outputs = jax.eval_shape(function, tree.index(state, 0), tree.index(given, 0))[1:]
    outputs = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), outputs)

    def run(i: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, outputs = carry
        after, *new = function(tree.index(state, i), tree.index(given, i))
        return tree.set_row(state, i, after), tree.set_row(outputs, i, tuple(new))

    state, outputs = jax.lax.fori_loop(0, count, run, (state, outputs))
    return state, *outputs


def fold_keys(keys: jax.Array, part: int | jax.Array) -> jax.Array:
    """Return the keys of round `part` of an evaluation, [seeds, 3], from those of the program."""
    return _compile_fold_keys()(keys, part)


@cache
def _compile_fold_keys() -> Callable[..., jax.Array]:
    each = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))
    return jax.jit(each, compiler_options=fast_compile_options())


def make_run_args(first: int, count: int, evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return `first`, `count` and `evaluating` as arrays, as `Program.run` takes them."""
    job = np.uint32(first), np.int32(count), np.bool_(evaluating)
    return jax.device_put(job)  # jnp.uint32 and others would compile a program for each conversion
