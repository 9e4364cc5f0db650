from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import envs
from evorl.agents import PPO, TD3, MLPPolicy
from evorl.ec import CEM, CSO
from evorl.envs.actions import ActionRepeat, RescaleAction, StickyAction
from evorl.envs.arcade import ConnectFour
from evorl.envs.games.game_wrappers import GroupRanking, JointControl, SingleAgentGame
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.mpe import MPE, SimpleTag
from evorl.envs.observations import DtypeObservation, FlattenObservation, TimeAwareObservation, TimeLimit
from evorl.envs.on_level import wrap_like
from evorl.envs.sanity import probe
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import (
    FilterObservation,
    FrameStack,
    LinearReward,
    LinearRewardParams,
    RewardTransform,
    strip_reward_wrappers,
    unwrap,
)
from evorl.errors import OptionError
from evorl.spaces import Box, MultiDiscrete
from evorl.types import Env
from evorl.vector_env import EnvBatch, ResetStarts, run_episodes
from evorl.workflows import CEMRL, Evolution, OffPolicy, OnPolicy
from tests.counting import Counting


def rewards(env, steps):
    """Of an episode of Counting, which lasts as many steps as its level, each with reward 1."""
    state, _ = env.reset(jax.random.key(0), env.default_params)
    found = []
    for i in range(steps):
        state, timestep = env.step(jax.random.key(i), state, jnp.zeros(1), env.default_params)
        found.append(float(timestep.reward))
        if timestep.terminated | timestep.truncated:
            break
    return found


def test_rewards_come_in_sums_and_at_the_end():
    plain = rewards(Counting(), 9)
    delayed = rewards(RewardTransform(Counting(), scale=0.5, delay=2), 9)
    assert isinstance(RewardTransform(Counting()), Env)
    assert rewards(RewardTransform(Counting()), 9) == plain
    sums = [0.5 * sum(plain[max(0, i - 1) : i + 1]) if i % 2 else 0.0 for i in range(len(plain))]
    if len(plain) % 2:
        sums[-1] = 0.5 * plain[-1]
    np.testing.assert_allclose(delayed, sums)


def test_refuses_no_delay():
    with pytest.raises(OptionError, match="delay=0"):
        RewardTransform(Counting(), delay=0)


MAZE = Maze(RandomWalls(5, 5, 3, 9), max_episode_steps=12)


def observations(env, steps):
    """What is seen from a reset on, under random actions that are those of every env with these actions."""
    state, obs = jax.jit(env.reset)(jax.random.key(0), env.default_params)
    seen = [obs]
    for i in range(steps):
        key = jax.random.key(i)
        state, timestep = env.step(key, state, env.action_space.sample(key), env.default_params)
        seen.append(timestep.obs)
    return seen


@pytest.mark.program
def test_frames_are_those_of_gymnasium():
    gymnasium = pytest.importorskip("gymnasium")
    plain = [np.asarray(obs["image"]) for obs in observations(MAZE, 9)]

    class Replayed(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, plain[0].shape)
        action_space = gymnasium.spaces.Discrete(1)

        def reset(self, *, seed=None, options=None):
            self.left = iter(plain)
            return next(self.left), {}

        def step(self, action):
            return next(self.left), 0.0, False, False, {}

    stacked = gymnasium.wrappers.FrameStackObservation(Replayed(), 3)
    expected = [stacked.reset()[0], *(stacked.step(0)[0] for _ in range(9))]
    found = [obs["image"] for obs in observations(FrameStack(MAZE, 3), 9)]
    np.testing.assert_array_equal(found, expected)


def test_frames_of_choices():
    assert FrameStack(MAZE, 3).observation_space.parts["direction"] == MultiDiscrete((4, 4, 4))
    assert FrameStack(FrameStack(MAZE, 3), 2).observation_space.parts["direction"] == MultiDiscrete((4,) * 6)
    plain = [int(obs["direction"]) for obs in observations(MAZE, 5)]
    found = [obs["direction"].tolist() for obs in observations(FrameStack(MAZE, 3), 5)]
    assert found == [(plain[:1] * 2 + plain)[i : i + 3] for i in range(6)]


