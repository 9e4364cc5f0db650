"""The multi-agent particle environments, by mpe2's rules: MPE(scenario), scenarios a file each."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
