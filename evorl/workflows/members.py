"""What the populations share: how their members train and are compared, inherit in place, and which hold no NaN."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import mesh, tree
from evorl import metrics as metrics_of
from evorl.ec.shaping import sanitize_fitness
from evorl.errors import OptionError
from evorl.replay.state_replays import join_replays, split_replays
from evorl.types import Key, Metrics, Numbers, Population, State


def member_keys(key: Key, size: int, evaluating: bool | Array) -> Key:
    """[size]: one for each member; where evaluating the same, so that all are compared on the same episodes."""
    return jnp.where(evaluating, tree.broadcast(key, size), jax.random.split(key, size))


def has_no_nan(state: State) -> Bool[Array, " size"]:
    """Which members hold no NaN in any real leaf, replays left out."""
    return jax.vmap(tree.is_nan_free)(split_replays(state)[0])


def count_ancestors(source: Int[Array, " size"]) -> Int[Array, " size"]:
    """How many ancestors each member has, 0 where it is its own source; members are no ancestors of themselves."""
    n = source.shape[0]
    ancestors = (source != jnp.arange(n)).astype(jnp.int32)
    for _ in range(n.bit_length()):  # which looks twice as far back each time
        ancestors, source = ancestors + ancestors[source], source[source]
    return ancestors


def copy_members(inherit: Callable[[State, State], State], state: State, source: Int[Array, " size"]) -> State:
    """state with each member i, where source[i] is another one, as inherit(member i, member source[i]) gives it.

    All inherit from what was there before; no member may be its own ancestor. One after the other they are written in
    place, the youngest first, so that memory is needed for one member alone. inherit sees no replay.
    """
    light, replays = split_replays(state)
    ancestors = count_ancestors(source)
    youngest_first = jnp.argsort(-ancestors)

    def copy_in_place(light: State, ancestors: Array, source: Array, youngest_first: Array) -> State:
        def step(loop: tuple[Array, State]) -> tuple[Array, State]:
            k, state = loop
            i = youngest_first[k]
            place, here = mesh.local_index(i, mesh.MEMBERS, tree.leading_size(state), len(source))
            own, parent = tree.index(state, place), mesh.broadcast_row(state, source[i], mesh.MEMBERS, len(source))

            def write(leaf: Array, old: Array, new: Array) -> Array:
                return leaf if new is old else tree.set_row(leaf, place, jnp.where((ancestors[i] > 0) & here, new, old))

            return k + 1, jax.tree.map(write, state, own, inherit(own, parent))

        def is_unfinished(loop: tuple[Array, State]) -> Array:
            return tree.any_unbatched((ancestors > 0).sum() > loop[0])

        return jax.lax.while_loop(is_unfinished, step, (jnp.int32(0), light))[1]

    whole = mesh.shard_over_axis(copy_in_place, mesh.MEMBERS, (True, False, False, False), True)
    return join_replays(whole(light, ancestors, source, youngest_first), replays)


@struct.dataclass
class LifePlan:
    """What members are to live through."""

    steps: Int[Array, ""] | int
    evaluations: Int[Array, ""] | int


@struct.dataclass
class LifeMetrics:
    """What n members have lived through, leaves [n, ...]."""

    searched_numbers: dict[str, Array]  # what is searched, as it was
    has_no_nan: Bool[Array, " n"]  # of whose state no number is NaN
    training_metrics: Metrics  # over their steps
    evaluation: Metrics

    @property
    def fitness(self) -> Float[Array, " n"]:
        """Their returns, NaN of those whose numbers are lost."""
        return jnp.where(self.has_no_nan, self.evaluation["return"], jnp.nan)

    def metrics(self) -> Metrics:
        """Those of a generation."""
        by_member = {f"members/{name}": values for name, values in self.searched_numbers.items()}
        by_member |= {"members/fitness": self.fitness, "return_best": sanitize_fitness(self.fitness).max()}
        return metrics_of.reduce_members(self.training_metrics) | by_member


def init_members(population: Population, key: Key, numbers: Numbers, env_params: Any) -> State:
    """The first state of a population whose members have numbers, leaves [n, ...]."""
    init = lambda key, numbers: population.init(key, numbers, env_params)  # noqa: E731
    return mesh.shard_over_axis(init, mesh.MEMBERS, (False, True), True)(key, numbers)


def train_and_evaluate(
    population: Population, members: State, key: Key, steps: Int[Array, ""] | int, evaluations: Int[Array, ""] | int
) -> tuple[State, Metrics, Metrics]:
    """The members after so many steps, the metrics of these, and those of the evaluations together, leaves [n, ...].

    Raises OptionError where an evaluation has no "return". It is one loop, so that one program holds physics once; of
    vmapped copies all must have the same steps and evaluations.
    """

    def train_members(members: State, key: Key, steps: Array, evaluations: Array) -> tuple[State, Metrics, Metrics]:
        @jax.jit
        def step_or_evaluate_members(members: State, i: Array) -> tuple[State, Metrics, Metrics]:
            members, step, evaluation = population.step_or_evaluate(members, jax.random.fold_in(key, i), i >= steps)
            return members, metrics_of.weight_by_episodes(step), metrics_of.weight_by_episodes(evaluation)

        def add(totals: Metrics, new: Metrics, counts: Array) -> Metrics:
            return jax.tree.map(lambda total, x: total + jnp.where(counts, x, 0), totals, new)

        def run_once(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, members, trained, evaluated = loop
            members, step, evaluation = step_or_evaluate_members(members, i)
            return i + 1, members, add(trained, step, i < steps), add(evaluated, evaluation, i >= steps)

        none = tree.zeros_like(jax.eval_shape(step_or_evaluate_members, members, jnp.int32(0))[1:])
        if "return" not in none[1]:
            name = type(population.inner).__name__
            raise OptionError(f'{name}: its evaluation has no "return", by which members are compared')
        _, members, trained, evaluated = jax.lax.while_loop(
            lambda loop: tree.any_unbatched(loop[0] < steps + evaluations), run_once, (jnp.int32(0), members, *none)
        )
        return (
            members,
            metrics_of.average_sums(trained, jnp.maximum(steps, 1)),
            metrics_of.average_sums(evaluated, evaluations),
        )

    whole = mesh.shard_over_axis(train_members, mesh.MEMBERS, (True, False, False, False), True)
    return whole(members, key, jnp.int32(steps), jnp.int32(evaluations))
