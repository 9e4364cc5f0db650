"""A finite game that is played on the device by its tree."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from evorl.envs import render
from evorl.envs.games.chance import Chance
from evorl.envs.games.rules import OVER, Rules
from evorl.envs.games.seats import Seats, numbered
from evorl.envs.games.tree import LIMIT, GameTree
from evorl.errors import require
from evorl.spaces import Box, Dict, Discrete, Legal, bound
from evorl.types import Key, TimeStep

SECONDS = 1.0  # for which a state is shown


@struct.dataclass
class TabledState:
    node: Any  # [] int32


@dataclass(frozen=True)
class Tabled:
    """A finite game by its tree, its rules, or its name in OpenSpiel, for players who move in turn.

    Each is a group of its own, player_0, player_1 and so on, or with `together` all are members of one group, player.
    Each sees the features of what it knows; who is not to move has one legal action, 0. Chance is drawn within a step,
    payoffs come at the end, and an illegal action is taken for the first legal one. Raises OptionError for a game of
    more histories than `limit`.
    """

    tree: GameTree | Rules | str
    together: bool = False
    limit: int = LIMIT

    default_params = ()
    fresh_reset = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", GameTree.of(self.tree, self.limit))
        require(len(self.nodes.owner) > 0, "tree", self.tree, "has no turn of any player")

    @property
    def nodes(self) -> GameTree:
        """The tree as what it is."""
        assert isinstance(self.tree, GameTree)
        return self.tree

    @cached_property
    def seats(self) -> Seats:
        """The players as groups."""
        return numbered(self.nodes.players, self.together)

    @cached_property
    def observation_space(self) -> Dict:
        features = self.nodes.features
        known = Box(bound(features.min(0)), bound(features.max(0)), features.shape[1:])
        return self.seats.space(*[Legal(known, (self.nodes.num_actions,))] * self.nodes.players)

    @cached_property
    def action_space(self) -> Dict:
        return self.seats.space(*[Discrete(self.nodes.num_actions)] * self.nodes.players)

    @cached_property
    def max_episode_steps(self) -> int:
        """The most turns that players have in a game."""
        turns = np.zeros(len(self.nodes.player), int)
        for level in range(1, len(self.nodes.levels) - 1):
            nodes = self.nodes.within(level)
            above = self.nodes.parent[nodes]
            turns[nodes] = turns[above] + (self.nodes.player[above] >= 0)
        return int(turns.max())

    @cached_property
    def chance(self) -> tuple[Chance, Chance]:
        """What it does at the start, and within the game."""
        return Chance.of(self.nodes)

    def reset(self, key: Key, params: Any) -> tuple[TabledState, dict[str, Any]]:
        del params
        state = TabledState(self.chance[0].drawn(key, jnp.int32(0)))
        return state, self.seen(state)

    def step(self, key: Key, env_state: TabledState, action: Any, params: Any) -> tuple[TabledState, TimeStep]:
        del params
        tree, node = self.nodes, env_state.node
        chosen = self.seats.joined(action)[jnp.asarray(tree.player)[node]]
        node = self.chance[1].drawn(key, jnp.asarray(tree.children)[node, chosen])
        over = jnp.asarray(tree.player)[node] == OVER
        reward = self.seats.split(jnp.asarray(tree.payoffs)[node])
        state = TabledState(node)
        return state, TimeStep(self.seen(state), reward, over, jnp.bool_(False))

    def seen(self, env_state: TabledState) -> dict[str, Any]:
        """What all observe."""
        tree, node = self.nodes, env_state.node
        player, rows = jnp.asarray(tree.player)[node], jnp.asarray(tree.seen)[node]
        own = jnp.asarray(tree.legal)[jnp.asarray(tree.sets)[node]]
        moves = np.arange(tree.players)[:, None] == player
        legal = jnp.where(moves, own, np.arange(tree.num_actions) == 0)
        return self.seats.split({"obs": jnp.asarray(tree.features)[rows], "legal": legal})

    def draw(self, states: list[TabledState], folder: Path) -> list[Path]:
        """A GIF and a PNG of a game, told in words as one sees it who sees all."""
        texts = [self.nodes.text(int(state.node)) for state in states[: render.FRAMES]]
        return render.save(render.written(texts), SECONDS, folder)
