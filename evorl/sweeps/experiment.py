"""A trial as an experiment file: what was chosen on the command line, and the values that were found."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evorl.errors import OptionError, escaped, require
from evorl.sweeps.definition import Definition, put
from evorl.sweeps.running import came_to
from evorl.sweeps.trials import Trial
from evorl.training.configuration import config, saved
from evorl.training.configuration.discovery import BUDGET, GROUPS, group_of, placed

FOLDER = Path("configs") / "experiment"
CHOICE = re.compile(r"[+~]?[a-z_]+(/[a-z_]+)*(@[\w.]+)?(=(\w[\w.+-]*/)*\w[\w.+-]*)?", re.ASCII)  # GROUP@PLACE=NAME


def write(definition: Definition, trial: Trial, name: Any) -> Path:
    """Writes configs/experiment/NAME.yaml, which experiment=NAME trains; raises OptionError where it is there."""
    path = place(name, "experiment")
    written = text(definition, trial)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written, encoding="utf-8")
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
    """Return the file, into which nothing goes but choices, the checked configuration's values, and numbers.

    Raises:
        OptionError: where what was chosen is no choice and not in the configuration.
    """
    title = f"{config.title(definition.base)}: trial {trial.number} of a sweep, {came_to(trial, definition)}"
    definition.check_values(trial.values)
    return as_file(definition.chosen, trial.values, title, definition.base)


def as_file(
    chosen: Sequence[str], values: Mapping[str, Any], title: str, resolved: Mapping[str, Any] | None = None
) -> str:
    """Return what was chosen on a command line, with values of its own, as the text of an experiment.

    Args:
        chosen: the words of the command line.
        values: numbers by dotted name, which stand for what was chosen.
        title: the first line.
        resolved: the configuration, from which come the values of what was chosen; else from the words themselves.

    Raises:
        OptionError: where a word of those that are looked up there is not known.
    """
    given = placed(chosen)
    defaults = [_choice(one) for one in given if _is_choice(one)]
    defaults.sort(key=lambda one: not isinstance(one, str))  # an experiment comes first, as what follows changes it
    data: dict[str, Any] = {}
    options = [one for one in given if not _is_choice(one)]
    for one in config.parsed(options):
        value = one.value() if resolved is None else saved.at(resolved, one.key_or_group)
        data = _filled(data, one.key_or_group.split("."), value)
    if any(name in BUDGET for name in values):
        data |= dict.fromkeys(BUDGET)
    for name, value in values.items():
        data = _filled(data, name.split("."), value)
    head = f"# @package _global_\n# {escaped(title)}\n"
    return head + yaml.safe_dump({"defaults": defaults} | data, sort_keys=False, allow_unicode=True)


def _is_choice(override: str) -> bool:
    name = override.lstrip("+~").partition("=")[0].partition("@")[0]
    return group_of(name)[0] in GROUPS and (override.startswith("~") or "=" in override)


def _choice(override: str) -> dict[str, Any] | str:
    """Return a choice of the command line, as a defaults list has it.

    Raises:
        OptionError: where it is not a group, a place and a name.
    """
    if not CHOICE.fullmatch(override):
        raise OptionError(f"{override}: is no choice, such as agent=td3")
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
