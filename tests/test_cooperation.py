"""Learners of cooperation: their losses are NumPy's, their actions legal, and the two-step game tells them apart."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import Budget, fit, tree
from evorl.agents import DQN, MAAC, MADDPG, ValueDecomposition
from evorl.agents.base_agent import fill_spaces
from evorl.envs.games import MatrixGame, TwoStep
from evorl.errors import OptionError
from evorl.networks.mixers import MonotonicMixer, SumMixer
from evorl.networks.recurrent import GRU
from evorl.parts import bind, resolve_numbers
from evorl.replay import PrioritizedReplay, SequenceReplay
from evorl.spaces import Box, Dict, Discrete, Members, ObsWithActionMask
from evorl.types import Transition
from evorl.workflows import OffPolicy, Vmapped
from tests.gaming import Chase, after, off_policy

CHASE, REAL, TWO_STEP = Chase(), Chase(real=True), TwoStep()
ROWS, N, CHOICES = 6, 3, 4
MASKED = (
    Dict({"crew": Members(ObsWithActionMask(Box(-1.0, 1.0, (2,)), (CHOICES,)), N)}),
    Dict({"crew": Members(Discrete(CHOICES), N)}),
)


def decomposed(env, mixer, **options):
    agents = DQN(**{"hidden": (8,)} | options)
    return fill_spaces(ValueDecomposition(agents, mixer), env)


def moved(params, seed):
    """Parameters of which none is 0, as biases are at first."""
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return jax.tree.unflatten(structure, [x + 0.1 * rng.normal(size=x.shape).astype(np.float32) for x in leaves])


def legal_masks(rng, shape):
    """Some with one legal choice alone."""
    legal = rng.random((*shape, CHOICES)) < 0.5
    legal[..., 0] = True
    legal[::2, 0] = np.arange(CHOICES) == 1
    return legal


def game(boss):
    """The spaces of the masked game with a second group of two, who do what a space says."""
    sees = Members(Box(-1.0, 1.0, (3,)), 2)
    return Dict(MASKED[0].parts | {"boss": sees}), Dict(MASKED[1].parts | {"boss": Members(boss, 2)})


def in_game(agent, boss):
    """An agent of that game."""
    observation_space, action_space = game(boss)
    return replace(agent, observation_space=observation_space, action_space=action_space)


def masked_batch(seed=0, boss=None):
    """Rows of a game of one group, whose choices are not all legal, or of two."""
    rng = np.random.default_rng(seed)

    def observed():
        crew = {"obs": rng.normal(size=(ROWS, N, 2)), "legal": legal_masks(rng, (ROWS, N))}
        return {"crew": crew} | ({"boss": rng.normal(size=(ROWS, 2, 3))} if boss else {})

    obs, following = observed(), observed()
    action = {"crew": (rng.random((ROWS, N, CHOICES)) + obs["crew"]["legal"]).argmax(-1)}
    reward, ended = {"crew": rng.normal(size=(ROWS, N))}, rng.random((2, ROWS)) < 0.4
    if boss:
        real = isinstance(boss, Box)
        action["boss"] = rng.uniform(-1, 1, (ROWS, 2, 2)) if real else rng.integers(boss.n, size=(ROWS, 2))
        reward["boss"] = rng.normal(size=(ROWS, 2))
    rows = Transition(obs, action, reward, following, ended[0], ended[1] & ~ended[0])
    return jax.tree.map(lambda x: jnp.asarray(x, {"f": "float32", "i": "int32", "b": "bool"}[x.dtype.kind]), rows)


def dense(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def mlp(params, x, activation=lambda x: np.maximum(x, 0)):
    layers = sorted(params, key=lambda name: int(name.split("_")[1]))
    for name in layers[:-1]:
        x = activation(dense(params[name], x))
    return dense(params[layers[-1]], x)


def of_all(x, choice):
    return np.take_along_axis(x, choice[..., None], -1)[..., 0]


def softmax(x, axis=-1):
    x = np.exp(x - x.max(axis, keepdims=True))
    return x / x.sum(axis, keepdims=True)


def mixed(mixer, params, values, state):
    if isinstance(mixer, SumMixer):
        return values.sum(-1)
    made = {name: mlp(of, state) for name, of in params["params"].items()}
    hidden = np.einsum("bn,bnw->bw", values, np.abs(made["first"].reshape(len(state), N, -1))) + made["bias"]
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    return (hidden * np.abs(made["second"])).sum(-1) + made["value"][:, 0]


@pytest.mark.parametrize("mixer", [SumMixer(), MonotonicMixer(5, (3,))], ids=["vdn", "qmix"])
def test_what_all_earn_is_learned_by_what_all_are_worth(mixer):
    agent = ValueDecomposition(
        DQN(hidden=(7,), discount=0.9), mixer, observation_space=MASKED[0], action_space=MASKED[1]
    )
    state = jax.jit(agent.init)(jax.random.key(0))
    params, target = moved(state.actor.params, 1), moved(state.actor.params, 2)
    state = replace(state, actor=replace(state.actor, target_params=target))
    batch = masked_batch()
    loss, metrics = jax.jit(agent.critic_loss)(params, state, batch, jax.random.key(0))
    rows = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)

    def values(params, obs):
        ids = np.broadcast_to(np.eye(N), (ROWS, N, N))
        x = np.concatenate([ids, rows.obs["crew"]["obs"] if obs is rows.obs else obs["crew"]["obs"]], -1)
        return np.where(obs["crew"]["legal"] > 0, mlp(params["agent"]["params"]["MLP_0"], x), -np.inf)

    def joint(params, chosen, obs):
        return mixed(mixer, params["mixer"], chosen, obs["crew"]["obs"].reshape(ROWS, -1))

    best = values(params, rows.next_obs).argmax(-1)
    after = joint(target, of_all(values(target, rows.next_obs), best), rows.next_obs)
    goal = rows.reward["crew"].sum(-1) + 0.9 * (1 - rows.terminated) * after
    value = joint(params, of_all(values(params, rows.obs), np.asarray(batch.action["crew"])), rows.obs)
    np.testing.assert_allclose(loss, 0.5 * ((value - goal) ** 2).mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["td_error"], np.abs(value - goal), rtol=1e-3, atol=1e-4)


class ByHand:
    """What agents of two groups compute, member by member, in float64."""

    sizes = (("boss", 2), ("crew", N))

    def __init__(self, batch, shared):
        self.t = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
        self.choice = {name: np.asarray(x) for name, x in batch.action.items() if x.ndim == 2}
        self.shared = shared

    def member(self, params, i):
        """The parameters of one member, as NumPy's."""
        return jax.tree.map(lambda x: np.asarray(x if self.shared else x[i], np.float64), params)

    def sees(self, obs, name):
        return obs["crew"]["obs"] if name == "crew" else obs["boss"]

    def logits(self, params, obs, activation=lambda x: np.maximum(x, 0)):
        """The numbers of all actors, those of illegal choices far below all others."""
        found = {}
        for name, n in self.sizes:
            own = [self.member(params[name], i)["params"] for i in range(n)]
            x = [mlp(own[i], self.sees(obs, name)[:, i], activation) for i in range(n)]
            found[name] = np.stack(x, 1)
        return found, found | {"crew": np.where(obs["crew"]["legal"] > 0, found["crew"], -1e9)}

    def mean(self, name, of_each):
        """The sum over members of their mean over the rows with a choice, or the mean of all such rows."""
        several = np.ones(of_each.shape, bool)
        if name == "crew":
            several = self.t.obs["crew"]["legal"].sum(-1) > 1
        if self.shared:
            return of_each[several].mean()
        return sum(of_each[several[:, i], i].mean() for i in range(of_each.shape[1]))

    def error(self, value, target):
        """The same of squared errors, which all rows have."""
        error = ((value - target[..., None]) ** 2).sum(-1).mean(0)
        return error.mean() if self.shared else error.sum()

    def bootstrapped(self, name, value):
        return self.t.reward[name] + 0.9 * (1 - self.t.terminated[:, None]) * value


