"""Common steps of all workflows that search with an evolver: initialize, ask and tell."""

from collections.abc import Callable
from typing import Any

import jax

from evorl.errors import require
from evorl.keys import require_key
from evorl.types import Evolver, Key, Metrics, Params, SeedEvolver, State


def init_evolver_state(evolver: Evolver, key: Key, mean: Params, draw: Callable[[Key], Params]) -> State:
    """Return the initial state of an evolver.

    The search begins around `mean`, or with individuals drawn by `draw` if the evolver begins with members.
    """
    require_key(key)
    if not evolver.begins_with_members:
        return evolver.init(key, mean)
    key_members, key = jax.random.split(key)
    members = jax.vmap(draw)(jax.random.split(key_members, evolver.population_size))
    return evolver.from_members(key, members, mean)


@jax.named_scope("evolution")
def ask(evolver: Evolver, key: Key, state: State) -> tuple[Params, Any, State]:
    """Ask an evolver for individuals.

    Returns the individuals as parameters, leaves [n, ...], followed by their genomes and the new state. The
    genomes are None if they can be computed from the parameters. The state is None if asking did not change
    it. Arrays as large as a population or an archive are therefore held only once. For a SeedEvolver, the
    individuals are the genomes themselves, from which parameters are generated during the evaluation.
    """
    genomes, after = evolver.ask(key, state)
    left = None if after is state else after
    if isinstance(evolver, SeedEvolver):
        return genomes, genomes, left
    members = jax.vmap(evolver.to_params, (None, 0))(after, genomes)
    return members, None if evolver.takes_params else genomes, left


def merge_asked_state(after: State, state: State) -> State:
    """Return the state after `ask`, which is the state before if `ask` returned None."""
    return state if after is None else after


@jax.named_scope("evolution")
def tell(evolver: Evolver, key: Key, members: Any, fitness: Any, state: State) -> tuple[State, Metrics]:
    """Report the fitness of individuals to an evolver; return its new state and metrics.

    The individuals are parameters, or genomes if the evolver does not take parameters.
    """
    if evolver.takes_params:
        members = jax.vmap(evolver.from_params, (None, 0))(state, members)
    return evolver.tell(key, members, fitness, state)


def tell_means(
    evolver: Evolver, key: Key, members: Any, means: dict[str, Any], asked: State, state: State
) -> tuple[State, Metrics]:
    """Report the fitness that an evolver computes from the mean results of individuals, as `tell` does.

    `asked` is the state that `ask` returned, and `state` the one before.
    """
    return tell(evolver, key, members, evolver.compute_fitness(means), merge_asked_state(asked, state))


def center_genome(evolver: Evolver, state: State, solution: Params) -> Any:
    """Return the solution as one individual, in the form that `ask` returns individuals."""
    return evolver.center_genome(state) if isinstance(evolver, SeedEvolver) else solution


def require_evolver(evolver: Any, option: str = "evolver") -> None:
    """Raise OptionError unless the value is an Evolver."""
    require(isinstance(evolver, Evolver), option, type(evolver).__name__, "must be a subclass of evorl.types.Evolver")


def require_no_descriptors(evolver: Any, option: str = "evolver") -> None:
    """Raise OptionError if the value is an Evolver that needs descriptors, for a search of hyperparameters."""
    needs = "needs descriptors of behavior, which hyperparameters do not have; use cma_es"
    require(not getattr(evolver, "descriptors", ()), option, type(evolver).__name__, needs)


def require_takes_params(evolver: Any, option: str, why: str) -> None:
    """Raise OptionError unless the value is an Evolver that accepts individuals as parameters."""
    require_evolver(evolver, option)
    name = type(evolver).__name__
    require(evolver.takes_params, option, name, f"has no from_params, which is needed for {why}")


def require_learns_from_others(evolver: Any, option: str, why: str) -> None:
    """Raise OptionError unless the value is an Evolver that learns from individuals that it did not ask for."""
    require_takes_params(evolver, option, why)
    ignores = "learns from the noise that it drew, not from other individuals, which is needed for"
    require(not evolver.tells_by_noise, option, type(evolver).__name__, f"{ignores} {why}")
