"""A tournament: everyone meets everyone in every place, and what they are paid comes out."""

import os
import signal
import threading
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.cli import league
from evorl.distributed.executors import SerialExecutor
from evorl.distributed.tournament_tasks import TournamentSpec, distribute_tournament
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.matrix import MatrixGame
from evorl.errors import OptionError
from evorl.spaces import group_sizes
from evorl.training import runs, tournament
from evorl.training.configuration import config
from evorl.training.policy import Policy
from tests.clusters import find_actors, require_ray
from tests.conftest import leaves_equal
from tests.distributing import Reordered

SIGN = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])  # of rock, paper and scissors


class Constant(Policy):
    """One who does the same in every place, and remembers how often it has acted."""

    def __init__(self, env, choice):
        self.env, self.env_params, self.memory, self.choice = env, env.default_params, jnp.int32(0), choice

    def as_policy_fn(self, explores=False):
        groups = group_sizes(self.env.action_space)
        return lambda obs, memory, key: ({name: jnp.full(n, self.choice) for name, n in groups.items()}, memory + 1, {})


def test_profiles_have_one_of_two_in_each_place():
    assert {tuple(row) for row in tournament.make_pairwise_profiles(3, 2)} == {
        (i, j) for i in range(3) for j in range(3) if i != j
    }
    assert {tuple(row) for row in tournament.make_pairwise_profiles(2, 3)} == {
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 0),
    }


@pytest.mark.program
def test_rock_paper_and_scissors_pay_what_they_pay():
    game = MatrixGame("rock_paper_scissors")
    found = tournament.run_tournament([*(Constant(game, i) for i in range(3)), None], episodes=300)
    np.testing.assert_array_equal(found.mean[:3, :3], np.where(np.eye(3), np.nan, SIGN))
    np.testing.assert_array_equal(found.error[:3, :3][~np.eye(3, dtype=bool)], 0)
    np.testing.assert_array_equal(found.wins[:3, :3], np.where(np.eye(3), 0, 300 * (SIGN + 1)))  # 300 in each place
    against_chance = found.mean[:3, 3]
    assert (np.abs(against_chance) < 4 * found.error[:3, 3]).all()
    assert found.error[0, 3] == pytest.approx(np.sqrt(2 / 3 / 600), rel=0.1)


def test_of_three_players_one_is_alone():
    """Payoffs by hand: of two profiles of three places, in which 1 is alone, and then 0."""
    who = np.array([[0, 1, 0], [1, 0, 1]])
    returns = np.array([[[1.0, -2, 1], [0, 0, 0]], [[-1, 2, -1], [3, -6, 3]]])
    found = tournament.compute_tournament_table(returns, who, 2)
    assert found.mean[1, 0] == -1
    assert found.mean[0, 1] == -2
    np.testing.assert_array_equal(found.wins, [[0, 1.5 + 1], [0.5 + 1, 0]])


@pytest.mark.program
def test_cycles_are_told():
    games = np.where(np.eye(3), 0, 100.0 * (SIGN + 1))
    found = tournament.TournamentTable(np.where(np.eye(3), np.nan, SIGN), np.zeros((3, 3)), games)
    told = league.format_ratings(["rock", "paper", "scissors"], found)
    assert "| rock | 0 ± " in told
    assert "| 0.33 |" in told
    assert "100 % of the log-odds are cyclic" in told


def test_games_that_differ_are_refused():
    kuhn = ExtensiveFormGame(Kuhn())
    pennies = MatrixGame("matching_pennies")
    with pytest.raises(OptionError, match="must have the environment of the first run"):
        tournament.run_tournament([Constant(kuhn, 0), Constant(pennies, 0)], episodes=2)


@pytest.fixture(scope="module")
def spec():
    """A tournament of two initial policies for Kuhn poker and a random player, in four tasks."""
    workflow, _ = runs.build(config.compose_config(["agent=ppo", "env=kuhn", "agent.workflow.agent.hidden=[4]"]))
    states = [jax.jit(workflow.init)(jax.random.key(seed)) for seed in range(2)]
    return TournamentSpec([*((workflow, state) for state in states), None], episodes=50, seed=3, explores=True, parts=4)


@pytest.mark.program
def test_a_tournament_depends_neither_on_its_executor_nor_on_the_order_of_tasks(spec):
    alone = distribute_tournament(spec, SerialExecutor())
    assert leaves_equal(vars(alone), vars(distribute_tournament(spec, Reordered(lambda tasks: len(tasks) // 2))))
    assert alone.wins.sum() == 3 * 2 * 52  # three pairs in two positions, 50 episodes rounded up to four batches of 13
    policies = [None if one is None else Policy(*one) for one in spec.entrants]
    here = tournament.run_tournament(policies, 50, 3, explores=True)
    whole = distribute_tournament(replace(spec, parts=1), SerialExecutor())
    assert leaves_equal(vars(here), vars(whole))


@pytest.mark.program
def test_a_tournament_on_ray_loses_no_episode_if_a_worker_is_killed(spec):
    require_ray()
    from evorl.distributed import RayExecutor

    spec, killed = replace(spec, parts=25), []

    def kill_one():
        deadline = time.monotonic() + 120
        while len(actors := find_actors()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(actors[0], signal.SIGKILL)
        killed.append(actors[0])

    killer = threading.Thread(target=kill_one)
    killer.start()
    found = distribute_tournament(spec, RayExecutor(2, 0.5))
    killer.join()
    assert killed
    assert leaves_equal(vars(found), vars(distribute_tournament(spec, SerialExecutor())))
