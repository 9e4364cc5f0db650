"""Evolvers (evolutionary algorithms with ask and tell), archives, emitters, mutation and crossover."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
