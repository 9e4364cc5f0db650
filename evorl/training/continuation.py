"""Configurations of resumed runs (`resume`), and of new runs that start from another run (`init_from`)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evorl.errors import OptionError, is_number, require, unknown_name_error
from evorl.names import find_by_ending
from evorl.training import changed_numbers, runs
from evorl.training.configuration import config, config_file
from evorl.training.configuration.config_file import WORKFLOW_PREFIX
from evorl.training.configuration.discovery import GROUPS, resolve_group

ENV_SECTIONS = ("env", "problem", "eval_env", "wrappers")


def load_resumed_config(
    cfg: DictConfig, overrides: Sequence[str], changeable: Sequence[str], of_run: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """Read the configuration saved in cfg.resume, with the changes given on the command line.

    Args:
        cfg: Configuration composed from the command line, with another agent and environment.
        overrides: Options of a training, as given.
        changeable: Options that may change.
        of_run: Options of the agent and the environment of the saved run, by full or short names.

    Returns:
        The complete configuration to resume with, the configuration to save, and the hyperparameters that
        change or have changed, by dotted name in the workflow.

    Raises:
        OptionError: There is no readable configuration, or an option may not change.
    """
    require(isinstance(cfg.resume, str), "resume", cfg.resume, "must be a run folder")
    given = {}
    for one in config.parse_overrides(overrides):
        if one.is_delete():
            raise OptionError(f"{one.package or one.input_line}: a resumed run keeps its configuration")
        given[one.package or one.key_or_group] = one.value()
    now = config.to_plain_data(cfg)
    for name in ("resume", "trust"):
        given.pop(name, None)
    kept = config_file.read_config(Path(cfg.resume), "resume", config_file.parse_trust(now["trust"]))
    kept |= {name: now[name] for name in changeable if name not in kept or name in config_file.READER_OPTIONS}
    changed = {name: value for name, value in given.items() if name.partition(".")[0] in changeable}
    kept = config_file.set_values(kept, changed, changeable)
    data = config_file.set_values(kept, given, changeable)
    own = dict(_parse_own_options(data, of_run))
    missing = {name: value for name, value in own.items() if config_file.lookup(data, name) == "???"}
    numbers = {name: value for name, value in own.items() if name not in missing}
    data = config_file.set_values(data, missing)
    if numbers:
        _require_changeable(data, numbers, changeable)
        data, kept = (_change_numbers(one, numbers, Path(cfg.resume)) for one in (data, kept))
    changed_before = data.get("number_changes", {})  # by now or earlier; a killed process may not have saved them
    values = {name: config_file.lookup(data, name, None) for name in changed_before}
    numbers = {name.removeprefix(WORKFLOW_PREFIX): value for name, value in values.items() if is_number(value)}
    return data | {"resume": cfg.resume}, kept, numbers


def _require_changeable(data: dict[str, Any], numbers: Mapping[str, Any], changeable: Sequence[str]) -> None:
    """Raise OptionError if an option is not a hyperparameter of the workflow, or a population searches it."""
    known = changed_numbers.list_numbers(runs.assemble(data))
    for full, value in numbers.items():
        searched = known.get(full.removeprefix(WORKFLOW_PREFIX))
        allowed = f"a resumed run keeps its configuration; only {', '.join(changeable)} and hyperparameters may change"
        require(searched is not None and full.startswith(WORKFLOW_PREFIX), full, value, allowed)
        require(not searched, full, value, "cannot change, because the population searches it")
        require(is_number(value), full, value, "must be a number")
    known = changed_numbers.list_numbers(runs.assemble(config_file.set_values(data, numbers, ("agent",))))
    for full, value in numbers.items():
        searched = known[full.removeprefix(WORKFLOW_PREFIX)]
        require(not searched, full, value, "is the default, at which the population would begin to search it")


def _change_numbers(data: dict[str, Any], numbers: Mapping[str, float], run_dir: Path) -> dict[str, Any]:
    """Return a configuration with changed hyperparameters, and the history of their values under `number_changes`.

    The history maps the iteration from which a value was used to the value.
    """
    iteration = str(runs.open_checkpoints(run_dir, "resume").latest_iteration or 0)
    history = {name: dict(of) for name, of in data.get("number_changes", {}).items()}
    for name, value in numbers.items():
        history.setdefault(name, {"0": config_file.lookup(data, name)})[iteration] = value
        data = config_file.set_values(data, {name: value}, ("agent",))
    return data | {"number_changes": history}


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str], tuple[str, ...]]:
    """Split the overrides into those of the training and those of the run it starts from.

    Args:
        overrides: Overrides name=value, one of which is resume or init_from.

    Returns:
        Overrides to compose a configuration from, overrides of the saved configuration, and the sections that
        are inherited from it.

    Raises:
        OptionError: An override chooses a component of an inherited agent.
    """
    of_training, of_run = config.split_training_options(overrides)
    if any(one.startswith("resume=") for one in overrides):
        return of_training, of_run, ()
    sections = _find_inherited_sections(of_training)
    of_env = [one for one in of_run if one.lstrip("+~").partition(".")[0] in ENV_SECTIONS]
    own = [one for one in of_run if ("env" if one in of_env else "agent") in sections]
    return [one for one in overrides if one not in own], own, sections


def _find_inherited_sections(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return the sections that a new run inherits from its parent run: the agent, the environment, or both.

    Args:
        overrides: Overrides name=value. With an experiment, nothing is inherited.

    Raises:
        OptionError: An override chooses a component of an inherited agent.
    """
    names = [one.partition("=")[0].lstrip("+~") for one in overrides]
    if "experiment" in names:
        return ()
    chosen = {resolve_group(name)[0] for name in names} & set(GROUPS) - {"env", "problem"}
    if chosen and "agent" not in names:
        raise OptionError(f"{chosen.pop()}: needs agent=NAME too; otherwise the agent comes from init_from")
    of_env = [] if {"env", "problem"} & set(names) else [one for one in ENV_SECTIONS if one not in names]
    return (*([] if "agent" in names else ["agent"]), *of_env)


