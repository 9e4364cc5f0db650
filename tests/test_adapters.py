"""Adapters of other libraries beside the libraries themselves; each test says which extra it lacks where it skips."""

import importlib
import inspect
import sys
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import PBT, SAC, Budget, Evolution, Gymnax, MLPPolicy, OffPolicy, OnPolicy, OpenES, Vmapped, fit, tree
from evorl.agents import PPO
from evorl.agents.base_agent import fill_spaces
from evorl.envs import check_env, render
from evorl.envs.arcade import Game2048, game_2048
from evorl.envs.arcade import connect_four as four
from evorl.envs.arcade.game_2048 import Game2048State
from evorl.envs.bodies import find_rendering_problem
from evorl.envs.suites.craftax import Craftax
from evorl.envs.suites.jumanji import Jumanji
from evorl.envs.suites.navix import Navix
from evorl.envs.suites.pgx import Pgx
from evorl.envs.suites.playground import Playground
from evorl.envs.suites.xland import XLand
from evorl.errors import OptionError
from evorl.spaces import Discrete, MultiDiscrete, ObsWithActionMask, PrivilegedObs, random_action
from evorl.training.configuration import config
from evorl.vector_env import EnvBatch

pytestmark = [pytest.mark.program, pytest.mark.filterwarnings("ignore")]
KEY = jax.random.key(3)


def needs(module: str, extra: str):
    return pytest.importorskip(module, reason=f"needs the extra {extra}")


def stepped(env, actions):
    """What env answers to actions from a reset with KEY on."""
    params = env.default_params
    state, obs = jax.jit(env.reset)(KEY, params)
    step, answers = jax.jit(env.step), []
    for i, action in enumerate(actions):
        state, timestep = step(jax.random.key(i), state, action, params)
        answers.append(timestep)
    return obs, answers


def test_jumanji_is_jumanji():
    jumanji = needs("jumanji", "jumanji")
    env, theirs, actions = Jumanji("Snake-v1", 40), jumanji.make("Snake-v1"), [1, 1, 2, 2, 3, 0]
    obs, answers = stepped(env, actions)
    state, timestep = jax.jit(theirs.reset)(KEY)
    np.testing.assert_array_equal(obs["obs"]["grid"], timestep.observation.grid)
    step = jax.jit(theirs.step)
    for action, ours in zip(actions, answers, strict=True):
        state, timestep = step(state, action)
        np.testing.assert_array_equal(ours.obs["obs"]["grid"], timestep.observation.grid)
        np.testing.assert_array_equal(ours.obs["legal"], timestep.observation.action_mask)
        assert ours.reward == timestep.reward
        assert ours.terminated == timestep.last()
        if timestep.last():
            break


def test_a_time_limit_of_jumanji_is_truncated():
    needs("jumanji", "jumanji")
    env = Jumanji("SlidingTilePuzzle-v0", 3)
    assert Jumanji("SlidingTilePuzzle-v0").max_episode_steps == 500
    _, answers = stepped(env, [0, 1, 0])
    assert [bool(t.truncated) for t in answers] == [False, False, True]
    assert not any(bool(t.terminated) for t in answers)


def test_jumanji_of_several_numbers():
    needs("jumanji", "jumanji")
    tetris = Jumanji("Tetris-v0", 10)
    assert tetris.action_space == Discrete(40)  # 4 turns in 10 columns, legal together
    obs, answers = stepped(tetris, [25])
    assert obs["legal"].shape == (40,)
    own = tetris.env.step(tetris.env.reset(KEY)[0], jnp.array([2, 5]))[1]
    np.testing.assert_array_equal(answers[0].obs["obs"]["grid"], own.observation.grid)
    cleaner = Jumanji("Cleaner-v0", 10)
    assert cleaner.action_space == MultiDiscrete((4, 4, 4))
    assert isinstance(cleaner.observation_space, ObsWithActionMask)


def test_jumanji_downloads_nothing():
    needs("jumanji", "jumanji")
    with pytest.raises(OptionError, match=r"Sokoban-v0: needs unfiltered-train.npy of InstaDeepAI/boxoban-levels"):
        Jumanji("Sokoban-v0")


