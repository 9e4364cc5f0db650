"""Small environments that each test one ability of an agent; `python -m evorl.sanity` trains agents on them.

The rules are those of PufferLib's sanity environments. Each has `score(env_state)`, which rates an ended
episode from 0 to 1.
"""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
