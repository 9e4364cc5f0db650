"""Many that act by policies of a pool do what each does by its own weights, however they are grouped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.leduc import Leduc
from evorl.leagues.policy_grouping import apply_by_policy
from evorl.leagues.tabular_policy_set import TabularPolicySet

POLICIES, COPIES, N = 3, 5, 50
POOL = {"w": jax.random.normal(jax.random.key(0), (POLICIES, 4, 2))}
X = jax.random.normal(jax.random.key(1), (COPIES, N, 4))
WHICH = jax.random.randint(jax.random.key(2), (COPIES, N), 0, POLICIES)
KEYS = jax.random.split(jax.random.key(3), (COPIES, N))


def act(policy, x, key):
    return x @ policy["w"] + jax.random.normal(key)


def wanted(which):
    noise = jax.vmap(jax.vmap(jax.random.normal))(KEYS)[..., None]
    return np.einsum("cni,cnij->cnj", X, np.asarray(POOL["w"])[np.asarray(which)]) + noise


def several(which, x, keys, pool=POOL):
    return apply_by_policy(act, pool, which, (x, keys))


def one(which, x, key):
    return apply_by_policy(act, POOL, which[None], (x[None], key[None]))[0]


@pytest.mark.parametrize(
    ("what", "which"),
    [
        (lambda: jnp.stack([several(WHICH[i], X[i], KEYS[i]) for i in range(COPIES)]), WHICH),
        (lambda: jax.vmap(several)(WHICH, X, KEYS), WHICH),
        (lambda: jax.vmap(jax.vmap(one))(WHICH, X, KEYS), WHICH),
        (lambda: jax.vmap(several)(WHICH, X, KEYS, tree.broadcast(POOL, COPIES)), WHICH),
        (lambda: jax.vmap(several, (None, 0, 0))(WHICH[0], X, KEYS), jnp.stack([WHICH[0]] * COPIES)),
        (lambda: jax.vmap(several)(WHICH * 0 + 2, X, KEYS), WHICH * 0 + 2),  # a policy that all have
    ],
    ids=["alone", "copies", "one by one", "pools of their own", "the same policies", "one policy"],
)
def test_each_acts_by_its_own_policy(what, which):
    np.testing.assert_allclose(jax.jit(what)(), wanted(which), atol=1e-5)


def test_weights_are_not_copied_for_each():
    """Of 1,000 there are no more blocks than three times the policies."""
    which, x = jnp.zeros(1000, jnp.int32), jnp.zeros((1000, 4))
    text = str(jax.make_jaxpr(jax.vmap(one))(which, x, jax.random.split(jax.random.key(0), 1000)))
    assert "f32[1000,4,2]" not in text
    assert f"f32[{(1000 + 3 * 165) // 166},4,2]" in text


def test_players_of_a_table_find_their_information_set():
    nodes = ExtensiveFormGame(Leduc()).game_tree
    sets = len(nodes.owner)
    found = jax.jit(jax.vmap(TabularPolicySet(nodes).find_information_set))(jnp.asarray(nodes.features[:sets]))
    np.testing.assert_array_equal(found, np.arange(sets))


def test_where_nobody_acts_nothing_is_done():
    nobody = jnp.zeros((4, 0), jnp.int32), jnp.zeros((4, 0, 3))
    done = jax.vmap(lambda which, rows: apply_by_policy(lambda policy, row: row, {}, which, (rows,)))(*nobody)
    assert done.shape == (4, 0, 3)
