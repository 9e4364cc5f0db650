"""A trial as an experiment file: what was chosen on the command line, and the values that were found."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import OptionError, require
from evorl.sweeps.definition import Definition, put
from evorl.sweeps.running import came_to
from evorl.sweeps.trials import Trial
from evorl.training.configuration import config
from evorl.training.configuration.discovery import BUDGET, GROUPS, group_of, placed

FOLDER = Path("configs") / "experiment"


def write(definition: Definition, trial: Trial, name: Any) -> Path:
    """Writes configs/experiment/NAME.yaml, which experiment=NAME trains; raises OptionError where it is there."""
    path = place(name, "experiment")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(definition, trial), encoding="utf-8")
    return path


def place(name: Any, option: str) -> Path:
    """The file of an experiment to come; raises OptionError where it is there, or its name is none."""
    plain = isinstance(name, str) and bool(name) and not set(name) - set(_letters())
    require(plain, option, name, "must be a name of letters, numbers, _ and -")
    path = FOLDER / f"{name}.yaml"
    if path.exists():
        raise OptionError(f"{option}={name}: {path} exists already")
    return path


def _letters() -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"


def text(definition: Definition, trial: Trial) -> str:
    """The file."""
    title = f"{config.title(definition.base)}: trial {trial.number} of a sweep, {came_to(trial, definition)}"
    return as_file(definition.chosen, trial.values, title)


def as_file(chosen: Sequence[str], values: Mapping[str, Any], title: str) -> str:
    """What was chosen on a command line, with values by dotted name, as the text of an experiment."""
    given = placed(chosen)
    defaults = [_choice(one) for one in given if _is_choice(one)]
    defaults.sort(key=lambda one: not isinstance(one, str))  # an experiment comes first, as what follows changes it
    data: dict[str, Any] = {}
    options = [one for one in given if not _is_choice(one)]
    for one in config.parsed(options):
        data = _filled(data, one.key_or_group.split("."), one.value())
    if any(name in BUDGET for name in values):
        data |= dict.fromkeys(BUDGET)
    for name, value in values.items():
        data = _filled(data, name.split("."), value)
    head = f"# @package _global_\n# {title}\n"
    return head + yaml.safe_dump({"defaults": defaults} | data, sort_keys=False, allow_unicode=True)


def _is_choice(override: str) -> bool:
    name = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return group_of(name)[0] in GROUPS and (override.startswith("~") or "=" in override)


def _choice(override: str) -> dict[str, Any] | str:
    """A choice of the command line, as a defaults list has it."""
    name, _, value = override.lstrip("+~").partition("=")
    if name == "experiment":
        return f"/experiment/{value}"
    added = override.startswith("+")
    return {f"{'' if added else 'override '}/{name}": None if override.startswith("~") or value == "null" else value}


def _filled(data: dict[str, Any], name: Sequence[str], value: Any) -> dict[str, Any]:
    """data with a value at a dotted name, where its nodes may be missing."""
    inner = data
    for part in name[:-1]:
        inner = inner.setdefault(part, {})
    return put(data, name, value)
