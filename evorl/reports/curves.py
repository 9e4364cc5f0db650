"""Learning curves of runs: they are read, grouped by configuration, and joined over seeds."""

import glob
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from evorl.errors import OptionError, escape, require, to_printable
from evorl.training.configuration import config_file, nodes
from evorl.training.progress import select_sound
from evorl.training.records.rows import JSON_LINES, read_rows

SEED_KEYS = {"seed", "num_seeds"}  # keys in which the runs of one curve may differ
REWARDS_WRAPPER = "evorl.envs.wrappers.RewardTransform"  # changes the rewards for learning, but not the reported return


@dataclass(frozen=True)
class Curve:
    """Learning curve of a run: evaluation returns, shape [evaluations, seeds], with env steps and minutes.

    Seeds that diverged are left out, unless all of them did.
    """

    label: str
    returns: np.ndarray
    env_steps: np.ndarray  # of each seed
    minutes: np.ndarray
    run: Path
    cfg: Mapping[str, Any]  # empty if the folder has none
    has_user_label: bool
    sound: tuple[int, ...]  # indices of the seeds that have not diverged, which are drawn
    num_diverged: int
    parts: tuple["Curve", ...] = ()  # curves of the runs that were joined; empty for one run

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
        return dict(nodes.iterate_leaves({"env": env, "wrappers": around, "problem": self.cfg.get("problem")}, ""))

    @property
    def runs(self) -> list[Path]:
        """Return the folders of the runs."""
        return [one.run for one in self.parts or (self,)]

    def find_best_run(self) -> Path:
        """Return the folder of the run whose best seed has the highest last return."""
        return max(self.parts or (self,), key=lambda one: float(np.nan_to_num(one.returns[-1], nan=-np.inf).max())).run

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return all values of the configuration except the seeds, by dotted name."""
        return dict(
            nodes.iterate_leaves({name: value for name, value in self.cfg.items() if name not in SEED_KEYS}, "")
        )

    @property
    def seeds(self) -> set[int]:
        """Return the seeds of the run; empty if they are unknown."""
        first = self.cfg.get("seed")
        return {first + i for i in self.sound} if isinstance(first, int) else set()


def serialize_values(values: Any) -> str:
    """Return configuration values as text, for comparisons."""
    return json.dumps(values, sort_keys=True, default=str)


def split_label(given: str) -> tuple[str, str]:
    """Return the label and the path of LABEL=PATH; the label is empty if there is none.

    A path or a pattern of paths that contains "=", such as runs/lr=0.1, is no label if it exists.
    """
    label, named, path = given.partition("=")
    return (label, path) if label and named and not Path(given).exists() and not glob.glob(given) else ("", given)


def expand_runs(given: str) -> list[str]:
    """Return RUN or LABEL=RUN for each folder that matches the pattern RUN; the argument itself without a pattern.

    Raises:
        OptionError: If no folder matches.
    """
    label, pattern = split_label(given)
    if Path(pattern).exists() or not glob.has_magic(pattern):
        return [given]
    found = sorted(path for path in glob.glob(pattern) if Path(path).is_dir())
    require(bool(found), "run", pattern, "matches no folder")
    return [f"{label}={path}" if label else path for path in found]


def read_curve(given: str, damages: list[str]) -> Curve:
    """Return the curve of LABEL=RUN, or of RUN with the name of its folder as label.

    Args:
        given: Argument of the command line.
        damages: List to which a line about skipped rows is appended.

    Raises:
        OptionError: If the run has no evaluations that can be drawn.
    """
    own_label, folder = split_label(given)
    run = Path(folder)
    label = escape(own_label or run.resolve().name)
    is_named = bool(label and folder) and (run.exists() or not folder.startswith("="))
    require(is_named, "run", given, "must be RUN or LABEL=RUN")
    if not (run / JSON_LINES).is_file():
        raise OptionError(f"run={run}: {f'has no {JSON_LINES}' if run.is_dir() else 'does not exist'}")
    rows, damage = read_rows(run, "evaluation")
    damages += [damage] if damage else []
    require(bool(rows), "run", run, damage.partition(": ")[2] or "has no evaluation yet")
    lacking = {"return", "env_steps"} - set.intersection(*map(set, rows))
    require(not lacking, "run", run, f"its evaluations have no {' or '.join(sorted(lacking))}")
    returns = [row.get("seeds", {}).get("return", [row["return"]]) for row in rows]
    count = len(returns[0])
    alike = all(len(values) == count for values in returns)
    require(alike, "run", run, "its evaluations differ in the number of seeds")
    steps = [row.get("seeds", {}).get("env_steps", [row["env_steps"]] * count) for row in rows]
    sound = select_sound(range(count), rows[-1].get("seeds", {}).get("diverged", [0] * count))
    returns, steps = (np.array(values, float)[:, sound] for values in (returns, steps))
    seconds = np.array([row["seconds"] for row in rows], float)
    cfg = config_file.read_unchecked(run, "run") if (run / config_file.FILE_NAME).is_file() else {}
    return Curve(
        label, returns, steps.mean(1), seconds / 60, run, cfg, bool(own_label), tuple(sound), count - len(sound)
    )


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
    counts = Counter(own[-count:] for own in set(parts.values()) for count in range(1, len(own)))

    def build_label(curve: Curve) -> str:
        if curve.has_user_label:
            return curve.label
        own = parts[curve.run]
        for count in range(1, len(own)):
            name = "/".join(own[-count:])
            if name not in taken and counts[own[-count:]] == 1:
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
        num_diverged=sum(one.num_diverged for one in group),
        parts=tuple(group),
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
