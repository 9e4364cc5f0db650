"""Separation of a state and the replay buffers in it."""

from typing import Any

import jax
from jaxtyping import PyTree

from evorl.types import ReplayBuffer


def split_replays(state: PyTree) -> tuple[PyTree, list[ReplayBuffer]]:
    """Return the state with the leaves of its replay buffers removed, and a list of the buffers."""
    leaves, treedef = jax.tree.flatten(state, is_leaf=_is_replay)
    hollow = [jax.tree.map(lambda _: None, x) if _is_replay(x) else x for x in leaves]
    return treedef.unflatten(hollow), [x for x in leaves if _is_replay(x)]


def join_replays(state: PyTree, replays: list[ReplayBuffer]) -> PyTree:
    """Put the replay buffers back into a state from which `split_replays` removed them."""
    given = iter(replays)
    return jax.tree.map(lambda x: next(given) if _is_replay(x) else x, state, is_leaf=_is_replay)


def _is_replay(x: Any) -> bool:
    return isinstance(x, ReplayBuffer)
