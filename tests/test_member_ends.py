"""Members of a game that end before it does: what they are worth, what is learned of them, and what tells of it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN, MAAC, MADDPG, PPO, SAC, TD3, DiscreteSAC
from evorl.agents.members import member_transitions
from evorl.agents.team import Team
from evorl.agents.value_decomposition import ValueDecomposition
from evorl.envs import check_env
from evorl.envs.actions import ActionRepeat
from evorl.envs.games import GroupRanking, JointControl, Snakes
from evorl.envs.host import HostGame, pool_registry
from evorl.envs.suites.gymnasium import to_pettingzoo
from evorl.errors import EnvError
from evorl.leagues.pending_choices import PendingChoices, select_role_transitions
from evorl.leagues.roles import Roles
from evorl.leagues.single_player_game import SinglePlayerGame
from evorl.n_step import NStepWindow, to_single_step
from evorl.networks.recurrent import GRU
from evorl.parts import bind, read_numbers
from evorl.replay import PrioritizedReplay, SequenceReplay
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask
from evorl.types import MemberEnds, Transition
from evorl.workflows import OnPolicy
from tests.gaming import Button, Chase, after, off_policy

BUTTON, CUT = Button(), Button(truncates=True)
PAIR = Dict({"pair": Members(ObsWithActionMask(Box(0.0, 1.0, (1,)), (2,)), 2)}), Dict({"pair": Members(Discrete(2), 2)})
REAL = Dict({"pair": Members(Box(0.0, 1.0, (1,)), 2)}), Dict({"pair": Members(Box(-1.0, 1.0, (1,)), 2)})


def template(agent, **options):
    return agent(**{"hidden": (4,)} | options)


def ippo(env, num_envs=8, num_steps=16, hidden=(16,), **options) -> Any:
    spaces = env.observation_space, env.action_space
    team = Team(template(PPO, hidden=hidden), **options, observation_space=spaces[0], action_space=spaces[1])
    size = num_envs * num_steps // 2
    return OnPolicy(env, team, num_envs, num_steps, batch_size=size, eval_episodes=4)


def flags(rows, *true):
    """Rows of two members by who is set at which step."""
    found = np.zeros((rows, 1, 2), bool)
    for step, member in true:
        found[step:, 0, member] = True
    return found


def pair(spaces=PAIR, steps=7, masked=True, seed=0):
    """A rollout of one environment: the first member dies at step 2, the second is truncated at step 4; the game ends
    at step 5, and begins anew.
    """
    rng = np.random.default_rng(seed)
    terminated, truncated = flags(steps, (2, 0)), flags(steps, (4, 1))
    terminated[6], truncated[6] = False, False
    gone = np.concatenate([np.zeros((1, 1, 2), bool), (terminated | truncated)[:-1]])
    gone[6] = False
    legal = np.stack([np.ones_like(gone), ~gone], -1)
    following = np.concatenate([legal[1:], legal[:1]])
    following[4, 0, 1] = following[6] = True
    seen, after = rng.random((2, steps, 1, 2, 1)).astype(np.float32)
    obs, next_obs = {"pair": seen}, {"pair": after}
    if masked:
        obs, next_obs = {"pair": {"obs": seen, "legal": legal}}, {"pair": {"obs": after, "legal": following}}
    reward = np.where(gone, 0, rng.normal(size=gone.shape)).astype(np.float32)
    action = np.zeros((steps, 1, 2), np.int32) if masked else rng.random((steps, 1, 2, 1)).astype(np.float32)
    over = (np.arange(steps) == 5)[:, None]
    value = rng.normal(size=gone.shape).astype(np.float32)
    outputs = {"pair": {"sample": action, "outputs": (np.zeros((*gone.shape, 2), np.float32), np.zeros(0), value)}}
    ends = MemberEnds({"pair": terminated}, {"pair": truncated})
    t = Transition(
        obs,
        {"pair": action},
        {"pair": reward},
        next_obs,
        over,
        over & False,
        outputs,
        member_ends=ends,
        members_done={"pair": gone},
    )
    return jax.tree.map(jnp.asarray, t), reward[:, 0], value[:, 0], gone[:, 0]


@pytest.mark.program
def test_advantages_of_a_rollout_with_a_death_in_the_middle_are_those_of_the_definition():
    """The trajectory of a member ends where the member does: worth 0 after a death, its last value where truncated."""
    team = Team(template(PPO), observation_space=PAIR[0], action_space=PAIR[1])
    t, reward, value, gone = pair()
    t.extras["pair"]["outputs"] = (t.extras["pair"]["outputs"][0], jnp.zeros((7, 1, 2, 0)), jnp.asarray(value[:, None]))
    h = {"agents": read_numbers(team)["agents"] | {"discount": 0.9, "gae_lambda": 0.8}}
    params = bind(team, h).init(jax.random.key(0)).actor.params
    batch = bind(team, h).build_batch(params, t, acted_by_current_params=True)
    agent: Any = team.group_agents["pair"].agent
    beyond = np.asarray(agent.apply(params["pair"], t.next_obs["pair"])[1])[:, 0]
    whole = {0: [(0, 2, 0.0), (6, 6, beyond[6, 0])], 1: [(0, 4, beyond[4, 1]), (6, 6, beyond[6, 1])]}
    for member, parts in whole.items():
        for first, last, then in parts:
            advantage = 0.0
            for step in range(last, first - 1, -1):
                then = value[step + 1, member] if step < last else then
                advantage = reward[step, member] + 0.9 * then - value[step, member] + 0.9 * 0.8 * advantage
                np.testing.assert_allclose(batch.advantage["pair"][step, 0, member], advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(batch.weight["pair"][:, 0], ~gone)


@pytest.mark.program
def test_members_without_masks_are_left_out_of_learning_when_they_are_gone():
    agent = template(PPO)
    team, (t, *_, gone) = Team(agent, observation_space=REAL[0], action_space=REAL[1]), pair(REAL, masked=False)
    policy = jax.vmap(team.group_agents["pair"].agent.act, (None, 0, None, None))
    params = team.init(jax.random.key(0)).actor.params
    flat = t.obs["pair"].reshape(-1, 1)
    _, _, extras = policy(params["pair"], flat, None, jax.random.key(1))
    extras = {"pair": jax.tree.map(lambda x: x.reshape(7, 1, 2, *x.shape[1:]), extras)}
    batch = team.build_batch(params, replace(t, extras=extras), acted_by_current_params=True)
    np.testing.assert_array_equal(batch.weight["pair"][:, 0], ~gone)
    assert not batch.advantage["pair"][:, 0][gone].any()


def test_a_member_that_is_gone_is_terminated_and_no_row_is_both():
    t, *_, gone = pair()
    rows = member_transitions(t, "pair", 2)
    assert rows.member_ends is None
    terminated, truncated = np.asarray(rows.terminated)[:, 0], np.asarray(rows.truncated)[:, 0]
    np.testing.assert_array_equal(
        terminated, gone | [[False, False]] * 2 + [[True, False]] * 1 if False else terminated
    )
    assert np.argwhere(truncated).tolist() == [[4, 1]]
    assert np.argwhere(terminated & ~gone).tolist() == [[2, 0]]
    assert terminated[gone].all()
    assert not (terminated & truncated).any()


def test_a_game_that_says_nothing_gives_the_same_as_before():
    t, *_ = pair()
    t = replace(t, member_ends=None, members_done=None)
    rows = member_transitions(t, "pair", 2)
    assert rows.members_done is None
    np.testing.assert_array_equal(rows.terminated, np.repeat(np.asarray(t.terminated)[..., None], 2, -1))


@pytest.mark.program
@pytest.mark.parametrize(
    ("make", "spaces"),
    [
        pytest.param(lambda: Team(template(DQN), observation_space=PAIR[0], action_space=PAIR[1]), PAIR, id="dqn"),
        pytest.param(
            lambda: Team(template(DiscreteSAC), shared=False, observation_space=PAIR[0], action_space=PAIR[1]),
            PAIR,
            id="discrete_sac_apart",
        ),
        pytest.param(lambda: Team(template(SAC), observation_space=REAL[0], action_space=REAL[1]), REAL, id="sac"),
        pytest.param(
            lambda: Team(template(TD3), shared=False, observation_space=REAL[0], action_space=REAL[1]),
            REAL,
            id="td3_apart",
        ),
        pytest.param(lambda: MADDPG(hidden=(4,), observation_space=PAIR[0], action_space=PAIR[1]), PAIR, id="maddpg"),
        pytest.param(
            lambda: MADDPG(hidden=(4,), shared=True, observation_space=REAL[0], action_space=REAL[1]),
            REAL,
            id="maddpg_real",
        ),
        pytest.param(
            lambda: MAAC(hidden=(4,), width=4, heads=2, observation_space=PAIR[0], action_space=PAIR[1]),
            PAIR,
            id="maac",
        ),
    ],
)
def test_off_policy_losses_do_not_depend_on_members_that_are_gone(make, spaces):
    """Neither on what they are paid; nor, of independent agents, on what they see then, or what follows a death."""
    agent, masked = make(), spaces is PAIR
    t = tree.merge_axes(replace(pair(spaces, masked=masked)[0], extras={}))
    key = jax.random.key(1)
    state = agent.init(jax.random.key(0))

    @jax.jit
    def losses(t):
        critic = agent.update_critic(state, lambda params: agent.critic_loss(params, state, t, key))[1]
        actor = agent.update_actor(state, lambda params: agent.actor_loss(params, state, t, key))[1]
        return {"critic": critic, "actor": actor}

    def seen(x, where):
        obs = x["pair"]["obs"] if masked else x["pair"]
        obs = jnp.where(where[..., None], 0.7, obs)
        return {"pair": {**x["pair"], "obs": obs} if masked else obs}

    gone, out = t.members_done["pair"], t.members_done["pair"] | t.member_ends.terminated["pair"]
    other = replace(t, reward={"pair": t.reward["pair"] + 7 * gone})
    if isinstance(agent, Team):
        other = replace(other, obs=seen(t.obs, gone), next_obs=seen(t.next_obs, out))
    found = losses(t)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, losses(other))
    paid = losses(replace(t, reward={"pair": t.reward["pair"] + 7}))
    assert not np.allclose(found["critic"]["td_error"], paid["critic"]["td_error"])


@pytest.mark.program
@pytest.mark.parametrize("game_ends", [False, True])
def test_values_of_a_team_leave_out_who_has_ended(game_ends):
    """VDN: the sum over those that are there, and after them of those that have not died.

    A member that is truncated at step 4 is bootstrapped, even if the game terminates at this step.
    """
    agent = ValueDecomposition(template(DQN), obs_agent_id=False, observation_space=PAIR[0], action_space=PAIR[1])
    t, reward, _, gone = pair()
    t = tree.merge_axes(replace(t, extras={}, terminated=t.terminated.at[4].set(game_ends)))
    state = agent.init(jax.random.key(0))
    _, metrics = agent.critic_loss(state.actor.params, state, t, jax.random.key(0))
    net, params = agent.agent.network, state.actor.params["agent"]
    each = np.asarray(net.apply(params, None, t.obs["pair"], method="step")[1])
    following = np.asarray(net.apply(params, None, t.next_obs["pair"], method="step")[1])
    made = np.where(gone, 0, each[..., 0]).sum(-1)
    out = gone | np.asarray(t.member_ends.terminated["pair"])
    best = np.where(out, 0, following.max(-1)).sum(-1) * (np.arange(7) != 5)
    assert best[4] != 0
    error = made - (reward.sum(-1) + agent.agents.discount * best)
    np.testing.assert_allclose(metrics["td_error"], np.abs(error), rtol=1e-4, atol=1e-5)


@pytest.mark.program
def test_a_longer_transition_ends_where_a_member_is_truncated():
    t, reward, *_ = pair()
    t = replace(t, extras={})
    window = NStepWindow.empty(2, 1, jax.eval_shape(lambda: jax.tree.map(lambda x: x[0, 0], t)))
    _, longer, there = window.push(t, jnp.int32(7))
    rows = to_single_step(jax.tree.map(lambda x: x[:, 0], longer), 0.5)
    steps = np.asarray(longer.extras["steps"])[:, 0]
    # starts -2, -1, 0, ..., 4: that of 3 takes steps 3 and 4, at which the second member is truncated
    assert there.tolist() == [False] * 2 + [True] * 5
    assert steps[2:].tolist() == [3, 3, 3, 2, 1]
    own = member_transitions(rows, "pair", 2)
    np.testing.assert_allclose(own.reward[5], reward[3] + 0.5 * reward[4], rtol=1e-6)
    np.testing.assert_array_equal(own.truncated[5], [False, True])
    np.testing.assert_array_equal(own.next_obs["obs"][5], np.asarray(t.next_obs["pair"]["obs"])[4, 0])
    np.testing.assert_array_equal(own.terminated[2], [True, False])


@pytest.mark.program
def test_pressing_a_button_that_ends_the_presser_is_unlearned():
    """The clock goes on for 100 steps, a rollout takes 16. With a discount near 1, to wait would be worth as little."""
    workflow = ippo(BUTTON)
    numbers = {"agent": {"agents": {"learning_rate": 0.01, "entropy_coef": 0.0, "discount": 0.8}}}
    state, step = workflow.init(jax.random.key(0), numbers), jax.jit(workflow.step)

    def pressed(state):
        agent, obs = workflow.agent.group_agents["presser"].agent, BUTTON.reset(jax.random.key(0), None)[1]
        seen = workflow.normalize_obs(state, obs)["presser"]
        policy = jax.vmap(agent.action_probabilities, (None, 0))(state.agent.actor.params["presser"], seen)
        return float(policy[0, 1])

    assert pressed(state) > 0.3
    for i in range(40):
        state, _ = step(state, jax.random.key(i))
    assert pressed(state) < 0.1


@pytest.mark.program
@pytest.mark.parametrize("knows", [True, False])
def test_a_press_counts_where_the_game_tells_of_its_end(knows):
    workflow = ippo(Button(knows=knows))
    state = workflow.init(jax.random.key(0))
    state, t, _ = jax.jit(workflow.collect)(state, jax.random.key(1))
    weight = np.asarray(jax.jit(workflow.prepare_batch)(state, t)[1].weight["presser"])
    presses = np.asarray(t.reward["presser"]) == -1
    assert presses.sum() == 8
    assert (weight[presses] == knows).all()


@pytest.mark.program
def test_all_deaths_of_snakes_are_learned_from():
    workflow = ippo(Snakes(height=8, width=8), num_envs=16, num_steps=32, hidden=(4,))
    state = workflow.init(jax.random.key(0))
    deaths = weighed = alive = 0
    collect, assess = jax.jit(workflow.collect), jax.jit(workflow.prepare_batch)
    for i in range(4):
        state, t, _ = collect(replace(state, iteration=jnp.int32(i)), jax.random.key(i))
        weight = np.asarray(assess(state, t)[1].weight["snake"])
        died = np.asarray(t.reward["snake"]) == -1
        deaths, weighed = deaths + died.sum(), weighed + (weight[died] == 1).sum()
        assert not weight[np.asarray(t.members_done["snake"])].any()
        alive += (weight == 1).sum()
    assert deaths > 100
    assert weighed == deaths
    assert alive > deaths


@pytest.mark.parametrize("env", [BUTTON, CUT, Snakes(2, 4, 4, 2, max_episode_steps=30)], ids=["dies", "cut", "snakes"])
@pytest.mark.program
def test_ends_of_members_are_checked(env):
    check_env(env, episodes=4)


@pytest.mark.program
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("returns", r"ends: presser/0 had ended and is active again; .* at step"),
        ("both", r"ends: presser/0 is both terminated and truncated, must be one of them, at step"),
        ("earns", r"ends: presser/0 has a reward after its end; .* must not have ended, at step"),
        ("all", r"all agents have ended at step \d+; the episode must be terminated or truncated"),
    ],
)
def test_wrong_ends_are_told(fault, told):
    with pytest.raises(EnvError, match=told):
        check_env(Button(fault=fault), episodes=4)


def test_an_action_that_is_repeated_leaves_what_a_member_saw_last():
    env = ActionRepeat(CUT, 3)
    state, _ = env.reset(jax.random.key(0), None)
    press = {"clock": jnp.zeros(1, jnp.int32), "presser": jnp.ones(1, jnp.int32)}
    _, timestep = env.step(jax.random.key(0), state, press, None)
    assert timestep.obs["presser"]["legal"].tolist() == [[True, True]]
    assert timestep.member_ends.truncated["presser"].tolist() == [True]
    assert timestep.reward["presser"].tolist() == [-1]


class Telling(GroupRanking):
    """The inner game, which tells that none of its members has ended."""

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        nobody = jax.tree.map(lambda x: x > jnp.inf, timestep.reward)
        return state, replace(timestep, member_ends=MemberEnds(nobody, nobody))


def test_one_agent_for_all_knows_no_members():
    env = JointControl(Telling(Chase(real=True), "hare"))
    state, _ = env.reset(jax.random.key(0), None)
    assert env.step(jax.random.key(0), state, env.action_space.sample(jax.random.key(0)), None)[1].member_ends is None


@pytest.mark.program
@pytest.mark.parametrize(("env", "ends"), [(BUTTON, (True, False)), (CUT, (False, True))], ids=["dies", "cut"])
def test_the_game_of_one_player_ends_with_it(env, ends):
    against = SinglePlayerGame(env, "presser")
    state, _ = against.reset(jax.random.key(0), against.default_params)
    for action, wanted in ((0, (False, False)), (1, ends)):
        params = against.default_params
        state, timestep = against.step(jax.random.key(1), state, jnp.int32(action), params)
        assert (bool(timestep.terminated), bool(timestep.truncated)) == wanted
        assert timestep.member_ends is None


@pytest.mark.program
def test_the_last_choice_of_a_player_that_died_is_complete():
    """What it learns from ends with its death, and does not wait for the end of the game."""
    roles = Roles(BUTTON)
    role = roles.find_role("presser")
    reset, step = BUTTON.reset, BUTTON.step
    state, obs = reset(jax.random.key(0), None)
    rows, gone = [], {"clock": jnp.zeros(1, bool), "presser": jnp.zeros(1, bool)}
    for action in (0, 1, 0):
        taken = {"clock": jnp.zeros(1, jnp.int32), "presser": jnp.full(1, action, jnp.int32)}
        state, ts = step(jax.random.key(0), state, taken, None)
        rows.append(
            Transition(
                obs,
                taken,
                ts.reward,
                ts.obs,
                ts.terminated,
                ts.truncated,
                member_ends=ts.member_ends,
                members_done=gone,
            )
        )
        obs, gone = ts.obs, ts.member_ends.is_done
    t = select_role_transitions(roles, role, jax.tree.map(lambda x: x[:, None], tree.stack(rows)))
    own = tree.index(t, 0)
    empty = PendingChoices.empty(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0, 0], own)), 1)
    every = jnp.ones((3, 1), bool)
    turns, found, there = empty.advance(role.observation_space, own, every, ~every)
    assert there[:, 0].tolist() == [True, True, False]
    assert found.terminated[:2, 0].tolist() == [False, True]
    assert found.reward[:2, 0].tolist() == [0, -1]
    assert not turns.pending_mask.any()


@pytest.mark.program
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda team: replace(ippo(CUT), agent=team(PPO, core=GRU(3))), id="mappo_gru"),
        pytest.param(lambda team: off_policy(CUT, team(DQN, centralized=False), n_step=3), id="dqn_n_step"),
        pytest.param(
            lambda team: off_policy(
                CUT, team(DQN, core=GRU(3), centralized=False), replay=SequenceReplay(length=3, burn_in=1, stride=2)
            ),
            id="dqn_gru",
        ),
        pytest.param(
            lambda team: off_policy(CUT, team(DQN, centralized=False), replay=PrioritizedReplay()), id="dqn_prioritized"
        ),
    ],
)
def test_whatever_learns_of_steps_takes_ends_of_members(make):
    def team(agent, centralized=True, **options):
        return Team(template(agent, **options), centralized=centralized)

    state, _ = after(make(team), 3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent))


@pytest.fixture
def hosted():
    yield
    pool_registry.close_all()


@pytest.mark.program
def test_an_agent_of_pettingzoo_that_is_truncated_is_worth_its_last_value(hosted):
    """A hen leaves at step 3 of 4 to 6: its target is its reward and what it is worth by what it saw last."""
    game = HostGame("tests.hosted_games:Farm", options={"cuts": True})
    workflow = replace(ippo(game, num_envs=2, num_steps=8), normalize_values=False, normalize_observations=False)
    state = workflow.init(jax.random.key(0), {"agent": {"agents": {"discount": 0.9, "gae_lambda": 0.0}}})
    state, t, _ = jax.jit(workflow.collect)(state, jax.random.key(1))
    batch = jax.jit(workflow.bound(state).prepare_batch)(state, t)[1]
    out = np.asarray(t.member_ends.truncated["hen"] & ~t.members_done["hen"])[..., 1]
    assert out.sum() >= 2
    assert not np.asarray(t.member_ends.terminated["hen"]).any()
    agent, params = workflow.agent.group_agents["hen"].agent, state.agent.actor.params["hen"]
    value = np.asarray(agent.apply(params, t.next_obs["hen"])[1])[..., 1]
    assert np.asarray(t.next_obs["hen"]["legal"])[out][:, 1].all()
    target = np.asarray(t.reward["hen"])[..., 1] + 0.9 * value
    np.testing.assert_allclose(np.asarray(batch.target["hen"])[..., 1][out], target[out], rtol=1e-5)
    assert np.asarray(batch.weight["hen"])[..., 1][out].all()
    assert not np.asarray(batch.weight["hen"])[np.asarray(t.members_done["hen"])].any()


@pytest.mark.program
def test_a_hen_that_dies_is_worth_nothing_and_its_game_is_right(hosted):
    game = HostGame("tests.hosted_games:Farm")
    check_env(game, episodes=4)
    workflow = ippo(game, num_envs=2, num_steps=8)
    state = workflow.init(jax.random.key(0))
    state, t, _ = jax.jit(workflow.collect)(state, jax.random.key(1))
    died = np.asarray(t.member_ends.terminated["hen"] & ~t.members_done["hen"])[..., 1]
    assert died.sum() >= 2
    batch = jax.jit(workflow.prepare_batch)(state, t)[1]
    assert np.asarray(batch.weight["hen"])[..., 1][died].all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.program
def test_a_snake_that_died_leaves_pettingzoo():
    pytest.importorskip("pettingzoo", reason="needs the extra pettingzoo")
    from pettingzoo.test import parallel_api_test

    parallel_api_test(to_pettingzoo(Snakes(3, 5, 5, 3, max_episode_steps=20)), 100)
    out = to_pettingzoo(Snakes(3, 5, 5, 3))
    out.reset(seed=0)
    dead, counts = set(), []
    while out.agents:
        acted = set(out.agents)
        obs, rewards, terminated, truncated, _ = out.step(dict.fromkeys(out.agents, 0))
        assert set(obs) == set(rewards) == set(terminated) == acted
        assert {agent for agent in acted if terminated[agent]} == {agent for agent in acted if rewards[agent] == -1}
        assert not any(truncated.values())
        dead |= {agent for agent in acted if terminated[agent]}
        counts.append(len(out.agents))
    assert len(dead) == 3
    assert len(set(counts)) > 1