def test_frames_keep_the_bounds_of_each_part():
    env = probe.ObsDependentReward()
    low, high = env.observation_space.bounds
    space = FrameStack(env, 2).observation_space
    assert isinstance(space, Box)
    np.testing.assert_array_equal(space.bounds, [np.stack([low, low]), np.stack([high, high])])


def test_seen_alike_leaves_out_rewards_alone():
    other = Maze(RandomWalls(3, 3, 0, 0))
    wrapped = RewardTransform(FrameStack(MAZE, 2), delay=3)
    assert unwrap(wrapped) == MAZE
    assert wrap_like(wrapped, other) == FrameStack(other, 2)
    assert wrap_like(MAZE, other) == other


@dataclass(frozen=True)
class Measured(Counting):
    """Rewards of two numbers: the steps so far, and the square of the action."""

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        return state, timestep.replace(reward={"steps": state[0], "ways": (action**2)})


ON_POLICY = partial(OnPolicy, num_envs=4, num_steps=8, num_epochs=1, batch_size=32, eval_episodes=8)
TINY = {
    "on_policy": lambda env: ON_POLICY(env, PPO(hidden=(4,))),
    "off_policy": lambda env: OffPolicy(env, TD3(hidden=(4,)), 4, batch_size=8),
    "evolution": lambda env: Evolution(env, MLPPolicy(), CSO(4)),
    "cem_rl": lambda env: CEMRL(env, TD3(hidden=(4,)), CEM(4), batch_size=8),
}


@pytest.mark.parametrize("name", TINY)
def test_a_reward_of_several_numbers_is_refused_where_one_is_needed(name):
    workflow = TINY[name](Measured())
    with pytest.raises(
        OptionError, match=r"env: the reward has shape {.*'ways': \[1\]}, must be a scalar; use LinearReward"
    ):
        jax.eval_shape(workflow.init, jax.random.key(0))


@pytest.mark.program
def test_the_weighted_sum_of_several_rewards_is_learned_from_and_each_is_reported():
    """Of Counting's episodes the lengths n are known: the steps so far add up to n (n + 1) / 2."""
    workflow = TINY["on_policy"](LinearReward(Measured(longest=1), [2, 0.5]))
    envs.check_env(workflow.env, episodes=2)
    state = workflow.init(jax.random.key(0))
    _, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
    assert float(metrics["episode/objectives/0"]) == 1
    whole = 2 + 0.5 * float(metrics["episode/objectives/1"])
    np.testing.assert_allclose(metrics["return"], whole, rtol=1e-6)
    evaluation = jax.jit(workflow.evaluate)(state, jax.random.key(1))
    assert float(evaluation["episode/objectives/0"]) == 1


def test_runs_side_by_side_may_weigh_differently():
    workflow = TINY["on_policy"](LinearReward(Measured(longest=1), (1, 0)))
    params = LinearRewardParams(None, (jnp.array([1.0, 3.0]), jnp.array([0.0, 0.0])))

    def one(params):
        state = workflow.init(jax.random.key(0), None, params)
        return workflow.evaluate(state, jax.random.key(1))

    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(params)["return"], [1, 3])


def test_refuses_weights_that_are_not_one_for_each_number():
    with pytest.raises(OptionError, match=r"weights=\(1.0,\): must be 2 numbers, one for each"):
        jax.eval_shape(lambda: observations(LinearReward(Measured(), [1]), 1))


def test_refuses_no_frames():
    with pytest.raises(OptionError, match="count=0"):
        FrameStack(Counting(), 0)


@pytest.mark.program
def test_only_what_is_kept_is_seen():
    pendulum, key, torque = Gymnax("Pendulum-v1"), jax.random.key(0), jnp.ones(1)
    env = FilterObservation(pendulum, [2, 0])
    state, obs = env.reset(key, env.default_params)
    inner, whole = pendulum.reset(key, env.default_params)
    np.testing.assert_array_equal(obs, whole[jnp.array([2, 0])])
    _, timestep = env.step(key, state, torque, env.default_params)
    _, same = pendulum.step(key, inner, torque, env.default_params)
    np.testing.assert_array_equal(timestep.obs, same.obs[jnp.array([2, 0])])
    assert float(timestep.reward) == float(same.reward)
    low, high = pendulum.observation_space.bounds
    np.testing.assert_array_equal(env.observation_space.bounds, [low[[2, 0]], high[[2, 0]]])
    envs.check_env(env)
    of_maze = FilterObservation(Maze(), ("image",))
    assert set(of_maze.reset(key, of_maze.default_params)[1]) == {"image"}
    envs.check_env(of_maze)


