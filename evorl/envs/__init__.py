"""Environments, and the check of any of them."""

from evorl.envs.check import check_env

__all__ = [
    "check_env",
]
