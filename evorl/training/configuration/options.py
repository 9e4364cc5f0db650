"""The options of a training itself: which of them are numbers or switches, and in what range."""

from collections.abc import Mapping
from typing import Any

from evorl.errors import OptionError, require, require_whole
from evorl.training.configuration import saved
from evorl.training.configuration.discovery import BUDGET
from evorl.training.records import recorders

WHOLE = {  # numbers, from the least to the most
    "seed": (0, 2**31 - 1),
    "num_seeds": (1, 2**20),
    "devices": (1, 2**16),
    "evaluations": (1, 2**31 - 1),
    "chunk": (1, 2**20),
    "checkpoint.keep": (1, 2**31 - 1),
}
SWITCHES = ("checkpoint.replay", "tensorboard", "wandb", "dry_run", "deterministic", "debug.nans", "profile")


def check(data: Mapping[str, Any]) -> None:
    """Raises OptionError where one of them is missing, not of its type or out of its range."""
    for name in (*WHOLE, *SWITCHES, *BUDGET, "checkpoint.minutes"):
        if saved.at(data, name) == "???":
            raise OptionError(f"{name}: must be given")
    for name, (least, most) in WHOLE.items():
        value = saved.at(data, name)
        if name not in ("chunk", "devices") or value is not None:
            require_whole(name, value, least, most)
    require_whole("agent.chunk", saved.at(data, "agent.chunk", 1), *WHOLE["chunk"])
    for name in SWITCHES:
        value = saved.at(data, name)
        require(isinstance(value, bool), name, value, "must be true or false")
    share = saved.at(data, "evaluation_share")
    number = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1
    require(number, "evaluation_share", share, "must be a number above 0, at most 1")
    for name in (*BUDGET, "checkpoint.minutes"):
        value = saved.at(data, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        require(number or (value is None and "." not in name), name, value, "must be a number above 0")
    if data["wandb"]:
        recorders.require_wandb()
