"""Environments that live on the host: Gymnasium's and PettingZoo's, in this process or in workers, and EnvPool's."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
