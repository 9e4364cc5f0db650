"""Evaluate multi-agent training: each group against its untrained self, and self-play against random play.

python scripts/learning/games.py tag push adversary      IPPO, 8 seeds, a million env steps of each
python scripts/learning/games.py tic_tac_toe             self-play, 8 seeds; needs the extra pgx
python scripts/learning/games.py connect_four
python scripts/learning/games.py NAME --env-steps 20_000 --folder runs/tries

Runs are trained into --folder, or read from it if they exist. For each seed, a group's return against the other trained
groups is compared with the return of the untrained group against them, on the same 512 starts; intervals are over
seeds. For self-play the script prints the percentage of 2 x 2,048 games against random play, half in each seat, that
each seed loses. Policies sample their actions (MPE), or are greedy (self-play).
"""

import argparse
import datetime
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import stats, vector_env
from evorl.spaces import group_sizes
from evorl.training.cross_play import CrossPlayPolicy, PlayerId
from evorl.training.policy import Policy
from evorl.training.runs import RunCheckpoint, restore_run
from evorl.vector_env import EnvBatch, EpisodeStats, ResetStarts, RolloutPlan, TransitionStore

MPE = ("tag", "push", "adversary")
STEPS = {"tic_tac_toe": 1_000_000, "connect_four": 3_000_000}
SELF_PLAY = ["entropy_coef=0.2", "learning_rate=${linear:1e-3,0}"]  # with the defaults it sees too few games


def options(name: str, env_steps: int) -> list[str]:
    """Return the options of a training: the agent's defaults, except for entropy and learning rate in self-play."""
    env = [f"env=mpe/{name}"] if name in MPE else [f"env=pgx_game/{name}", *SELF_PLAY]
    return ["agent=ippo", *env, "num_seeds=8", f"env_steps={env_steps}", "evaluations=4"]


def trained(name: str, folder: Path, env_steps: int | None) -> RunCheckpoint:
    """Return the run of a game, and train it first if it does not exist."""
    run = folder / name
    if not run.exists():
        given = options(name, env_steps or STEPS.get(name, 1_000_000))
        subprocess.run([sys.executable, "-m", "evorl.train", *given, f"run_dir={run}", "tensorboard=false"], check=True)
    return restore_run(run, "run", "last")


def played(policy: Policy, episodes: int, explores: bool, key: jax.Array) -> EpisodeStats:
    """Play the episodes and return their statistics, leaves [episodes]."""
    env = policy.env
    world, store = EnvBatch(env, policy.env_params, policy.memory, episodes), TransitionStore(8, None, lambda *_: None)
    act = jax.vmap(policy.as_policy_fn(explores))
    return vector_env.rollout(world, act, RolloutPlan(ResetStarts(), episodes=1), None, key, store)[1]


def groups(run: RunCheckpoint) -> dict[str, np.ndarray]:
    """Return for each group the returns of each seed, [2, seeds]: trained, and untrained."""
    workflow: Any = run.workflow
    teams = group_sizes(workflow.env.action_space)

    @jax.jit
    @jax.vmap
    def of_seed(state: Any, key: jax.Array) -> dict[str, Any]:
        key_begun, key_play = jax.random.split(key)
        end, begun = (Policy(workflow, s) for s in (state, workflow.init(key_begun, state.numbers)))
        everyone = played(end, 512, True, key_play).returns
        players = {name: PlayerId(name) for name in teams}
        mixed = {name: played(CrossPlayPolicy(begun, one, end), 512, True, key_play) for name, one in players.items()}
        alone = {name: one.select_values(mixed[name].returns) for name, one in players.items()}
        return {name: jnp.stack([everyone[name].mean(), alone[name].mean()]) for name in teams}

    found = of_seed(run.state, jax.random.split(jax.random.key(0), 8))
    return {name: np.asarray(x).T for name, x in found.items()}


def losses(run: RunCheckpoint) -> np.ndarray:
    """Return the fraction of games that each seed loses against random play, [seeds]."""
    workflow: Any = run.workflow
    (group,) = group_sizes(workflow.env.action_space)

    @jax.jit
    @jax.vmap
    def of_seed(state: Any, key: jax.Array) -> Any:
        seats = [PlayerId(group, i) for i in range(2)]
        policy = Policy(workflow, state)
        returns = [
            seat.select_values(played(CrossPlayPolicy(policy, seat, None), 2048, False, key).returns) for seat in seats
        ]
        return (jnp.stack(returns) < 0).mean()

    return np.asarray(of_seed(run.state, jax.random.split(jax.random.key(0), 8)))


def told(values: np.ndarray) -> str:
    return f"{stats.MeanEstimate.from_scores(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="+")
    parser.add_argument("--env-steps", type=int)
    parser.add_argument("--folder", type=Path, default=Path("runs/games"))
    args = parser.parse_args()
    for name in args.games:
        run = trained(name, args.folder, args.env_steps)
        if name not in MPE:
            lost, today = 100 * losses(run), datetime.date.today()
            print(f"\n{today} {name}: loses {told(lost)} % to random play, the worst seed {lost.max():.2f} %")
            continue
        print(f"\n{datetime.date.today()}\n\n| {name} | learned | as it began | difference |\n|---|---|---|---|")
        for group, (end, begun) in groups(run).items():
            print(f"| {group} | {told(end)} | {told(begun)} | {told(end - begun)} |", flush=True)


if __name__ == "__main__":
    main()
