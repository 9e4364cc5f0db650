from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import TD3
from evorl.parts import resolve_numbers
from evorl.workflows import Vmapped, members
from tests.conftest import leaves_equal
from tests.tiny import OFF_POLICY

N = 9


def state(n=N):
    """Of members that hold weights to pass on, and a key and experience to keep."""
    return {
        "weights": {"kernel": jnp.arange(6.0 * n).reshape(n, 3, 2), "steps": jnp.arange(n)},
        "experience": -jnp.arange(float(n)),
        "key": jax.random.split(jax.random.key(0), n),
    }


def inherit(state, parent):
    return state | {"weights": jax.tree.map(lambda x: x + 0, parent["weights"])}


def gathered(state, source):
    return state | {"weights": tree.index(state["weights"], source)}


def forest(rng, n=N):
    """Sources of which none is its own ancestor: each takes over one that comes before it in some order, or none."""
    order, source = rng.permutation(n), np.arange(n)
    for place in range(1, n):
        if rng.random() < 0.7:
            source[order[place]] = order[rng.integers(place)]
    return source


def data(state):
    return state | {"key": jax.random.key_data(state["key"])}


def as_numbers(state):
    return state | {"key": jax.random.key_data(state["key"])}


def test_copies_in_place_are_a_gather_whatever_the_forest():
    rng = np.random.default_rng(0)
    copy = jax.jit(lambda source: members.copy_members(inherit, state(), source))
    chains = np.maximum(np.arange(N) - 1, 0), np.minimum(np.arange(N) + 1, N - 1)
    for source in (np.arange(N), np.zeros(N, int), *chains, *(forest(rng) for _ in range(100))):
        source = jnp.asarray(source, jnp.int32)
        assert leaves_equal(as_numbers(copy(source)), as_numbers(gathered(state(), source)))


def test_copies_in_place_of_several_seeds_are_those_of_each():
    rng = np.random.default_rng(1)
    sources = jnp.array([np.arange(N), *(forest(rng) for _ in range(3))])
    copied = jax.jit(jax.vmap(lambda source: members.copy_members(inherit, state(), source)))(sources)
    assert leaves_equal(as_numbers(copied), as_numbers(jax.vmap(lambda source: gathered(state(), source))(sources)))


@pytest.mark.program
def test_members_that_are_populations_are_copied_whole(key):
    inner = Vmapped(OFF_POLICY, 2)
    population = Vmapped(inner, 3)
    state = jax.jit(population.init)(key, tree.broadcast(resolve_numbers(OFF_POLICY), 3, 2))
    source = jnp.array([1, 2, 2])
    copied = jax.jit(population.copy_members)(state, source)
    assert leaves_equal(copied, jax.vmap(inner.inherit)(state, tree.index(state, source)))
    assert leaves_equal(copied.agent, tree.index(state.agent, source))


def test_ancestors_are_counted_by_hand():
    np.testing.assert_array_equal(members.count_ancestors(jnp.array([0, 0, 1, 2, 4, 3, 4])), [0, 1, 2, 3, 0, 4, 1])


@pytest.mark.program
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_copy_takes_the_memory_of_one_member(key, seeds):
    inner = replace(OFF_POLICY, agent=TD3(hidden=(64, 64)))
    population, numbers = Vmapped(inner, 64), tree.broadcast(resolve_numbers(inner), 64)
    state = jax.eval_shape(jax.vmap(population.init, (0, None)), jax.random.split(key, seeds), numbers)
    source = jnp.zeros((seeds, 64), jnp.int32)
    copy = jax.jit(jax.vmap(population.copy_members), donate_argnums=0)
    memory = copy.lower(state, source).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 0.99 * tree.nbytes(state)
    assert memory.temp_size_in_bytes < 0.1 * tree.nbytes(state.agent)
