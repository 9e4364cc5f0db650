"""Distributed training: tasks, the executors that compute them, and the coordinators that create them."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
