"""Gymnasium's MuJoCo tasks, on MuJoCo's C engine and on MJX."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
