"""What all who search with an evolver do: begin, ask for members, and tell of those that were evaluated."""

from collections.abc import Callable
from typing import Any

import jax

from evorl.errors import require
from evorl.keys import require_key
from evorl.types import Evolver, Key, Metrics, Params, SeedEvolver, State


def init_evolver_state(evolver: Evolver, key: Key, mean: Params, draw: Callable[[Key], Params]) -> State:
    """The first state of an evolver: around mean, or with draws as its members where it takes them."""
    require_key(key)
    if not evolver.begins_with_members:
        return evolver.init(key, mean)
    key_members, key = jax.random.split(key)
    members = jax.vmap(draw)(jax.random.split(key_members, evolver.population_size))
    return evolver.from_members(key, members, mean)


@jax.named_scope("evolution")
def ask(evolver: Evolver, key: Key, state: State) -> tuple[Params, Any, State]:
    """Return members as parameters, leaves [n, ...], their genomes where there is no way back to them, else None, and
    the state, None where asking left it as it was.

    So what is as large as a population or an archive is there once; members that are drawn as they play are genomes.
    """
    genomes, after = evolver.ask(key, state)
    left = None if after is state else after
    if isinstance(evolver, SeedEvolver):
        return genomes, genomes, left
    members = jax.vmap(evolver.to_params, (None, 0))(after, genomes)
    return members, None if evolver.takes_params else genomes, left


def merge_asked_state(after: State, state: State) -> State:
    """The state of an evolver that was asked, of what ask has given and the state before."""
    return state if after is None else after


@jax.named_scope("evolution")
def tell(evolver: Evolver, key: Key, members: Any, fitness: Any, state: State) -> tuple[State, Metrics]:
    """The state of the evolver that is told of members, as parameters, or as genomes where it takes nothing else."""
    if evolver.takes_params:
        members = jax.vmap(evolver.from_params, (None, 0))(state, members)
    return evolver.tell(key, members, fitness, state)


def center_genome(evolver: Evolver, state: State, solution: Params) -> Any:
    """The solution as a member, as `ask` gives them, leaves [...]."""
    return evolver.center_genome(state) if isinstance(evolver, SeedEvolver) else solution


def require_evolver(evolver: Any, option: str = "evolver") -> None:
    """Raises OptionError where something is no evolver."""
    require(isinstance(evolver, Evolver), option, type(evolver).__name__, "must be a subclass of evorl.types.Evolver")


def require_takes_params(evolver: Any, option: str, why: str) -> None:
    """Raises OptionError where something is no evolver that can be told of parameters that it did not ask for."""
    require_evolver(evolver, option)
    name = type(evolver).__name__
    require(evolver.takes_params, option, name, f"has no from_params, so that it cannot be told of {why}")