def seeded(agent, seed=0):
    """A state whose actors, critics and targets all differ, and are nowhere 0."""
    state = jax.jit(agent.init)(jax.random.key(seed))
    numbers = iter(range(10))
    return jax.tree.map(
        lambda x: x,
        replace(
            state,
            **{
                part: with_target(replace(of, params=moved(of.params, next(numbers))), next(numbers))
                for part, of in (("actor", state.actor), ("critic", state.critic))
            },
        ),
    )


def with_target(of, seed):
    if hasattr(of, "states_without_params"):
        return replace(
            of,
            states_without_params={
                k: replace(x, target_params=moved(x.target_params, seed)) for k, x in of.states_without_params.items()
            },
        )
    return replace(of, target_params=moved(of.target_params, seed))


@pytest.mark.program
@pytest.mark.parametrize(
    "options",
    [{}, {"centralized": False}, {"shared": True, "num_critics": 2}],
    ids=["own_critics", "not_centralized", "shared_twins"],
)
def test_the_losses_of_maddpg(options):
    """With Gumbel's noise of the same keys; the gradient through a choice is that of the softmax, by differences."""
    boss = Box(-1.0, (1.0, 3.0), (2,))
    numbers = {"discount": 0.9, "logit_weight": 0.3}
    agent, key = in_game(MADDPG(hidden=(7,), **options, **numbers), boss), jax.random.key(5)
    state, batch = seeded(agent), masked_batch(boss=boss)
    hand = ByHand(batch, agent.shared)
    keys = jax.random.split(key)
    gumbel = np.asarray(jax.random.gumbel(keys[1], (ROWS, N, CHOICES)), np.float64)

    def taken(numbers, soft=False):
        real = -1 + np.array([1.0, 2.0]) * (1 + np.tanh(numbers["boss"]))
        noisy = numbers["crew"] + gumbel
        return {"boss": real, "crew": softmax(noisy) if soft else np.eye(CHOICES)[noisy.argmax(-1)]}

    def values(critic, obs, actions, own):
        found = {}
        everything = np.concatenate([obs["boss"].reshape(ROWS, -1), obs["crew"]["obs"].reshape(ROWS, -1)], 1)
        for name, n in hand.sizes:
            each = []
            for i in range(n):
                if options.get("centralized", True):
                    joint = {k: x.copy() for k, x in actions.items()}
                    joint[name][:, i] = own[name][:, i]
                    ids = [np.tile(np.eye(n)[i], (ROWS, 1))] * agent.shared
                    x = [everything, *ids, joint["boss"].reshape(ROWS, -1), joint["crew"].reshape(ROWS, -1)]
                else:
                    x = [hand.sees(obs, name)[:, i], own[name][:, i]]
                params = hand.member(critic[name], i)["params"]
                each.append(np.concatenate([mlp(of, np.concatenate(x, 1)) for _, of in sorted(params.items())], 1))
            found[name] = np.stack(each, 1)
        return found

    stored = {"boss": hand.t.action["boss"], "crew": np.eye(CHOICES)[hand.choice["crew"]]}
    following = taken(hand.logits(state.actor.target_params, hand.t.next_obs)[1])
    after = values(state.critic.target_params, hand.t.next_obs, following, following)
    value = values(state.critic.params, hand.t.obs, stored, stored)
    expected = sum(hand.error(value[name], hand.bootstrapped(name, after[name].min(-1))) for name, _ in hand.sizes)
    loss, _ = jax.jit(agent.critic_loss)(state.critic.params, state, batch, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)

    def actor(params, kept=None):
        raw, numbers = hand.logits(params, hand.t.obs)
        own = taken(numbers)
        if kept is not None:  # the same choices, with the slope of the softmax
            own["crew"] = kept[0] + taken(numbers, soft=True)["crew"] - kept[1]
        q = values(state.critic.params, hand.t.obs, stored, own)
        return sum(hand.mean(name, 0.3 * (raw[name] ** 2).mean(-1) - q[name][..., 0]) for name, _ in hand.sizes)

    params = state.actor.params
    loss, slope = jax.jit(jax.value_and_grad(lambda params: agent.actor_loss(params, state, batch, key)[0]))(params)
    np.testing.assert_allclose(loss, actor(params), rtol=1e-4, atol=1e-5)
    numbers = hand.logits(params, hand.t.obs)[1]
    kept = taken(numbers)["crew"], taken(numbers, soft=True)["crew"]
    way = moved(tree.zeros_like(params), 9)
    there = [actor(jax.tree.map(lambda x, d, s=s: np.float64(x) + s * d, params, way), kept) for s in (1e-4, -1e-4)]
    along = sum(float((a * b).sum()) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(way), strict=True))
    np.testing.assert_allclose(along, (there[0] - there[1]) / 2e-4, rtol=1e-3, atol=1e-4)


