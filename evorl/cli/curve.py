"""python -m evorl.curve [OUT] RUN ...: plots learning curves, and prints a Markdown table of the final evaluations.

A curve is the mean return over seeds, with a 95 % confidence interval (Student's t) if there are three seeds or more.
The table also has the interquartile mean (IQM). Runs that differ only in their seeds form one curve, and so do runs
with the same LABEL, which must not differ in anything else. Each environment, with its options and wrappers, has its
own panel. Damaged rows are skipped; the last line then says so, and the exit code is 2.

python -m evorl.curve curve.png runs/a runs/b
python -m evorl.curve docs/curve.png CEM-RL=runs/a TD3=runs/b goal=950 title="Brax inverted_pendulum"
python -m evorl.curve curve.png TD3=runs/td3_seed_* PPO=runs/ppo*

OUT is curve.png if the first argument is a run. Folders may contain *, ? and [...], also after LABEL=, where the shell
does not expand them.

  goal=            a return; the table says after how many minutes all seeds reached it
  title=           title of the figure
"""

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evorl import stats
from evorl.command import command, pyplot, require_words, save_figure, split_options, wants_help
from evorl.errors import OptionError, escape, require, to_printable
from evorl.training.configuration import config_file
from evorl.training.records.display import ENV_STEPS, EVALUATIONS
from evorl.training.records.rows import JSON_LINES, read_rows

DEFAULT_OUT = "curve.png"
SEED_KEYS = {"seed", "num_seeds"}  # keys in which the runs of one curve may differ
REWARDS_WRAPPER = "evorl.envs.wrappers.RewardTransform"  # changes the rewards for learning, but not the reported return


