"""pgx's games with all their players beside the library itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.envs import check_env
from evorl.envs.suites.pgx import PgxGame
from evorl.errors import OptionError
from evorl.spaces import group_sizes, random_action
from tests.tiers import program_fixture

STEPS = 1000
KEY = jax.random.key(4)
pytestmark = pytest.mark.filterwarnings("ignore")


@program_fixture
def pgx():
    return pytest.importorskip("pgx", reason="needs the extra pgx")


@pytest.mark.parametrize(
    ("name", "players"),
    [
        ("tic_tac_toe", 2),
        ("connect_four", 2),
        ("leduc_holdem", 2),
        ("kuhn_poker", 2),
        ("2048", 1),
        ("backgammon", 2),
        ("sparrow_mahjong", 3),
    ],
)
def test_every_seat_of_a_game_is_that_of_pgx(pgx, name, players):
    ours, theirs = PgxGame(name), pgx.make(name)
    assert group_sizes(ours.action_space) == {"player": players}

    def begin(key):
        return *ours.reset(key, None), tree.drop_weak_types(theirs.init(key))

    def step(carry, key):
        state, obs, game = carry
        key_action, key_step, key_reset = jax.random.split(key, 3)
        action = random_action(ours.action_space, ours.observation_space, obs, key_action)["player"]
        state, timestep = ours.step(key_step, state, {"player": action}, None)
        after = tree.drop_weak_types(theirs.step(game, action[game.current_player], key_step))
        seats = jnp.stack([theirs.observe(after, i) for i in range(players)])
        carry = tree.select(after.terminated, begin(key_reset), (state, timestep.obs, after))
        return carry, (timestep, after, seats)

    run = jax.jit(lambda: jax.lax.scan(step, begin(KEY), jax.random.split(KEY, STEPS))[1])
    timestep, after, seats = jax.tree.map(np.asarray, run())
    seen, legal = timestep.obs["player"]["obs"], timestep.obs["player"]["legal"]
    np.testing.assert_array_equal(seen, seats)
    np.testing.assert_array_equal(timestep.reward["player"], after.rewards)
    np.testing.assert_array_equal(timestep.terminated, after.terminated)
    assert timestep.terminated.sum() > 2 - players % 2
    moves = after.current_player
    np.testing.assert_array_equal(seen[np.arange(STEPS), moves], after.observation)
    going = ~after.terminated
    np.testing.assert_array_equal(legal[np.arange(STEPS), moves][going], after.legal_action_mask[going])
    assert after.legal_action_mask[~going].all()  # as pgx has it at the end
    assert (legal.sum(-1) == 1)[~going].all()
    for i in range(players):
        assert (legal[:, i].sum(-1) == 1)[moves != i].all()


def test_who_begins_is_drawn(pgx):
    ours = PgxGame("tic_tac_toe")
    legal = jax.vmap(lambda key: ours.reset(key, None)[1]["player"]["legal"])(jax.random.split(KEY, 200))
    first = np.asarray(legal.sum(-1) > 1)
    assert (first.sum(1) == 1).all()
    assert 70 < first[:, 0].sum() < 130


def test_moves_are_limited_and_names_known(pgx):
    check_env(PgxGame("tic_tac_toe", max_episode_steps=4), episodes=2)
    with pytest.raises(OptionError, match="unknown game of pgx conect_four; did you mean connect_four"):
        PgxGame("conect_four")
    with pytest.raises(OptionError, match="max_episode_steps=0: must be at least 1"):
        PgxGame("tic_tac_toe", 0)
