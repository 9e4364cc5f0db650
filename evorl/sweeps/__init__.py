"""Hyperparameter sweeps: trainings with different values, whose results determine which values to try next."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