@pytest.mark.parametrize(("inner", "keep", "message"), [
    (Maze(), ["picture"], r"keep=\['picture'\]: must be some of \['direction', 'image'\], without repetition"),
    (Counting(), [2], r"keep=\[2\]: must be some of \[0, 1\], without repetition"),
    (Counting(), [0, 0], r"must be some of \[0, 1\], without repetition"),
    (Counting(), [], r"keep=\[\]: must be some of"),
    (Gymnax("Breakout-MinAtar"), [0], "env: FilterObservation needs observations that are a vector or a dict, not Box"),
])  # fmt: skip
def test_what_cannot_be_kept_is_refused(inner, keep, message):
    with pytest.raises(OptionError, match=message):
        FilterObservation(inner, keep)


def test_bits_of_minatar_are_bytes():
    plain, env, key = Gymnax("Breakout-MinAtar"), Gymnax("Breakout-MinAtar", bits=True), jax.random.key(0)
    state, obs = env.reset(key, env.default_params)
    assert str(obs.dtype) == env.observation_space.dtype == "uint8"
    np.testing.assert_array_equal(obs, plain.reset(key, plain.default_params)[1])
    _, timestep = jax.jit(env.step)(key, state, np.int32(0), env.default_params)
    assert timestep.obs.dtype == jnp.uint8
    with pytest.raises(OptionError, match="bits=True: needs MinAtar, whose observations are 0 or 1, not CartPole-v1"):
        Gymnax("CartPole-v1", bits=True)


def test_sticky_actions_repeat_with_their_probability():
    env = StickyAction(Counting(), 0.25)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    step = jax.vmap(lambda key, state: env.step(key, state, jnp.ones(1), env.default_params)[0].last_action, (0, None))
    keys = jax.random.split(jax.random.key(1), 4000)
    assert (step(keys, state) == 1).all()  # the first is taken
    state, _ = env.step(keys[0], state, -jnp.ones(1), env.default_params)
    stuck = float((step(keys, state) == -1).mean())
    assert abs(stuck - 0.25) < 0.03


@pytest.mark.program
def test_a_repeated_action_adds_its_rewards_up_to_the_end():
    plain, four = rewards(Counting(), 9), rewards(ActionRepeat(Counting(), 4), 9)
    np.testing.assert_allclose(four, [sum(plain[i : i + 4]) for i in range(0, len(plain), 4)])
    assert ActionRepeat(Gymnax("CartPole-v1"), 4).max_episode_steps == 125
    assert ActionRepeat(Gymnax("MountainCar-v0"), 3).max_episode_steps == 67
    envs.check_env(ActionRepeat(Gymnax("MountainCar-v0", 20), 3), episodes=2)


def test_rescaled_actions_reach_the_bounds_of_the_inner_ones():
    env = RescaleAction(Gymnax("Pendulum-v1"), 0.0, 1.0)
    assert env.action_space == Box(0.0, 1.0, (1,))
    inner = env.inner
    state, _ = env.reset(jax.random.key(0), env.default_params)
    for share, own in ((0.0, -2.0), (1.0, 2.0), (0.75, 1.0)):
        _, ours = env.step(jax.random.key(1), state, jnp.array([share]), env.default_params)
        _, theirs = inner.step(jax.random.key(1), state.inner, jnp.array([own]), inner.default_params)
        np.testing.assert_allclose(ours.obs, theirs.obs, rtol=1e-6)
    with pytest.raises(OptionError, match="RescaleAction needs continuous actions"):
        RescaleAction(MAZE)


def test_clipped_rewards():
    env = RewardTransform(Gymnax("Pendulum-v1"), scale=0.1, clip=0.2)
    state, _ = env.reset(jax.random.key(0), env.default_params)
    _, plain = env.inner.step(jax.random.key(1), state.inner, jnp.zeros(1), env.default_params)
    _, clipped = env.step(jax.random.key(1), state, jnp.zeros(1), env.default_params)
    assert float(clipped.reward) == pytest.approx(max(-0.2, 0.1 * float(plain.reward)))
    with pytest.raises(OptionError, match="clip=0"):
        RewardTransform(Counting(), clip=0)


