"""Workflows: training algorithms that combine agents, evolvers and environments."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
