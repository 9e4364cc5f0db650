"""Experiment files written from trials, with the command-line overrides of the sweep and the values found."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import OptionError, escape, require
from evorl.sweeps.definition import SweepDefinition, set_nested
from evorl.sweeps.trials import SweepTrial
from evorl.sweeps.worker_pool import describe_trial
from evorl.training.configuration import config, config_file
from evorl.training.configuration.discovery import BUDGET_OPTIONS, GROUPS, resolve_group, to_hydra_overrides

FOLDER = Path("configs") / "experiment"
CHOICE_PATTERN = re.compile(
    r"[+~]?[a-z_]+(/[a-z_]+)*(@[\w.]+)?(=(\w[\w.+-]*/)*\w[\w.+-]*)?", re.ASCII
)  # GROUP@PLACE=NAME


def write_experiment(definition: SweepDefinition, trial: SweepTrial, name: Any) -> Path:
    """Write configs/experiment/NAME.yaml, which experiment=NAME trains; raise OptionError if it exists."""
    path = resolve_experiment_path(name, "experiment")
    written = format_trial_experiment(definition, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written, encoding="utf-8")
    return path


def resolve_experiment_path(name: Any, option: str) -> Path:
    """Return the path of a new experiment; raise OptionError if it exists or the name is invalid."""
    plain = isinstance(name, str) and bool(name) and not set(name) - set(_list_name_characters())
    require(plain, option, name, "must be a name of letters, numbers, _ and -")
    path = FOLDER / f"{name}.yaml"
    if path.exists():
        raise OptionError(f"{option}={name}: {path} exists already")
    return path


def _list_name_characters() -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


def format_trial_experiment(definition: SweepDefinition, trial: SweepTrial) -> str:
    """Return the text of the experiment of a trial: config group choices, checked configuration values and numbers.

    Raises:
        OptionError: If an override is neither a valid choice nor in the configuration.
    """
    definition.check_values(trial.values)
    variant = definition.find_variant(trial.values)
    told = f"trial {trial.number} of a sweep, {describe_trial(trial, definition)}"
    values = {name: value for name, value in trial.values.items() if variant.places[name]}
    return format_experiment(variant.chosen, values, f"{config.format_title(variant.base)}: {told}", variant.base)


def format_experiment(
    chosen: Sequence[str], values: Mapping[str, Any], title: str, resolved: Mapping[str, Any] | None = None
) -> str:
    """Return the text of an experiment file for command-line overrides and additional values.

    Args:
        chosen: Overrides of the command line.
        values: Values by dotted name, which replace those of the overrides.
        title: First line of the file.
        resolved: Resolved configuration, from which the values of the overrides are taken; None to take them
            from the overrides themselves.

    Raises:
        OptionError: If an override is not found in the configuration.
    """
    given = to_hydra_overrides(chosen)
    defaults = [_parse_choice(one) for one in given if _is_choice(one)]
    defaults.sort(key=lambda one: not isinstance(one, str))  # an experiment comes first, as later entries override it
    data: dict[str, Any] = {}
    options = [one for one in given if not _is_choice(one)]
    for one in config.parse_overrides(options):
        value = one.value() if resolved is None else config_file.lookup(resolved, one.key_or_group)
        data = _set_or_create(data, one.key_or_group.split("."), value)
    if any(name in BUDGET_OPTIONS for name in values):
        data |= dict.fromkeys(BUDGET_OPTIONS)
    for name, value in values.items():
        data = _set_or_create(data, name.split("."), value)
    head = f"# @package _global_\n# {escape(title)}\n"
    return head + yaml.safe_dump({"defaults": defaults} | data, sort_keys=False, allow_unicode=True)


def _is_choice(override: str) -> bool:
    name = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return resolve_group(name)[0] in GROUPS and (override.startswith("~") or "=" in override)


def _parse_choice(override: str) -> dict[str, Any] | str:
    """Return a config group choice of the command line as an entry of a defaults list.

    Raises:
        OptionError: If it does not consist of a group, an optional package and a name.
    """
    if not CHOICE_PATTERN.fullmatch(override):
        raise OptionError(f"{override}: must be a choice such as agent=td3")
    name, _, value = override.lstrip("+~").partition("=")
    if name == "experiment":
        return f"/experiment/{value}"
    added = override.startswith("+")
    return {f"{'' if added else 'override '}/{name}": None if override.startswith("~") or value == "null" else value}


def _set_or_create(data: dict[str, Any], name: Sequence[str], value: Any) -> dict[str, Any]:
    """Return nested data with the value at a dotted name set; missing nodes are created."""
    inner = data
    for part in name[:-1]:
        inner = inner.setdefault(part, {})
    return set_nested(data, name, value)
