"""Environments that run on the host: Gymnasium and PettingZoo (in this process or in workers), and EnvPool."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
