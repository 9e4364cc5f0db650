"""Multi-agent particle environments with the rules of mpe2: MPE(scenario), one file per scenario."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
