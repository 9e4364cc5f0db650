"""Train the policies of the zoo, export them with their results, and write the table and the pictures of docs/zoo.md.

python scripts/zoo.py runs/zoo                 all: trains what the folder lacks, and resumes what it has begun
python scripts/zoo.py runs/zoo ppo_cartpole    only these
python scripts/zoo.py --check                  train nothing; exit with code 1 if the table is out of date

A policy is that of the best seed of its run. Results of a run are the last evaluations of its seeds; those of the
policy are of new episodes. Nothing is chosen by hand.
"""

import argparse
import datetime
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageSequence

from evorl import package, stats
from evorl.training.cross_play import PlayerId
from evorl.training.episodes import draw_episode, evaluate_policy
from evorl.training.export import export_policy, export_run
from evorl.training.exported_policy import ExportedPolicy, PolicyFile, describe_environment, list_zoo
from evorl.training.policy import Policy
from evorl.training.records.rows import read_evaluations
from evorl.training.runs import restore_run

ROOT = Path(__file__).parents[1]
ZOO, PAGE, PICTURES = ROOT / "evorl" / "zoo", ROOT / "docs" / "zoo.md", ROOT / "docs" / "pictures" / "zoo"
MARKS = "<!-- zoo: made by scripts/zoo.py -->\n", "<!-- end -->"
MAX_BYTES, MAX_TOTAL = 200_000, 3_000_000
WIDTH, FRAMES = 120, 40  # of a picture
EPISODES, SLOW_EPISODES, GAMES, SEED = 1000, 200, 20_000, 1
TUNED = "hidden=[64,64] batch_size=128 capacity=100_000 random_steps=1_000 actor_lr=1e-3 critic_lr=1e-3"
SMALL_MAZE = "env.num_actions=3 env.levels.height=7 env.levels.width=7 env.levels.fewest=0 env.levels.most=20"
SMALL_PPO = "num_envs=16 num_steps=128 eval_episodes=16 agent.hidden=[64,64]".split()  # noqa: SIM905
PBT_PPO = " ".join(f"agent.inner.workflow.{one}" for one in SMALL_PPO)
COMMANDS = {  # options of evorl.train
    "ppo_cartpole": "experiment=classic/ppo_cartpole",
    "lstm_ppo_memory_maze": "experiment=maze/memory core=lstm core.width=32",
    "ppo_inverted_pendulum": "experiment=brax/ppo_inverted_pendulum",
    "ppo_minatar_breakout": "experiment=minatar/ppo agent.workflow.agent.encoder.dense=[32]",
    "puffer_pong": "experiment=arcade/puffer env=arcade/pong",
    "dqn_cartpole": "experiment=classic/dqn_cartpole",
    "td3_pendulum": "experiment=classic/td3_pendulum",
    "sac_pendulum": "experiment=classic/sac_pendulum",
    "cma_es_acrobot": "experiment=classic/cma_es_acrobot",
    "ars_cartpole": "experiment=classic/ars_cartpole",
    "openes_hopper": "agent=openes env=hopper env.backend=spring num_seeds=3 env_steps=3_000_000",
    "low_rank_es_acrobot": "experiment=classic/low_rank_es_acrobot",
    "nsga2_hopper": "experiment=brax/nsga2_hopper agent.workflow.agent.hidden=[8,8] num_seeds=3",
    "map_elites_point_maze": "agent=map_elites env=point_maze agent.workflow.evolver.descriptors=[position] "
    "agent.workflow.agent.hidden=[8] iterations=300 num_seeds=8",
    "cemrl_pendulum": f"agent=cemrl env=pendulum num_seeds=4 env_steps=60_000 {TUNED}",
    "erl_pendulum": f"agent=erl env=pendulum num_seeds=4 env_steps=60_000 {TUNED}",
    "pbt_pendulum": "agent=pbt agent/inner=ppo env=pendulum num_seeds=8 env_steps=3_276_800 "
    f"agent.workflow.steps_per_generation=5 {PBT_PPO}",
    "plr_maze": f"agent=plr env=maze encoder=maze core=gru core.width=48 hidden=[64] {SMALL_MAZE} "
    "normalize_observations=false num_seeds=4 env_steps=2_000_000",
    "mappo_spread": "experiment=games/mappo_spread",
    "qmix_two_step": "agent=qmix env=two_step env_steps=32_000 num_seeds=8 agent.workflow.agent.agents.hidden=[32]",
    "psro_leduc": "agent=psro_exact env=leduc iterations=40 num_seeds=8",
}
SOLUTIONS = ("nsga2_hopper", "map_elites_point_maze")  # with all solutions of the front or the archive
TABULAR = {"psro_leduc": ("player_0", "exploitability")}  # group whose return is shown, metric of the run
SLOW = ("openes_hopper", "nsga2_hopper", "ppo_inverted_pendulum")


