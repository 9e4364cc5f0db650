"""Small environments that each ask for one ability of an agent; `python -m evorl.sanity` trains on them.

The rules are those of PufferLib's. Each has score(env_state), of an ended episode, from 0 to 1."""

from evorl import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__)  # pyright: ignore[reportUnsupportedDunderAll]
