"""Functions that populations share: training, comparison and inheritance of members, and the test for NaN."""

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
from evorl.vector_env import hosts


def member_keys(key: Key, size: int, evaluating: bool | Array) -> Key:
    """Return one key per member, [size]; in an evaluation all are equal, so that members play the same episodes."""
    return jnp.where(evaluating, tree.broadcast(key, size), jax.random.split(key, size))


def has_no_nan(state: State) -> Bool[Array, " size"]:
    """Return which members have no NaN in any floating-point leaf of their state; replay buffers are not checked."""
    return jax.vmap(tree.is_nan_free)(split_replays(state)[0])


def count_ancestors(source: Int[Array, " size"]) -> Int[Array, " size"]:
    """Return the number of ancestors of each member, 0 if it is its own source; no member may descend from itself."""
    n = source.shape[0]
    ancestors = (source != jnp.arange(n)).astype(jnp.int32)
    for _ in range(n.bit_length()):  # each turn looks twice as far back
        ancestors, source = ancestors + ancestors[source], source[source]
    return ancestors


def copy_members(inherit: Callable[[State, State], State], state: State, source: Int[Array, " size"]) -> State:
    """Replace each member i whose source is another member by inherit(member i, member source[i]).

    All members inherit from the state before the call, and no member may be its own ancestor. The members are
    written in place and sequentially, those with the most ancestors first, so that only one additional member
    is in memory. `inherit` gets states without replay buffers.
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
class PopulationPlan:
    """Plan of the members of a population: a number of training steps, then a number of evaluations."""

    steps: Int[Array, ""] | int
    evaluations: Int[Array, ""] | int


@struct.dataclass
class PopulationMetrics:
    """Metrics of n members that were trained and evaluated, leaves [n, ...]."""

    searched_numbers: dict[str, Array]  # searched hyperparameters during the training, by name
    has_no_nan: Bool[Array, " n"]  # members whose state contains no NaN
    training_metrics: Metrics  # over the training steps
    evaluation: Metrics

    @property
    def fitness(self) -> Float[Array, " n"]:
        """Return the mean return of each member, NaN if its state contains NaN."""
        return jnp.where(self.has_no_nan, self.evaluation["return"], jnp.nan)

    @property
    def env_steps(self) -> Float[Array, ""]:
        """Return the env steps of all members, in training and evaluation."""
        trained = (
            jnp.asarray(self.training_metrics.get("env_steps", 0)),
            metrics_of.count_evaluation_steps(self.evaluation),
        )
        return sum((jnp.asarray(x, jnp.float32).sum() for x in trained), jnp.float32(0))

    def count_steps_in(self, reported: Metrics) -> Metrics:
        """Return the reported metrics of this evaluation, which then count the env steps of all members."""
        played = reported.get("episodes", 0) * reported.get("episode_length", 0)
        return reported | {metrics_of.MEASURED_STEPS: self.env_steps - played}

    def metrics(self) -> Metrics:
        """Return the metrics of a generation."""
        by_member = {f"members/{name}": values for name, values in self.searched_numbers.items()}
        known = ~jnp.isnan(self.fitness).all()
        best = jnp.where(known, sanitize_fitness(self.fitness).max(), jnp.nan)
        by_member |= {"members/fitness": self.fitness, "return_best": best}
        return metrics_of.reduce_members(self.training_metrics) | by_member


def init_members(population: Population, key: Key, numbers: Numbers, env_params: Any) -> State:
    """Return the initial state of a population whose members have the given hyperparameters, leaves [n, ...]."""
    init = lambda key, numbers: population.init(key, numbers, env_params)  # noqa: E731
    return mesh.shard_over_axis(init, mesh.MEMBERS, (False, True), True)(key, numbers)


def train_and_evaluate(
    population: Population, members: State, key: Key, steps: Int[Array, ""] | int, evaluations: Int[Array, ""] | int
) -> tuple[State, Metrics, Metrics]:
    """Train all members for a number of steps, then evaluate them.

    The return of an evaluation is NaN if an episode of it was cut and not replaced by another, so that no member
    gains from such an end.

    Steps and evaluations are turns of one loop, so that the program contains the physics once. `steps` and
    `evaluations` must each be the same for all vmapped copies.

    Returns:
        The members, the metrics of the steps, and the combined metrics of the evaluations, leaves [n, ...].

    Raises:
        OptionError: If the evaluation has no "return".
    """

    def train_members(members: State, key: Key, steps: Array, evaluations: Array) -> tuple[State, Metrics, Metrics]:
        @jax.jit
        def step_or_evaluate_members(members: State, i: Array) -> tuple[State, Metrics, Metrics]:
            members, step, evaluation = population.step_or_evaluate(members, jax.random.fold_in(key, i), i >= steps)
            return members, metrics_of.weight_by_episodes(step), metrics_of.weight_by_episodes(evaluation)

        def add(totals: Metrics, new: Metrics, mask: Array) -> Metrics:
            return jax.tree.map(lambda total, x: total + jnp.where(mask, x, 0), totals, new)

        def run_once(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, members, trained, evaluated = loop
            members, step, evaluation = step_or_evaluate_members(members, i)
            return i + 1, members, add(trained, step, i < steps), add(evaluated, evaluation, i >= steps)

        none = tree.zeros_like(jax.eval_shape(step_or_evaluate_members, members, jnp.int32(0))[1:])
        if "return" not in none[1]:
            name = type(population.inner).__name__
            raise OptionError(f'{name}: its evaluation must report "return", by which members are compared')
        _, members, trained, evaluated = jax.lax.while_loop(
            lambda loop: tree.any_unbatched(loop[0] < steps + evaluations), run_once, (jnp.int32(0), members, *none)
        )
        evaluation = metrics_of.average_sums(evaluated, evaluations)
        if not hosts.collect_leases(members):  # environments on the host replace episodes
            cut = jnp.asarray(evaluation.get("restarts", 0)) > 0
            evaluation["return"] = jnp.where(cut, jnp.nan, evaluation["return"])
        return members, metrics_of.average_sums(trained, jnp.maximum(steps, 1)), evaluation

    whole = mesh.shard_over_axis(train_members, mesh.MEMBERS, (True, False, False, False), True)
    return whole(members, key, jnp.int32(steps), jnp.int32(evaluations))
