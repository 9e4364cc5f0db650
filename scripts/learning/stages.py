"""Train a list of experiments in stages: each call continues where the last one stopped, for at most --minutes.

python scripts/learning/stages.py minatar     every MinAtar game of gymnax by PPO and by DQN: 8 seeds, 10 million steps
python scripts/learning/stages.py evolved     the same by seeds and by low rank: 1,024 members, 4 seeds; for a GPU
python scripts/learning/stages.py mazes       PPO with LSTM and S5 on mazes: 4 seeds, 4 million steps, and unseen mazes
python scripts/learning/stages.py ued         tables 2 and 4 of arXiv:2311.12716: 10 seeds, and unseen mazes; for a GPU
python scripts/learning/stages.py levels      curricula of mazes of 7 x 7: 4 seeds, a million env steps
python scripts/learning/stages.py physics     curricula of CartPoles: 4 seeds, 2 million env steps of each student
python scripts/learning/stages.py breakout    Breakout by PPO and by DQN: 4 seeds, 1 million steps
python scripts/learning/stages.py arcade      the arcade's Breakout by Puffer: 4 seeds, 90 million steps; for a GPU
python scripts/learning/stages.py memory      tasks that need memory, with and without a recurrent policy: 4 seeds
python scripts/learning/stages.py spread      IPPO and MAPPO on MPE's spread: 8 seeds, a million env steps
python scripts/learning/stages.py speaker     MAPPO, MADDPG and independent DDPG on speaker_listener: 2 million steps
python scripts/learning/stages.py malib       every learner on MALib's seven scenarios: 4 seeds; for a GPU
python scripts/learning/stages.py smax        QMIX and MAPPO on SMAX: 4 seeds, 10 million env steps; for a GPU
python scripts/learning/stages.py "experiment=classic/ppo_cartpole env_steps=20_000" --folder runs/tries --minutes 1

Repeat the command until it prints its tables. The run folders alone show what is done. Ctrl-C, or the end of a call,
saves the run in progress. --option num_seeds=2 is added to every run that begins.

Returns are those of the evaluation after the last step, 128 greedy episodes or more of each seed. Solved rates on
unseen mazes are those of `python -m evorl.play RUN suite=ood which=last seed=N`, kept as RUN/ood_N.md. Intervals are
over seeds.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from evorl import stats
from evorl.training.records.rows import read_evaluations

LONG = "num_seeds=8 env_steps=10_000_000"
MANY = "agent.workflow.evolver.population_size=1024"
GAMES = ("asterix", "breakout", "freeway", "space_invaders")
CHAIN = (
    "agent=ppo env=memory_chain num_seeds=4 env_steps=400_000 agent.workflow.agent.learning_rate=${linear:3e-4,0} "
    "agent.workflow.agent.hidden=[64,64] agent.workflow.num_steps=64"
)
SMALL = "env.levels.width=7 env.levels.height=7 env.num_actions=3 env.max_episode_steps=100"
DRAWS = "env.levels.fewest=20 env.levels.most=20"


def levels(agent: str, options: str = "", draws: str = DRAWS, env_steps: str = "1_000_000") -> str:
    """Return the options of a student of 7 x 7 mazes with 20 draws, alone or in a curriculum."""
    student = "agent" if agent == "ppo" else "agent.inner"
    of_student = {
        "workflow.num_envs": 64,
        "workflow.num_steps": 100,
        "workflow.num_epochs": 4,
        "workflow.batch_size": 1600,
        "workflow.normalize_observations": False,
        "workflow.eval_episodes": 1000,
        "workflow.agent.hidden": "[32]",
        "workflow.agent.core.width": 64,
        "workflow.agent.learning_rate": 5e-4,
        "workflow.agent.discount": 0.995,
        "workflow.agent.entropy_coef": 0.005,
        "workflow.agent.value_coef": 0.5,
        "workflow.agent.max_grad_norm": 0.5,
    }
    given = " ".join(f"{student}.{name}={value}" for name, value in of_student.items())
    return (
        f"agent={agent} env=maze {SMALL} {draws} encoder=maze core=gru num_seeds=4 env_steps={env_steps} evaluations=8 "
        f"{given} {options}"
    ).strip()


def poles(agent: str, options: str = "", env_steps: str = "2_000_000") -> str:
    """Return the options of a student of CartPoles of any length and mass, alone or in a curriculum.

    It has PPO's defaults, except that a rollout is as long as an episode.
    """
    student = "agent" if agent == "ppo" else "agent.inner"
    of_student = {"num_envs": 64, "num_steps": 500, "num_epochs": 4, "batch_size": 256, "eval_episodes": 256}
    given = " ".join(f"{student}.workflow.{name}={value}" for name, value in of_student.items())
    return f"agent={agent} env=physics num_seeds=4 env_steps={env_steps} evaluations=8 {given} {options}".strip()


BUFFER = "agent.workflow.capacity=1000"
EMPTY = "env.levels.fewest=0 env.levels.most=0"
TRIALS = (
    "agent.workflow.num_candidates=100 agent.workflow.num_batches=1 agent.workflow.capacity=20 "
    "agent.workflow.episodes=4 agent.workflow.trial_interval=20"
)
SETS = {
    "levels": [
        levels("ppo"),
        levels("plr", BUFFER),
        levels("accel", f"{BUFFER} agent.workflow.num_edits=5", EMPTY),
        levels("paired", "agent.teacher.workflow.num_envs=64"),
        levels("sfl", TRIALS),
        levels("evolved_levels", BUFFER),
        levels("bred_levels", BUFFER),
    ],
    "levels_updates": [  # as many student gradient steps as domain randomization takes in a million env steps
        levels("plr", f"{BUFFER} seed=100", env_steps="2_050_000"),
        levels("accel", f"{BUFFER} agent.workflow.num_edits=5 seed=100", EMPTY, "3_150_000"),
        levels("evolved_levels", f"{BUFFER} seed=100", env_steps="2_050_000"),
        levels("bred_levels", f"{BUFFER} seed=100", env_steps="2_050_000"),
    ],
    "ued": [
        f"experiment=paper/ued_{method}_{core}"
        for core in ("lstm", "s5")
        for method in ("dr", "paired", "plr", "plr_parallel", "accel", "accel_parallel")
    ],
    "physics": [
        poles("ppo"),
        poles("plr", BUFFER),
        poles("paired", "agent.teacher.workflow.num_envs=64", "4_000_000"),  # each of two students plays half
    ],
    "physics_updates": [poles("plr", f"{BUFFER} seed=100", "4_350_000")],  # about as many gradient steps as ppo
    "minatar": [
        *(f"experiment=minatar/ppo env={game} {LONG}" for game in GAMES),
        *(f"experiment=minatar/dqn env={game} {LONG}" for game in GAMES),
    ],
    "evolved": [
        f"experiment=minatar/{agent} env={game} num_seeds=4 env_steps=100_000_000 {MANY}"
        for agent in ("seed_ga", "low_rank_es")
        for game in GAMES
    ],
    "mazes": [f"experiment=maze/ppo_{core} num_seeds=4 env_steps=4_000_000" for core in ("lstm", "s5")],
    "breakout": [f"experiment=minatar/{agent}" for agent in ("ppo", "dqn")],
    "arcade": ["experiment=arcade/puffer env=arcade/breakout num_seeds=4 env_steps=90_000_000 evaluations=9"],
    "memory": [
        *(f"{CHAIN} env.params.memory_length={n} core={core}" for n in (5, 30) for core in ("gru", "none")),
        *(f"experiment=maze/memory core={core}" for core in ("lstm", "none")),
        "experiment=classic/sac_gru_partial_pendulum",
        "experiment=classic/sac_pendulum env=partial num_seeds=4 env_steps=40_000",
    ],
}
PUBLISHED = {  # sampled, mean and standard deviation of 10 runs: arXiv:2311.12716, tables 2 and 4
    "ued_dr_lstm": "0.55, 0.05",
    "ued_paired_lstm": "0.63, 0.04",
    "ued_plr_lstm": "0.70, 0.03",
    "ued_plr_parallel_lstm": "0.74, 0.04",
    "ued_accel_lstm": "0.73, 0.05",
    "ued_accel_parallel_lstm": "0.74, 0.04",
    "ued_dr_s5": "0.58, 0.05",
    "ued_paired_s5": "0.58, 0.06",
    "ued_plr_s5": "0.66, 0.04",
    "ued_plr_parallel_s5": "0.73, 0.04",
    "ued_accel_s5": "0.72, 0.06",
    "ued_accel_parallel_s5": "0.74, 0.04",
}
SETS |= {
    "spread": [
        *(f"agent={agent} env=mpe/spread num_seeds=8 env_steps=1_000_000" for agent in ("ippo", "mappo")),
        *(f"experiment=games/{agent}_spread" for agent in ("ippo", "mappo")),
    ],
    "speaker": [
        "agent=mappo env=mpe/speaker_listener num_seeds=8 env_steps=2_000_000",
        *(
            f"agent={agent} env=mpe/speaker_listener num_seeds=4 env_steps=2_000_000 evaluations=8"
            for agent in ("maddpg", "maddpg agent.workflow.agent.centralized=false seed=100")
        ),
        *(f"experiment=games/{agent}_speaker_listener" for agent in ("mappo", "maddpg")),
        "experiment=games/maddpg_speaker_listener agent.workflow.agent.centralized=false seed=200",
    ],
    "malib": [
        f"agent={agent} env=mpe/{scenario} num_seeds=4 env_steps=2_000_000"
        for scenario in ("adversary", "crypto", "push", "reference", "speaker_listener", "spread", "tag")
        for agent in ("ippo", "mappo", "ia2c", "iimpala", "idqn", "idiscrete_sac", "maddpg", "maac")
    ]
    + [f"agent={agent} env=mpe/spread num_seeds=4 env_steps=2_000_000" for agent in ("vdn", "qmix")],
    "smax": [
        f"agent={agent} env=jaxmarl/HeuristicEnemySMAX env.map={level} num_seeds=4 env_steps=10_000_000"
        for level in ("3m", "8m", "2s3z")
        for agent in ("qmix", "mappo")
    ],
}
COUNTS = ("num_seeds", "env_steps", "evaluations")
ALWAYS = ["tensorboard=false", "checkpoint.minutes=3"]


class LateError(Exception):
    """Raised when the minutes of this call are over."""


def name_of(run: str) -> str:
    """Return a folder name from the options that a run chooses, such as minatar_ppo_asterix."""
    given = [option.partition("=") for option in run.split()]
    chosen = [value for name, _, value in given if name not in COUNTS and not name.startswith("agent.")]
    return re.sub(r"\W+", "_", " ".join(chosen))


def call(arguments: list[str], deadline: float, **options: Any) -> str:
    """Run a command of evorl, and return what it prints.

    Raises:
        LateError: The deadline interrupts the command.
        SystemExit: The command fails.
    """
    if time.monotonic() > deadline:
        raise LateError
    process = subprocess.Popen([sys.executable, "-m", *arguments], text=True, **options)
    try:
        said, _ = process.communicate(timeout=max(deadline - time.monotonic(), 0))
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as late:
        if not isinstance(late, KeyboardInterrupt):  # a terminal sends Ctrl-C to the process, too
            process.send_signal(signal.SIGINT)
        process.communicate()
        raise LateError from None
    if process.returncode:
        sys.exit(f"failed: {' '.join(arguments)}")
    return said or ""


def is_done(folder: Path) -> bool:
    """Return whether a run has been evaluated after its last step, counted in env steps or iterations."""
    rows = read_evaluations(folder)
    if not rows:
        return False
    budget = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    pairs = ("env_steps", "env_steps"), ("iterations", "iteration")
    return any(budget[name] is not None and rows[-1][row] >= budget[name] for name, row in pairs)


def train(run: str, folder: Path, options: list[str], deadline: float) -> None:
    begun = any((folder / "checkpoints").glob("[0-9]*"))
    given = [f"resume={folder}"] if begun else [*run.split(), f"run_dir={folder}", *options]
    call(["evorl.train", *given, *ALWAYS], deadline, stdout=subprocess.DEVNULL)


def unseen(folder: Path, seed: int, deadline: float) -> dict[str, tuple[float, float]]:
    """Return the solved rates of one seed on each unseen maze, with greedy and with sampled actions."""
    kept = folder / f"ood_{seed}.md"
    if not kept.exists():
        play = ["evorl.play", str(folder), "suite=ood", "which=last", f"seed={seed}"]
        said = call(play, deadline, stdout=subprocess.PIPE)
        kept.write_text(said, encoding="utf-8")
    rows = [line.split("|") for line in kept.read_text(encoding="utf-8").splitlines()[2:]]
    return {row[1].strip(): (float(row[2].split()[0]), float(row[4].split()[0])) for row in rows}


def on_unseen(folder: Path, deadline: float) -> None:
    """Print the table of a run on unseen mazes.

    Raises:
        LateError: The deadline interrupts an evaluation.
    """
    seeds = len(read_evaluations(folder)[-1].get("seeds", {}).get("return", [0]))
    solved = [unseen(folder, seed, deadline) for seed in range(seeds)]
    published = next((f"; published: {rate}" for name, rate in PUBLISHED.items() if folder.name.endswith(name)), "")
    print(f"\n| {folder.name}, {seeds} seeds{published} | solved, greedy | 95 % | sampled | 95 % |\n|{'---|' * 5}")
    for maze in solved[0]:
        greedy, sampled = np.array([one[maze] for one in solved]).T
        print(f"| {maze} | {cells(greedy)} | {cells(sampled)} |")


def cells(values: np.ndarray) -> str:
    low, high = stats.mean_interval(values)
    return f"{values.mean():.2f} | " + (f"{low:.2f} to {high:.2f}" if np.isfinite(low) else "")


def table(folders: list[Path]) -> None:
    print("| run | seeds | env steps of each | mean | 95 % | IQM | worst seed | minutes | compiling |")
    print(f"|{'---|' * 9}")
    for folder in folders:
        row = read_evaluations(folder)[-1]
        returns = np.asarray(row.get("seeds", {}).get("return", [row["return"]]))
        minutes = f"{row['seconds'] / 60:.1f} | {row['compile_seconds'] / 60:.1f}"
        numbers = f"{len(returns)} | {row['env_steps']:,} | {cells(returns)} | {stats.iqm(returns):.2f}"
        print(f"| {folder.name} | {numbers} | {returns.min():.2f} | {minutes} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help=f"options of python -m evorl.train, or one of {', '.join(SETS)}")
    parser.add_argument("--folder", type=Path, default=Path("runs/stages"))
    parser.add_argument("--minutes", type=float, default=9, help="of this call, compiling and all")
    parser.add_argument("--option", action="append", default=[], help="of python -m evorl.train")
    parser.add_argument("--unseen", action="store_true", help="test on unseen mazes; mazes and ued do")
    given = parser.parse_args()
    deadline = time.monotonic() + 60 * given.minutes - min(60, 12 * given.minutes)  # the rest is for saving
    runs = [run for one in given.runs for run in SETS.get(one, [one])]
    folders = [given.folder / name_of(run) for run in runs]
    try:
        for run, folder in zip(runs, folders, strict=True):
            if not is_done(folder):
                train(run, folder, given.option, deadline)
            print(f"done: {folder}", flush=True)
        table(folders)
        if given.unseen or {"mazes", "ued"} & set(given.runs):
            for folder in folders:
                on_unseen(folder, deadline)
    except LateError:
        print("the minutes are over; repeat the command to continue")
        sys.exit(3)


if __name__ == "__main__":
    main()
