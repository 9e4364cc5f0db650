"""Time leagues in CPU seconds: PSRO and payoffs on Leduc (also OpenSpiel's), alpha-rank, and acting for opponents.

taskset -c 0 env PJRT_NPROC=1 python scripts/benchmarks/leagues.py [--repeats 5] [--only NAME ...]

psro       M2: 20 iterations with exact best responses and Nash; OpenSpiel's psro_v2 plays 100 episodes per cell
payoffs    81 cells of 2,000 episodes, for tables and for networks of two layers; OpenSpiel plays at random
alpha_rank of 40 x 40 policies
opponents  a step of 2,048 games against 16 policies, in three ways: the parameters of the drawn policies are gathered;
           all policies answer and one answer is picked; or environments are grouped by opponent, in equal numbers
OpenSpiel's part needs `pip install open_spiel cvxpy ecos`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_timing import Program, clock, in_turn, surroundings, timed

from evorl import PSRO, tree
from evorl.agents import PPO
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.leduc import Leduc
from evorl.leagues import AlphaRank
from evorl.leagues.payoff_estimation import evaluate_profiles
from evorl.leagues.policy_grouping import apply_by_policy
from evorl.leagues.policy_sets import WorkflowPolicySet
from evorl.leagues.roles import Roles
from evorl.leagues.tabular_policies import normalize_policy
from evorl.leagues.tabular_policy_set import TabularPolicySet
from evorl.leagues.training_oracle import make_single_player_env
from evorl.workflows.on_policy import OnPolicy

ITERATIONS, SIMULATIONS = 20, 100
CELLS, EPISODES = 9, 2000
NUM_ENVS, POLICIES = 2048, 16
GAME: Any = ExtensiveFormGame(Leduc())


def psro(repeats: int) -> None:
    workflow = PSRO(GAME, capacity=ITERATIONS + 1)

    def run(key: jax.Array) -> jax.Array:
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, ITERATIONS))[1]["nash_conv"]

    ours = jax.jit(run)
    cpu = timed(ours, jax.random.key(0), repeats=repeats)[1]
    print(f"psro: {cpu:.3f} CPU s, NashConv {float(ours(jax.random.key(0))[-1]):.2f}", flush=True)
    theirs, found = openspiel_psro()
    print(f"psro: OpenSpiel {theirs:.1f} CPU s, NashConv {found:.2f}: {theirs / cpu:.0f} times as long", flush=True)


def openspiel_psro() -> tuple[float, float]:
    import pyspiel  # pyright: ignore
    from open_spiel.python import policy  # pyright: ignore
    from open_spiel.python.algorithms import exploitability, policy_aggregator  # pyright: ignore
    from open_spiel.python.algorithms.psro_v2 import best_response_oracle, psro_v2  # pyright: ignore

    np.random.seed(0)
    game = pyspiel.load_game("leduc_poker")

    def run() -> Any:
        solver = psro_v2.PSROSolver(
            game,
            best_response_oracle.BestResponseOracle(game=game),
            initial_policies=[policy.UniformRandomPolicy(game) for _ in range(2)],
            meta_strategy_method="nash",
            sims_per_entry=SIMULATIONS,
            training_strategy_selector="probabilistic",
            symmetric_game=False,
        )
        for _ in range(ITERATIONS):
            solver.iteration()
        return solver

    start = time.process_time()
    solver = run()
    spent = time.process_time() - start
    mixture = policy_aggregator.PolicyAggregator(game).aggregate(
        range(2), solver.get_policies(), solver.get_meta_strategies()
    )
    return spent, exploitability.nash_conv(game, mixture)


def acting(policies: int, hidden: int = 256) -> tuple[Roles, WorkflowPolicySet, Any]:
    """Return roles, policy set and parameters of random two-layer networks for both players.

    The leaves of the parameters have shape [policies, players, ...]. PPO's networks have 256 units per layer.
    """
    alone = make_single_player_env(GAME)
    agent = PPO(hidden=(hidden, hidden))
    workflow: Any = OnPolicy(alone, agent, 8, 8, 2, 32)
    cast = WorkflowPolicySet(workflow, explores=True)
    keys = jax.random.split(jax.random.key(0), (policies, 2))
    init: Callable[[jax.Array], Any] = lambda key: cast.extract_policy(workflow.init(key))  # noqa: E731
    return Roles(GAME), cast, jax.jit(jax.vmap(jax.vmap(init)))(keys)


def tables(policies: int) -> tuple[Roles, TabularPolicySet, Any]:
    """Return roles, policy set and tables of random tabular policies."""
    nodes = GAME.game_tree
    drawn = jnp.where(nodes.legal_mask, jax.random.uniform(jax.random.key(0), (policies, *nodes.legal_mask.shape)), 0)
    table = jax.vmap(lambda x: normalize_policy(nodes, x))(drawn)
    return Roles(GAME), TabularPolicySet(nodes), jnp.stack([table, table], 1)


def payoffs(repeats: int) -> None:
    theirs = openspiel_episode()
    print(f"payoffs: OpenSpiel at random {theirs:.1f} us an episode", flush=True)
    cases = {"tables": tables(CELLS), "64 x 64": acting(CELLS, 64), "256 x 256": acting(CELLS)}
    for name, (roles, cast, pool) in cases.items():
        ours = played_episode(roles, {"player_0": cast}, {"player_0": pool}, repeats)
        print(f"payoffs: {name} {ours:.2f} us an episode, {theirs / ours:.1f} times as fast", flush=True)


def played_episode(roles: Roles, policy_sets: Any, pool: Any, repeats: int) -> float:
    """Return the CPU microseconds of an episode that evorl plays."""
    grid = jnp.stack(jnp.meshgrid(jnp.arange(CELLS), jnp.arange(CELLS)), -1)

    def run(key: jax.Array) -> Any:
        return jax.lax.map(
            lambda cells: evaluate_profiles(roles, policy_sets, pool, None, cells, EPISODES, key)[0].mean(0), grid
        )

    return 1e6 * timed(jax.jit(run), jax.random.key(0), repeats=repeats)[1] / (CELLS**2 * EPISODES)


def openspiel_episode(episodes: int = 5000) -> float:
    """Return the CPU microseconds of a random episode in OpenSpiel."""
    import pyspiel  # pyright: ignore

    game, rng = pyspiel.load_game("leduc_poker"), np.random.default_rng(0)

    def run() -> None:
        for _ in range(episodes):
            state = game.new_initial_state()
            while not state.is_terminal():
                if state.is_chance_node():
                    actions, chances = zip(*state.chance_outcomes(), strict=True)
                    state.apply_action(actions[np.searchsorted(np.cumsum(chances), rng.random())])
                else:
                    actions = state.legal_actions()
                    state.apply_action(actions[int(rng.random() * len(actions))])
            state.returns()

    return 1e6 * clock(run)[1] / episodes


def alpha_rank(repeats: int) -> None:
    table = jax.random.normal(jax.random.key(0), (40, 40))
    payoff, mask = jnp.stack([table, -table]), jnp.ones((2, 40), bool)
    cpu = timed(jax.jit(AlphaRank()), payoff, mask, repeats=repeats)[1]
    print(f"alpha_rank: {cpu:.2f} CPU s", flush=True)


def opponents(repeats: int) -> None:
    roles, cast, pool = acting(POLICIES)
    pool = jax.tree.map(lambda x: x[:, 0], pool)
    key = jax.random.key(1)
    states, obs = jax.vmap(GAME.reset, (0, None))(jax.random.split(key, NUM_ENVS), ())
    del states
    seen = jax.vmap(lambda x: tree.index(roles.stack_players(roles.roles[0], x), 0))(obs)
    drawn = jax.random.randint(key, (NUM_ENVS,), 0, POLICIES)
    keys = jax.random.split(key, NUM_ENVS)

    def gathered(seen: Any, drawn: jax.Array) -> Any:
        return jax.vmap(lambda o, i, k: cast.act(tree.index(pool, i), o, None, k)[0])(seen, drawn, keys)

    def picked(seen: Any, drawn: jax.Array) -> Any:
        def one(o: Any, i: jax.Array, k: jax.Array) -> Any:
            return jax.vmap(lambda p: cast.act(p, o, None, k)[0])(pool)[i]

        return jax.vmap(one)(seen, drawn, keys)

    def grouped(seen: Any, drawn: jax.Array) -> Any:
        del drawn
        rows = jax.tree.map(lambda x: x.reshape(POLICIES, -1, *x.shape[1:]), (seen, keys))
        return jax.vmap(jax.vmap(lambda p, o, k: cast.act(p, o, None, k)[0], (None, 0, 0)))(pool, *rows)

    def by_policies(seen: Any, drawn: jax.Array) -> Any:
        return apply_by_policy(lambda *x: cast.act(*x)[0], pool, drawn, (seen, None, keys))

    programs = {f.__name__: Program(f, (seen, drawn), NUM_ENVS) for f in (gathered, picked, grouped, by_policies)}
    for name, row in in_turn(programs, "us", repeats).items():
        print(f"opponents: {name} {1e3 * row['cpu_s']:.2f} CPU ms", flush=True)


def main() -> None:
    parts = {f.__name__: f for f in (psro, payoffs, alpha_rank, opponents)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    given = parser.parse_args()
    print(surroundings(given.repeats), flush=True)
    for name in given.only:
        parts[name](given.repeats)


if __name__ == "__main__":
    main()
