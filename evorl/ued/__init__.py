"""Unsupervised environment design: level buffers, scores, generators and the curricula that use them."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
