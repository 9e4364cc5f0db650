"""A league: who meets whom, when policies are taken and learners begin anew, and what it knows of its games."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import DQN, PPO
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.matrix import MatrixGame
from evorl.errors import OptionError
from evorl.leagues import matchmaking
from evorl.leagues.exact import compute_payoffs
from evorl.leagues.league import League
from evorl.leagues.league_game import LeagueGame, score_match
from evorl.leagues.matchmaking import Matchmaking, MatchRecord, Roster
from evorl.leagues.roles import Roles
from evorl.leagues.single_player_game import SinglePlayerGame
from evorl.leagues.training_oracle import make_single_player_env
from evorl.networks.recurrent import GRU
from evorl.parts import resolve_numbers
from evorl.schedules import Linear
from evorl.training.fit import fit
from evorl.training.policy import Policy
from evorl.training.progress import Budget
from evorl.workflows.off_policy import OffPolicy
from evorl.workflows.on_policy import OnPolicy
from tests.tiers import program_fixture

KUHN = ExtensiveFormGame(Kuhn())
OPPOSED = make_single_player_env(KUHN)
STILL = PPO(hidden=(4,), learning_rate=0.0)
LEAGUE = League(
    KUHN,
    OnPolicy(OPPOSED, STILL, 32, 8, 1, 256, eval_episodes=8),
    Roster(capacity=2),
    matches=Matchmaking(decay=1.0, snapshot_steps=256.0),
)


@pytest.mark.program
def test_recurrent_policies_play_in_a_league():
    """In programs that are traced one after the other."""
    game = MatrixGame("matching_pennies", rounds=3)
    player = OnPolicy(make_single_player_env(game), PPO(hidden=(4,), core=GRU(3)), 8, 8, 1, 64, eval_episodes=4)
    league = League(game, player, Roster(capacity=2))
    state = jax.jit(league.init)(jax.random.key(0))
    state, metrics = jax.jit(league.step)(state, jax.random.key(1))
    assert int(metrics["env_steps"]) > 0
    evaluation = jax.jit(league.evaluate)(state, jax.random.key(2))
    assert np.isfinite(evaluation["return"])


def rule(roster, past, won, self_play, prioritized, curriculum):
    """Opponents by the paper's words, one learner and one case after the other."""

    def pfsp(some, f):
        each = np.array([f(won[i, j]) if j in some else 0.0 for j in range(roster.num_policies)])
        even = np.isin(np.arange(roster.num_policies), some).astype(float)
        return each / each.sum() if each.sum() > 0 else even / even.sum()

    hard, even = lambda p: (1 - p) ** 2, lambda p: p * (1 - p)
    kind = ["main"] * roster.main + ["exploits main"] * roster.main_exploiters + ["exploits all"] * 9
    old = [j for j in range(roster.num_past) if past[j]]
    found = []
    for i in range(roster.num_learners):
        mains = [roster.num_past + j for j in range(roster.main)]
        if kind[i] == "main":
            lost = [j for j in old if kind[j // roster.capacity] != "exploits all" and won[i, j] < 0.5]
            now = pfsp(mains, lambda _: 1.0)
            rest = pfsp(lost, hard) if lost else now
            found.append(self_play * now + prioritized * pfsp(old, hard) + (1 - self_play - prioritized) * rest)
        elif kind[i] == "exploits main":
            each = []
            for main in range(roster.main):
                its = [j for j in old if j // roster.capacity == main]
                able = won[i, mains[main]] >= curriculum
                now = pfsp([mains[main]], lambda _: 1.0)
                each.append(now if able else 0.1 * now + 0.9 * pfsp(its, even))
            found.append(np.mean(each, 0))
        else:
            found.append(pfsp(old, hard))
    return np.stack(found)


@pytest.mark.parametrize("roster", [Roster(capacity=3), Roster(2, 2, 1, 2)])
@pytest.mark.parametrize("lowest", [0.0, 0.6, 1.0])
def test_opponents_are_drawn_as_the_paper_says(roster, lowest):
    """Where some are lost to, where none is, and where all are always beaten."""
    random = np.random.default_rng(0)
    for _ in range(4):
        won = random.uniform(lowest, 1, (roster.num_learners, roster.num_policies)).astype(np.float32)
        won[:, roster.num_past] = random.choice([0.1, 0.9], roster.num_learners)
        taken = random.integers(0, roster.capacity + 1, roster.num_learners)
        taken[: roster.main] = taken[: roster.main].clip(1)
        past = np.asarray(roster.compute_past_mask(jnp.asarray(taken)))
        found = matchmaking.compute_match_weights(roster, jnp.asarray(past), jnp.asarray(won), Matchmaking())
        np.testing.assert_allclose(found, rule(roster, past, won, 0.35, 0.5, 0.2), atol=1e-6)


def test_policies_are_taken_after_some_steps_or_when_they_beat_all():
    roster, given = Roster(1, 2, 2, 1), Matchmaking(snapshot_steps=100, timeout=200, beaten=0.7)
    past = roster.compute_past_mask(jnp.array([1, 0, 0, 1, 0]))
    won = jnp.full((5, roster.num_policies), 0.5)

    def ready(won, steps, games=10.0, matches=given):
        record = MatchRecord(jnp.full(won.shape, games), games * won)
        return matchmaking.find_due_snapshots(roster, past, record, jnp.asarray(steps, float), matches).tolist()

    assert ready(won, [99, 199, 0, 199, 0]) == [False] * 5
    assert ready(won, [100, 200, 0, 200, 0]) == [True, True, False, True, False]
    won = won.at[1, roster.num_past].set(0.7).at[2, 0].set(1.0)  # one beats the main agent, one its past alone
    won = won.at[3, jnp.array([0, 3])].set(0.8).at[4, 0].set(0.9)  # one beats all past policies, one not all
    assert ready(won, [0] * 5) == [False, True, False, True, False]
    assert ready(won, [0] * 5, 9.0) == [False] * 5
    assert ready(won, [0] * 5, 1.0, replace(given, decay=0.0)) == [False, True, False, True, False]


def test_what_is_known_of_two_decays_with_each_of_their_games():
    roster, random = Roster(1, 0, 0, 1), np.random.default_rng(0)
    games, wins = 0.0, 0.0
    for _ in range(40):  # one game after the other, each as often won as all of its iteration
        games, wins = games * 0.9 + 1, wins * 0.9 + 0.25
    one = MatchRecord.empty(roster).update(jnp.full((1, 2), 40.0), jnp.full((1, 2), 10.0), jnp.float32(0.9))
    np.testing.assert_allclose([one.games[0, 0], one.wins[0, 0]], [games, wins], rtol=1e-5)
    lately = one.update(jnp.array([[0.0, 30.0]]), jnp.array([[0.0, 30.0]]), jnp.float32(0.9))
    assert float(lately.win_rate[0, 0]) == pytest.approx(0.25)
    assert float(lately.win_rate[0, 1]) > 0.95
    counted = MatchRecord.empty(roster)
    more = [(float(n), float(random.integers(0, n + 1))) for n in (3, 0, 5)]
    for n, k in more:
        counted = counted.update(jnp.full((1, 2), n), jnp.full((1, 2), k), jnp.float32(1))
    np.testing.assert_allclose(counted.wins, sum(k for _, k in more), rtol=1e-6)
    assert float(MatchRecord.empty(roster).win_rate.min()) == 0.5
    few, many = (MatchRecord(jnp.full((1, 2), n), jnp.full((1, 2), n)) for n in (9.0, 10.0))
    assert (few.estimate(0.99).min(), many.estimate(0.99).min(), few.estimate(0.9).min()) == (0.5, 1, 1)


@pytest.mark.program
def test_the_seat_is_drawn_and_kept_and_the_reward_is_its():
    """Matching pennies: player 0 wins where both show the same."""
    pennies = MatrixGame("matching_pennies")
    env = LeagueGame(SinglePlayerGame(pennies, Roles(pennies).players[0]), 1)
    keys = jax.random.split(jax.random.key(0), 4000)
    begun = jax.vmap(lambda key: env.reset(key, env.default_params)[0])(keys)
    assert float(begun.player.mean()) == pytest.approx(0.5, abs=0.032)  # 4 standard errors
    after, timestep = jax.vmap(lambda key, state: env.step(key, state, jnp.int32(0), env.default_params))(keys, begun)
    np.testing.assert_array_equal(after.player, begun.player)
    np.testing.assert_array_equal(timestep.info["met"], np.ones((4000, 1)))
    np.testing.assert_array_equal(timestep.info["won"][:, 0], timestep.reward > 0)
    for seat in (0, 1):  # the other plays at random
        assert float(timestep.reward[begun.player == seat].mean()) == pytest.approx(0, abs=0.09)


@program_fixture(scope="module")
def played():
    """Of learners that learn nothing: the states and metrics of iterations, and the one program that they ran."""
    step, state = jax.jit(LEAGUE.step), jax.jit(LEAGUE.init)(jax.random.key(0))
    found = []
    for i in range(12):
        state, metrics = step(state, jax.random.key(i))
        found.append((state, metrics))
    return step, found


def test_what_it_knows_of_its_games_is_what_is_expected(played):
    _, found = played
    state, roster = found[0][0], LEAGUE.roster  # before any policy is taken twice
    tables, nodes = LEAGUE.policy_tables(LEAGUE.policies(state)), KUHN.game_tree
    wins = compute_payoffs(replace(nodes, payoffs=np.asarray(score_match(nodes.payoffs))), tables)
    last = [state for state, _ in found if (state.num_snapshots[1:] == 0).all()][-1]
    of_learners = slice(roster.num_past, None)
    expected = (wins[0][of_learners] + wins[1][:, of_learners].T) / 2
    games, won = np.asarray(last.record.games), np.asarray(last.record.win_rate)
    often = games >= 50
    assert often.sum() >= 4
    np.testing.assert_array_less(np.abs(won - expected)[often], 4 * 0.5 / np.sqrt(games[often]))
    assert games.sum() > 0


def test_all_iterations_are_one_program(played):
    step, found = played
    assert step._cache_size() == 1
    assert [int(metrics["env_steps"]) for _, metrics in found] == [4 * 256] * 12
    assert [int(state.num_snapshots[0]) for state, _ in found] == [2] * 12  # every 256 steps, and two have room


def test_a_full_room_gives_up_what_is_beaten_most_and_exploiters_begin_anew(played):
    state, given = played[1][-1][0], resolve_numbers(Matchmaking(snapshot_steps=1, timeout=1, reset=0.0))
    won = jnp.full(state.record.wins.shape, 0.5).at[0, 1].set(0.9)
    state = replace(
        state, numbers=state.numbers | {"matches": given}, record=MatchRecord(jnp.full_like(won, 100), 100 * won)
    )
    state = replace(state, steps_since_snapshot=jnp.ones(4), num_snapshots=jnp.array([2, 0, 1, 0]))
    taking = jax.jit(LEAGUE.update_pool)
    after, metrics = taking(state, jax.random.key(1))
    assert (int(metrics["snapshots"]), int(metrics["resets"])) == (4, 1)
    assert after.num_snapshots.tolist() == [2, 1, 2, 1]
    assert after.latest_snapshot.tolist() == [1, 2, 5, 6]
    lucky = MatchRecord(jnp.ones_like(won).at[0, 0].set(100), jnp.full_like(won, 0.5).at[0, 1].set(1).at[0, 0].set(90))
    once = taking(state.replace(record=lucky), jax.random.key(1))[0]
    assert int(once.latest_snapshot[0]) == 0, "one game that was won says less than 90 of 100"
    even = state.replace(record=MatchRecord.empty(LEAGUE.roster), num_snapshots=jnp.full(4, 2))
    even = even.replace(latest_snapshot=jnp.array([0, 3, 5, 6]))
    assert taking(even, jax.random.key(1))[0].latest_snapshot.tolist() == [1, 2, 4, 7], "in turn"
    kept = jax.vmap(LEAGUE.acting.extract_policy)(state.learners)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), tree.index(after.pool, after.latest_snapshot), kept)
    assert all(jax.tree.leaves(same))
    changes = jax.tree.map(jnp.not_equal, kept, jax.vmap(LEAGUE.acting.extract_policy)(after.learners))
    moved = jax.vmap(lambda x: jnp.stack([leaf.any() for leaf in jax.tree.leaves(x)]).any())(changes)
    assert moved.tolist() == [False, True, False, False]
    assert float(after.record.games[:, after.latest_snapshot].sum()) == 0
    assert float(after.record.games[1].sum()) == 0


def test_a_learner_whose_numbers_are_lost_goes_on_from_its_last_policy(played):
    step, found = played
    state = found[-1][0]
    actor = state.learners.agent.actor
    lost = jax.tree.map(lambda x: x.at[jnp.array([0, 3])].set(jnp.nan), actor.params)
    agent = replace(state.learners.agent, actor=replace(actor, params=lost))
    after, metrics = step(replace(state, learners=replace(state.learners, agent=agent)), jax.random.key(9))
    assert int(metrics["lost"]) == 2
    assert bool(tree.is_nan_free((after.learners, after.pool, after.record)))
    now = LEAGUE.acting.extract_policy(tree.index(after.learners, 0))
    last = tree.index(after.pool, after.latest_snapshot[0])
    for path, x in now.items():
        if "params" in path:
            np.testing.assert_array_equal(x, last[path])


def test_the_main_agent_plays_all_seats(played):
    policy = Policy(LEAGUE, played[1][-1][0])
    actions, _ = policy(KUHN.reset(jax.random.key(5), None)[1], policy.initial_memory())
    assert set(actions) == {"player_0", "player_1"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Roster(main=0), "main=0: must be at least 1"),
        (lambda: Roster(league_exploiters=-1), "league_exploiters=-1: must not be negative"),
        (lambda: Roster(capacity=0), "capacity=0: must be at least 1"),
        (lambda: League(unequal(), LEAGUE.workflow), "env: the players of a league must have equal spaces"),
        (
            lambda: replace(LEAGUE, matches=Matchmaking(decay=Linear(0.9, 1, over=100))),
            "matches.decay=.*: must not be a schedule: League counts no env steps; only workflow may have schedules",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def unequal():
    return MatrixGame(payoffs=(((1.0, 2.0, 0.0), (0.0, 1.0, 3.0)), ((0.0, 1.0, 1.0), (2.0, 0.0, 0.0))))


def test_a_policy_may_read_hyperparameters():
    """DQN explores with its epsilon, which the state of the league holds once for all learners."""
    inner = OffPolicy(OPPOSED, DQN(hidden=(4,)), num_envs=2, batch_size=4, capacity=8, random_steps=0)
    league = League(KUHN, inner, Roster(capacity=2))
    state = jax.eval_shape(league.init, jax.random.key(0))
    assert ".numbers['agent']['epsilon'].start" in state.pool
    after, metrics = jax.eval_shape(league.step, state, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert {"won", "policies"} <= set(metrics)


@pytest.mark.program
def test_the_main_agent_of_a_league_approaches_an_equilibrium_of_kuhn_poker():
    """It starts about uniform, with an exploitability of 0.458 (OpenSpiel: NashConv 0.916667)."""
    learner = replace(LEAGUE.workflow, agent=PPO(hidden=(16,), learning_rate=3e-3, entropy_coef=0.05), num_envs=64)
    learner = replace(learner, num_steps=8, num_epochs=2, batch_size=128)
    matches = Matchmaking(snapshot_steps=5_000.0, timeout=10_000.0)
    league = replace(LEAGUE, workflow=learner, roster=Roster(1, 1, 1, 8), matches=matches)
    rows = fit(league, budget=Budget(iterations=150), evaluations=1, chunk=50, progress=False).rows
    first, last = (row["exploitability"] for row in rows if row["kind"] == "evaluation")
    assert first == pytest.approx(0.458, abs=0.02)
    assert last < 0.35
