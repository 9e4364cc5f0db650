"""Replay buffers: uniform, prioritized, of sequences, of frames, and reservoirs."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
