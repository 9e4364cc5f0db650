"""Pools of any capacity: the same PSRO in a pool of twenty policies and in one of a hundred."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.errors import OptionError
from evorl.leagues.exact import compute_payoffs
from evorl.leagues.nash import Nash
from evorl.leagues.policy_prefix import compute_on_prefix, pad_policies
from evorl.leagues.psro import PSRO
from evorl.leagues.solvers import UniformMixture, solve_meta_game


def test_the_smallest_size_that_holds_all_policies_is_computed():
    """Sizes are 16, 64 and the capacity; the last policy of any copy counts."""
    size = lambda mask: compute_on_prefix(mask, jnp.int32)  # noqa: E731
    for capacity, last, expected in [(10, 3, 10), (16, 16, 16), (100, 16, 16), (100, 17, 64), (100, 65, 100)]:
        mask = jnp.arange(capacity) == last - 1
        assert int(size(mask)) == int(jax.jit(size)(mask)) == expected
    assert int(size(jnp.zeros(100, bool))) == 16
    copies = jnp.arange(100) < jnp.array([[3], [40]])
    assert jax.jit(jax.vmap(size))(copies).tolist() == [64, 64]
    assert "cond" in str(jax.make_jaxpr(jax.vmap(size))(copies))  # a select would compute all sizes
    np.testing.assert_array_equal(pad_policies(jnp.ones((2, 1, 3)), 5), [[[1, 1, 1, 0, 0]]] * 2)


def test_errors_of_a_solver_are_raised_as_before():
    """Rock-paper-scissors is solved in a table of a hundred; a table that does not sum to a constant is refused."""
    wins = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], np.float32)
    table = np.zeros((2, 100, 100), np.float32)
    table[:, :3, :3] = wins, -wins
    mask = jnp.broadcast_to(jnp.arange(100) < 3, (2, 100))
    weights, gap = solve_meta_game(Nash(), jnp.asarray(table), mask)
    np.testing.assert_allclose(weights[:, :3], 1 / 3, atol=1e-4)
    assert weights.shape == (2, 100)
    assert float(gap) < 1e-4
    table[0, 0, 0] = 5
    with pytest.raises(OptionError, match="general-sum"):
        solve_meta_game(Nash(), jnp.asarray(table), mask)


@pytest.mark.program
@pytest.mark.parametrize(("players", "solver"), [(2, Nash()), (3, UniformMixture())])
def test_a_large_pool_does_not_change_a_training(players, solver):
    """Eighteen iterations: the policies outgrow the smallest size, for which the first fifteen are computed."""
    game, iterations = ExtensiveFormGame(Kuhn(players)), 18
    runs = {}
    for capacity in (20, 70):
        psro = PSRO(game, solver=solver, capacity=capacity)
        keys = jax.random.split(jax.random.key(0), iterations)
        runs[capacity] = jax.jit(lambda keys, psro=psro: jax.lax.scan(psro.step, psro.init(keys[0]), keys))(keys)
        state = runs[capacity][0]
        count = iterations + 1
        known = (slice(None), *[slice(count)] * players)
        mean = np.asarray(state.payoffs.mean)[known]
        np.testing.assert_allclose(mean, compute_payoffs(game.game_tree, state.pool[:count]), atol=1e-6)
        assert np.isinf(state.payoffs.episodes[known]).all()
        assert np.asarray(state.payoffs.episodes).sum(where=~np.isinf(state.payoffs.episodes)) == 0
    small, large = (metrics["nash_conv"] for _, metrics in runs.values())
    np.testing.assert_allclose(small, large, rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(runs[20][0].pool[:19], runs[70][0].pool[:19])
