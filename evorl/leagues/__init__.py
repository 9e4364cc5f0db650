"""Leagues: populations of policies for games, with payoff tables, meta-solvers, exact values and ratings."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
