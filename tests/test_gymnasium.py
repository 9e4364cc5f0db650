"""Our environments as those of Gymnasium."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from evorl import Gymnax, Maze, PointMaze
from evorl.envs.observations import TimeLimit
from evorl.envs.suites.gymnasium import to_gymnasium, to_gymnasium_vector
from evorl.errors import OptionError

CARTPOLE = Gymnax("CartPole-v1")
SHORT = TimeLimit(CARTPOLE, 7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env", [CARTPOLE, Maze()], ids=["cartpole", "maze"])
def test_gymnasium_checks_it(env):
    check_env(to_gymnasium(env), skip_render_check=True)


def test_a_seed_gives_the_same_episodes_and_reset_goes_on():
    def played(env):
        episodes = []
        obs, _ = env.reset(seed=5)
        for _ in range(3):
            rows, ended = [obs], False
            while not ended:
                obs, _, terminated, truncated, _ = env.step(len(rows) % 2)
                rows.append(obs)
                ended = terminated or truncated
            episodes.append(np.stack(rows))
            obs, _ = env.reset()
        return episodes

    first, second = played(to_gymnasium(CARTPOLE)), played(to_gymnasium(CARTPOLE))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0][0], first[1][0])


def test_each_copy_of_a_vector_is_an_environment_of_its_own_seed():
    many, alone = to_gymnasium_vector(SHORT, 3, None, "SAME_STEP"), [to_gymnasium(SHORT) for _ in range(3)]
    some, same = (many.reset(seed=[None, *range(12, 11 + many.num_envs)])[0] for _ in range(2))
    np.testing.assert_array_equal(some[1:], same[1:])
    assert not np.array_equal(some[0], same[0])
    obs, _ = many.reset(seed=11)
    expected = [env.reset(seed=11 + i)[0] for i, env in enumerate(alone)]
    np.testing.assert_array_equal(obs, expected)
    finals = 0
    for t in range(20):
        actions = np.array([t % 2, 1, (t // 2) % 2])
        obs, rewards, terminated, truncated, infos = many.step(actions)
        for i, env in enumerate(alone):
            last, reward, ended, cut, _ = env.step(actions[i])
            assert (rewards[i], terminated[i], truncated[i]) == (reward, ended, cut)
            if ended or cut:
                finals += 1
                assert infos["_final_obs"][i]
                np.testing.assert_allclose(infos["final_obs"][i], last, rtol=1e-6)
                last, _ = env.reset()
            np.testing.assert_allclose(obs[i], last, rtol=1e-6)
    assert finals >= 6
    assert many.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    assert many.observation_space.contains(obs)


def test_infos_of_ended_copies_are_those_of_gymnasium():
    env = PointMaze(max_episode_steps=3)
    many = to_gymnasium_vector(env, 2, None, "SAME_STEP")
    peer = gymnasium.vector.SyncVectorEnv([lambda: to_gymnasium(env)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    many.reset(seed=3), peer.reset(seed=3)
    for _ in range(4):
        actions = peer.action_space.sample()
        infos, expected = many.step(actions)[4], peer.step(actions)[4]
        for found, wanted in ((infos, expected), (infos.get("final_info", {}), expected.get("final_info", {}))):
            for name in [name for name in wanted if name.startswith("_")]:
                np.testing.assert_array_equal(found[name], wanted[name])
                if name == "_position":
                    mask = wanted[name]
                    np.testing.assert_allclose(found["position"][mask], wanted["position"][mask], rtol=1e-5)
        assert ("final_info" in infos) == ("final_info" in expected)


def test_a_vector_resets_at_the_next_step_as_those_of_gymnasium_do():
    many = to_gymnasium_vector(SHORT, 3)
    peer = gymnasium.vector.SyncVectorEnv([lambda: to_gymnasium(SHORT)] * 3)
    assert many.metadata["autoreset_mode"] == peer.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    np.testing.assert_allclose(many.reset(seed=11)[0], peer.reset(seed=11)[0])
    ends = 0
    for t in range(20):
        actions = np.array([t % 2, 1, (t // 2) % 2])
        step, expected = many.step(actions), peer.step(actions)
        for ours, theirs in zip(step[:4], expected[:4], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
        ends += (step[2] | step[3]).sum()
    assert ends >= 6


def test_gymnasiums_statistics_of_a_vector_are_whole():
    env = gymnasium.wrappers.vector.RecordEpisodeStatistics(to_gymnasium_vector(SHORT, 2))
    env.reset(seed=0)
    found = []
    for _ in range(30):
        *_, infos = env.step(np.ones(2, int))
        found += [*zip(infos["episode"]["r"], infos["episode"]["l"], strict=True)] if "episode" in infos else []
    assert len(found) >= 4
    assert all(earned == length for earned, length in found if length)  # CartPole earns 1 a step


def test_pictures():
    env = to_gymnasium(Maze(), render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape == (480, 480, 3)


def test_mistakes_are_told():
    with pytest.raises(OptionError, match="render_mode=human: must be None or one of"):
        to_gymnasium(CARTPOLE, render_mode="human")
    env = to_gymnasium(CARTPOLE)
    with pytest.raises(OptionError, match="call reset first"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(OptionError, match=r"action=\[2\]: must be \[\]"):
        env.step(np.array([0, 1]))
    with pytest.raises(OptionError, match="seed"):
        to_gymnasium_vector(CARTPOLE, 2).reset(seed=[1, 2, 3])
    with pytest.raises(OptionError, match="autoreset_mode=DISABLED: must be NEXT_STEP or SAME_STEP"):
        to_gymnasium_vector(CARTPOLE, 2, None, "DISABLED")


@pytest.mark.filterwarnings("ignore")
def test_stable_baselines_checks_it_and_trains_on_it():
    pytest.importorskip("stable_baselines3", reason="needs pip install stable-baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env as check_theirs

    env = to_gymnasium(Maze())
    check_theirs(env)
    learner = PPO("MultiInputPolicy", env, n_steps=64, batch_size=32, n_epochs=1, device="cpu")
    before = learner.policy.state_dict()["value_net.weight"].clone()
    learner.learn(128)
    assert not (before == learner.policy.state_dict()["value_net.weight"]).all()
