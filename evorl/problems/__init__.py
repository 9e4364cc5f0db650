"""Benchmark functions to be maximized (implementations of types.Problem), each from its paper."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
