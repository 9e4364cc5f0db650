"""Neural fictitious self-play: what players see, what teaches whom, and how near it comes to an equilibrium of Kuhn."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN
from evorl.agents.average_policy import AveragePolicy
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.matrix import MatrixGame
from evorl.errors import OptionError
from evorl.leagues.exact import exploitability
from evorl.leagues.nfsp import NFSP
from evorl.leagues.pending_choices import PendingChoices
from evorl.leagues.training_oracle import make_single_player_env
from evorl.networks.recurrent import GRU
from evorl.replay import SequenceReplay
from evorl.replay.reservoir import ReservoirBuffer
from evorl.schedules import Linear
from evorl.spaces import Box, Discrete, ObsWithActionMask
from evorl.training.policy import Policy
from evorl.types import Transition
from evorl.workflows.off_policy import OffPolicy
from tests.gaming import Chase
from tests.tiers import program_fixture

KUHN = ExtensiveFormGame(Kuhn())


def nfsp(env=KUHN, hidden=(32,), reservoir=50_000, **options):
    one = make_single_player_env(env)
    spaces = one.observation_space, one.action_space
    agent = DQN(hidden=hidden, **options.pop("of_agent", {}), observation_space=spaces[0], action_space=spaces[1])
    sizes = {"num_envs": 32, "num_steps": 4, "num_updates": 4, "policy_delay": 1, "batch_size": 128}
    sizes |= {"capacity": 20_000, "random_steps": 64} | options
    return NFSP(
        env,
        OffPolicy(one, agent, **sizes),
        AveragePolicy(hidden=hidden, observation_space=spaces[0], action_space=spaces[1]),
        reservoir,
    )


FAST = {"learning_rate": 1e-3, "discount": 1.0, "epsilon": Linear(0.2, 0.05, over=1e6)}
WORKFLOW = nfsp(of_agent=FAST)


@program_fixture(scope="module")
def run():
    """Runs iterations with an anticipation: the state; compiled once."""

    @jax.jit
    def run(anticipation, iterations):
        keys = jax.random.split(jax.random.key(1), 2)
        step = lambda i, state: WORKFLOW.step(state, jax.random.fold_in(keys[1], i))[0]  # noqa: E731
        state = WORKFLOW.init(keys[0], {"anticipation": anticipation})
        return jax.lax.fori_loop(0, iterations, step, state)

    return run


def test_all_that_a_player_does_teaches_its_response_and_its_responses_its_average(run):
    for anticipation in (0.0, 1.0):
        state = run(anticipation, 20)
        rows, choices = state.replay_sizes, state.experience["player_0"].reservoir.num_added
        if anticipation:
            # all choices but those of the random steps, and of what has not ended yet
            np.testing.assert_array_less(rows - 128, choices)
            np.testing.assert_array_less(choices, rows + 64)
        else:
            assert not choices.any()
    state = run(0.25, 200)
    share = state.experience["player_0"].reservoir.num_added.sum() / state.replay_sizes.sum()
    assert float(share) == pytest.approx(0.25, abs=0.02)  # of about 30,000 choices in 23,000 episodes


def test_transitions_lead_from_a_players_choice_to_its_next(run):
    state = run(WORKFLOW.anticipation, 20)
    for player in range(2):
        ring = tree.index(state.experience["player_0"].replay, player)
        t = ring.gather_rows(jnp.arange(int(ring.size)))
        assert (t.obs["legal"].sum(-1) == 2).all()
        assert ((t.next_obs["legal"].sum(-1) == 2) | t.terminated).all()
        np.testing.assert_array_equal(t.reward != 0, t.terminated)  # somebody wins each game
        assert set(np.unique(np.abs(t.reward[t.terminated]))) == {1.0, 2.0}
        assert (player == 0) == bool((~t.terminated).any())  # the second player of Kuhn's game has one choice
        choices = tree.index(state.experience["player_0"].reservoir, player)
        kept = choices.row.unpack(tree.index(choices.tables, jnp.arange(int(choices.size))))
        assert (kept["obs"]["legal"].sum(-1) == 2).all()


def test_average_policies_are_what_it_plays_and_is_judged_by(run):
    state = run(WORKFLOW.anticipation, 20)
    table = WORKFLOW.average_strategy(state)
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-6)
    evaluation = jax.jit(WORKFLOW.evaluate)(state, jax.random.key(0))
    assert float(evaluation["exploitability"]) == pytest.approx(float(exploitability(KUHN.game_tree, table)), abs=1e-6)
    assert float(evaluation["return"]) == -float(evaluation["exploitability"])
    obs = KUHN.reset(jax.random.key(5), None)[1]
    chances = WORKFLOW.policy(state).action_probabilities(obs)["player_0"][0]
    actions = jax.vmap(lambda key: WORKFLOW.policy(state)(obs, WORKFLOW.agent.initial_memory(), key)[0]["player_0"][0])
    drawn = actions(jax.random.split(jax.random.key(6), 4000)).mean()
    assert float(drawn) == pytest.approx(float(chances[1]), abs=0.032)  # 4 standard errors
    assert set(Policy(WORKFLOW, state)(obs)) == {"player_0", "player_1"}


def test_kuhn_poker(run):
    """OpenSpiel's settings and more steps at a time; 0.46 where both take all actions alike."""
    state = run(WORKFLOW.anticipation, 800)
    assert float(exploitability(KUHN.game_tree, WORKFLOW.average_strategy(state))) < 0.23