@pytest.mark.parametrize(
    ("env", "learned"),
    [
        (RewardTransform(Counting(), scale=0.5), 0.5),
        (RewardTransform(RewardTransform(Counting(), clip=0.25), delay=3), 0.25),
        (ActionRepeat(RewardTransform(Counting(), scale=2), 3), 2),
        (RewardTransform(ActionRepeat(Counting(), 2), scale=-3), -3),
        (FrameStack(RewardTransform(Counting(), scale=0.5), 2), 0.5),
    ],
)
def test_returns_are_those_of_the_task_whatever_is_learned_from(env, learned):
    """An episode of Counting, whose every step is worth 1, returns its length."""

    def act(obs, memory, keys):
        return jnp.zeros((len(keys), 1)), memory, {}

    world = EnvBatch(env, None, None, 4)
    stats = jax.jit(lambda key: run_episodes(world, act, ResetStarts(), key, 7))(jax.random.key(3))
    starts = jax.random.key(3)
    plain = jax.jit(lambda key: run_episodes(EnvBatch(Counting(), None, None, 4), act, ResetStarts(), key, 7))(starts)
    np.testing.assert_allclose(stats.returns, plain.lengths)
    np.testing.assert_allclose(stats.learned_returns, learned * plain.lengths)
    np.testing.assert_allclose(stats.fitness_means["return"], learned * plain.lengths)
    metrics = stats.metrics()
    assert float(metrics["return"]) == pytest.approx(float(plain.lengths.mean()))
    assert float(metrics["learned_return"]) == pytest.approx(learned * float(plain.lengths.mean()))
    assert plain.fitness_means.keys() == {"return"}
    assert strip_reward_wrappers(env) in (
        Counting(),
        ActionRepeat(Counting(), 3),
        ActionRepeat(Counting(), 2),
        FrameStack(Counting(), 2),
    )


def test_a_reward_that_is_changed_keeps_the_tasks_own():
    env, key = RewardTransform(Counting(longest=1), scale=0.5), jax.random.key(0)
    alone = SingleAgentGame(env)
    _, timestep = alone.step(key, alone.reset(key, None)[0], {"only": jnp.zeros((1, 1))}, None)
    assert (timestep.reward["only"].tolist(), timestep.raw_reward["only"].tolist()) == ([0.5], [1.0])
    _, timestep = JointControl(alone).step(
        key, JointControl(alone).reset(key, None)[0], {"only": jnp.zeros((1, 1))}, None
    )
    assert (float(timestep.reward), float(timestep.raw_reward)) == (0.5, 1.0)


@pytest.mark.program
def test_evolution_is_told_of_the_rewards_that_it_learns_from():
    """Of the same population a scale of -1 makes elites of the others; what is reported is the same."""
    env, centers, metrics = probe.ObsActionReward(), [], []
    policy = MLPPolicy((4,))
    for scale in (1.0, -1.0):
        workflow = Evolution(
            RewardTransform(env, scale=scale), policy, CEM(8), normalization="none", same_episodes=True
        )
        state = workflow.init(jax.random.key(0))
        state, told = jax.jit(workflow.step)(state, jax.random.key(1))
        assert float(told["learned_return"]) == pytest.approx(scale * float(told["return"]))
        centers.append(jax.tree.leaves(state.agent.actor.params))
        metrics.append((float(told["return"]), float(told["return_best"])))
    assert metrics[0] == metrics[1]
    assert not np.allclose(centers[0][-1], centers[1][-1], atol=1e-6)


GAME = MPE(SimpleTag())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FrameStack(GAME, 2), "wrappers=FrameStack: does not support multi-agent environments"),
        (lambda: TimeAwareObservation(GAME), "wrappers=TimeAwareObservation: does not support multi-agent"),
        (lambda: RewardTransform(GAME, 2.0), "wrappers=RewardTransform: does not support multi-agent"),
        (lambda: StickyAction(ConnectFour()), "wrappers=StickyAction: does not support action masks"),
        (
            lambda: TimeLimit(FrameStack(RewardTransform(Gymnax("Pendulum-v1"), delay=10), 2), 25),
            "steps=25: must be a limit inside of the delayed reward",
        ),
    ],
)
def test_wrappers_that_would_give_wrong_data_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_wrappers_keep_the_ranking_group():
    ranked = GroupRanking(GAME, "agent")
    assert [EnvBatch(env, None, None, 2).ranking_group for env in (GAME, ranked, TimeLimit(ranked, 20))] == [
        "",
        "agent",
        "agent",
    ]
    assert EnvBatch(JointControl(ranked), None, None, 2).ranking_group is None


