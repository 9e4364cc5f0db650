"""RL agents: networks, how they act, and the losses that they learn from."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