@pytest.mark.program
@pytest.mark.parametrize("shared", [False, True])
def test_the_losses_of_maac(shared):
    boss = Discrete(2, 3)
    numbers = {"discount": 0.9, "temperature": 0.2, "logit_weight": 0.3}
    agent = in_game(MAAC(hidden=(5,), width=6, heads=2, shared=shared, **numbers), boss)
    key = jax.random.key(5)
    state, batch = seeded(agent), masked_batch(boss=boss)
    batch = replace(batch, action=batch.action | {"boss": batch.action["boss"] + 3})
    hand = ByHand(batch, shared)
    hand.choice["boss"] = hand.choice["boss"] - 3
    keys = dict(zip(("boss", "crew"), jax.random.split(key), strict=True))
    leaky = lambda x: np.where(x > 0, x, 0.01 * x)  # noqa: E731

    def draw(params, obs):
        logits = hand.logits(params, obs, leaky)[1]
        choice = {k: np.asarray(jax.random.categorical(keys[k], jnp.float32(x))) for k, x in logits.items()}
        return choice, {k: np.log(softmax(x) + 1e-300) for k, x in logits.items()}

    def values(params, obs, choice):
        """Member by member, head by head."""
        own, pair, found, penalty = [], [], {}, 0.0
        everyone = [(name, i) for name, n in hand.sizes for i in range(n)]
        for name, i in everyone:
            of, x = hand.member(params["groups"][name], i), hand.sees(obs, name)[:, i]
            taken = np.eye({"boss": 2, "crew": CHOICES}[name])[choice[name][:, i]]
            own.append(leaky(dense(of["own"]["params"]["Dense_0"], x)))
            pair.append(leaky(dense(of["pair"]["params"]["Dense_0"], np.concatenate([x, taken], 1))))
        attention = jax.tree.map(lambda x: np.asarray(x, np.float64), params["attention"]["params"])
        for j, (name, i) in enumerate(everyone):
            heard = []
            others = [k for k in range(len(everyone)) if k != j]
            for head in (slice(0, 3), slice(3, 6)):
                query = own[j] @ attention["query"][:, head]
                logits = np.stack([(query * (pair[k] @ attention["key"][:, head])).sum(-1) for k in others], 1)
                told = np.stack([leaky(dense(attention["value"], pair[k]))[:, head] for k in others], 1)
                heard.append((softmax(logits / np.sqrt(3))[..., None] * told).sum(1))
                penalty += (logits**2).mean()
            of = hand.member(params["groups"][name]["value"], i)["params"]
            found.setdefault(name, []).append(mlp(of, np.concatenate([own[j], *heard], 1), leaky))
        return {name: np.stack(x, 1) for name, x in found.items()}, penalty

    following, log_probs = draw(state.actor.target_params, hand.t.next_obs)
    after, _ = values(state.critic.target_params, hand.t.next_obs, following)
    value, penalty = values(state.critic.params, hand.t.obs, hand.choice)
    expected = 0.3 * penalty
    for name, n in hand.sizes:
        soft = of_all(after[name] - 0.2 * log_probs[name], following[name])
        error = hand.bootstrapped(name, soft) - of_all(value[name], hand.choice[name])
        expected += n * (error**2).mean()
    loss, _ = jax.jit(agent.critic_loss)(state.critic.params, state, batch, key)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)

    choice, log_probs = draw(state.actor.params, hand.t.obs)
    value, _ = values(state.critic.params, hand.t.obs, choice)
    expected, worse = 0.0, {}
    for name, _ in hand.sizes:
        log_prob = of_all(log_probs[name], choice[name])
        baseline = (np.exp(log_probs[name]) * value[name]).sum(-1)
        worse[name] = 0.2 * log_prob - (of_all(value[name], choice[name]) - baseline)
        expected += hand.mean(name, log_prob * worse[name])
    loss, slope = jax.jit(jax.value_and_grad(lambda p: agent.actor_loss(p, state, batch, key)[0]))(state.actor.params)
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)

    def with_constant_factors(params):
        policies = agent.policies(params, batch.training_steps.obs, batch.training_steps.terminated.ndim)
        return sum(
            hand.mean(name, policies[name].log_prob(jnp.asarray(choice[name])) * worse[name]) for name, _ in hand.sizes
        )

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4),
        slope,
        jax.jit(jax.grad(with_constant_factors))(state.actor.params),
    )


