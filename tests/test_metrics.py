import jax.numpy as jnp
import numpy as np
import pytest

from evorl.metrics import reduce_steps
from evorl.training.progress import Progress
from evorl.training.records.rows import make_row

STEPS = {  # of two members; the second one ends no episode
    "env_steps": [[2**30, 5], [2**30 - 1, 5]],
    "episodes": [[1, 0], [3, 0]],
    "return": [[10.0, 0.0], [2.0, 0.0]],
    "episode_length": [[4.0, 0.0], [8.0, 0.0]],
    "critic_loss": [[1.0, 3.0], [2.0, 5.0]],
}
BY_HAND = {
    "env_steps": [2**31 - 1, 10],
    "episodes": [4, 0],
    "return": [(10 + 3 * 2) / 4, 0.0],
    "episode_length": [(4 + 3 * 8) / 4, 0.0],
    "critic_loss": [1.5, 4.0],
}


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_the_error_of_several_evaluations_is_that_of_all_episodes(array):
    """Nine episodes with a standard deviation of 3 have an error of 1; 36 of them have 3 / 6."""
    one = {"return": 2.0, "return_error": 1.0, "return_dof": 8, "episodes": 9}
    rounds = {name: array(np.full(4, value)) for name, value in one.items()}
    found = reduce_steps(rounds)
    assert (found["return_error"], found["return_dof"], found["episodes"]) == (0.5, 32, 36)
    rounds |= {"episodes": array([9, 9, 0, 0]), "return_error": array([1.0, 1.0, np.inf, np.inf])}
    np.testing.assert_allclose(reduce_steps(rounds)["return_error"], 1 / np.sqrt(2), rtol=1e-6)
    assert np.isinf(reduce_steps(rounds | {"episodes": array([0, 0, 0, 0])})["return_error"])


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_counts_add_up_and_returns_weigh_by_episodes(array):
    for name, values in reduce_steps({name: array(values) for name, values in STEPS.items()}).items():
        np.testing.assert_allclose(values, BY_HAND[name], err_msg=name)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_the_best_return_of_several_steps_is_their_maximum(array):
    """It is NaN in steps in which no episode ended, for the second member in all. Training may end no episode."""
    steps = {"episodes": np.zeros((3, 2), int), "return_best": [[-5.0, np.nan], [np.nan, np.nan], [-3.0, np.nan]]}
    found = reduce_steps({name: array(values) for name, values in steps.items()})
    np.testing.assert_array_equal(found["return_best"], [-3, np.nan])
    assert reduce_steps({"return_best": array([1.0, 4.0, 2.0])})["return_best"] == 4


def test_the_best_return_of_seeds_is_that_of_those_in_which_an_episode_ended():
    values = {"episodes": [5, 0, 4], "return": [6.0, 0.0, 6.0], "return_best": [9.0, np.nan, 8.0]}
    metrics = {name: np.asarray(x) for name, x in values.items()}
    row = make_row(Progress(divergence_iterations=[None] * 3), metrics, "train", 1.0)
    assert (row["return"], row["return_best"]) == (6.0, 8.5)
    none = {"episodes": np.zeros(1, int), "return": np.zeros(1), "return_best": np.array([np.nan])}
    row = make_row(Progress(), none, "train", 1.0)
    assert row["return"] == 0
    assert np.isnan(row["return_best"])


def test_counts_of_the_host_go_past_two_to_the_31():
    assert int(reduce_steps({"env_steps": np.array([2**31 - 1, 5], np.int32)})["env_steps"]) == 2**31 + 4
