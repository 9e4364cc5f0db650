"""The sanity suite: the rules by a second statement of them, what the command says, and the mutants it must catch."""

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import envs, tree
from evorl.cli import sanity
from evorl.envs.sanity import Bandit, Continuous, DigitMemory, Grid, PairGame, Password, Spaces, Squared, Stochastic
from evorl.envs.sanity.bandit import BanditParams
from evorl.errors import OptionError
from evorl.training import runs
from evorl.training.configuration import config

EPISODES = 400


@cache
def played(env):
    """Episodes of random actions, leaves [episodes, steps, ...]: obs, action, the time steps and the score so far."""

    def step(state, key):
        (env_state, obs), (key_action, key_step) = state, jax.random.split(key)
        action = env.action_space.sample(key_action)
        env_state, timestep = env.step(key_step, env_state, action, env.default_params)
        return (env_state, timestep.obs), (obs, action, timestep, env.score(env_state))

    def episode(key):
        first = env.reset(key, env.default_params)
        return jax.lax.scan(step, first, jax.random.split(key, env.max_episode_steps))[1]

    return jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), EPISODES)))


def bandit(obs, actions):
    return [float(actions[0] == 7)], "terminated", float(actions[0] == 7)


def password(obs, actions):
    guesses = [int(a) for a in actions[:5]]
    for i, seen in enumerate(obs[:5]):
        assert seen.tolist() == guesses[:i] + [-1] * (5 - i)
    solved = float(guesses == [1, 0, 0, 1, 0])
    return [0, 0, 0, 0, solved], "terminated", solved


def stochastic(obs, actions):
    rewards, zeros = [], 0
    for i, action in enumerate(actions[:100]):
        zeros += int(action == 0)
        f = zeros / (i + 1)
        right = (action == 0 and f < 0.7) or (action == 1 and f >= 0.7)
        rewards.append(1 - (0.7 - f) ** 2 if right else 0)
    return rewards, "terminated", 1 - (0.7 - f) ** 2


def pair(obs, actions):
    assert obs["agent"][0].tolist() == [0, 1]
    right = int(actions["agent"][0][0] == 0) + int(actions["agent"][0][1] == 1)
    return [{"agent": [right, right]}], "terminated", right / 2


def spaces(obs, actions):
    score = sum(0.5 for name in ("flat", "image") if bool(actions[name][0]) == (obs[name][0].astype(float).sum() > 0))
    return [score], "terminated", score


def memory(obs, actions):
    assert obs.tolist()[2:6] == [2, 2, 2, 2]
    right = [float(actions[4] == obs[0]), float(actions[5] == obs[1])]
    return [0, 0, 0, 0, *right], "terminated", float(sum(right) == 2)


def continuous(obs, actions):
    (x, y, u, v, a, b), rewards = obs[0].tolist(), []
    assert u == v == 0
    for t in range(100):
        u, v = u + 0.1 * actions[t][0], v + 0.1 * actions[t][1]
        x, y = x + u, y + v
        if max(abs(x), abs(y)) > 1:
            return [*rewards, -1], "terminated", 0
        distance = math.hypot(x - a, y - b)
        if distance < 0.1:
            return [*rewards, 5], "terminated", 1
        rewards.append(0.02 * (1 - distance))
    return rewards, "truncated", 0


def squared(obs, actions, n=1):
    moves = [(-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)]
    (x, y, *places), rewards = (obs[0, :-1] - 3).tolist(), []
    assert obs[: 3 * n, -1].tolist() == [0, 1, 2] * n
    left = list(zip(places[::2], places[1::2], strict=True))
    assert (x, y) == (0, 0)
    assert len(set(left)) == n
    assert all(max(abs(a), abs(b)) == 3 for a, b in left)
    for t in range(3 * n):
        x, y = x + moves[actions[t]][0], y + moves[actions[t]][1]
        rewards.append(1 - min(max(abs(x - a), abs(y - b)) for a, b in left) / 3)
        left = [place for place in left if place != (x, y)]
        if max(abs(x), abs(y)) == 3:
            x, y = 0, 0
    return rewards, "terminated", (n - len(left)) / n


def two_squared(obs, actions):
    return squared(obs, actions, n=2)


def grid(obs, actions):
    moves = [(0, 0), (0, -1), (0, 1), (-1, 0), (1, 0)]
    x, y, a, b = np.rint(5 * obs[0]).astype(int).tolist()
    assert (x, y) == (0, 0) != (a, b)
    for t in range(33):
        x, y = x + moves[actions[t]][0], y + moves[actions[t]][1]
        if (x, y) == (a, b):
            return [0] * t + [1], "terminated", 1
        if max(abs(x), abs(y)) > 5 or t == 32:
            return [0] * t + [-1], "terminated", 0
    raise AssertionError