AGENTS = {
    "vdn": ValueDecomposition(
        DQN(hidden=(5,), observation_space=MASKED[0].parts["crew"].space, action_space=Discrete(CHOICES)),
        observation_space=MASKED[0],
        action_space=MASKED[1],
    ),
    "maddpg": MADDPG(hidden=(5,), observation_space=game(Discrete(2))[0], action_space=game(Discrete(2))[1]),
    "maac": MAAC(
        hidden=(5,), width=4, heads=2, observation_space=game(Discrete(2))[0], action_space=game(Discrete(2))[1]
    ),
}


@pytest.mark.program
@pytest.mark.parametrize("name", AGENTS)
def test_no_illegal_choice_is_made(name):
    agent, batch = AGENTS[name], masked_batch(boss=None if name == "vdn" else Discrete(2))
    agent = bind(agent, resolve_numbers(agent))
    params = jax.jit(agent.init)(jax.random.key(0)).actor.params
    params = jax.tree.map(lambda x: 3 * x, moved(params, 0))
    act = jax.vmap(agent.act, (None, 0, None, 0))
    many = jax.vmap(lambda key: act(params, batch.obs, agent.initial_memory(), jax.random.split(key, ROWS))[0])
    drawn = np.asarray(jax.jit(many)(jax.random.split(jax.random.key(1), 2000))["crew"])
    mode = jax.vmap(agent.mode, (None, 0, None, None))(params, batch.obs, agent.initial_memory(), jax.random.key(0))
    legal = np.asarray(batch.obs["crew"]["legal"])
    for choice in (drawn, np.asarray(mode[0]["crew"])[None]):
        assert of_all(np.broadcast_to(legal, (*choice.shape, CHOICES)), choice).all()
    seen = np.zeros_like(legal)
    for i in range(CHOICES):
        seen[..., i] = (drawn == i).any(0)
    assert (seen == legal).mean() > 0.8  # all that are legal, but for those that are all but never taken


