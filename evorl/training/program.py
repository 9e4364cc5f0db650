"""What the devices run: chunks of steps and evaluations of one or several runs, in one compiled program."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from evorl import mesh, tree
from evorl.errors import OptionError, require
from evorl.training.devices import LEVEL
from evorl.types import Hyperparams, Key, Metrics, SpreadByDefault, State, Workflow
from evorl.workflows import base

Measure = Callable[[State], Metrics]  # further metrics of one run, of its state without replays
Exam = Callable[[State, Key], Metrics]  # an evaluation of one run, of its state without replays
RUNS_ONCE: dict[str, Any] = {LEVEL: 0}  # of programs quicker to run than to compile


@dataclass(frozen=True)
class Traced:
    """The functions of a program, traced for the devices that they are to run on."""

    init: jax.stages.Traced
    run: jax.stages.Lowered
    places: Any  # of every leaf of the state, where it lies


@dataclass(frozen=True)
class Program:
    """A workflow compiled: the initial states of its runs, and a chunk of steps or one evaluation of each.

    The runs go side by side (vmap), or one after the other in a loop: on a CPU, whose cores one run keeps busy, nothing
    is gained side by side, and each run would wait for the longest episode and the most updates of all.
    """

    workflow: Workflow
    seeds: Sequence[int]
    chunk: int
    side_by_side: bool
    devices: int = 1

    @cached_property
    def mesh(self) -> jax.sharding.Mesh:
        """The devices, spread over the seeds first, then the members of a population, then the slots."""
        shape = mesh_shape(self.workflow, len(self.seeds), self.devices)
        types = (jax.sharding.AxisType.Auto,) * len(mesh.AXES)
        return jax.make_mesh(shape, mesh.AXES, axis_types=types, devices=jax.devices()[: self.devices])

    def placed(self, state: Any) -> Any:
        """Of every leaf of a state, or of its shapes, where it lies."""
        seeds = [mesh.SEEDS] * (len(self.seeds) > 1)

        def place(axis: str) -> NamedSharding:
            return NamedSharding(self.mesh, PartitionSpec(*seeds, *([axis] if axis else [])))

        return jax.tree.map(place, jax.tree.broadcast(base.axes(self.workflow, state), state))

    @property
    def keys(self) -> jax.Array:
        """[seeds, 3]: of each run the keys of its initial state, its steps and its evaluations."""
        return jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(jnp.asarray(self.seeds, jnp.uint32))

    def init(self, keys: jax.Array, hyperparams: Hyperparams) -> State:
        """The initial state; leaves lead with [seeds] where there are several."""
        if len(self.seeds) == 1:
            return self.workflow.init(keys[0, 0], hyperparams)
        return jax.vmap(lambda key: self.workflow.init(key, hyperparams))(keys[:, 0])

    def traced(self, hyperparams: Hyperparams) -> Traced:
        """init and run, not compiled yet."""
        once = jax.jit(self.init)  # so that its shapes and its code come from one trace
        with jax.set_mesh(self.mesh):
            shapes = jax.eval_shape(once, self.keys, hyperparams)
            places = self.placed(shapes)

            def init_placed(keys: jax.Array, hyperparams: Hyperparams) -> State:
                return once(keys, hyperparams)

            init = jax.jit(init_placed, out_shardings=places).trace(self.keys, hyperparams)
            shapes = jax.tree.map(lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), shapes, places)
            run = jax.jit(self.run, donate_argnums=0, out_shardings=(places, None, None))
            return Traced(init, run.lower(shapes, self.keys, *job(0, 0, False)), places)

    def inherit(self, state: State, parent: State) -> State:
        """state with the weights of parent, which leads as state does and may lack its replays."""

        def one(state: State, parent: State) -> State:
            return replace(self.workflow.inherit(state, parent), hyperparams=state.hyperparams)

        if len(self.seeds) == 1:
            return one(state, parent)
        return jax.vmap(one)(state, parent)

    def measuring(self, measure: Measure, state: State, options: dict[str, Any]) -> Measure:
        """measure of every run, compiled for a state like this one, without replays."""

        def several(state: State) -> Metrics:
            return jax.vmap(measure)(state) if self.side_by_side else jax.lax.map(measure, state)

        with jax.set_mesh(self.mesh):
            each = measure if len(self.seeds) == 1 else mesh.spread(several, mesh.SEEDS, (True,), True)
            return jax.jit(each).lower(state).compile(options)

    def examining(self, exam: Exam, state: State, options: dict[str, Any]) -> Callable[..., Metrics]:
        """exam of every run by its key of evaluations, as run has it, compiled for a state without replays."""

        def one(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            return exam(state, jax.random.fold_in(keys[2], first))

        def several(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            if self.side_by_side:
                return jax.vmap(one, (0, 0, None))(state, keys, first)
            return jax.lax.map(lambda given: one(given[0], given[1], first), (state, keys))

        def alone(state: State, keys: jax.Array, first: jax.Array) -> Metrics:
            return one(state, keys[0], first)

        with jax.set_mesh(self.mesh):
            spread = mesh.spread(several, mesh.SEEDS, (True, True, False), True)
            each = alone if len(self.seeds) == 1 else spread
            return jax.jit(each).lower(state, self.keys, jnp.uint32(0)).compile(options)

    def run(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """count <= chunk steps of every run, of which step i draws from fold_in(key, first + i); or one evaluation.

        Returns the state, the steps' metrics [(seeds,) chunk, ...], of which count are filled, and the evaluation's.
        """

        def several(state: State, keys: jax.Array, *job: jax.Array) -> tuple[State, Metrics, Metrics]:
            def one(state: State, keys: jax.Array) -> tuple[State, Metrics, Metrics]:
                return self.run_one(state, keys, *job)

            return jax.vmap(one)(state, keys) if self.side_by_side else in_turn(one, state, keys)

        if len(self.seeds) == 1:
            return self.run_one(state, keys[0], first, count, evaluating)
        whole = mesh.spread(several, mesh.SEEDS, (True, True, False, False, False), True)
        return whole(state, keys, first, count, evaluating)

    def run_one(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """What run does, of one run alone, with keys [3]."""
        key = jnp.where(evaluating, keys[2], keys[1])

        @jax.jit
        def advance(state: State, i: jax.Array) -> tuple[State, Metrics, Metrics]:
            return base.advance(self.workflow, state, jax.random.fold_in(key, first + i), evaluating)

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, state, rows, _ = loop
            state, metrics, evaluation = advance(state, i)
            return i + 1, state, tree.put(rows, i, metrics), evaluation

        _, metrics, evaluation = jax.eval_shape(advance, state, jnp.int32(0))
        rows = jax.tree.map(lambda x: jnp.zeros((self.chunk, *x.shape), x.dtype), metrics)
        loop = jnp.int32(0), state, rows, tree.zeros(evaluation)
        return jax.lax.while_loop(lambda loop: loop[0] < count, step, loop)[1:]


def most_devices(workflow: Workflow, num_seeds: int) -> int:
    """As many of the devices there are as divide its seeds, or else what the workflow says to be spread by default."""
    counts = {mesh.SEEDS: num_seeds} | (workflow.parallel if isinstance(workflow, SpreadByDefault) else {})
    there = len(jax.devices())
    if there == 1:
        return 1
    return next((n for axis in mesh.AXES if (n := math.gcd(there, counts.get(axis, 1))) > 1), 1)


def mesh_shape(workflow: Workflow, num_seeds: int, devices: int) -> tuple[int, ...]:
    """Of the devices how many along each axis of a mesh.

    Raises OptionError where they do not divide what there is, with the nearest number that does, or are not there.
    """
    counts = {mesh.SEEDS: num_seeds} | base.parallel(workflow)

    def shape(devices: int) -> tuple[int, ...]:
        along = []
        for axis in mesh.AXES:
            along.append(math.gcd(devices, counts.get(axis, 1)))
            devices //= along[-1]
        return tuple(along)

    found = shape(devices)
    if math.prod(found) != devices:
        fits = [n for n in range(1, 2 * devices) if math.prod(shape(n)) == n]
        nearest = min(fits, key=lambda n: abs(n - devices))
        there = " or ".join(f"{count} {axis}" for axis, count in counts.items() if count > 1) or "1 run"
        raise OptionError(f"devices={devices}: does not divide {there}; {nearest} does")
    there = len(jax.devices())
    require(devices <= there, "devices", devices, f"must be at most {there}, as many as there are")
    return found


def in_turn(
    one: Callable[[State, Any], tuple[State, Metrics, Metrics]], state: State, given: Any
) -> tuple[State, Metrics, Metrics]:
    """What vmap gives over a state and what is given, one copy after the other."""
    one = jax.jit(one)  # so that its shapes and its code come from one trace
    count = tree.size(given)
    outputs = jax.eval_shape(one, tree.index(state, 0), tree.index(given, 0))[1:]
    outputs = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), outputs)

    def run(i: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, outputs = carry
        after, *new = one(tree.index(state, i), tree.index(given, i))
        return tree.put(state, i, after), tree.put(outputs, i, tuple(new))

    state, outputs = jax.lax.fori_loop(0, count, run, (state, outputs))
    return state, *outputs


def job(first: int, count: int, evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The arguments of Program.run that say what to do."""
    return jnp.uint32(first), jnp.int32(count), jnp.bool_(evaluating)
