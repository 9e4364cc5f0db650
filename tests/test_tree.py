import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree


def test_where_selects_rows_whatever_the_rank_of_the_leaf():
    mask = jnp.array([True, False])
    new, old = {"a": jnp.ones((2, 3)), "b": jnp.ones(2)}, {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)}
    selected = tree.where(mask, new, old)
    np.testing.assert_array_equal(selected["a"], [[1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(selected["b"], [1, 0])


def test_anywhere_is_any_over_every_vmapped_axis_and_stays_unbatched():
    masks = jnp.array([[False, False], [False, True]])
    assert jax.vmap(tree.any_unbatched, out_axes=None)(masks)
    assert not jax.vmap(tree.any_unbatched, out_axes=None)(jnp.zeros((2, 2), bool))


def test_repeat_runs_each_vmapped_copy_its_own_number_of_times():
    counted = jax.vmap(lambda times: tree.repeat(times, lambda i, total: total + i, jnp.int32(0)))(jnp.array([0, 3, 5]))
    np.testing.assert_array_equal(counted, [0, 0 + 1 + 2, 0 + 1 + 2 + 3 + 4])


def test_strong_takes_away_weak_types_and_keeps_dtypes():
    leaves = tree.strong({"a": 1.0, "b": 2, "c": jnp.uint8(3)})
    assert {name: str(x.dtype) for name, x in leaves.items()} == {"a": "float32", "b": "int32", "c": "uint8"}
    assert not any(x.weak_type for x in leaves.values())


def test_nbytes_of_shapes():
    assert tree.nbytes({"a": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": jnp.zeros(5, bool)}) == 24 + 5