def test_a_game_alone_is_that_of_pgx():
    pgx = needs("pgx", "pgx")
    env, theirs, actions = Pgx("2048"), pgx.make("2048"), [0, 1, 2, 3, 0]
    _, answers = stepped(env, actions)
    state = theirs.init(jax.random.split(KEY, 3)[0])
    for i, (action, ours) in enumerate(zip(actions, answers, strict=True)):
        state = theirs.step(state, action, jax.random.key(i))
        np.testing.assert_array_equal(ours.obs["obs"], state.observation)
        np.testing.assert_array_equal(ours.obs["legal"], state.legal_action_mask)
        assert ours.reward == state.rewards[0]


def test_a_game_of_two_is_played_to_its_end_in_either_seat():
    needs("pgx", "pgx")
    env = Pgx("tic_tac_toe")

    def game(key):
        state, obs = env.reset(key, None)
        rewards, won = jnp.float32(0), jnp.bool_(False)
        over = jnp.bool_(False)
        for i in range(5):  # of nine moves
            moves = jax.random.fold_in(key, i)
            after, timestep = env.step(moves, state, obs["legal"].argmax(), None)
            rewards += jnp.where(over, 0, timestep.reward)
            won |= ~over & timestep.info["won"]
            state, obs = tree.select(over, (state, obs), (after, timestep.obs))
            over |= timestep.terminated
        return rewards, won, over, state.player

    rewards, won, over, seat = jax.jit(jax.vmap(game))(jax.random.split(KEY, 200))
    assert over.all()
    assert set(np.asarray(rewards)) == {-1, 0, 1}
    np.testing.assert_array_equal(won, rewards > 0)
    assert 70 < seat.sum() < 130
    first, second = (float(rewards[seat == i].mean()) for i in (0, 1))
    assert first != second


def test_an_illegal_action_loses_at_once():
    needs("pgx", "pgx")
    env = Pgx("tic_tac_toe")
    state, _ = env.reset(KEY, None)
    state, timestep = env.step(KEY, state, 4, None)
    if not timestep.terminated:
        _, timestep = env.step(KEY, state, 4, None)
    assert timestep.terminated
    assert timestep.reward == -1
    with pytest.raises(OptionError, match="has 3 players"):
        Pgx("sparrow_mahjong")


def test_an_opponent_remembers_its_moves():
    needs("pgx", "pgx")

    class Counting(MLPPolicy):
        """Plays the first legal move, and counts its moves."""

        def initial_memory(self):
            return jnp.int32(0)

        def act(self, params, obs, memory, key):
            return jnp.argmax(obs["legal"]), memory + 1, {}

    env = Pgx("tic_tac_toe", opponent=fill_spaces(Counting(hidden=()), Pgx("tic_tac_toe")))
    state, obs = env.reset(KEY, None)
    for _ in range(2):
        action = jnp.int32(8 - np.argmax(np.asarray(obs["legal"])[::-1]))
        state, timestep = env.step(KEY, state, action, None)
        obs = timestep.obs
    moves = 9 - int(obs["legal"].sum())
    assert not timestep.terminated
    assert int(state.memory) == moves - 2


def test_rewards_of_search_and_rescue_are_those_of_the_limit():
    jumanji = needs("jumanji", "jumanji")
    ours, theirs = Jumanji("SearchAndRescue-v0", 300), jumanji.make("SearchAndRescue-v0", time_limit=300)
    (state, _), (inner, _) = jax.jit(ours.reset)(KEY, None), jax.jit(theirs.reset)(KEY)
    step, their_step, total = jax.jit(ours.step), jax.jit(theirs.step), 0.0
    for key in jax.random.split(KEY, 299):
        action = random_action(ours.action_space, ours.observation_space, None, key)
        state, timestep = step(key, state, action, None)
        inner, expected = their_step(inner, action)
        np.testing.assert_allclose(timestep.reward, expected.reward.sum(), rtol=1e-5)
        total += float(timestep.reward)
    assert total > 0