def test_turns_are_those_of_a_loop():
    """Whatever the chunks: rewards up to the next choice, an end, or what nobody can know."""
    rng, steps, n = np.random.default_rng(0), 60, 3
    space = ObsWithActionMask(Box(-1.0, 100.0, ()), (2,))
    choice = rng.random((steps + 1, n)) < 0.5
    reward, ends = rng.integers(1, 9, (steps, n)).astype(np.float32), rng.random((2, steps, n)) < 0.15
    terminated, truncated = ends[0], ends[1] & ~ends[0]
    mask = np.arange(steps)[:, None] < [60, 47, 60]
    number = np.broadcast_to(np.arange(steps + 1)[:, None], choice.shape).astype(np.float32)
    legal = np.stack([np.ones_like(choice), choice], -1)
    obs = {"obs": number, "legal": legal}
    now, following = (jax.tree.map(lambda x, s=s: jnp.asarray(x[s]), obs) for s in (slice(0, steps), slice(1, None)))
    t = Transition(now, jnp.int32(now["obs"]), reward, following, terminated, truncated)
    t = jax.tree.map(jnp.asarray, t)
    wanted = []
    for index in range(n):
        begun, total = None, 0.0
        for i in np.flatnonzero(mask[:, index]):
            if choice[i, index]:
                begun, total = i, 0.0
            total += reward[i, index]
            if begun is not None and (terminated[i, index] or choice[i + 1, index]):
                wanted.append((i, index, begun, total, terminated[i, index], truncated[i, index]))
                begun = None
            if terminated[i, index] or truncated[i, index]:
                begun = None
    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), t)
    for chunk in (60, 10):
        turns, found = PendingChoices.empty(row, n), []
        for first in range(0, steps, chunk):
            part = tree.index(t, slice(first, first + chunk))
            now = jnp.asarray(mask[first : first + chunk])
            turns, rows, there = turns.advance(space, part, now, jnp.zeros_like(now))
            for i, index in np.argwhere(np.asarray(there)):
                r = jax.tree.map(lambda x, i=i, index=index: np.asarray(x)[i, index], rows)
                assert int(r.action) == int(r.obs["obs"])
                assert int(r.next_obs["obs"]) == first + i + 1
                ended = bool(r.terminated), bool(r.truncated)
                found.append((first + i, index, int(r.action), float(r.reward), *ended))
        assert sorted(found) == sorted(wanted)


