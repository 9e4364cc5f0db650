"""Short names of options: the last dotted segments of a name, as many as are needed to be unambiguous."""

import sys
from collections.abc import Collection, Sequence

from evorl.errors import OptionError
from evorl.names import find_by_ending

PEER_NAMES = {  # option names of Stable-Baselines3, CleanRL and Brax to names in evorl, several if agents differ
    "alpha": ("temperature",),
    "buffer_size": ("capacity",),
    "clip_coef": ("clip",),
    "clip_range": ("clip",),
    "clipping_epsilon": ("clip",),
    "discounting": ("discount",),
    "ent_coef": ("entropy_coef",),
    "entropy_cost": ("entropy_coef",),
    "gamma": ("discount",),
    "learning_rate": ("actor_lr", "critic_lr"),
    "learning_starts": ("random_steps",),
    "lr": ("learning_rate", "actor_lr", "critic_lr"),
    "min_replay_size": ("random_steps",),
    "n_envs": ("num_envs",),
    "n_epochs": ("num_epochs",),
    "n_steps": ("num_steps",),
    "net_arch": ("hidden",),
    "num_timesteps": ("env_steps",),
    "policy_frequency": ("policy_delay",),
    "popsize": ("population_size",),
    "sigma": ("std",),
    "target_noise_clip": ("noise_clip",),
    "target_policy_noise": ("policy_noise",),
    "total_timesteps": ("env_steps",),
    "unroll_length": ("num_steps",),
    "update_epochs": ("num_epochs",),
    "vf_coef": ("value_coef",),
}
_told: set[str] = set()  # lines that this process has printed


def expand_overrides(overrides: Sequence[str], options: Collection[str], choices: Collection[str]) -> list[str]:
    """Return the overrides with full option names, and print once to stderr the meaning of each short name.

    Args:
        overrides: Overrides name=value.
        options: Full names of all options.
        choices: Overrides that choose a file; they are not changed.

    Raises:
        OptionError: A short name is ambiguous, or is a name of another library.
    """
    expanded = []
    for override in overrides:
        short, equals, value = override.partition("=")
        plain = equals and override not in choices and short.replace(".", "").isidentifier()
        name = find_by_ending(short, options) if plain else None
        if plain and name is None:
            refuse_peer_name(short, options)
        expanded.append(f"{name or short}{equals}{value}")
        if name not in (None, short):
            tell_once(f"{short}: {name}")
    return expanded


def refuse_peer_name(short: str, options: Collection[str], prefix: str = "") -> None:
    """Raise OptionError for an option name of another library, with its names in evorl, each with a prefix."""
    ours = [f"{prefix}{one}" for one in PEER_NAMES.get(short, ()) if find_by_ending(one, options)]
    if ours:
        raise OptionError(f"unknown option {prefix}{short}; in evorl it is {' or '.join(ours)}")


def tell_once(line: str) -> None:
    """Print a line to stderr, at most once per process."""
    if line not in _told:
        _told.add(line)
        print(line, file=sys.stderr)
