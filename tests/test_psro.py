"""PSRO: what it reaches on Kuhn and Leduc poker, and how its players are kept, drawn and played."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import PPO
from evorl.cli.train import main
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.leduc import Leduc
from evorl.envs.games.matrix import MatrixGame
from evorl.envs.mpe import MPE, SimplePush
from evorl.errors import OptionError
from evorl.leagues.alpha_rank import AlphaRank
from evorl.leagues.auto_solver import AutoSolver
from evorl.leagues.exact import compute_payoffs
from evorl.leagues.nash import Nash
from evorl.leagues.payoff_estimation import list_newest_profiles, mask_newest_profiles
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.pipeline_psro import PipelinePSRO
from evorl.leagues.policy_sets import WorkflowPolicySet
from evorl.leagues.psro import PSRO
from evorl.leagues.roles import Roles
from evorl.leagues.single_player_game import MatchParams, SinglePlayerGame
from evorl.leagues.solvers import NewestPolicySolver, UniformMixture
from evorl.leagues.training_oracle import TrainingOracle, make_single_player_env
from evorl.networks import GRU
from evorl.schedules import Linear
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.fit import fit
from evorl.training.policy import Policy
from evorl.training.progress import Budget
from evorl.training.summary import describe_continuation
from evorl.workflows.on_policy import OnPolicy
from tests.tiers import program_fixture

KUHN = ExtensiveFormGame(Kuhn())
OPPOSED = make_single_player_env(KUHN)
AGENT = PPO(hidden=(8,))
PLAYER = OnPolicy(OPPOSED, AGENT, 8, 8, 2, 32, eval_episodes=8)
FEW = {"iterations": 2.0}


def exploited(workflow, iterations, seed=0):
    """NashConv after each iteration."""

    def run(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, iterations))

    state, metrics = jax.jit(run)(jax.random.key(seed))
    return state, np.asarray(metrics["nash_conv"])


@pytest.mark.program
@pytest.mark.parametrize(
    ("solver", "low", "high"), [(Nash(), 1.2, 2.2), (AlphaRank(), 0.3, 1.0), (NewestPolicySolver(), 4.0, 14.0)]
)
def test_on_leduc_it_comes_as_near_to_an_equilibrium_as_openspiels_program(solver, low, high):
    """NashConv after 20 iterations: 1.3 to 2.1 with Nash, below 1 by alpha-rank, and of self-play still 6 to 9.

    The mean of four seeds, since one seed says little: with Nash, twelve seeds gave 1.15 to 1.77, 1.44 on average.
    """
    workflow = PSRO(ExtensiveFormGame(Leduc()), solver=solver, capacity=21)

    def run(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, 20))[1]["nash_conv"]

    found = jax.jit(lambda keys: jax.lax.map(run, keys))(jax.vmap(jax.random.key)(jnp.arange(4)))
    np.testing.assert_allclose(found[:, 0], 6.8333, atol=1e-3)
    assert low < found[:, -1].mean() < high


@pytest.mark.parametrize(("returns", "iterations"), [
    ((np.nan, -5.0, -4.0, np.nan, -3.0, -4.0, -4.0, -1.0), 7),  # stops after two that are not higher than -3
    ((np.nan, np.nan, np.nan, np.nan), 4),
])  # fmt: skip
def test_patience_counts_iterations_in_which_episodes_ended(returns, iterations, monkeypatch):
    """In iterations with NaN no episode ends, which is reported as a return of 0."""

    def step(self, state, key):
        now = jnp.array(returns)[state]
        ended = ~jnp.isnan(now)
        metrics = {"return": jnp.where(ended, now, 0.0), "episodes": ended.astype(jnp.int32)}
        return state + 1, metrics | {"env_steps": jnp.int32(4), "gradient_steps": jnp.int32(1)}

    monkeypatch.setattr(type(PLAYER), "step", step)
    oracle = TrainingOracle(PLAYER, iterations=len(returns), patience=2.0)
    done = jax.jit(lambda: oracle.run_training(PLAYER, jnp.int32(0), jax.random.key(0)))()
    assert int(done.state) == iterations


@pytest.mark.program
def test_kuhn_poker_is_solved():
    state, found = exploited(PSRO(KUHN, capacity=11), 10)
    assert found[-1] < 0.05
    assert int(state.num_policies) == 11
    np.testing.assert_allclose(state.weights.sum(1), 1, atol=1e-6)
    # the value of the game, Kuhn 1950
    value = jnp.einsum("i,j,ij->", *state.weights, state.payoffs.mean[0])
    assert float(value) == pytest.approx(-1 / 18, abs=0.02)


@pytest.mark.program
def test_payoffs_that_are_played_are_those_that_are_expected():
    workflow = PSRO(KUHN, capacity=3, episodes=2000)
    state, _ = exploited(workflow, 2)
    expected = compute_payoffs(workflow.tree, state.pool)
    assert float(jnp.abs(state.payoffs.mean - expected).max()) < 4 * float(state.payoffs.standard_errors.max())
    assert np.asarray(state.payoffs.episodes == 2000).all()


@pytest.mark.program
def test_a_pool_keeps_of_a_training_what_its_policy_reads():
    acting = WorkflowPolicySet(PLAYER, explores=True)
    assert not any("value" in path or "numbers" in path for path in acting.read_paths)
    state = PLAYER.init(jax.random.key(0))
    obs, key = OPPOSED.reset(jax.random.key(1), OPPOSED.default_params)[1], jax.random.key(2)
    assert acting.act(acting.extract_policy(state), obs, None, key)[0] == PLAYER.policy(state, True)(obs, None, key)[0]


@pytest.mark.program
def test_opponents_are_drawn_by_their_weights_and_stay_for_the_episode():
    cast = WorkflowPolicySet(PLAYER, explores=True)
    states = jax.vmap(jax.vmap(PLAYER.init))(jax.random.split(jax.random.key(0), (2, 2)))
    env = SinglePlayerGame(KUHN, "player_0", {"player_0": cast})
    match = MatchParams(
        None, jnp.int32(1), {"player_0": cast.extract_policy(states)}, jnp.array([[0.25, 0.75], [1.0, 0.0]])
    )
    begun = jax.vmap(lambda key: env.reset(key, match)[0])(jax.random.split(jax.random.key(3), 4000))
    assert float(begun.opponents[:, 0].mean()) == pytest.approx(0.75, abs=0.03)  # 4 standard errors
    assert int(begun.opponents[:, 1].max()) == 0
    one = tree.index(begun, 0)
    after, timestep = env.step(jax.random.key(4), one, jnp.int32(0), match)
    np.testing.assert_array_equal(after.opponents, one.opponents)
    assert timestep.reward.shape == ()


def test_the_one_that_plays_acts_in_its_own_place():
    """Matching pennies: the first wins where both show the same, and the other always shows 0."""
    pennies = MatrixGame("matching_pennies")
    env = SinglePlayerGame(pennies, Roles(pennies).players[0])
    state, _ = env.reset(jax.random.key(0), env.default_params)
    seen = set()
    for player in (0, 1):
        for action in (0, 1):
            for seed in range(8):
                match = env.default_params.replace(player=jnp.int32(player))
                _, timestep = env.step(jax.random.key(seed), state, jnp.int32(action), match)
                seen.add((player, float(timestep.reward)))
    assert seen == {(player, reward) for player in (0, 1) for reward in (-1.0, 1.0)}


@pytest.mark.program
def test_cells_of_the_newest_are_all_that_are_new():
    cells, count = list_newest_profiles(jnp.int32(2), 3, 4)
    table = np.zeros((4, 4, 4), int)
    np.add.at(table, tuple(np.asarray(cells[: int(count)]).T), 1)
    np.testing.assert_array_equal(table, mask_newest_profiles(jnp.int32(2), 3, 4))
    assert int(count) == 27 - 8
    assert (cells[int(count) :] == 2).all()


@program_fixture(scope="module")
def learned():
    workflow = PSRO(KUHN, TrainingOracle(PLAYER, restarts=2, **FEW), capacity=3, episodes=0)
    state = workflow.init(jax.random.key(0))
    return workflow, *jax.jit(workflow.step)(state, jax.random.key(1))


def test_trainings_answer_mixtures(learned):
    _, state, metrics = learned
    assert int(metrics["env_steps"]) == 2 * 2 * 2 * 64  # players, restarts, iterations
    assert int(state.num_policies) == 2
    assert np.isfinite(float(metrics["reached"]))


@pytest.mark.program
def test_learned_responses_approach_an_equilibrium_of_kuhn_poker():
    """The policies at the start are about uniform, whose exploitability is 0.458 (OpenSpiel: NashConv 0.916667)."""
    learner = OnPolicy(PLAYER.env, PPO(hidden=(16,), learning_rate=3e-3, entropy_coef=0.05), 64, 8, 2, 128)
    workflow = PSRO(KUHN, TrainingOracle(learner, iterations=40, restarts=1), capacity=4, episodes=0)
    rows = fit(workflow, budget=Budget(iterations=2), evaluations=2, chunk=1, progress=False).rows
    exploitability = [row["exploitability"] for row in rows if row["kind"] == "evaluation"]
    assert exploitability[0] == pytest.approx(0.458, abs=0.02)
    assert exploitability[-1] < 0.25


@pytest.mark.program
def test_the_mixture_plays(learned):
    workflow, state, _ = learned
    policy = Policy(workflow, state)
    env_state, obs = KUHN.reset(jax.random.key(5), None)
    actions, memory = policy(obs, policy.initial_memory())
    assert set(actions) == {"player_0", "player_1"}
    after = KUHN.step(jax.random.key(6), env_state, jax.tree.map(jnp.asarray, actions), None)[1]
    again, later = policy(after.obs, memory)
    np.testing.assert_array_equal(later.profile, memory.profile)
    assert set(again) == set(actions)


@pytest.mark.program
def test_levels_answer_all_below_them_and_the_lowest_is_done():
    workflow = PipelinePSRO(
        KUHN, oracle=TrainingOracle(PLAYER, warm=True, **FEW), solver=UniformMixture(), capacity=6, levels=3
    )
    state = workflow.init(jax.random.key(0))
    uniform = np.tril(np.ones((3, 6))) / np.arange(1, 4)[:, None]
    np.testing.assert_allclose(workflow.level_mixtures(state)[:, 0], uniform, atol=1e-6)
    after, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
    assert int(after.num_policies) == 2
    assert int(metrics["env_steps"]) == 3 * 2 * 2 * 64  # levels, players, iterations
    np.testing.assert_allclose(after.weights[0], [0.5, 0.5, 0, 0, 0, 0])
    tables = workflow.oracle.tabulate_policies(KUHN, after.pool)
    rows = np.asarray(compute_payoffs(workflow.tree, tables[:4]))  # one that is done, and two that go on
    np.testing.assert_allclose(after.payoffs.mean[:, :4, :4], rows, atol=1e-5)
    # what goes on is what the pool has of it, and the top is new
    path = next(iter(after.pool["player_0"]))
    for level in (0, 1):
        going_on = jax.tree.map(lambda x, level=level: x[level, :, 0], after.oracle_state["player_0"])
        taken = workflow.oracle.policy_sets(KUHN)["player_0"].extract_policy(
            replace(going_on, numbers=state.numbers["oracle"]["workflow"])
        )
        np.testing.assert_array_equal(taken[path], after.pool["player_0"][path][2 + level])
    assert not np.array_equal(*(np.asarray(after.pool["player_0"][path][i]) for i in (2, 3)))
    assert workflow.max_iterations == 3


def test_players_with_a_recurrent_state_and_teams_go_on_from_their_last_training():
    game = MatrixGame("matching_pennies")
    recurrent = OnPolicy(make_single_player_env(game), PPO(hidden=(8,), core=GRU(4)), 8, 8, 2, 32, eval_episodes=8)
    team = config.compose_config(
        ["agent=pipeline_psro", "agent@agent.inner=ippo", "env=mpe/tag", "iterations=2", "agent.workflow.episodes=4"]
    )
    for workflow in (PSRO(game, TrainingOracle(recurrent, warm=True), episodes=4), runs.build(team)[0]):
        state = jax.eval_shape(workflow.init, jax.random.key(0))
        after = jax.eval_shape(workflow.step, state, jax.random.key(1))[0]
        assert jax.tree.structure(after) == jax.tree.structure(state)


def test_a_training_ends_with_a_full_pool():
    assert Budget(env_steps=1e9).with_max_iterations(5).iterations == 5
    with pytest.raises(OptionError, match="iterations=9: must be at most 5, when the policy pool is full"):
        Budget(iterations=9).with_max_iterations(5)


FULL = "the policy pool is full after 3 iterations; use a larger agent.workflow.capacity in a new run"


@pytest.mark.parametrize(
    ("budget", "done", "line"),
    [
        (Budget(iterations=1), 1, "resume: evorl iterations=2"),
        (Budget(iterations=2, minutes=5), 2, "resume: evorl iterations=3 minutes=10"),
        (Budget(env_steps=5e5), 1, "resume: evorl env_steps=1e+06"),
        (Budget(env_steps=5e5), 3, FULL),
    ],
)
def test_a_training_says_how_it_goes_on_or_what_has_room(budget, done, line):
    assert describe_continuation(PSRO(KUHN, capacity=4), budget, done, "evorl") == line


@pytest.mark.program
def test_the_last_line_of_a_training_is_a_command_that_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def last_line(*given):
        main([*given])
        return capsys.readouterr().out.splitlines()[-1]

    game = "agent=psro_exact", "env=kuhn", "agent.workflow.capacity=4", "run_dir=run"
    line = last_line(*game, "iterations=2")
    assert line == "resume: python -m evorl.train resume=run iterations=3"
    assert last_line(*line.partition("evorl.train ")[2].split()) == FULL


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PSRO(ExtensiveFormGame(Kuhn(3)), solver=Nash()),
            "solver=Nash: solves two-player zero-sum games, not 3 players",
        ),
        (lambda: PSRO(MatrixGame("prisoners_dilemma")), "oracle=BestResponseOracle: needs a game tree"),
        (lambda: PSRO(KUHN, capacity=1), "capacity=1: must be at least 2"),
        (
            lambda: PSRO(KUHN, TrainingOracle(PLAYER, iterations=Linear(4, 8, over=100)), capacity=3, episodes=1),
            "oracle.iterations=.*: must not be a schedule: PSRO counts no env steps; only oracle.workflow may have",
        ),
        (
            lambda: PipelinePSRO(KUHN, oracle=TrainingOracle(PLAYER, warm=True), capacity=4, levels=4),
            "levels=4: must be from 2 to 3, below capacity",
        ),
        (
            lambda: PipelinePSRO(KUHN, oracle=TrainingOracle(PLAYER)),
            "oracle=TrainingOracle: must be TrainingOracle.*, warm=True",
        ),
        (lambda: PSRO(MatrixGame("matching_pennies"), TrainingOracle(PLAYER)), "episodes=0: computes exact payoffs"),
        (
            lambda: Roles(ExtensiveFormGame(Kuhn(), together=True)),
            "has one group; games of leagues need one group per player",
        ),
        (lambda: SinglePlayerGame(KUHN, "player_9").player_role, "player=player_9|unknown player player_9"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


@pytest.mark.program
def test_players_of_different_roles_who_see_without_bounds():
    game = MPE(SimplePush())
    player = make_single_player_env(game)
    agent = PPO(hidden=(4,))
    learned = TrainingOracle(OnPolicy(player, agent, 4, 4, 1, 16, eval_episodes=4), **FEW)
    psro = PSRO(game, learned, UniformMixture(), capacity=3, episodes=4)
    state = jax.eval_shape(psro.init, jax.random.key(0))
    assert state.payoffs.mean.shape == (2, 3, 3)
    mean = jnp.zeros((2, 3, 3)).at[0, 0, 0].set(jnp.nan)
    assert (
        psro.failure_reason(replace(broken(psro), payoffs=Payoffs.from_expected(mean)))
        == "payoffs[0, 0, 0]=nan: must be finite"
    )


def broken(psro):
    """A state of zeros."""
    shapes = jax.eval_shape(psro.init, jax.random.key(0))
    state = tree.zeros_like(shapes)
    return replace(state, num_policies=jnp.int32(1))


@pytest.mark.parametrize("agent", ["psro", "pipeline_psro"])
def test_every_psro_takes_the_solver_that_is_chosen_and_plays_for_payoffs(agent):
    for given, name in (([], "AutoSolver"), (["agent/solver=alpha_rank"], "AlphaRank")):
        found = config.to_plain_data(config.compose_config([f"agent={agent}", "env=kuhn", *given]))["agent"]["workflow"]
        assert found["solver"]["_target_"].endswith(name)
        assert found["episodes"] == 1000


PUSH = "env=mpe/push", "agent.workflow.episodes=4", "iterations=1"


@pytest.mark.program
@pytest.mark.parametrize("more", [["agent=psro"], ["agent=psro", "num_seeds=2"], ["agent=pipeline_psro"]])
def test_a_solver_for_zero_sum_games_is_refused_by_what_is_played_before_an_iteration(more, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*PUSH, "agent/solver=nash", f"run_dir={tmp_path / 'run'}", *more])
    assert ended.value.code == 2
    found = capsys.readouterr().err.splitlines()[-1]
    assert found.startswith(
        "error: solver=Nash: solves two-player zero-sum games, not a general-sum game; use AutoSolver"
    )
    assert "mean payoffs sum to" in found
    assert not (tmp_path / "run").exists()


@pytest.mark.program
def test_the_default_solves_a_game_by_what_it_is():
    opposed, general = MatrixGame("matching_pennies"), MPE(SimplePush())
    for game, constant in ((opposed, True), (general, False)):
        player = make_single_player_env(game)
        agent = PPO(hidden=(4,))
        learned = TrainingOracle(OnPolicy(player, agent, 4, 4, 1, 16, eval_episodes=4), **FEW)
        psro = PSRO(game, learned, capacity=3, episodes=4)
        state = psro.init(jax.random.key(0))
        assert psro.has_constant_sum(state) == constant
        after, _ = jax.jit(psro.step)(state, jax.random.key(1))
        expected = (Nash() if constant else AutoSolver().select_solver(2, False))(
            after.payoffs.mean, psro.valid_policies(after)
        )
        np.testing.assert_allclose(after.weights, expected[0], atol=1e-5)
        refused = replace(psro, solver=Nash()).failure_reason(after)
        assert (refused is None) == constant
    assert PSRO(KUHN).meta_solver == Nash()
    assert PSRO(ExtensiveFormGame(Kuhn(3))).meta_solver == AutoSolver().select_solver(3, False)
