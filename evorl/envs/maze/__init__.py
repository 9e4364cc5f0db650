"""The maze: levels as data, where they come from, what one can do to them, and the environment."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