def image_grid(obs, actions):
    (agent,), (target,) = (np.argwhere(obs[0, ..., 0] == mark) - 5 for mark in (1, 2))
    assert (obs[0] > 0).sum() == 2
    return grid(np.concatenate([agent, target])[None] / 5, actions)


def stacked(rewards):
    """The rewards of steps as an array, or those of a game by group."""
    if not isinstance(rewards[0], dict):
        return np.array(rewards)
    return {name: np.array([reward[name] for reward in rewards]) for name in rewards[0]}


RULES = {
    bandit: Bandit(),
    password: Password(),
    stochastic: Stochastic(),
    pair: PairGame(),
    spaces: Spaces(),
    memory: DigitMemory(),
    continuous: Continuous(),
    squared: Squared(),
    two_squared: Squared(targets=2),
    grid: Grid(),
    image_grid: Grid(image=True),
}


@pytest.mark.parametrize("rule", RULES)
def test_an_environment_follows_its_rule(rule):
    env = RULES[rule]
    obs, actions, timesteps, scores = played(env)
    seen = set()
    for i in range(EPISODES):
        rewards, end, score = rule(tree.index(obs, i), tree.index(actions, i))
        n = len(rewards)
        given = jax.tree.map(lambda x, i=i, n=n: x[i, :n], timesteps.reward)
        jax.tree.map(lambda *x: np.testing.assert_allclose(*x, atol=1e-5), given, stacked(rewards))
        last = [k == n - 1 for k in range(n)]
        assert timesteps.terminated[i, :n].tolist() == [one and end == "terminated" for one in last]
        assert timesteps.truncated[i, :n].tolist() == [one and end == "truncated" for one in last]
        assert scores[i, n - 1] == pytest.approx(score, abs=1e-5)
        seen.add(score)
    assert len(seen) > 1  # else the episodes say little


@pytest.mark.program
@pytest.mark.parametrize("rule", RULES)
def test_an_environment_meets_the_protocol(rule):
    envs.check_env(RULES[rule], episodes=2)


@pytest.mark.parametrize("rule", RULES)
def test_a_score_is_from_0_to_1(rule):
    assert isinstance(RULES[rule], sanity.ScoredEnv)
    scores = played(RULES[rule])[3]
    assert scores.min() >= 0
    assert scores.max() <= 1


def test_continuous_truncates_at_its_limit():
    env = Continuous()
    state = env.reset(jax.random.key(0), env.default_params)[0]
    state = state.replace(position=jnp.zeros(2), target=jnp.ones(2), steps=jnp.int32(99))
    after, timestep = env.step(jax.random.key(1), state, jnp.zeros(2), env.default_params)
    assert (bool(timestep.terminated), bool(timestep.truncated)) == (False, True)
    assert float(timestep.reward) == pytest.approx(0.02 * (1 - math.sqrt(2)))
    assert env.score(after) == 0


def test_the_rewards_of_a_bandit_may_be_noisy():
    env, params = Bandit(), BanditParams(arm=2, noise=1.0)
    keys = jax.random.split(jax.random.key(0), 10_000)
    rewards = jax.vmap(lambda key: env.step(key, jnp.bool_(False), jnp.int32(2), params)[1].reward)(keys)
    assert float(rewards.mean()) == pytest.approx(1, abs=0.05)
    assert float(rewards.std()) == pytest.approx(1, abs=0.05)


def said(arguments, capsys):
    """What the command prints, what it complains of, and its exit code."""
    try:
        sanity.main(arguments.split())
        code = 0
    except SystemExit as ended:
        code = ended.code
    out, err = capsys.readouterr()
    return out, err, code


