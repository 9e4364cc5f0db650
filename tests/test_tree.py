import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree


def test_where_selects_rows_whatever_the_rank_of_the_leaf():
    mask = jnp.array([True, False])
    new, old = {"a": jnp.ones((2, 3)), "b": jnp.ones(2)}, {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)}
    selected = tree.select(mask, new, old)
    np.testing.assert_array_equal(selected["a"], [[1, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(selected["b"], [1, 0])


def test_rows_that_are_not_finite_are_replaced():
    rows = {"a": jnp.array([[1.0, 2.0], [jnp.nan, 4.0], [5.0, jnp.inf]]), "b": jnp.array([1, 2, 3])}
    found = tree.replace_nonfinite_rows(rows, {"a": jnp.zeros((3, 2)), "b": jnp.zeros(3, int)})
    np.testing.assert_array_equal(found["a"], [[1, 2], [0, 0], [0, 0]])
    np.testing.assert_array_equal(found["b"], [1, 0, 0])


def test_anywhere_is_any_over_every_vmapped_axis_and_stays_unbatched():
    masks = jnp.array([[False, False], [False, True]])
    assert jax.vmap(tree.any_unbatched, out_axes=None)(masks)
    assert not jax.vmap(tree.any_unbatched, out_axes=None)(jnp.zeros((2, 2), bool))


def test_repeat_runs_each_vmapped_copy_its_own_number_of_times():
    counted = jax.vmap(lambda times: tree.masked_fori_loop(times, lambda i, total: total + i, jnp.int32(0)))(
        jnp.array([0, 3, 5])
    )
    np.testing.assert_array_equal(counted, [0, 0 + 1 + 2, 0 + 1 + 2 + 3 + 4])


def test_strong_takes_away_weak_types_and_keeps_dtypes():
    leaves = tree.drop_weak_types({"a": 1.0, "b": 2, "c": jnp.uint8(3)})
    assert {name: str(x.dtype) for name, x in leaves.items()} == {"a": "float32", "b": "int32", "c": "uint8"}
    assert not any(x.weak_type for x in leaves.values())


def test_nbytes_of_shapes():
    assert tree.nbytes({"a": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": jnp.zeros(5, bool)}) == 24 + 5


def test_fingerprints_see_every_bit_of_every_type():
    level = {
        "bool": jnp.zeros(3, bool),
        "uint8": jnp.zeros(3, jnp.uint8),
        "int16": jnp.zeros((), jnp.int16),
        "bfloat16": jnp.zeros(2, jnp.bfloat16),
        "float32": jnp.zeros((2, 2)),
        "key": jax.random.key(0),
    }
    ends = [(name, end) for name, leaf in level.items() for end in (0, -1) if name != "key"]
    one = lambda x, end: x.at[(end,) * x.ndim].set(x.dtype.type(1))  # noqa: E731
    others = [{**level, name: one(level[name], end)} for name, end in ends if level[name].ndim]
    others += [{**level, "int16": jnp.int16(-1)}, {**level, "key": jax.random.key(1)}]
    found = {tuple(np.asarray(tree.hash_tree(x)).tolist()) for x in (level, *others)}
    assert len(found) == len(others) + 1 == 11
    with jax.enable_x64(True):
        double = jnp.array([1.0, 2.0], jnp.float64)
        assert (tree.hash_tree(double) != tree.hash_tree(double.at[1].add(1e-15))).any()


def test_fingerprints_of_equals_are_the_same_and_of_orders_not():
    x = jnp.array([0.0, 1.0, 2.0])
    np.testing.assert_array_equal(tree.hash_tree(x), tree.hash_tree(x.at[0].set(-0.0)))
    assert (tree.hash_tree(x) != tree.hash_tree(x[::-1])).all()
    many = jax.vmap(tree.hash_tree)(jnp.arange(1 << 16, dtype=jnp.uint32)[:, None] // jnp.array([1, 256]))
    for half in np.asarray(many).T:  # as many of 32 bits are the same as of random numbers: n^2 / 2^33, 0.5
        assert len(np.unique(half)) > len(half) - 6


def test_one_row_is_mapped_without_vmap_and_several_with_it():
    def doubled(x, y):
        return {"x": x * 2, "any": tree.any_unbatched(y > 0)}

    for rows in (1, 3):
        x = jnp.arange(2.0 * rows).reshape(rows, 2)
        found, expected = tree.vmap_unless_single(doubled)(x, x[:, 0]), jax.vmap(doubled)(x, x[:, 0])
        assert jax.tree.all(jax.tree.map(lambda a, b: a.shape == b.shape and (a == b).all(), found, expected))
    assert "custom_vmap" in str(jax.make_jaxpr(tree.vmap_unless_single(doubled))(x[:1], x[:1, 0]))