class TabularPolicy(Policy):
    """Behavior strategy of a game, [information sets, actions], which samples its actions."""

    def __init__(self, workflow: Any, state: Any) -> None:
        tree, table = workflow.tree, np.asarray(workflow.mixture(state), np.float32)
        features = np.asarray(tree.features[: len(table)], np.float32)
        self.env, self.env_params, self.memory = workflow.env, state.env_params, None

        def act(obs: Any, memory: Any, key: Any) -> Any:
            actions = {}
            for i, (group, seen) in enumerate(obs.items()):
                rows = jnp.argmax((seen["obs"][:, None] == features).all(-1), -1)
                chances = jnp.where(seen["legal"], jnp.take(table, rows, axis=0, mode="clip"), 0.0)
                chances = jnp.where(chances.sum(-1, keepdims=True) > 0, chances, seen["legal"])
                actions[group] = jax.random.categorical(jax.random.fold_in(key, i), jnp.log(chances))
            return actions, memory, {}

        self._modes = {False: act, True: act}
        self._act = jax.jit(self._act_on_rows, static_argnames="explores")


def train(folder: Path, name: str) -> Path:
    """Train a run, or resume it, unless it has ended."""
    run, done = folder / name, folder / f"{name}.done"
    if not done.exists():
        begun = (run / "checkpoints").exists()
        options = [f"resume={run}"] if begun else [*COMMANDS[name].split(), f"run_dir={run}", "tensorboard=false"]
        subprocess.run([sys.executable, "-m", "evorl.train", *options], check=True)
        done.touch()
    return run


def summarize_run(run: Path, name: str) -> dict[str, Any]:
    """Return what the last evaluation says about the seeds of a run."""
    row = read_evaluations(run)[-1]
    metric = TABULAR[name][1] if name in TABULAR else "return"
    values = row.get("seeds", {}).get(metric, [row[metric]])
    mean = stats.MeanEstimate.from_scores(values)
    ends = (
        dict(zip(("low", "high"), (round(end, 4) for end in mean.interval()), strict=True)) if len(values) > 2 else {}
    )
    steps = {name: row[name] for name in ("env_steps", "iteration")}
    return {"metric": metric, "seeds": len(values), "mean": round(mean.value, 4), **ends, **steps}


def export(run: Path, name: str, path: Path, record: dict[str, Any]) -> None:
    if name in TABULAR:
        restored = restore_run(run, "run", None)
        policy = TabularPolicy(*restored.select_policy(None, None))
        export_policy(policy, path, about=describe_environment(restored.cfg) | {"record": record})
    else:
        export_run(run, path, solutions=name in SOLUTIONS, record=record)


def measure(path: Path, name: str) -> dict[str, Any]:
    """Return the returns of new episodes of an exported policy."""
    policy = ExportedPolicy(path)
    episodes = SLOW_EPISODES if name in SLOW else GAMES if name in TABULAR else EPISODES
    played = evaluate_policy(policy, episodes, SEED)
    returns = np.asarray(played.return_sums["return"], float)
    group = {}
    if name in TABULAR:
        group = {"group": TABULAR[name][0]}
        returns = np.asarray(PlayerId.from_name(group["group"], policy.env).select_values(played.returns), float)
    mean = stats.MeanEstimate.from_scores(returns)
    low, high = (round(end, 4) for end in mean.interval())
    numbers = {"mean": round(mean.value, 4), "low": low, "high": high, "std": round(float(returns.std(ddof=1)), 4)}
    return numbers | {"episodes": len(returns), **group}


