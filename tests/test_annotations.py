import jax
import jax.numpy as jnp
import pytest

from evorl import spaces
from evorl.envs import arcade, games, maze, mpe, sanity
from evorl.envs.actions import StickyAction
from evorl.envs.arcade.cartpole import CartPoleState
from evorl.envs.wrappers import FrameStack
from evorl.types import QDEvaluation, SearchResults
from tests.annotations import find_untrue

ENVS = [
    *(getattr(arcade, name)() for name in arcade.__all__),
    *(mpe.MPE(getattr(mpe, name)()) for name in mpe.__all__ if name != "MPE"),
    *(getattr(sanity, name)() for name in sanity.__all__),
    games.ExtensiveFormGame(games.Kuhn()),
    games.MatrixGame("prisoners_dilemma", rounds=3),
    games.PongDuel(),
    games.Snakes(),
    games.TwoStep(),
    maze.Maze(maze.RandomWalls(5, 6, 2, 9, solvable=True)),
    maze.PointMaze(),
    maze.Maze().make_editor(),
    StickyAction(FrameStack(sanity.Continuous(), 3)),
]


def test_what_is_not_as_annotated_is_found():
    good = CartPoleState(*[jnp.float32(0)] * 4, jnp.int32(0))
    assert list(find_untrue(good)) == []
    wrong = {"a": (good.replace(x=jnp.int32(0)), good.replace(angle=jnp.zeros(2)))}
    assert [fault.split(":")[0] for fault in find_untrue(wrong)] == ["state['a'][0].x", "state['a'][1].angle"]
    assert list(find_untrue(jax.tree.map(lambda x: x[None], good), copies=1)) == []
    assert len(list(find_untrue(good.replace(steps=None, speed=1.0)))) == 2
    few = QDEvaluation(jnp.zeros(3), jnp.float32(0))
    assert [fault.split(":")[0] for fault in find_untrue(few)] == ["state.descriptor"]
    found = SearchResults(None, jnp.zeros(2), jnp.ones(2, bool), None)
    assert list(find_untrue(found)) == []
    assert len(list(find_untrue(found.replace(valid_mask=jnp.ones(2), descriptor=())))) == 2


@pytest.mark.parametrize("env", ENVS, ids=lambda env: type(getattr(env, "scenario", env)).__name__)
def test_states_of_environments_are_as_annotated(env):
    def reset_and_step(key):
        state, obs = env.reset(key, env.default_params)
        action = spaces.random_action(env.action_space, env.observation_space, obs, key)
        return state, env.step(key, state, action, env.default_params)

    assert list(find_untrue(jax.eval_shape(reset_and_step, jax.random.key(0)))) == []