WRONG = {
    "only=bandit": "agent=None: must be given: python -m evorl.sanity agent=NAME",
    "agent=pppo": "unknown agent pppo; did you mean ppo",
    "agent=ppo only=bandits": "unknown check bandits; did you mean bandit?",
    "agent=ppo env=ant": "env=ant: each check has its own; choose checks with only=",
    "agent=ppo agent.workflow.agent.learning_rat=1": "unknown option agent.workflow.agent.learning_rat; did you mean ",
    "agent=ppo agent.workflow.num_envs=0": "agent.workflow.num_envs=0: must be at least 1",
    "agent=td3 only=bandit": "TD3 needs continuous actions, a Box with one axis, not Discrete(n=10)",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_a_mistake_prints_one_line_and_exits_with_2(arguments, capsys):
    out, err, code = said(arguments, capsys)
    assert (out, code) == ("", 2)
    assert err.startswith(f"error: {WRONG[arguments]}")
    assert err.count("\n") == 1


@pytest.mark.program
def test_an_agent_that_learns_nothing_fails(capsys):
    out, _, code = said("agent=random only=bandit", capsys)
    assert code == 1
    assert out.splitlines()[1].endswith("FAILED")
    assert out.splitlines()[2] == "failed: bandit"


@pytest.mark.program
def test_what_an_agent_must_fail_and_what_it_cannot_handle_is_said_and_is_no_failure(capsys):
    out, _, code = said("agent=dqn only=stochastic,memory,pair env_steps=2_000", capsys)
    assert code == 0
    assert out.splitlines()[1].endswith("fails as expected with a deterministic policy")
    assert out.splitlines()[2].endswith("fails as expected without recurrent state")
    assert "skipped: DQN needs a discrete action space" in out.splitlines()[3]


PPO = "agent=ppo"
AGENT = "agent.workflow.agent._target_=tests.mutants."
MUTANTS = [  # check, agent, mistake
    ("bandit", PPO, AGENT + "WrongSign"),
    ("password", PPO, AGENT + "NoBootstrap"),
    ("spaces", PPO, AGENT + "NoMask"),
    ("stochastic", PPO, AGENT + "NeverExplores"),
    ("pair", PPO, AGENT + "SecondPartDropped"),
    ("memory", PPO, "env._target_=tests.mutants.Leaky"),
    ("spaces", PPO, AGENT + "PartUnseen"),
    ("continuous", "agent=td3", AGENT + "ActorDescends"),
    ("squared", PPO, AGENT + "OneStepLate"),
    ("grid", PPO, AGENT + "WrongSign"),
]


@pytest.mark.program
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(("check", "agent", "mistake"), MUTANTS)
def test_a_mutant_is_caught(check, agent, mistake, capsys):
    out, err, code = said(f"{agent} only={check} {mistake}", capsys)
    assert code == 1, out + err
    assert "FAILED" in out.splitlines()[1]


@pytest.mark.program
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("check", ["bandit", "password", "stochastic", "pair", "memory"])
def test_ppo_passes_without_a_mistake(check, capsys):
    out, err, code = said(f"agent=ppo only={check}", capsys)
    assert code == 0, out + err


@pytest.mark.program
def test_what_plays_games_plays_one_and_is_asked_nothing_else(capsys):
    out, err, code = said("agent=ippo only=bandit,pair", capsys)
    assert code == 0, out + err
    assert "skipped: env: must be a multi-agent environment" in out.splitlines()[1]
    assert out.splitlines()[2].endswith("passed")


@pytest.mark.program
@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("agent", "check"),
    [
        ("openes", "stochastic"),
        ("openes", "bandit"),
        ("pbt", "bandit"),
    ],
)
def test_evolvers_and_populations_take_part(agent, check, capsys):
    out, err, code = said(f"agent={agent} only={check}", capsys)
    assert code == 0, out + err
    assert ("as expected with a deterministic policy" in out) == (check == "stochastic")


@pytest.mark.program
@pytest.mark.usefixtures("optimized")
def test_an_agent_with_memory_passes_memory(capsys):
    explores = "agent.workflow.agent.entropy_coef=0.1 agent.workflow.agent.learning_rate=${linear:3e-4,0,200_000}"
    out, err, code = said(f"agent=ppo core=gru {explores} only=memory", capsys)
    assert code == 0, out + err
    assert out.splitlines()[1].endswith("  passed")


@pytest.mark.program
def test_an_agent_with_memory_is_asked_memory(capsys):
    out, _, code = said("agent=ppo core=gru only=memory env_steps=2_000 agent.workflow.agent.core.width=4", capsys)
    assert code == 1
    assert out.splitlines()[1].endswith("FAILED")
    workflow = runs.build(config.compose_config(["agent=ga", "env=sanity_memory", "core=gru"]))[0]
    search = sanity.adapt_check(sanity.CHECKS["memory"], workflow)
    assert (search.threshold, search.env_steps, search.needs_memory) == (0.5, 1_000_000, True)


@pytest.mark.program
def test_random_actions_pass_nothing(capsys):
    out, _, code = said("agent=random only=bandit,password,pair,memory", capsys)
    assert code == 1
    assert [line.split()[-1] for line in out.splitlines()[1:4]] == ["FAILED"] * 3


@pytest.mark.program
def test_what_finds_settings_and_no_policy_is_refused(capsys):
    out, err, code = said("agent=meta_es", capsys)
    assert (out, code) == ("", 2)
    assert "agent.workflow=MetaES: has no agent" in err


def test_search_is_asked_less_and_every_member_the_whole():
    check = sanity.CHECKS["continuous"]
    search = config.compose_config(["agent=openes", "env=sanity_continuous"])
    assert sanity.adapt_check(check, runs.build(search)[0]).env_steps == 1_000_000
    population = config.compose_config(["agent=pbt", "env=sanity_continuous", "agent.workflow.population.size=4"])
    assert sanity.adapt_check(check, runs.build(population)[0]) == replace(check, env_steps=800_000)
    with pytest.raises(OptionError, match="gradient-free search"):
        sanity.adapt_check(sanity.CHECKS["grid"], runs.build(search)[0])
