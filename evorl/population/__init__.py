"""Populations of runs: search spaces of hyperparameters, selection and variation."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