def inherit_config(
    cfg: DictConfig, sections: Sequence[str], of_run: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a configuration with the sections inherited from cfg.init_from, and the configuration to save.

    Args:
        cfg: Configuration composed from the command line.
        sections: Inherited sections, as returned by `split_overrides`; may be empty.
        of_run: Options of these sections, by full or short names.

    Raises:
        OptionError: There is no readable configuration, or an option is in none of these sections.
    """
    data, kept = config.to_plain_data(cfg), config.to_savable_data(cfg)
    require(isinstance(data["init_from"], str | None), "init_from", data["init_from"], "must be a run folder")
    if not sections:
        return data, kept
    saved = config_file.read_config(Path(cfg.init_from), "init_from", config_file.parse_trust(data["trust"]))
    own = {name: saved.get(name) for name in sections}
    for full, value in _parse_own_options(own, of_run):
        require(
            "${oc." not in str(value), full, value, "must be a plain value, not an environment variable"
        )  # it would be saved
        resolved = OmegaConf.create({"env_steps": data["env_steps"], "value": value})
        value = OmegaConf.to_container(resolved, resolve=True)["value"]  # type: ignore[index,call-overload]
        own = config_file.set_values(own, {full: value}, sections)
    return data | own, kept | own


def _parse_own_options(data: Mapping[str, Any], overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the full names and values that overrides set in a saved configuration.

    For the agent, only options of its workflow are possible.
    """
    known = [name for name in _list_options(data) if not name.startswith("agent.") or name.startswith(WORKFLOW_PREFIX)]
    for override in config.parse_overrides(overrides):
        name = override.key_or_group
        full = find_by_ending(name, [one for one in known if one.startswith(WORKFLOW_PREFIX)])
        full = full or find_by_ending(name, known)
        if full is None:
            raise unknown_name_error("option", name, known)
        yield full, override.value()


def _list_options(node: Any, place: str = "") -> Iterator[str]:
    """Yield the dotted name of every node and value of a configuration, except inside lists."""
    for name, value in node.items() if isinstance(node, Mapping) else ():
        if name != "_target_":
            yield f"{place}{name}"
            yield from _list_options(value, f"{place}{name}.")