def test_a_choice_before_a_lost_step_is_not_completed_by_the_next_episode():
    space = ObsWithActionMask(Box(-1.0, 100.0, ()), (2,))
    chooses = jnp.array([True, False, False, True])  # the second step is lost, the first of a chunk
    obs = {"obs": jnp.arange(4.0)[:, None], "legal": jnp.stack([jnp.ones(4, bool), chooses], -1)[:, None]}
    flags = jnp.zeros((3, 1), bool)
    now, after = (tree.index(obs, part) for part in (slice(0, 3), slice(1, 4)))
    t = Transition(now, jnp.zeros((3, 1)), jnp.ones((3, 1)), after, flags, flags.at[1].set(True))
    turns, _, there = PendingChoices.empty(jax.tree.map(lambda x: x[0, 0], t), 1).advance(
        space, tree.index(t, slice(0, 1)), ~flags[:1], flags[:1]
    )
    assert (bool(turns.pending_mask[0]), there.any()) == (True, False)
    rest, mask = tree.index(t, slice(1, 3)), jnp.array([[False], [True]])
    evaluated, _, there = turns.advance(space, rest, flags[1:], flags[1:])
    assert (bool(evaluated.pending_mask[0]), there.any()) == (True, False)
    turns, _, there = turns.advance(space, rest, mask, ~mask)
    assert (bool(turns.pending_mask[0]), there.any()) == (False, False)


@pytest.mark.program  # compiles another game
def test_a_choice_in_every_step_needs_no_mask():
    """A matrix game, in which all move at once."""
    workflow = nfsp(MatrixGame("matching_pennies"), hidden=(4,), num_envs=4, batch_size=8, random_steps=8, reservoir=64)
    assert workflow.tree is None
    state = workflow.init(jax.random.key(0))
    state, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
    np.testing.assert_array_equal(state.replay_sizes, 2 * [int(metrics["env_steps"])])


def test_an_average_policy_learns_how_often_choices_were_made():
    space = ObsWithActionMask(Box(-1.0, 1.0, (1,)), (3,))
    agent = AveragePolicy(hidden=(8,), observation_space=space, action_space=Discrete(3))
    state = jax.jit(agent.init)(jax.random.key(0))
    obs = {
        "obs": jnp.array([[1.0]] * 10 + [[-1.0]] * 10),
        "legal": jnp.array([[True] * 3] * 10 + [[True, True, False]] * 10),
    }
    action = jnp.array([0] * 5 + [1] * 3 + [2] * 2 + [0] * 3 + [1] * 7)
    agent = replace(agent, learning_rate=0.01)

    def step(state, _):
        return agent.update(state, lambda params: agent.loss(params, obs, action))[0], ()

    state, _ = jax.jit(lambda s: jax.lax.scan(step, s, length=800))(state)
    chances = agent.distribution(state.actor.params, tree.index(obs, jnp.array([0, 10]))).probs()
    np.testing.assert_allclose(chances, [[0.5, 0.3, 0.2], [0.3, 0.7, 0]], atol=0.01)


@pytest.mark.program
def test_games_that_hold_nan_are_the_parents(run):
    state, parent = (run(WORKFLOW.anticipation, i) for i in range(2))
    own = state.experience["player_0"]
    spoiled = own.pending_choices.replace(
        choice=own.pending_choices.choice.replace(reward=own.pending_choices.choice.reward.at[1, 5].set(jnp.nan))
    )
    state = state.replace(experience={"player_0": own.replace(pending_choices=spoiled)})
    heir = WORKFLOW.inherit(state, parent)
    assert bool(tree.is_nan_free(heir))
    assert isinstance(heir.experience["player_0"].reservoir, ReservoirBuffer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nfsp(of_agent={"core": GRU(4)}, replay=SequenceReplay(length=2)),
            "response.agent=DQN: must not be recurrent",
        ),
        (lambda: nfsp(n_step=2), "response.n_step=2: must be 1"),
        (lambda: nfsp(reservoir=0), "reservoir=0: must be at least 1"),
        (lambda: NFSP(Chase(), WORKFLOW.response, WORKFLOW.average), "env=Chase: must have one agent in each group"),
        (
            lambda: NFSP(ExtensiveFormGame(Kuhn(), together=True), WORKFLOW.response, WORKFLOW.average),
            "has one group",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()