def test_rooms_without_a_goal_are_refused():
    needs("xminigrid", "xland")
    with pytest.raises(OptionError, match="XLand-MiniGrid-R1-9x9: must be a MiniGrid environment"):
        XLand("XLand-MiniGrid-R1-9x9")
    assert not any(name.startswith("XLand-") for name in XLand.names())


def test_the_door_to_go_to_is_observed():
    needs("navix", "navix")
    env = Navix("Navix-GoToDoor-6x6-v0")
    check_env(env, episodes=2)
    states, obs = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, 20), None)
    np.testing.assert_array_equal(obs["mission"], states.state.mission.colour)
    assert len(np.unique(obs["mission"])) > 2


def test_an_opponent_is_a_policy_whose_parameters_are_env_params():
    needs("pgx", "pgx")
    from evorl.agents import MLPPolicy

    plain = Pgx("tic_tac_toe")
    env = Pgx("tic_tac_toe", opponent=fill_spaces(MLPPolicy(hidden=(8,)), plain))
    assert jax.tree.leaves(env.default_params)
    check_env(env, episodes=3)


@pytest.mark.parametrize(
    ("module", "extra", "cls", "name", "misspelt"),
    [
        ("xminigrid", "xland", XLand, "MiniGrid-Empty-5x5", "MiniGrid-Empty-5x6"),
        ("navix", "navix", Navix, "Navix-Empty-5x5-v0", "Navix-Emty-5x5-v0"),
        ("craftax", "craftax", Craftax, "Craftax-Classic-Symbolic-v1", "Craftax-Clasic-Symbolic-v1"),
        ("pgx", "pgx", Pgx, "connect_four", "conect_four"),
        ("jumanji", "jumanji", Jumanji, "Maze-v0", "Mase-v0"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_it_is_an_environment(module, extra, cls, name, misspelt):
    needs(module, extra)
    assert name in cls.names()
    check_env(cls(name, 12), episodes=2)
    with pytest.raises(OptionError, match=f"{misspelt}; did you mean"):
        cls(misspelt)


def test_playground_is_playground():
    registry = needs("mujoco_playground", "playground").registry
    env = Playground("CartpoleBalance", options={"episode_length": 5})
    assert Playground("CartpoleBalance").max_episode_steps == 1000
    action = jnp.array([0.3])
    obs, answers = stepped(env, [action] * 2)
    config = registry.get_default_config("CartpoleBalance")
    theirs = registry.load("CartpoleBalance", config, {"impl": "jax"})
    state = jax.jit(theirs.reset)(KEY)
    np.testing.assert_allclose(obs, state.obs, rtol=1e-6)
    state = jax.jit(theirs.step)(state, action)
    np.testing.assert_allclose(answers[0].obs, state.obs, rtol=1e-5, atol=1e-6)
    with pytest.raises(OptionError, match="unknown option of CartpoleBalance ctrl_td; did you mean ctrl_dt"):
        Playground("CartpoleBalance", options={"ctrl_td": 1})
    with pytest.raises(OptionError, match=r"CartpoleBalance vision_config\.nworlds; did you mean"):
        Playground("CartpoleBalance", options={"vision_config": {"nworlds": 4}})
    assert Playground("CartpoleBalance", options={"vision_config": {"nworld": 4}}).env._config.vision_config.nworld == 4


def test_a_task_of_playground_repeats_actions():
    needs("mujoco_playground", "playground")
    once, often = Playground("CartpoleBalance"), Playground("CartpoleBalance", options={"action_repeat": 4})
    assert (often.max_episode_steps, often.render_fps) == (250, once.render_fps / 4)
    shorter = Playground("CartpoleBalance", 50, options={"action_repeat": 4})
    assert (shorter.max_episode_steps, shorter.env._config.episode_length) == (50, 200)
    (state, _), (fast, _) = once.reset(KEY, None), often.reset(KEY, None)
    step, action, total = jax.jit(once.step), jnp.array([0.3]), 0.0
    for _ in range(4):
        state, timestep = step(KEY, state, action, None)
        total += timestep.reward
    fast, repeated = jax.jit(often.step)(KEY, fast, action, None)
    np.testing.assert_allclose(repeated.reward, total, rtol=1e-6)
    np.testing.assert_allclose(repeated.obs, timestep.obs, rtol=1e-6)
    assert int(fast.steps) == 1


def test_playground_by_warp_begins_anew_as_data_where_does():
    """The contacts of BallInCup have no batch axis, which the library's own Data.where leaves as they are."""
    registry = needs("mujoco_playground", "playground").registry
    env, n, steps = Playground("BallInCup", 3, impl="warp"), 2, 5
    keys, actions = jax.random.split(KEY, n), jax.random.uniform(KEY, (steps, n, 2), minval=-1)
    world = EnvBatch(env, None, None, n)

    def play(keys):
        begin = starts = world.reset(keys)

        def step(carry, action):
            state, timestep = world.step(keys, carry, action)
            ended = timestep.terminated | timestep.truncated
            return tree.select(ended, starts[0], state), (timestep.obs, ended)

        return jax.lax.scan(step, begin[0], actions)[1]

    theirs = registry.load("BallInCup", registry.get_default_config("BallInCup"), {"impl": "warp"})

    def own(keys):
        first = jax.vmap(theirs.reset)(keys)

        def step(carry, now):
            (state, i), action = carry, now
            after = jax.vmap(theirs.step)(state, action)
            ended = jnp.broadcast_to((i + 1) % 3 == 0, n)
            data = jax.vmap(lambda a, done, b: a.where(done, b))(after.data, ended, first.data)
            rest = tree.select(ended, first.replace(data=None), after.replace(data=None))
            return (rest.replace(data=data), i + 1), (after.obs, ended)

        return jax.lax.scan(step, (first, 0), actions)[1]

    (obs, ended), (obs_own, ended_own) = jax.jit(play)(keys), jax.jit(own)(keys)
    np.testing.assert_array_equal(ended, ended_own)
    np.testing.assert_allclose(obs, obs_own, rtol=1e-5, atol=1e-6)
    shapes = jax.eval_shape(world.reset, keys)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(shapes)} == {n}


def test_gymnasiums_tasks_by_warp_equal_those_by_mjx():
    """States after a step, and their rewards, from the same states; the hopper falls on its foot."""
    needs("warp", "playground")
    from evorl.envs.mujoco import MJX

    own, warp = MJX("Hopper-v5"), MJX("Hopper-v5", impl="warp")
    keys, actions = jax.random.split(KEY, 3), jnp.zeros((3, 3))
    state, _ = jax.jit(jax.vmap(lambda key: own.reset(key, None)))(keys)
    steps = [jax.jit(jax.vmap(lambda s, a, env=env: env.step(KEY, s, a, None))) for env in (own, warp)]
    for _ in range(20):
        (state, here), (_, there) = (step(state, actions) for step in steps)
        np.testing.assert_allclose(there.obs, here.obs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(there.reward, here.reward, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", ["fixed", "by the number of worlds"])
def test_a_step_of_warp_without_room_for_its_contacts_is_invalid(room):
    needs("mujoco_playground", "playground")
    env = Playground("HopperStand", 20, impl="warp", options={"naconmax": 3} if room == "fixed" else {})
    if room != "fixed":
        assert env._contacts_per_world == 50_000 / 2048  # contacts and environments of Playground's own settings
        with env.env._config.unlocked():
            env.env._config.naconmax = 3
        env.__dict__["_contacts_per_world"] = 3
        assert env._with_room_for(1) is env
    assert env._contacts_per_world == (0 if room == "fixed" else 3)
    play = jax.vmap(lambda state, action: env.step(KEY, state, action, None))
    state, _ = jax.jit(jax.vmap(lambda key: env.reset(key, None)))(jax.random.split(KEY, 4))
    step = jax.jit(play)
    for _ in range(20):  # the hopper falls on its foot
        state, timestep = step(state, jnp.zeros((4, 4)))
    assert jnp.isnan(timestep.reward).all() == (room == "fixed")
    nested = jax.eval_shape(
        jax.vmap(play), *jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), (state, jnp.zeros((4, 4))))
    )
    assert jax.tree.structure(nested[0]) == jax.tree.structure(state)
    assert nested[1].reward.shape == (2, 2)


@pytest.fixture
def robots(monkeypatch, tmp_path):
    """Let Playground find its robots in an empty folder of the package mujoco-menagerie; returns that package."""
    needs("mujoco_playground", "playground")
    from mujoco_playground._src import mjx_env

    monkeypatch.setattr(mjx_env, "MENAGERIE_PATH", tmp_path / "none")
    for name in ("ROOT", "CACHE_DIR", "BASE_URL"):
        monkeypatch.delenv(f"MENAGERIE_{name}", raising=False)
    monkeypatch.setenv("MENAGERIE_CACHE_DIR", str(tmp_path / "cache"))
    return needs("mujoco_menagerie", "playground")


def put_go1(folder):
    """Write a tetrahedron in place of each mesh of the robot Go1."""
    corners = np.float32([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]])
    facets = np.zeros(4, [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("count", "<u2")])
    facets["corners"] = corners[[[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]]
    (folder / "assets").mkdir(parents=True)
    for name in ("trunk", "hip", "thigh_mirror", "calf", "thigh"):
        (folder / "assets" / f"{name}.stl").write_bytes(bytes(80) + np.uint32(4).tobytes() + facets.tobytes())


@pytest.mark.parametrize("place", ["cache", "root"])
def test_robots_come_from_the_package_and_are_never_downloaded(robots, tmp_path, place, monkeypatch):
    monkeypatch.setattr(robots.Cache, "resolve", None)  # it would download
    with pytest.raises(
        OptionError, match=r"^env.name=Go1JoystickFlatTerrain: needs the robot unitree_go1 of .* prefetch"
    ):
        Playground("Go1JoystickFlatTerrain")
    folder = robots.Cache().model_path(robots.get("unitree_go1"))
    if place == "root":
        folder = tmp_path / "root" / "unitree_go1"
        monkeypatch.setenv("MENAGERIE_ROOT", str(tmp_path / "root"))
    put_go1(folder)
    (folder / ".complete").touch()
    env = Playground("Go1JoystickFlatTerrain")
    space: Any = env.observation_space
    assert isinstance(space, PrivilegedObs)
    assert (space.space.shape, space.state.shape, env.action_space.shape) == ((48,), (123,), (12,))
    assert jax.eval_shape(env.reset, KEY, None)[1]["obs"].shape == (48,)


def test_robots_without_the_package_are_refused(robots, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco_menagerie", None)
    with pytest.raises(
        OptionError, match=r"^env.name=G1JoystickFlatTerrain: needs .* package mujoco-menagerie, .*; pip"
    ):
        Playground("G1JoystickFlatTerrain")


def test_pictures_of_playground(tmp_path):
    needs("mujoco_playground", "playground")
    env = Playground("CheetahRun")
    state, _ = jax.jit(env.reset)(KEY, None)
    assert env.render_fps == 100
    (page,) = env.draw([state, state], tmp_path)
    assert "CheetahRun, Playground" in page.read_text()
    if problem := find_rendering_problem():
        pytest.skip(problem)
    paths = render.save_episode(env, [state] * 8, tmp_path)
    assert {path.name for path in paths} >= {"viewer.html", "episode.gif", "episode.png"}
    assert render.render_states(env, [state])[0].shape == (480, 640, 3)


@pytest.mark.parametrize(
    ("experiment", "task", "params"),
    [
        ("ppo_cheetah_run", "CheetahRun", "dm_control_suite_params"),
        ("ppo_cartpole_balance", "CartpoleBalance", "dm_control_suite_params"),
        ("ppo_go1_joystick", "Go1JoystickFlatTerrain", "locomotion_params"),
    ],
)
def test_experiments_with_ppo_have_the_settings_of_playground(experiment, task, params):
    needs("mujoco_playground", "playground")
    wanted = importlib.import_module(f"mujoco_playground.config.{params}").brax_ppo_config(task)
    from brax.training.agents.ppo.networks import make_ppo_networks

    defaults = {name: p.default for name, p in inspect.signature(make_ppo_networks).parameters.items()}
    networks = defaults | dict(wanted.get("network_factory", {}))
    cfg = config.to_plain_data(config.compose_config([f"experiment=playground/{experiment}"]))
    workflow = cfg["agent"]["workflow"]
    agent = workflow["agent"]
    assert cfg["env_steps"] == wanted.num_timesteps
    assert cfg["env"]["name"] == task
    assert workflow["num_envs"] == wanted.num_envs
    assert (
        workflow["num_envs"] * workflow["num_steps"]
        == wanted.batch_size * wanted.num_minibatches * wanted.unroll_length
    )
    assert workflow["batch_size"] == wanted.batch_size * wanted.unroll_length
    assert workflow["num_epochs"] == wanted.num_updates_per_batch
    assert agent["hidden"] == [*networks["policy_hidden_layer_sizes"]]
    assert (agent["value_hidden"] or agent["hidden"]) == [*networks["value_hidden_layer_sizes"]]
    assert (agent["activation"], networks["activation"]) == ("swish", nn.swish)
    assert agent["distribution"] == networks["distribution_type"]
    own = {"learning_rate": "learning_rate", "entropy_cost": "entropy_coef", "discounting": "discount"}
    for theirs, ours in own.items():
        assert agent[ours] == wanted[theirs]
    assert agent["reward_scale"] == wanted.get("reward_scaling", 1)
    assert agent["max_grad_norm"] == wanted.get("max_grad_norm", float("inf"))
    signature = inspect.signature(importlib.import_module("brax.training.agents.ppo.train").train).parameters
    assert agent["clip"] == signature["clipping_epsilon"].default
    assert agent["value_coef"] == signature["vf_loss_coefficient"].default
    assert agent["gae_lambda"] == signature["gae_lambda"].default


@pytest.mark.parametrize(
    ("experiment", "task"), [("sac_cheetah_run", "CheetahRun"), ("sac_cartpole_balance", "CartpoleBalance")]
)
def test_experiments_with_sac_have_the_settings_of_playground(experiment, task):
    needs("mujoco_playground", "playground")
    wanted = importlib.import_module("mujoco_playground.config.dm_control_suite_params").brax_sac_config(task)
    cfg = config.to_plain_data(config.compose_config([f"experiment=playground/{experiment}"]))
    workflow = cfg["agent"]["workflow"]
    agent = workflow["agent"]
    assert (cfg["env_steps"], cfg["env"]["name"]) == (wanted.num_timesteps, task)
    assert (workflow["num_envs"], workflow["num_steps"]) == (wanted.num_envs, 1)
    assert OffPolicy(Gymnax("Pendulum-v1"), SAC(), policy_delay=workflow.get("policy_delay")).critic_steps == 1
    assert (workflow["num_updates"], workflow["batch_size"]) == (wanted.grad_updates_per_step, wanted.batch_size)
    assert (workflow["capacity"], workflow["random_steps"]) == (wanted.max_replay_size, wanted.min_replay_size)
    assert agent["actor_lr"] == agent["critic_lr"] == wanted.learning_rate
    assert workflow["normalize_observations"] == wanted.normalize_observations
    assert (agent["discount"], agent["layer_norm"]) == (wanted.discounting, wanted.network_factory.q_network_layer_norm)


@pytest.mark.parametrize("name", ["ppo", "openes", "pbt"])
def test_playground_by_warp_trains(name):
    needs("mujoco_playground", "playground")
    env = Playground("CartpoleBalance", 3, impl="warp")
    agent = PPO(hidden=(4,))
    workflow: Any = OnPolicy(env, agent, 2, 4, 1, 8, eval_episodes=2)
    if name == "openes":
        policy = MLPPolicy(hidden=(4,))
        workflow = Evolution(env, policy, OpenES(4), vbn_steps=4, eval_episodes=2)
    elif name == "pbt":
        workflow = PBT(Vmapped(workflow, 2), steps_per_generation=1)
    result = fit(workflow, budget=Budget(iterations=2), chunk=2, evaluations=1)
    trained = next(row for row in result.rows if row["kind"] == "train")
    assert trained["episodes"] >= 2
    assert all(np.isfinite(row["return"]) for row in result.rows)


def test_a_missing_package_is_told_with_what_to_install(monkeypatch):
    def gone(name, *rest):
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(OptionError, match=r'env=jumanji/...: jumanji is missing; pip install "jumanji>='):
        Jumanji("Snake-v1")


def test_2048_is_that_of_pgx():
    pgx = needs("pgx", "pgx")
    env, theirs = Game2048(), pgx.make("2048")
    init, step, advance = jax.jit(theirs.init), jax.jit(theirs.step), jax.jit(env.advance)
    state, rng = init(KEY), np.random.default_rng(0)
    for i in range(2000):
        board = jnp.asarray(state._board).reshape(4, 4).astype(jnp.int8)
        np.testing.assert_array_equal(game_2048.find_legal_moves(board), state.legal_action_mask)
        action = int(rng.choice(np.flatnonzero(state.legal_action_mask)))
        state = step(state, action, jax.random.key(i))
        new = np.asarray(state._board).reshape(4, 4)
        slid, _ = game_2048.slide_left(game_2048.orient_board(board, jnp.int32(action)))
        slid = np.asarray(game_2048.orient_board(slid, jnp.int32(action)))
        ((row, column),) = np.argwhere(slid != new)
        before = (slid.ravel()[: 4 * row + column] == 0).sum()
        chance = jnp.float32([(before + 0.5) / (slid == 0).sum(), 0.05 if new[row, column] == 2 else 0.5])
        after, timestep = advance(Game2048State(board, jnp.int32(i)), jnp.int32(action), chance)
        np.testing.assert_array_equal(after.board, new)
        assert float(timestep.reward) == float(state.rewards[0])
        assert bool(timestep.terminated) == bool(state.terminated)
        state = init(jax.random.key(i)) if state.terminated else state


def test_the_board_of_connect_four_is_that_of_pgx():
    pgx = needs("pgx", "pgx")
    theirs, rng = pgx.make("connect_four"), np.random.default_rng(0)
    init, step, won = jax.jit(theirs.init), jax.jit(theirs.step), jax.jit(four.has_won)
    state, ours = init(KEY), [(jnp.uint32(0), jnp.uint32(0))] * 2
    for i in range(2000):
        both = four.ConnectFourState(jnp.stack([p[0] for p in ours]), jnp.stack([p[1] for p in ours]))
        height = np.asarray(four.compute_heights(both))
        np.testing.assert_array_equal(height < 6, state.legal_action_mask)
        column = int(rng.choice(np.flatnonzero(height < 6)))
        state = step(state, column)
        ours = [ours[1], four.bitwise_or(ours[0], four.get_cell_bit(jnp.int32(column), jnp.int32(height[column])))]
        wins = bool(won(ours[1]))
        assert wins == bool((state.rewards != 0).any())
        assert (wins or height.sum() == 41) == bool(state.terminated)
        if state.terminated:
            state, ours = init(jax.random.key(i)), [(jnp.uint32(0), jnp.uint32(0))] * 2


@pytest.mark.parametrize(
    ("library", "extra", "make"),
    [
        ("jumanji", "jumanji", lambda: Jumanji("Snake-v1")),
        ("craftax", "craftax", lambda: Craftax("Craftax-Classic-Symbolic-v1")),
        ("navix", "navix", lambda: Navix("Navix-FourRooms-v0")),
        ("xminigrid", "xland", lambda: XLand("MiniGrid-FourRooms")),
    ],
)
def test_frames_follow_the_states(library, extra, make):
    needs(library, extra)
    env = make()
    state, _ = jax.jit(env.reset)(KEY, env.default_params)
    states, step = [state], jax.jit(env.step)
    for i, action in enumerate([2, 1, 2, 0, 2, 3]):
        states.append(step(jax.random.key(i), states[-1], jnp.int32(action), env.default_params)[0])
    frames = render.render_states(env, states)
    assert len(frames) == len(states)
    assert all(frame.shape == frames[0].shape and frame.shape[0] >= 480 for frame in frames)
    assert any((frame != frames[0]).any() for frame in frames[1:])
