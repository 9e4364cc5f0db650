"""Games of one screen of code each, most of them by PufferLib's rules.

What one leaves to chance is drawn by chance(key), and advance(env_state, action, chance) is a step without any."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