def test_a_time_limit_truncates_and_is_seen():
    env = TimeAwareObservation(TimeLimit(Gymnax("Pendulum-v1"), 4))
    assert env.max_episode_steps == 4
    state, obs = env.reset(jax.random.key(0), env.default_params)
    times, ends = [float(obs["time"][0])], []
    for i in range(4):
        state, timestep = env.step(jax.random.key(i), state, jnp.zeros(1), env.default_params)
        times.append(float(timestep.obs["time"][0]))
        ends.append(bool(timestep.truncated))
    assert times == [0, 0.25, 0.5, 0.75, 1]
    assert ends == [False, False, False, True]
    assert set(TimeAwareObservation(MAZE).observation_space.parts) == {"image", "direction", "time"}
    envs.check_env(env, episodes=2)


@pytest.mark.program
def test_what_is_seen_as_a_vector_and_in_another_dtype():
    flat = FlattenObservation(MAZE)
    _, obs = flat.reset(jax.random.key(0), flat.default_params)
    _, parts = MAZE.reset(jax.random.key(0), MAZE.default_params)
    one_hot = np.eye(4)[int(parts["direction"])]
    np.testing.assert_allclose(obs, np.concatenate([one_hot, np.ravel(parts["image"])]), rtol=1e-6)
    assert flat.observation_space.shape == obs.shape
    envs.check_env(flat, episodes=2)
    half = DtypeObservation(Gymnax("Pendulum-v1"))
    _, obs = half.reset(jax.random.key(0), half.default_params)
    assert obs.dtype == jnp.bfloat16
    assert half.observation_space.dtype == "bfloat16"
    pixels = DtypeObservation(Gymnax("Breakout-MinAtar", bits=True))
    assert pixels.observation_space.dtype == "uint8"


@dataclass(frozen=True)
class Endless(Counting):
    """It never ends, which a Python bool says, and has a flag in info that is always true."""

    flag: bool | int = False
    episode_info = {"hits": "sum", "share": "mean"}  # noqa: RUF012

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        info = {"hits": jnp.bool_(True), "share": jnp.bool_(True)}
        return state, timestep.replace(terminated=self.flag, truncated=False, info=info)


def last_step(env, steps):
    state, _ = env.reset(jax.random.key(0), env.default_params)
    for i in range(steps):
        state, timestep = env.step(jax.random.key(i), state, jnp.zeros(1), env.default_params)
    return timestep


def test_a_time_limit_around_a_python_bool_is_a_boolean():
    for steps, is_over in ((1, False), (2, True)):
        timestep = last_step(TimeLimit(Endless(), 2), steps)
        assert (timestep.truncated.dtype, bool(timestep.truncated)) == (jnp.bool_, is_over)


def test_repeated_flags_are_counted():
    timestep = last_step(ActionRepeat(Endless(), 4), 1)
    assert (float(timestep.info["hits"]), float(timestep.info["share"])) == (4, 1)


def test_ends_that_are_no_booleans_are_refused():
    batch = EnvBatch(Endless(flag=0), None, None, 2)
    starts = jax.vmap(Counting().reset, (0, None))(jax.random.split(jax.random.key(0), 2), None)
    with pytest.raises(OptionError, match=r"env=Endless: step.terminated is int32 \[\], must be bool \[\]"):
        batch.init_envs(starts)


@pytest.mark.parametrize("wrapper", [FlattenObservation, TimeAwareObservation])
def test_wrappers_of_observations_refuse_games(wrapper):
    with pytest.raises(OptionError, match=f"wrappers={wrapper.__name__}: does not support multi-agent"):
        wrapper(MPE(SimpleTag()))


def test_the_time_is_not_added_twice():
    with pytest.raises(OptionError, match='needs an observation without an entry "time"'):
        TimeAwareObservation(TimeAwareObservation(Counting()))
