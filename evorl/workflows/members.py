"""What the populations share: how their members train and are compared, inherit in place, and which hold no NaN."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from evorl import mesh, tree
from evorl import metrics as metrics_of
from evorl.ec.shaping import comparable
from evorl.errors import OptionError
from evorl.replay import join, split
from evorl.types import Hyperparams, Key, Metrics, Population, State


def keys(key: Key, size: int, evaluating: bool | Array) -> Key:
    """[size]: one for each member; where evaluating the same, so that all are compared on the same episodes."""
    return jnp.where(evaluating, tree.broadcast(key, size), jax.random.split(key, size))


def has_no_nan(state: State) -> Bool[Array, " size"]:
    """Which members hold no NaN in any real leaf, replays left out."""
    return jax.vmap(tree.has_no_nan)(split(state)[0])


def generation(source: Int[Array, " size"]) -> Int[Array, " size"]:
    """How many ancestors each member has, 0 where it is its own source; members are no ancestors of themselves."""
    n = source.shape[0]
    ancestors = (source != jnp.arange(n)).astype(jnp.int32)
    for _ in range(n.bit_length()):  # which looks twice as far back each time
        ancestors, source = ancestors + ancestors[source], source[source]
    return ancestors


def copy(inherit: Callable[[State, State], State], state: State, source: Int[Array, " size"]) -> State:
    """state with each member i, where source[i] is another one, as inherit(member i, member source[i]) gives it.

    All inherit from what was there before; no member may be its own ancestor. One after the other they are written in
    place, the youngest first, so that memory is needed for one member alone. inherit sees no replay.
    """
    light, replays = split(state)
    ancestors = generation(source)
    youngest_first = jnp.argsort(-ancestors)

    def copied(light: State, ancestors: Array, source: Array, youngest_first: Array) -> State:
        def step(loop: tuple[Array, State]) -> tuple[Array, State]:
            k, state = loop
            i = youngest_first[k]
            place, here = mesh.place(i, mesh.MEMBERS, tree.size(state), len(source))
            own, parent = tree.index(state, place), mesh.fetched(state, source[i], mesh.MEMBERS, len(source))

            def write(leaf: Array, old: Array, new: Array) -> Array:
                return leaf if new is old else tree.put(leaf, place, jnp.where((ancestors[i] > 0) & here, new, old))

            return k + 1, jax.tree.map(write, state, own, inherit(own, parent))

        def unfinished(loop: tuple[Array, State]) -> Array:
            return tree.any_unbatched((ancestors > 0).sum() > loop[0])

        return jax.lax.while_loop(unfinished, step, (jnp.int32(0), light))[1]

    whole = mesh.spread(copied, mesh.MEMBERS, (True, False, False, False), True)
    return join(whole(light, ancestors, source, youngest_first), replays)


@struct.dataclass
class Life:
    """What members are to live through."""

    steps: Any  # [] int32
    evaluations: Any  # [] int32


@struct.dataclass
class Lived:
    """What n members have lived through, leaves [n, ...]."""

    numbers: dict[str, Array]  # what is searched, as it was
    has_no_nan: Any  # bool, of whose state no number is NaN
    trained: Metrics  # over their steps
    evaluation: Metrics

    @property
    def fitness(self) -> Float[Array, " n"]:
        """Their returns, NaN of those whose numbers are lost."""
        return jnp.where(self.has_no_nan, self.evaluation["return"], jnp.nan)

    def metrics(self) -> Metrics:
        """Those of a generation."""
        by_member = {f"members/{name}": values for name, values in self.numbers.items()}
        by_member |= {"members/fitness": self.fitness, "return_best": comparable(self.fitness).max()}
        return metrics_of.over_members(self.trained) | by_member


def born(population: Population, key: Key, hyperparams: Hyperparams, env_params: Any) -> State:
    """The first state of a population whose members have hyperparams, leaves [n, ...]."""
    init = lambda key, hyperparams: population.init(key, hyperparams, env_params)  # noqa: E731
    return mesh.spread(init, mesh.MEMBERS, (False, True), True)(key, hyperparams)


def train_and_evaluate(
    population: Population, members: State, key: Key, steps: Int[Array, ""] | int, evaluations: Int[Array, ""] | int
) -> tuple[State, Metrics, Metrics]:
    """The members after so many steps, the metrics of these, and those of the evaluations together, leaves [n, ...].

    Raises OptionError where an evaluation has no "return". It is one loop, so that one program holds physics once; of
    vmapped copies all must have the same steps and evaluations.
    """

    def live(members: State, key: Key, steps: Array, evaluations: Array) -> tuple[State, Metrics, Metrics]:
        @jax.jit
        def advance(members: State, i: Array) -> tuple[State, Metrics, Metrics]:
            members, step, evaluation = population.advance(members, jax.random.fold_in(key, i), i >= steps)
            return members, metrics_of.weighted(step), metrics_of.weighted(evaluation)

        def add(totals: Metrics, new: Metrics, counts: Array) -> Metrics:
            return jax.tree.map(lambda total, x: total + jnp.where(counts, x, 0), totals, new)

        def once(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            i, members, trained, evaluated = loop
            members, step, evaluation = advance(members, i)
            return i + 1, members, add(trained, step, i < steps), add(evaluated, evaluation, i >= steps)

        none = tree.zeros(jax.eval_shape(advance, members, jnp.int32(0))[1:])
        if "return" not in none[1]:
            name = type(population.inner).__name__
            raise OptionError(f'{name}: its evaluation has no "return", by which members are compared')
        _, members, trained, evaluated = jax.lax.while_loop(
            lambda loop: tree.any_unbatched(loop[0] < steps + evaluations), once, (jnp.int32(0), members, *none)
        )
        return members, metrics_of.averaged(trained, jnp.maximum(steps, 1)), metrics_of.averaged(evaluated, evaluations)

    whole = mesh.spread(live, mesh.MEMBERS, (True, False, False, False), True)
    return whole(members, key, jnp.int32(steps), jnp.int32(evaluations))
