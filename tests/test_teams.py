"""Teams: each agent of a team learns as it would alone, and steps without a choice teach nothing."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import A2C, DQN, IMPALA, PPO, SAC, TD3, DiscreteSAC, MLPPolicy
from evorl.agents.base_agent import fill_spaces
from evorl.agents.losses import mean_of_rows
from evorl.agents.members import member_critic_loss
from evorl.agents.random import Random
from evorl.agents.team import Team
from evorl.ec import OpenES
from evorl.envs import check_env
from evorl.envs.games import GroupRanking, JointControl, SingleAgentGame
from evorl.errors import EnvError, OptionError
from evorl.networks.recurrent import GRU
from evorl.replay import SequenceReplay
from evorl.returns import gae, is_known, skip_forced_steps
from evorl.spaces import Box, Dict, Discrete, Members, MultiDiscrete, ObsWithActionMask, has_choice, random_action
from evorl.training.configuration import config
from evorl.training.cross_play import CrossPlayPolicy, PlayerId
from evorl.training.episodes import evaluate_policy
from evorl.training.policy import Policy
from evorl.types import Batch, Transition
from evorl.workflows import Evolution, OnPolicy
from evorl.workflows.minibatch_epochs import standardize
from tests.gaming import Chase, after, off_policy
from tests.tiny import CHOICES, ENV

CHASE, REAL = Chase(), Chase(real=True)


def template(agent, **options):
    return agent(**{"hidden": (4,)} | options)


def team(env, agent, **options):
    return fill_spaces(Team(agent, **options), env)


def on_policy(env, agent, **options):
    return OnPolicy(env, agent, num_envs=4, num_steps=8, num_epochs=2, batch_size=16, eval_episodes=4, **options)


@pytest.mark.program
@pytest.mark.parametrize(
    ("make", "env", "agent", "options"),
    [
        pytest.param(on_policy, CHOICES, PPO, {}, id="ppo"),
        pytest.param(on_policy, ENV, IMPALA, {"core": GRU(3)}, id="impala_gru"),
        pytest.param(off_policy, CHOICES, DQN, {}, id="dqn"),
        pytest.param(off_policy, ENV, TD3, {}, id="td3"),
        pytest.param(off_policy, ENV, SAC, {}, id="sac"),
        pytest.param(on_policy, CHOICES, A2C, {}, id="a2c"),
        pytest.param(off_policy, CHOICES, DiscreteSAC, {}, id="discrete_sac"),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_a_team_of_one_is_its_agent(make, env, agent, options, shared):
    alone, game = template(agent, **options), SingleAgentGame(env)
    plain, metrics = after(make(env, alone))
    as_team, metrics_of_team = after(make(game, team(game, alone, shared=shared)))
    assert metrics_of_team.keys() - metrics.keys() == {"return/only"}
    for name, x in metrics.items():
        np.testing.assert_allclose(metrics_of_team[name], x, rtol=1e-5, atol=1e-6, err_msg=name)
    own = as_team.agent.actor.params["only"]
    own = own if shared else tree.index(own, 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), own, plain.agent.actor.params)


@pytest.mark.program
@pytest.mark.parametrize(
    ("make", "agents", "options"),
    [
        pytest.param(
            on_policy,
            lambda: {
                "hunter": template(A2C),
                "hare": PPO(
                    hidden=(4,), observation_space=CHASE.observation_space.parts["hare"].space, action_space=Discrete(3)
                ),
            },
            {"centralized": True, "obs_agent_id": True, "shared": {"hunter": False}},
            id="central_a2c_and_ppo",
        ),
        pytest.param(off_policy, lambda: template(DQN), {"shared": False}, id="dqn"),
        pytest.param(off_policy, lambda: template(DiscreteSAC), {"obs_agent_id": True}, id="discrete_sac"),
        pytest.param(on_policy, lambda: template(IMPALA, core=GRU(3)), {}, id="impala_gru"),
    ],
)
def test_all_actions_are_legal_and_all_weights_stay_finite(make, agents, options):
    """Rewards after an illegal action are no numbers, also in the random prefill."""
    state, metrics = after(make(CHASE, team(CHASE, agents(), **options)), 6)
    for x in jax.tree.leaves((state.agent, metrics["return"])):
        assert np.isfinite(x).all()
    np.testing.assert_allclose(metrics["return/hare"], -metrics["return/hunter"], rtol=1e-5)
    np.testing.assert_allclose(metrics["return"], metrics["return/hunter"] / 3, rtol=1e-5)


def worth_by_hand(reward, value, beyond, terminated, cut, choice, following, discount, decay):
    """Advantages of the steps with a choice, with what comes between two of them as one step; None where not known."""
    found = {}
    for t in reversed(np.flatnonzero(choice)):
        total, factor, s = 0.0, 1.0, t
        while True:
            total, factor = total + factor * reward[s], factor * discount
            if terminated[s]:
                found[t] = total - value[t]
            elif cut[s]:
                found[t] = total + factor * beyond[s] - value[t] if following[s] else None
            elif choice[s + 1]:
                later = decay ** (s + 1 - t) * (found[s + 1] or 0.0)
                found[t] = total + factor * (value[s + 1] + later) - value[t]
            else:
                s += 1
                continue
            break
    return found


def test_what_is_earned_between_two_choices_counts_for_the_first():
    rng, steps = np.random.default_rng(0), 400
    reward, value, beyond = rng.normal(size=(3, steps)).astype(np.float32)
    terminated, choice, following = rng.random((3, steps)) < np.array([[0.1], [0.5], [0.5]])
    cut = (rng.random(steps) < 0.1) & ~terminated
    cut[-1] = True
    following = np.where(terminated | cut, following, np.append(choice[1:], False))
    by_hand = worth_by_hand(reward, value, beyond, terminated, cut, choice, following, 0.9, 0.8)
    known = is_known(*map(jnp.asarray, (terminated, cut, choice, following)))
    changed = skip_forced_steps(*map(jnp.asarray, (reward, value, beyond, terminated, cut, choice)), known, 0.9)
    advantage = np.asarray(gae(*changed, jnp.asarray(terminated), jnp.asarray(terminated | cut), 0.9, 0.8))
    assert len(by_hand) > 150
    assert any(x is None for x in by_hand.values())
    for t, x in by_hand.items():
        assert bool(known[t]) == (x is not None)
        np.testing.assert_allclose(advantage[t], x or 0, rtol=1e-4, atol=1e-5)


def test_rows_without_a_choice_weigh_nothing():
    rng = np.random.default_rng(1)
    log_prob, value, advantage, target, now, new, entropy = jnp.asarray(rng.normal(size=(7, 30)), jnp.float32)
    weight = jnp.asarray(rng.random(30) < 0.5, jnp.float32)
    there = weight > 0

    def loss(of, weight):
        batch = Batch(None, None, log_prob[of], value[of], advantage[of], target[of], weight=weight)
        return PPO(entropy_coef=0.3).loss_of_rows(batch, now[of], new[of], entropy[of])

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), loss(np.arange(30), weight), loss(there, None)
    )
    few = (advantage[there] - advantage[there].mean()) / advantage[there].std()
    np.testing.assert_allclose(standardize(advantage, weight=weight)[there], few, rtol=1e-4)
    np.testing.assert_allclose(mean_of_rows(weight, value), value[there].mean(), rtol=1e-5)
    assert mean_of_rows(jnp.zeros(30), value) == 0


def test_a_central_value_sees_the_state_and_whom_it_values_and_its_policy_does_not():
    agent = team(CHASE, template(PPO), centralized=True)
    key = jax.random.key(0)
    params = jax.jit(agent.init)(key).actor.params
    obs = jax.vmap(CHASE.reset, (0, None))(jax.random.split(key, 5), ())[1]
    shown = agent.observer.observe("hunter", obs)
    np.testing.assert_array_equal(shown["state"]["state"], np.repeat(obs["state"][:, None], 2, 1))
    np.testing.assert_array_equal(shown["state"]["id"], np.tile([0, 1], (5, 1)))
    np.testing.assert_array_equal(shown["obs"], obs["hunter"])
    np.testing.assert_array_equal(agent.observer.observe("hare", obs)["legal"], obs["hare"]["legal"])

    def outputs(obs, name):
        given = params[name], (None, None), agent.observer.observe(name, obs)
        numbers, _, value = agent.group_agents[name].agent.apply_network("step", *given)[1]
        return np.asarray(numbers), np.asarray(value)

    other = obs | {"state": obs["state"] + 1}
    for name in ("hunter", "hare"):
        np.testing.assert_array_equal(outputs(obs, name)[0], outputs(other, name)[0])
        assert np.abs(outputs(obs, name)[1] - outputs(other, name)[1]).min() > 1e-6
    same = obs | {"hunter": jnp.repeat(obs["hunter"][:, :1], 2, 1)}
    numbers, value = outputs(same, "hunter")
    np.testing.assert_array_equal(numbers[:, 0], numbers[:, 1])
    assert np.abs(value[:, 0] - value[:, 1]).min() > 1e-6
    shown = team(CHASE, template(PPO), obs_agent_id=True).observer.observe("hunter", obs)
    np.testing.assert_array_equal(shown["id"], np.tile([0, 1], (5, 1)))


def test_without_a_state_of_its_own_a_game_has_all_that_is_observed():
    spaces = {name: part for name, part in CHASE.observation_space.parts.items() if name != "state"}
    agent = Team(template(PPO), centralized=True, observation_space=Dict(spaces), action_space=CHASE.action_space)
    obs = CHASE.reset(jax.random.key(0), None)[1]
    shown = agent.observer.observe("hunter", {name: obs[name] for name in spaces})
    np.testing.assert_array_equal(shown["state"]["state"]["hunter"], np.tile(obs["hunter"], (2, 1, 1)))
    np.testing.assert_array_equal(shown["state"]["state"]["hare"][1], obs["hare"]["obs"])


@pytest.mark.program
def test_evolution_and_memories_take_a_team():
    evolved = Evolution(CHASE, team(CHASE, template(MLPPolicy)), OpenES(4), 2, vbn_steps=8, eval_episodes=4)
    ranked = replace(evolved, env=GroupRanking(CHASE, "hare"))
    for workflow in (evolved, ranked):
        state, metrics = after(workflow, 2)
        np.testing.assert_allclose(metrics["return/hare"], -metrics["return/hunter"], rtol=1e-5)
    np.testing.assert_allclose(metrics["return"], metrics["return/hare"], rtol=1e-6)
    recurrent = team(CHASE, template(DQN, core=GRU(3)), shared={"hunter": False})
    state, _ = after(off_policy(CHASE, recurrent, replay=SequenceReplay(length=3, burn_in=1, stride=2)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.agent))


def test_agents_that_do_not_learn_do_not_stop_the_epochs():
    def stop(kl, **agents):
        observed, acting = (
            Dict({name: Members(space, 1) for name in agents}) for space in (Box(-1.0, 1.0, ()), Discrete(2))
        )
        team = Team(agents, observation_space=observed, action_space=acting)
        return bool(team.early_stop({f"kl/{name}": jnp.float32(kl) for name in agents}))

    ppo = PPO(target_kl=0.1)
    assert [stop(kl, a=ppo, b=Random()) for kl in (0.0, 1.0)] == [False, True]
    assert [stop(kl, a=ppo, b=ppo) for kl in (0.0, 1.0)] == [False, True]
    assert stop(0.0, a=Random(), b=Random())


def test_the_critic_of_a_member_that_leaves_early_learns_from_a_mean_of_its_own():
    rng = np.random.default_rng(0)
    value, target = rng.normal(size=(5, 2, 3)), rng.normal(size=(5, 2))
    gone = np.arange(5)[:, None] >= [5, 1]
    t = Transition(*(None,) * 6, members_done=jnp.asarray(gone))
    squares = ((value - target[..., None]) ** 2).sum(-1)
    apart, _ = member_critic_loss(t, jnp.asarray(value), jnp.asarray(target))
    np.testing.assert_allclose(apart, squares[:, 0].mean() + squares[0, 1], rtol=1e-5)
    together, _ = member_critic_loss(t, jnp.asarray(value), jnp.asarray(target), shared=True)
    np.testing.assert_allclose(together, squares[~gone].mean(), rtol=1e-5)


@pytest.mark.program
def test_members_that_share_nothing_learn_apart():
    agent = team(CHASE, template(DQN), shared=False)
    state, _ = after(off_policy(CHASE, agent))
    apart = jax.tree.leaves(state.agent.actor.params["hunter"])
    assert all(x.shape[0] == 2 for x in apart)
    assert max(np.abs(x[0] - x[1]).max() for x in apart) > 1e-3


@pytest.mark.program
def test_joint_and_ranked():
    game = Chase(real=True)
    joint = JointControl(game)
    assert joint.observation_space.parts["hunter"].shape == (2, 3)
    assert joint.action_space.parts["hare"].shape == (1, 1)
    key = jax.random.key(0)
    state, obs = joint.reset(key, None)
    action = joint.action_space.sample(key)
    _, t = joint.step(key, state, action, None)
    _, of_game = game.step(key, game.reset(key, None)[0], action, None)
    np.testing.assert_allclose(t.reward, np.concatenate([*of_game.reward.values()]).mean(), rtol=1e-6)
    assert obs["hunter"].shape == (2, 3)
    for env in (CHASE, REAL, joint, GroupRanking(CHASE, "hare")):
        check_env(env)


def test_spaces_of_members():
    for space, joint in (
        (Box(-1.0, (1.0, 2.0), (2,)), Box(-1.0, ((1.0, 2.0),) * 3, (3, 2))),
        (Discrete(4, 1), MultiDiscrete((4, 4, 4), (1, 1, 1))),
        (MultiDiscrete((2, 3)), MultiDiscrete((2, 3) * 3, (0, 0) * 3, (3, 2))),
    ):
        assert Members(space, 3).joint_space == joint
        value = Members(space, 3).sample(jax.random.key(0))
        low, high = joint.bounds
        assert value.shape == joint.shape
        assert (value >= low).all()
        assert (value <= high).all()
    legal = ObsWithActionMask(Box(0.0, 1.0, (1,)), (3,))
    masks = jnp.array([[1, 0, 0], [0, 1, 1], [0, 0, 1]], bool)
    obs = {"team": {"obs": jnp.zeros((3, 1)), "legal": masks}}
    spaces = Dict({"team": Members(Discrete(3), 3)}), Dict({"team": Members(legal, 3)})
    drawn = jax.vmap(lambda key: random_action(*spaces, obs, key))(jax.random.split(jax.random.key(0), 200))["team"]
    assert set(map(tuple, np.asarray(drawn).tolist())) == {(0, 1, 2), (0, 2, 2)}
    np.testing.assert_array_equal(has_choice(legal, obs["team"]), [False, True, False])


class Unequal(Chase):
    @property
    def action_space(self):
        return Dict({"hunter": Members(Discrete(3), 3), "hare": Members(Discrete(3), 1)})


class Unpaid(Chase):
    def step(self, key, env_state, action, params):
        state, t = super().step(key, env_state, action, params)
        return state, replace(t, reward=t.reward | {"hare": jnp.float32(0)})


def test_what_is_no_game_and_who_is_not_there_are_told_in_a_line():
    agent, policy = template(PPO), template(MLPPolicy)
    for wrong, line in (
        (lambda: team(CHASE, {"hunter": agent, "hair": agent}), "unknown group in agents hair; did you mean hare?"),
        (lambda: team(CHASE, {"hunter": agent}), "must have an agent for each group; missing: hare"),
        (lambda: team(CHASE, agent, shared={"hair": True}), "unknown group in shared hair; did you mean hare?"),
        (lambda: team(CHASE, template(DQN), centralized=True), "centralized=True: needs agents with a value"),
        (lambda: team(ENV, agent), "must be a multi-agent environment for a team"),
        (lambda: GroupRanking(CHASE, "hair"), "unknown ranked hair; did you mean hare?"),
        (lambda: JointControl(ENV), "joint: Walk is not a multi-agent environment"),
        (lambda: SingleAgentGame(CHASE), "alone: Chase is already a multi-agent environment"),
        (lambda: JointControl(CHASE), "joint: group hare has action masks"),
        (lambda: after(on_policy(CHASE, team(CHASE, policy)), 1), "agents=MLPPolicy: cannot be trained here"),
    ):
        with pytest.raises(OptionError, match=line.replace("?", r"\?")) as error:
            wrong()
        assert "\n" not in str(error.value)
    for wrong, line in ((Unequal(), "hunter"), (Unpaid(), "hare")):
        with pytest.raises(EnvError, match=line):
            check_env(wrong)


@pytest.mark.program
def test_random_play_of_a_game():
    agent = Random()
    _, metrics = after(OnPolicy(CHASE, agent, 4, 8, 1, 32, eval_episodes=4), 2)
    assert np.isfinite(metrics["return/hare"])


@pytest.mark.program
def test_cross_play_has_one_place_and_another_policy_the_others():
    agent = team(CHASE, template(PPO, core=GRU(3)))
    workflow = on_policy(CHASE, agent)
    one, other = (Policy(workflow, jax.jit(workflow.init)(jax.random.key(i))) for i in range(2))
    obs = jax.vmap(CHASE.reset, (0, None))(jax.random.split(jax.random.key(5), 16), ())[1]
    alone = [policy(obs, policy.initial_memory(16))[0] for policy in (one, other)]
    differ = {name: alone[0][name] != alone[1][name] for name in alone[0]}
    assert all(where.any() for where in differ.values())
    for name in ("hunter", "hare", "hunter/1"):
        place = PlayerId.from_name(name, CHASE)
        both = CrossPlayPolicy(one, place, other)
        found, memory = both(obs, both.initial_memory(16))
        expected = {group: np.array(x) for group, x in alone[1].items()}
        members = slice(None) if place.member is None else place.member
        expected[place.group][:, members] = alone[0][place.group][:, members]
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert len(memory) == 2
    by_chance = CrossPlayPolicy(one, PlayerId("hunter"), None)
    stats = evaluate_policy(by_chance, 32)
    assert stats.returns["hunter"].shape == (32, 2)
    np.testing.assert_allclose(PlayerId("hunter", 1).select_values(stats.returns), stats.returns["hunter"][:, 1])
    for wrong, line in (
        (lambda: PlayerId.from_name("hair", CHASE), "unknown group hair; did you mean hare?"),
        (
            lambda: PlayerId.from_name(None, CHASE),
            "group=nothing: must be the group or agent that this run controls: hare, hunter, hunter/0, hunter/1",
        ),
        (lambda: PlayerId.from_name("hare", ENV), "against: needs a multi-agent environment"),
        (
            lambda: CrossPlayPolicy(one, PlayerId("hare"), replace_env(other, REAL)),
            "against: that run has another environment",
        ),
    ):
        with pytest.raises(OptionError, match=re.escape(line)):
            wrong()


def replace_env(policy, env):
    policy.env = env
    return policy


def test_what_is_chosen_for_an_agent_reaches_those_of_a_team():
    cfg = config.compose_config(["agent=ippo", "env=cartpole", "core=gru"])
    assert cfg.agent.workflow.agent.agents.core._target_ == "evorl.networks.recurrent.GRU"
    cfg = config.compose_config(["agent=ppo", "env=cartpole", "core=gru"])
    assert cfg.agent.workflow.agent.core._target_ == "evorl.networks.recurrent.GRU"
