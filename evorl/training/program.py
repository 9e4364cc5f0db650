"""What the device runs: chunks of steps and evaluations of one or several runs, in one compiled program."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from evorl import tree
from evorl.types import Hyperparams, Metrics, State, Workflow
from evorl.workflows import base

RUNS_ONCE: dict[str, Any] = {"xla_backend_optimization_level": 0}  # of programs quicker to run than to compile


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

    @property
    def keys(self) -> jax.Array:
        """[seeds, 3]: of each run the keys of its initial state, its steps and its evaluations."""
        return jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 3))(jnp.asarray(self.seeds, jnp.uint32))

    def init(self, keys: jax.Array, hyperparams: Hyperparams) -> State:
        """The initial state; leaves lead with [seeds] where there are several."""
        if len(self.seeds) == 1:
            return self.workflow.init(keys[0, 0], hyperparams)
        return jax.vmap(lambda key: self.workflow.init(key, hyperparams))(keys[:, 0])

    def inherit(self, state: State, parent: State) -> State:
        """state with the weights of parent, which leads as state does and may lack its replays."""

        def one(state: State, parent: State) -> State:
            return replace(self.workflow.inherit(state, parent), hyperparams=state.hyperparams)

        if len(self.seeds) == 1:
            return one(state, parent)
        return jax.vmap(one)(state, parent)

    def run(
        self, state: State, keys: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
        """count <= chunk steps of every run, of which step i draws from fold_in(key, first + i); or one evaluation.

        Returns the state, the steps' metrics [(seeds,) chunk, ...], of which count are filled, and the evaluation's.
        """

        def one(state: State, keys: jax.Array) -> tuple[State, Metrics, Metrics]:
            return self._run_one(state, jnp.where(evaluating, keys[2], keys[1]), first, count, evaluating)

        if len(self.seeds) == 1:
            return one(state, keys[0])
        if self.side_by_side:
            return jax.vmap(one)(state, keys)
        one = jax.jit(one)  # so that its shapes and its code come from one trace
        outputs = jax.eval_shape(one, tree.index(state, 0), keys[0])[1:]
        outputs = jax.tree.map(lambda x: jnp.zeros((len(self.seeds), *x.shape), x.dtype), outputs)

        def run(seed: jax.Array, carry: tuple[State, Any]) -> tuple[State, Any]:
            state, outputs = carry
            after, *new = one(tree.index(state, seed), keys[seed])
            return tree.put(state, seed, after), tree.put(outputs, seed, tuple(new))

        state, outputs = jax.lax.fori_loop(0, len(self.seeds), run, (state, outputs))
        return state, *outputs

    def _run_one(
        self, state: State, key: jax.Array, first: jax.Array, count: jax.Array, evaluating: jax.Array
    ) -> tuple[State, Metrics, Metrics]:
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


def job(first: int, count: int, evaluating: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The arguments of Program.run that say what to do."""
    return jnp.uint32(first), jnp.int32(count), jnp.bool_(evaluating)
