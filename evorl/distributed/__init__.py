"""PSRO by tasks: what computes them, here or in processes on one machine or several, and who says what is next."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
