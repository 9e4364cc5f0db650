"""Types and ranges of the options of a training itself."""

import re
from collections.abc import Mapping
from typing import Any

from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.training import devices
from evorl.training.configuration import config_file
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.records import recorders

INTEGER_RANGES = {  # minimum and maximum
    "seed": (0, 2**31 - 1),
    "num_seeds": (1, 2**20),
    "devices": (1, 2**16),
    "evaluations": (1, 2**31 - 1),
    "chunk": (1, 2**20),
    "checkpoint.keep": (1, 2**31 - 1),
}
WANDB_NAME = re.compile(r"[\w.-][\w. -]{0,127}", re.ASCII)
WANDB_MODES = (None, "online", "offline", "disabled")
BOOLEAN_OPTIONS = (
    "checkpoint.replay",
    "tensorboard",
    "dry_run",
    "deterministic",
    "debug.nans",
    "profile",
    "quiet",
    "json",
)

SECTIONS = {"checkpoint": ("minutes", "keep", "replay"), "debug": ("nans",)}


def check_options(data: Mapping[str, Any]) -> None:
    """Raise OptionError if an option of the training is missing, has the wrong type or is out of range."""
    for name in (*INTEGER_RANGES, *BOOLEAN_OPTIONS, *BUDGET_OPTIONS, "checkpoint.minutes"):
        if config_file.lookup(data, name) == "???":
            raise OptionError(f"{name}: must be given")
    for name, (least, most) in INTEGER_RANGES.items():
        value = config_file.lookup(data, name)
        if name not in ("chunk", "devices") or value is not None:
            require_int(name, value, least, most)
    require_int("agent.chunk", config_file.lookup(data, "agent.chunk", 1), *INTEGER_RANGES["chunk"])
    for name in BOOLEAN_OPTIONS:
        require_boolean(data, name)
    precision = data.get("precision")
    if precision is not None and precision not in devices.PRECISIONS:
        raise unknown_name_error("precision", str(precision), devices.PRECISIONS)
    for section, names in SECTIONS.items():
        for name in config_file.lookup(data, section):
            if name not in names:
                raise unknown_name_error(f"option of {section}", str(name), names)
    share = config_file.lookup(data, "evaluation_share")
    number = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1
    require(number, "evaluation_share", share, "must be a number above 0, at most 1")
    for name in (*BUDGET_OPTIONS, "checkpoint.minutes"):
        value = config_file.lookup(data, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        require(number or (value is None and "." not in name), name, value, "must be a number above 0")
    require(isinstance(data.get("preload"), str | None), "preload", data.get("preload"), "must be the path of a file")
    if is_wandb_enabled(data):
        wandb = data["wandb"]
        for name in ("project", "entity", "group"):
            word = wandb[name] is None or (isinstance(wandb[name], str) and bool(WANDB_NAME.fullmatch(wandb[name])))
            require(word, f"wandb.{name}", wandb[name], "must be a name: letters, digits, . _ - and spaces")
        tags = wandb["tags"]
        words = isinstance(tags, list) and all(isinstance(tag, str) and 0 < len(tag) <= 64 for tag in tags)
        require(words, "wandb.tags", tags, "must be a list of strings")
        require(wandb["mode"] in WANDB_MODES, "wandb.mode", wandb["mode"], "must be online, offline or disabled")
        recorders.require_wandb()


def require_boolean(data: Mapping[str, Any], name: str) -> bool:
    """Return the value of an option; raise OptionError if it is not true or false."""
    value = config_file.lookup(data, name)
    require(isinstance(value, bool), name, value, "must be true or false")
    return value


def is_wandb_enabled(data: Mapping[str, Any]) -> bool:
    """Return whether a training records to Weights & Biases.

    If wandb.enabled is null, it does so if another wandb option is given.

    Raises:
        OptionError: An option of wandb is unknown or invalid.
    """
    given = data["wandb"]
    known = isinstance(given, Mapping) and given.keys() == config_file.WANDB_OFF.keys()
    require(known, "wandb", given, f"must be true, false or any of wandb.{', wandb.'.join(config_file.WANDB_OFF)}")
    enabled = given["enabled"]
    require(enabled is None or isinstance(enabled, bool), "wandb", enabled, "must be true or false")
    return any(given[name] for name in given if name != "enabled") if enabled is None else enabled