@pytest.mark.program
@pytest.mark.parametrize(
    ("env", "agent", "options"),
    [
        pytest.param(CHASE, MADDPG, {}, id="maddpg"),
        pytest.param(CHASE, MAAC, {"width": 4, "heads": 2}, id="maac"),
        pytest.param(REAL, MADDPG, {"shared": True, "num_critics": 2}, id="maddpg_real"),
    ],
)
def test_groups_learn_beside_each_other(env, agent, options):
    workflow = off_policy(
        env,
        agent(hidden=(4,), **options),
        n_step=2,
        replay=PrioritizedReplay(),
    )
    state, metrics = after(workflow, 4)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.agent, metrics)))
    np.testing.assert_allclose(metrics["return/hare"], -metrics["return/hunter"], rtol=1e-5)
    if not options.get("shared"):
        apart = jax.tree.leaves(state.agent.actor.params["hunter"])
        assert all(x.shape[0] == 2 for x in apart)
        assert max(np.abs(x[0] - x[1]).max() for x in apart) > 1e-3


@pytest.mark.program
@pytest.mark.parametrize("agent", [MADDPG, MAAC])
def test_agents_learn_the_dominant_action_of_the_prisoners_dilemma(agent):
    """Each earns 3 if both cooperate, and 1 if both defect, which alone is an equilibrium (Axelrod and Hamilton)."""
    learner = agent(hidden=(16,), actor_lr=1e-2, critic_lr=1e-2)
    sizes = {"num_envs": 8, "num_steps": 4, "num_updates": 4, "policy_delay": 1, "batch_size": 64, "capacity": 2_000}
    workflow = OffPolicy(
        MatrixGame("prisoners_dilemma"), learner, **sizes, random_steps=200, eval_episodes=4, scan_length=50
    )
    rows = fit(workflow, budget=Budget(iterations=150), num_seeds=3, evaluations=1, progress=False).rows
    first, last = (row["seeds"]["return"] for row in (rows[0], rows[-1]))
    assert first != [1.0] * 3
    assert last == [1.0] * 3


