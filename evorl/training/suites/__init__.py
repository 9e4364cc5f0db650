"""Evaluation suites: what a policy is worth on mazes that it was not trained on, or on the worst of its levels."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
