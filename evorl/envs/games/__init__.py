"""Games: environments with several agents in groups, which act simultaneously or in turn."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