@dataclass(frozen=True)
class Curve:
    """Learning curve of a run: evaluation returns, shape [evaluations, seeds], with env steps and minutes."""

    label: str
    returns: np.ndarray
    env_steps: np.ndarray  # of each seed
    minutes: np.ndarray
    run: Path
    cfg: Mapping[str, Any]  # empty if the folder has none
    has_user_label: bool

    @property
    def eval_config(self) -> Mapping[str, Any]:
        """Return the configuration of the run, with the environment of its evaluations as `env`."""
        return {**self.cfg, "env": self.cfg.get("eval_env") or self.cfg.get("env")}

    @property
    def task(self) -> dict[str, Any]:
        """Return the configuration of the task in which returns are measured, as values by dotted name."""
        env = self.eval_config["env"]
        while isinstance(env, dict) and env.get("_target_") == REWARDS_WRAPPER:
            env = env.get("inner")
        around = [one for one in self.cfg.get("wrappers") or () if one["_target_"] != REWARDS_WRAPPER]
        return dict(
            config_file.iterate_leaves({"env": env, "wrappers": around, "problem": self.cfg.get("problem")}, "")
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return all values of the configuration except the seeds, by dotted name."""
        return dict(
            config_file.iterate_leaves({name: value for name, value in self.cfg.items() if name not in SEED_KEYS}, "")
        )

    @property
    def seeds(self) -> set[int]:
        """Return the seeds of the run; empty if they are unknown."""
        first = self.cfg.get("seed")
        return set(range(first, first + self.returns.shape[1])) if isinstance(first, int) else set()


def serialize_values(values: Any) -> str:
    """Return configuration values as text, for comparisons."""
    return json.dumps(values, sort_keys=True, default=str)


def split_out(paths: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the output file and the runs; the file is curve.png if the first argument is a run."""
    first = Path(paths[0])
    if "=" in paths[0] or first.is_dir() or not first.suffix:
        return Path(DEFAULT_OUT), list(paths)
    return first, list(paths[1:])


def expand_runs(given: str) -> list[str]:
    """Return RUN or LABEL=RUN for each folder that matches the pattern RUN; the argument itself without a pattern.

    Raises:
        OptionError: If no folder matches.
    """
    label, named, pattern = given.rpartition("=")
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [given]
    found = sorted(path for path in glob.glob(pattern) if Path(path).is_dir())
    require(bool(found), "run", pattern, "matches no folder")
    return [f"{label}{named}{path}" for path in found]


def read_curve(given: str, damages: list[str]) -> Curve:
    """Return the curve of LABEL=RUN, or of RUN with the name of its folder as label.

    Args:
        given: Argument of the command line.
        damages: List to which a line about skipped rows is appended.

    Raises:
        OptionError: If the run has no evaluations that can be drawn.
    """
    label, named, folder = given.partition("=")
    run = Path(folder if named else given)
    label = escape(label if named else run.resolve().name)
    require(bool(label and (folder or not named)), "run", given, "must be RUN or LABEL=RUN")
    if not (run / JSON_LINES).is_file():
        raise OptionError(f"run={run}: {f'has no {JSON_LINES}' if run.is_dir() else 'does not exist'}")
    rows, damage = read_rows(run, "evaluation")
    damages += [damage] if damage else []
    require(bool(rows), "run", run, damage.partition(": ")[2] or "has no evaluation yet")
    lacking = {"return", "env_steps"} - set.intersection(*map(set, rows))
    require(not lacking, "run", run, f"its evaluations have no {' or '.join(sorted(lacking))}")
    returns = [row.get("seeds", {}).get("return", [row["return"]]) for row in rows]
    alike = len({len(values) for values in returns}) == 1
    require(alike, "run", run, "its evaluations differ in the number of seeds")
    steps, seconds = (np.array([row[name] for row in rows], float) for name in ("env_steps", "seconds"))
    cfg = config_file.read_unchecked(run, "run") if (run / config_file.FILE_NAME).is_file() else {}
    return Curve(label, np.array(returns, float), steps, seconds / 60, run, cfg, bool(named))


def group_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves to draw; runs with one label, or that differ only in their seeds, form one curve.

    Raises:
        OptionError: If runs with one label differ in more than their seeds, or share a seed.
    """
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for curve in curves:
        alike = serialize_values(curve.settings) if curve.cfg else str(curve.run)
        key = ("label", curve.label, serialize_values(curve.task)) if curve.has_user_label else ("settings", alike)
        groups.setdefault(key, []).append(curve)
    found = []
    for group in disambiguate_labels(groups.values()):
        seeds = [seed for curve in group for seed in curve.seeds]
        if len(set(seeds)) == len(seeds) or group[0].has_user_label:
            found.append(join_curves(group))
        else:  # the same training twice
            found += group
    return found


def disambiguate_labels(groups: Any) -> list[list[Curve]]:
    """Return the groups, with folder names in labels extended by as much of the path as makes them unique."""
    curves = [curve for group in groups for curve in group]
    taken = {curve.label for curve in curves if curve.has_user_label}
    parts = {curve.run: curve.run.resolve().parts for curve in curves if not curve.has_user_label}

    def build_label(curve: Curve) -> str:
        if curve.has_user_label:
            return curve.label
        own, others = parts[curve.run], [other for other in parts.values() if other != parts[curve.run]]
        for count in range(1, len(own)):
            name = "/".join(own[-count:])
            if name not in taken and all(other[-count:] != own[-count:] for other in others):
                return escape(name)
        return escape(str(curve.run))

    return [[replace(curve, label=build_label(curve)) for curve in group] for group in groups]


def join_curves(group: Sequence[Curve]) -> Curve:
    """Join the runs of one group to one curve, at the env steps that all runs have reached.

    The run with the fewest evaluations determines the env steps. Returns between two evaluations are
    interpolated. The minutes are the sum over runs, as if they ran sequentially.

    Raises:
        OptionError: If the runs are not the same training with different seeds.
    """
    first, *others = group
    for other in others:
        at = f"run={other.run}: has the label of {first.run} and"
        for name in dict.fromkeys([*first.settings, *other.settings]):
            here, there = (to_printable(one.settings.get(name, "none"), 40) for one in (other, first))
            if here != there:
                raise OptionError(f"{at} differs from it in {name}, {here} instead of {there}; use another label")
        both = sorted(set.union(set(), *(one.seeds for one in group if one is not other)) & other.seeds)
        if both or not (first.seeds and other.seeds):
            why = f"also seed {both[0]}" if both else f"no {config_file.FILE_NAME} that gives its seeds"
            raise OptionError(f"{at} {why}; use another label")
    if not others:
        return first
    low, high = max(one.env_steps[0] for one in group), min(one.env_steps[-1] for one in group)
    coarse = min(group, key=lambda one: len(one.env_steps)).env_steps
    at = coarse[(coarse >= low) & (coarse <= high)]
    at = np.unique([*at, high]) if low <= high else at
    require(bool(at.size), "run", others[0].run, f"has no evaluation at the env steps of {first.run}")
    returns = [np.interp(at, one.env_steps, values) for one in group for values in one.returns.T]
    minutes = sum(np.interp(at, one.env_steps, one.minutes) for one in group)
    return replace(
        first,
        label=first.label if first.has_user_label else f"{first.label} and {len(others)} more",
        returns=np.stack(returns, 1),
        env_steps=at,
        minutes=np.asarray(minutes),
    )


def group_by_task(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Return the curves of each environment by its name, extended by options that differ between equal names."""
    from evorl.training.configuration import config

    tasks: dict[str, list[Curve]] = {}
    for curve in curves:
        tasks.setdefault(serialize_values(curve.task), []).append(curve)
    names = [
        escape(config.format_title(one.eval_config).partition(" on ")[2]) if one.cfg else ""
        for one, *_ in tasks.values()
    ]
    options = [one.task for one, *_ in tasks.values()]
    titles = []
    for name, own in zip(names, options, strict=True):
        alike = [other for other, one in zip(options, names, strict=True) if one == name]
        apart = [key for key in own if len({serialize_values(other.get(key)) for other in alike}) > 1]
        titles.append(" ".join([name, *(to_printable(f"{key}={own[key]}", 40) for key in apart)]))
    return dict(zip(titles, tasks.values(), strict=True))


def format_table(curves: Sequence[Curve], goal: float | None, environment: str | None = None) -> str:
    """Return a Markdown table of the last evaluation of each curve, with an environment column if it is given."""
    columns = ["run", *["environment"] * (environment is not None)]
    columns += ["seeds", "env steps per seed", "minutes", "mean [95 %]", "IQM", "each seed"]
    columns += [f"minutes until all seeds reach {goal:g}"] if goal is not None else []
    rows = [" | ".join(columns), "---|" * (len(columns) - 1) + "---"]
    for curve in curves:
        final = curve.returns[-1]
        cells = [curve.label, *[environment] * (environment is not None), str(final.size)]
        cells += [f"{curve.env_steps[-1]:,.0f}", f"{curve.minutes[-1]:.1f}"]
        cells += [
            f"{stats.MeanEstimate.from_scores(final):.0f}",
            f"{stats.iqm(final):.0f}",
            ", ".join(f"{v:.0f}" for v in final),
        ]
        if goal is not None:
            at = curve.minutes[curve.returns.min(1) >= goal]
            cells.append(f"{at[0]:.1f}" if at.size else "not reached")
        rows.append(" | ".join(map(str, cells)))
    return "\n".join(f"| {row} |" if "---|" not in row else f"|{row}|" for row in rows)


def draw_curves(found: Mapping[str, Sequence[Curve]], goal: float | None, title: str) -> Any:
    """Return a figure of returns against env steps and against minutes, with one row for each environment."""
    figure, axes = pyplot().subplots(len(found), 2, figsize=(9, 3.4 * len(found)), sharey="row", squeeze=False)
    for (left, right), (environment, curves) in zip(axes, found.items(), strict=True):
        for curve in curves:
            ends = np.transpose([stats.mean_interval(values) for values in curve.returns])
            ends[~np.isfinite(ends)] = np.nan
            for axis, x in ((left, curve.env_steps / 1000), (right, curve.minutes)):
                axis.plot(x, curve.returns.mean(1), label=curve.label, marker=".")
                axis.fill_between(x, *ends, alpha=0.2)
        unit = EVALUATIONS if any(one.cfg.get("problem") for one in curves) else ENV_STEPS
        words = (f"thousand {unit} per seed", "minutes for all seeds together")
        for axis, name in zip((left, right), words, strict=True):
            axis.set_xlabel(name)
            axis.grid(alpha=0.3)
            if goal is not None:
                axis.axhline(goal, color="grey", linestyle=":", linewidth=1)
        left.set_ylabel("greedy return, mean and 95 % interval")
        right.legend(loc="lower right")
        if len(found) > 1:
            left.set_title(environment, fontsize=10)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as words:
        if wants_help(words):
            return print(__doc__)
        paths, options = split_options(words, {"goal": float, "title": str}, labels=True)
        usage = "give a picture and runs: python -m evorl.curve OUT RUN ..."
        require_words(bool(paths), "runs", paths, usage)
        out, entrants = split_out(paths)
        require_words(bool(entrants), "out", paths, usage)
        entrants = [*dict.fromkeys(run for one in entrants for run in expand_runs(one))]
        goal = options.get("goal")
        damages: list[str] = []
        found = group_by_task(group_curves([read_curve(run, damages) for run in entrants]))
        save_figure(draw_curves(found, goal, options.get("title", "")), out)
        several = len(found) > 1
        if several:
            print(f"{len(found)} environments with different returns: one panel and one table for each\n")
        print("\n\n".join(format_table(curves, goal, name if several else None) for name, curves in found.items()))
        if str(out) not in paths:
            print(out)
        if damages:
            raise OptionError("; ".join(damages))
