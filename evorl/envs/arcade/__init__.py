"""Small arcade games, most of them with PufferLib's rules.

In each game with randomness, `chance(key)` samples the random events of a step, and `advance(env_state,
action, chance)` takes the step with them.
"""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
