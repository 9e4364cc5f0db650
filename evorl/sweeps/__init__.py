"""Sweeps: trainings with other numbers, one after the other or side by side, whose results say which to try next."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
