"""Environments, and the check of any of them."""

from evorl.envs.check import check

__all__ = ["check"]
