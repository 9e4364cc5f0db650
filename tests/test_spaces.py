"""Spaces of any nesting: to and from Gymnasium's, their parts, and which choices are legal."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from scipy.stats import chisquare

from evorl import spaces
from evorl.agents import TD3
from evorl.agents.differentiable_actions import squash_to_bounds
from evorl.envs.suites.gymnasium import from_gymnasium_space, to_gymnasium_space
from evorl.errors import OptionError
from evorl.networks.distributions import Head
from evorl.networks.features import features, num_features
from evorl.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, ObsWithActionMask, Tuple
from evorl.spaces.action_mask import MASKED_LOGIT

DTYPES = (np.float32, np.float64, np.int32, np.uint8, np.int64)


def drawn(rng: np.random.Generator, depth: int = 3) -> gymnasium.Space:
    """A space of Gymnasium, nested up to depth."""
    shape = tuple(rng.integers(1, 4, rng.integers(0, 3)).tolist())
    match rng.integers(6 if depth else 4):
        case 0:
            dtype = DTYPES[rng.integers(len(DTYPES))]
            low = rng.integers(0, 9, shape).astype(dtype)
            return gymnasium.spaces.Box(low, (low + rng.integers(1, 9, shape)).astype(dtype), shape, dtype)
        case 1:
            return gymnasium.spaces.Discrete(int(rng.integers(1, 9)), start=int(rng.integers(-5, 5)))
        case 2:
            shape = shape or (2,)
            return gymnasium.spaces.MultiDiscrete(rng.integers(1, 9, shape), start=rng.integers(-5, 5, shape))
        case 3:
            return gymnasium.spaces.MultiBinary(shape if len(shape) == 2 else 3)  # of a row by its length
        case 4:
            return gymnasium.spaces.Dict({name: drawn(rng, depth - 1) for name in "bca"[: rng.integers(1, 4)]})
    return gymnasium.spaces.Tuple([drawn(rng, depth - 1) for _ in range(rng.integers(1, 4))])


def test_random_nested_spaces_go_and_return_exactly():
    rng = np.random.default_rng(0)
    for i in range(500):
        theirs = drawn(rng)
        theirs.seed(i)
        ours, value = from_gymnasium_space(theirs), theirs.sample()
        assert to_gymnasium_space(ours) == theirs
        assert to_gymnasium_space(ours).contains(value)
        assert hash(ours) == hash(from_gymnasium_space(theirs))
        parts = spaces.flatten(ours, value)
        for part, leaf in zip(parts, spaces.leaf_spaces(ours), strict=True):
            assert np.shape(part) == leaf.shape
            low, high = leaf.bounds
            assert (low <= part).all()
            assert (part <= high).all()
        assert data_equivalence(spaces.unflatten(ours, parts), value)


@pytest.mark.program
def test_samples_are_of_the_space_as_gymnasium_judges():
    rng = np.random.default_rng(1)
    for i in range(20):
        ours = spaces.narrow_dtypes(from_gymnasium_space(drawn(rng)))
        value = jax.tree.map(np.asarray, ours.sample(jax.random.key(i)))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), value) == jax.tree.map(
            lambda x: (x.shape, x.dtype), spaces.to_shape_structs(ours)
        )
        for part, leaf in zip(spaces.flatten(ours, value), spaces.leaf_spaces(ours), strict=True):
            assert (leaf.bounds[0] <= part).all()
            assert (part <= leaf.bounds[1]).all()


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(-1, 1, "int8"), (0, 3, "uint8"), (-128, 127, "int8"), (0, 255, "uint8"), (-2, 2, "int32")],
)
def test_integers_are_sampled_uniformly_with_both_bounds(low, high, dtype):
    space = Box(low, high, (20_000,), dtype)
    found = np.asarray(space.sample(jax.random.key(0)))
    assert found.dtype == dtype
    values, counts = np.unique(found, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(low, high + 1))
    assert chisquare(counts).pvalue > 1e-3


def test_integers_of_32_bits_have_bounds_of_any_size():
    for space in (Box(-(2**31), 2**31 - 1, (99,), "int32"), Box(0, 2**32 - 1, (99,), "uint32")):
        found = np.asarray(space.sample(jax.random.key(0))).astype(float)
        half = (space.bounds[1].astype(float) + space.bounds[0]) / 2
        assert (found > half).any()
        assert (found < half).any()


@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-128, 127, "int8"), (-100, 100, "int8"), (100, 200, "uint8"), (0, 1, "float32")]
)
def test_policies_reach_the_bounds_of_any_dtype(low, high, dtype):
    space = Box(low, high, (2,), dtype)
    np.testing.assert_allclose(Head(space).to_action(jnp.array([-9.0, 9.0])), [low, high], atol=1e-2)
    np.testing.assert_allclose(squash_to_bounds(space, jnp.array([-9.0, 9.0])), [low, high], atol=1e-2)
    agent = TD3(observation_space=space, action_space=space)
    np.testing.assert_allclose(agent.to_action(jnp.array([-1.0, 1.0])), [low, high], rtol=1e-6)


def test_integers_are_scaled_by_their_largest_bound():
    assert features(Box(-128, 0, (2,), "int8"), jnp.array([-128, 0], jnp.int8)).tolist() == [-1, 0]
    assert features(Box(0, 0, (1,), "int8"), jnp.zeros(1, jnp.int8)).tolist() == [0]


def test_a_space_that_is_not_known_is_refused():
    with pytest.raises(OptionError, match="Text: must be Box"):
        from_gymnasium_space(gymnasium.spaces.Text(3))


def test_features_are_those_of_gymnasium_where_nothing_is_scaled():
    theirs = gymnasium.spaces.Dict(
        {
            "a": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3, start=2), gymnasium.spaces.MultiBinary(4)]),
            "b": gymnasium.spaces.MultiDiscrete([[2, 3]], start=[[1, 5]]),
            "c": gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
        }
    )
    theirs.seed(3)
    ours, values = from_gymnasium_space(theirs), [theirs.sample() for _ in range(5)]
    for value in values:
        flat = features(ours, jax.tree.map(jnp.asarray, value))
        expected = gymnasium.spaces.flatten(theirs, value)
        np.testing.assert_allclose(flat, expected, rtol=1e-6)
    assert num_features(ours) == gymnasium.spaces.flatdim(theirs) == flat.size


def test_64_bits_become_32():
    space = Dict({"x": Box(-(2.0**40), 0.1, (2,), "float64"), "n": Box(-(2**40), 7, (), "int64")})
    narrow = spaces.narrow_dtypes(space)
    assert narrow.parts["n"] == Box(-(2**31), 7, (), "int32")
    assert narrow.parts["x"].dtype == "float32"


class TestLegal:
    space = ObsWithActionMask(Box(0.0, 1.0, (2,)), (3, 2))

    def obs(self, *legal):
        return {"obs": jnp.zeros(2), "legal": jnp.array(legal, bool)}

    def test_illegal_choices_are_worth_less_than_any_other_and_are_finite(self):
        numbers = jnp.array([1.0, 2, 3, 4, 5])
        masked = spaces.mask_logits(self.space, self.obs(1, 0, 1, 0, 1), numbers)
        np.testing.assert_array_equal(masked, [1, MASKED_LOGIT, 3, MASKED_LOGIT, 5])

    def test_a_number_without_a_legal_choice_has_all(self):
        numbers = jnp.array([1.0, 2, 3, 4, 5])
        masked = spaces.mask_logits(self.space, self.obs(0, 0, 0, 0, 1), numbers)
        np.testing.assert_array_equal(masked, [1, 2, 3, MASKED_LOGIT, 5])

    def test_random_actions_are_legal_and_uniform(self):
        action = MultiDiscrete((3, 2), (10, 0))
        keys = jax.random.split(jax.random.key(0), 3000)
        draw = jax.jit(jax.vmap(lambda key: spaces.random_action(action, self.space, self.obs(1, 0, 1, 1, 1), key)))
        first, second = np.asarray(draw(keys)).T
        values, counts = np.unique(first, return_counts=True)
        assert values.tolist() == [10, 12]
        assert abs(counts[0] / 3000 - 0.5) < 0.04
        assert set(second) == {0, 1}

    def test_parts_are_in_the_order_of_leaves(self):
        value = self.obs(1, 1, 1, 1, 0)
        assert [leaf.shape for leaf in spaces.leaf_spaces(self.space)] == [(5,), (2,)]
        again = spaces.unflatten(self.space, spaces.flatten(self.space, value))
        assert again.keys() == value.keys()
        assert spaces.get_visible_space(self.space) == Box(0.0, 1.0, (2,))


def test_choices_become_values_of_any_nesting():
    space = Tuple((Discrete(3, 4), Dict({"a": MultiBinary((2, 1)), "b": MultiDiscrete((2, 2), (1, 1))})))
    value = spaces.action_from_indices(space, jnp.array([[2, 1, 0, 1, 0]]))
    assert value[0].tolist() == [6]
    assert value[1]["a"].tolist() == [[[1], [0]]]
    assert value[1]["a"].dtype == jnp.int8
    assert value[1]["b"].tolist() == [[2, 1]]
    assert spaces.choice_counts(space) == [3, 2, 2, 2, 2]