def draw(path: Path, name: str) -> None:
    """Write an episode as a small GIF, if the environment can be drawn on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        written = [one for one in draw_episode(ExportedPolicy(path), Path(folder)) if one.suffix == ".gif"]
        for one in written[:1]:
            PICTURES.mkdir(parents=True, exist_ok=True)
            shrink(Image.open(one), PICTURES / f"{name}.gif")


def shrink(picture: Image.Image, out: Path) -> None:
    """Write at most FRAMES frames of a GIF with at most WIDTH pixels on each side."""
    stride = -(-getattr(picture, "n_frames", 1) // FRAMES)
    frames = []
    for image in [frame.convert("RGB") for frame in ImageSequence.Iterator(picture)][::stride]:
        image.thumbnail((WIDTH, WIDTH))
        frames.append(image.quantize(32))
    duration = picture.info.get("duration", 50) * stride
    frames[0].save(out, save_all=True, append_images=frames[1:], duration=duration, loop=0, optimize=True)


def make(folder: Path, name: str) -> None:
    """Train, export, measure and draw one policy."""
    run = train(folder, name)
    record = {"command": f"python -m evorl.train {COMMANDS[name]}", "run": summarize_run(run, name)}
    record |= {"evorl": package.versions()["evorl"], "date": str(datetime.date.today())}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"{name}.npz"
        export(run, name, path, record)
        export(run, name, path, record | {"policy": measure(path, name)})
        if path.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{name}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,}")
        ZOO.mkdir(exist_ok=True)
        (ZOO / path.name).write_bytes(path.read_bytes())
    draw(ZOO / path.name, name)
    print(name, json.dumps(record["run"]), (ZOO / path.name).stat().st_size, flush=True)


def format_estimate(of: dict[str, Any]) -> str:
    digits = 0 if abs(of["mean"]) >= 100 else 2
    ends = f" [{of['low']:.{digits}f}, {of['high']:.{digits}f}]" if "low" in of else ""
    return f"{of['mean']:.{digits}f}{ends}"


def make_table() -> str:
    """Return the table of the page, with a picture of each policy that has one, and the commands of the runs."""
    rows = ["| policy | run | seeds | policy alone | kB | |", "|---|---|---|---|---|---|"]
    commands = ["```bash"]
    for name in (name for name in COMMANDS if name in list_zoo()):
        path, picture = ZOO / f"{name}.npz", PICTURES / f"{name}.gif"
        record = PolicyFile(path).about["record"]
        run, policy = record["run"], record["policy"]
        metric = "" if run["metric"] == "return" else f"{run['metric']} "
        group = f" of {policy['group']}" if "group" in policy else ""
        cells = [f"`zoo:{name}`", f"{metric}{format_estimate(run)}", str(run["seeds"])]
        cells += [f"{format_estimate(policy)}{group}", f"{path.stat().st_size / 1000:.0f}"]
        cells += [f"![An episode of {name}](pictures/zoo/{picture.name})" if picture.exists() else ""]
        rows.append(f"| {' | '.join(cells)} |")
        # zsh expands brackets that are not quoted
        commands += [f"# zoo:{name}", shlex.join(shlex.split(record["command"]))]
    return "\n".join([*rows, "", "The runs were trained with these commands:", "", *commands, "```", ""])


def update_page(check: bool) -> bool:
    """Write the table into the page, and return whether it was up to date."""
    text = PAGE.read_text("utf-8")
    found = re.sub(
        f"({re.escape(MARKS[0])}).*?({re.escape(MARKS[1])})", lambda m: m[1] + make_table() + m[2], text, flags=re.S
    )
    if not check:
        PAGE.write_text(found, "utf-8")
    return found == text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []])
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.check:
        sys.exit(0 if update_page(check=True) else 1)
    if given.folder is None:
        parser.error("give a folder for the runs")
    for name in given.names or COMMANDS:
        make(given.folder, name)
    total = sum(path.stat().st_size for path in ZOO.glob("*.npz"))
    if total > MAX_TOTAL:
        raise SystemExit(f"the zoo has {total:,} bytes, at most {MAX_TOTAL:,}")
    update_page(check=False)


if __name__ == "__main__":
    main()