@pytest.mark.program
@pytest.mark.parametrize("mixer", [SumMixer(), MonotonicMixer(8, (4,))], ids=["vdn", "qmix"])
def test_who_takes_the_best_by_its_own_value_takes_the_best_of_all(mixer):
    rng = np.random.default_rng(0)
    values, states = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((50, N, CHOICES), (50, 2)))
    params = moved(mixer.init(jax.random.key(0), values[0, :, 0], states[0]), 1)
    slope = jax.vmap(jax.grad(lambda x, state: mixer.apply(params, x, state)))(values[..., 0], states)
    assert (slope >= 0).all()
    assert slope.max() > 0.1
    joint = np.stack(np.meshgrid(*[range(CHOICES)] * N, indexing="ij"), -1).reshape(-1, N)
    each = jnp.stack([values[:, i, joint[:, i]] for i in range(N)], -1)
    worth = np.asarray(mixer.apply(params, each, jnp.repeat(states[:, None], len(joint), 1)))
    greedy = (joint[None] == values.argmax(-1)[:, None]).all(-1)
    np.testing.assert_allclose(worth[greedy], worth.max(1), rtol=1e-5)


@pytest.mark.program
def test_members_that_remember_are_mixed_step_by_step():
    agent = decomposed(TWO_STEP, MonotonicMixer(4, (4,)), core=GRU(3))
    replay = SequenceReplay(length=3, burn_in=1, stride=2)
    state, metrics = after(off_policy(TWO_STEP, agent, replay=replay, n_step=2))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.agent, metrics)))
    assert tree.leading_size(state.envs.memory["agent"][0]) == 4


@pytest.mark.program
@pytest.mark.usefixtures("optimized")
def test_the_two_step_game_tells_a_sum_from_a_mixer():
    """All actions are random; least squares give the sum -1.5, 2.5, 2.5 and 6.5 where [[0, 1], [1, 8]] is paid."""
    numbers = {"epsilon": 1.0, "learning_rate": 1e-3, "tau": 0.02}
    for mixer, plays_for in ((SumMixer(), 7), (MonotonicMixer(), 8)):
        sizes = {"num_updates": 8, "batch_size": 128, "capacity": 16_384, "random_steps": 512, "eval_episodes": 1}
        agents = decomposed(TWO_STEP, mixer, hidden=(64,), **numbers)
        one = OffPolicy(TWO_STEP, agents, 16, 2, policy_delay=1, **sizes)
        population = Vmapped(one, 8)

        @jax.jit
        def returns(key, population=population):
            keys = jax.random.split(key, 602)
            state = population.init(keys[0])
            state, _ = jax.lax.scan(population.step, state, keys[1:-1])
            return population.evaluate(state, keys[-1])["return"]

        np.testing.assert_array_equal(returns(jax.random.key(0)), plays_for)


def test_what_they_do_not_play_is_told_in_a_line():
    real = REAL.observation_space, REAL.action_space
    for wrong, line in (
        (
            lambda: decomposed(CHASE, MonotonicMixer()),
            "env: QMIX needs a single group .* not the groups hare, hunter; .*idqn",
        ),
        (lambda: decomposed(CHASE, SumMixer()), "env: VDN needs a single group"),
        (
            lambda: MADDPG(observation_space=Box(-1.0, 1.0, (2,)), action_space=Box(-1.0, 1.0, (1,))),
            "must be a multi-agent environment for MADDPG",
        ),
        (
            lambda: MAAC(observation_space=Box(-1.0, 1.0, (2,)), action_space=Discrete(2)),
            "must be a multi-agent environment for MAAC",
        ),
        (
            lambda: MADDPG(
                observation_space=game(Box(-1.0, 1.0, (2, 2)))[0], action_space=game(Box(-1.0, 1.0, (2, 2)))[1]
            ),
            "a Box with one axis or discrete actions, not Box",
        ),
        (
            lambda: MADDPG(
                observation_space=game(Box(-np.inf, np.inf, (2,)))[0], action_space=game(Box(-np.inf, np.inf, (2,)))[1]
            ),
            "finite bounds",
        ),
        (
            lambda: MAAC(observation_space=real[0], action_space=real[1]),
            "MAAC needs discrete actions, not .* of group hare",
        ),
        (
            lambda: MAAC(width=6, observation_space=game(Discrete(2))[0], action_space=game(Discrete(2))[1]),
            "width=6: must be a multiple of heads, 4",
        ),
        (
            lambda: MADDPG(num_critics=0, observation_space=real[0], action_space=real[1]),
            "num_critics=0: must be at least 1",
        ),
        (lambda: MonotonicMixer(0), "width=0: must be at least 1"),
    ):
        with pytest.raises(OptionError, match=line) as error:
            wrong()
        assert "\n" not in str(error.value)
