"""Evaluation suites: tests of a policy on mazes that it was not trained on, or on its worst levels."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
