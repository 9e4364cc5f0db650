"""The options of a training itself: which of them are numbers or switches, and in what range."""

from collections.abc import Mapping
from typing import Any

from evorl.errors import OptionError, require, require_int
from evorl.training.configuration import config_file
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.records import recorders

INTEGER_RANGES = {  # numbers, from the least to the most
    "seed": (0, 2**31 - 1),
    "num_seeds": (1, 2**20),
    "devices": (1, 2**16),
    "evaluations": (1, 2**31 - 1),
    "chunk": (1, 2**20),
    "checkpoint.keep": (1, 2**31 - 1),
}
BOOLEAN_OPTIONS = ("checkpoint.replay", "tensorboard", "wandb", "dry_run", "deterministic", "debug.nans", "profile")


def check_options(data: Mapping[str, Any]) -> None:
    """Raises OptionError where one of them is missing, not of its type or out of its range."""
    for name in (*INTEGER_RANGES, *BOOLEAN_OPTIONS, *BUDGET_OPTIONS, "checkpoint.minutes"):
        if config_file.lookup(data, name) == "???":
            raise OptionError(f"{name}: must be given")
    for name, (least, most) in INTEGER_RANGES.items():
        value = config_file.lookup(data, name)
        if name not in ("chunk", "devices") or value is not None:
            require_int(name, value, least, most)
    require_int("agent.chunk", config_file.lookup(data, "agent.chunk", 1), *INTEGER_RANGES["chunk"])
    for name in BOOLEAN_OPTIONS:
        value = config_file.lookup(data, name)
        require(isinstance(value, bool), name, value, "must be true or false")
    share = config_file.lookup(data, "evaluation_share")
    number = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1
    require(number, "evaluation_share", share, "must be a number above 0, at most 1")
    for name in (*BUDGET_OPTIONS, "checkpoint.minutes"):
        value = config_file.lookup(data, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        require(number or (value is None and "." not in name), name, value, "must be a number above 0")
    if data["wandb"]:
        recorders.require_wandb()
