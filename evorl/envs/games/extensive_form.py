"""A finite game that is played on the device by its tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from evorl.envs import render
from evorl.envs.games.chance import ChanceTable
from evorl.envs.games.game_tree import MAX_NODES, GameTree
from evorl.envs.games.player_groups import PlayerGroups, create_player_groups
from evorl.envs.games.rules import TERMINAL, Rules
from evorl.errors import require
from evorl.spaces import Box, Dict, Discrete, ObsWithActionMask, to_bound
from evorl.types import Key, TimeStep

TEXT_SIZE = 24  # of frames, in pixels


@struct.dataclass
class ExtensiveFormState:
    node: Int[Array, ""]


@dataclass(frozen=True)
class ExtensiveFormGame:
    """A finite game by its tree, its rules, or its name in OpenSpiel, for players who move in turn.

    Each is a group of its own, player_0, player_1 and so on, or with `together` all are members of one group, player.
    Each sees the features of what it knows; who is not to move has one legal action, 0. Chance is drawn within a step,
    payoffs come at the end, and an illegal action is taken for the first legal one. Raises OptionError for a game of
    more histories than `limit`.
    """

    tree: GameTree | Rules | str
    together: bool = False
    limit: int = MAX_NODES

    default_params = None
    fresh_reset = True
    render_fps = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", GameTree.from_game(self.tree, self.limit))
        require(len(self.game_tree.owner) > 0, "tree", self.tree, "has no turn of any player")

    @property
    def game_tree(self) -> GameTree:
        """The tree as what it is."""
        assert isinstance(self.tree, GameTree)
        return self.tree

    @cached_property
    def player_groups(self) -> PlayerGroups:
        """The players as groups."""
        return create_player_groups(self.game_tree.players, self.together)

    @cached_property
    def observation_space(self) -> Dict:
        features = self.game_tree.features
        known = Box(to_bound(features.min(0)), to_bound(features.max(0)), features.shape[1:])
        return self.player_groups.game_space(
            *[ObsWithActionMask(known, (self.game_tree.num_actions,))] * self.game_tree.players
        )

    @cached_property
    def action_space(self) -> Dict:
        return self.player_groups.game_space(*[Discrete(self.game_tree.num_actions)] * self.game_tree.players)

    @cached_property
    def max_episode_steps(self) -> int:
        """The most turns that players have in a game."""
        turns = np.zeros(len(self.game_tree.player), int)
        for level in range(1, len(self.game_tree.level_offsets) - 1):
            nodes = self.game_tree.level_slice(level)
            above = self.game_tree.parent[nodes]
            turns[nodes] = turns[above] + (self.game_tree.player[above] >= 0)
        return int(turns.max())

    @cached_property
    def chance_tables(self) -> tuple[ChanceTable, ChanceTable]:
        """What it does at the start, and within the game."""
        return ChanceTable.from_tree(self.game_tree)

    def reset(self, key: Key, params: Any) -> tuple[ExtensiveFormState, dict[str, Any]]:
        del params
        state = ExtensiveFormState(self.chance_tables[0].sample(key, jnp.int32(0)))
        return state, self.observe(state)

    def step(
        self, key: Key, env_state: ExtensiveFormState, action: Any, params: Any
    ) -> tuple[ExtensiveFormState, TimeStep]:
        del params
        tree, node = self.game_tree, env_state.node
        chosen = self.player_groups.concatenate(action)[jnp.asarray(tree.player)[node]]
        node = self.chance_tables[1].sample(key, jnp.asarray(tree.children)[node, chosen])
        over = jnp.asarray(tree.player)[node] == TERMINAL
        reward = self.player_groups.split(jnp.asarray(tree.payoffs)[node])
        state = ExtensiveFormState(node)
        return state, TimeStep(self.observe(state), reward, over, jnp.bool_(False))

    def observe(self, env_state: ExtensiveFormState) -> dict[str, Any]:
        """What all observe."""
        tree, node = self.game_tree, env_state.node
        player, rows = jnp.asarray(tree.player)[node], jnp.asarray(tree.information_rows)[node]
        own = jnp.asarray(tree.legal_mask)[jnp.asarray(tree.information_sets)[node]]
        moves = np.arange(tree.players)[:, None] == player
        legal = jnp.where(moves, own, np.arange(tree.num_actions) == 0)
        return self.player_groups.split({"obs": jnp.asarray(tree.features)[rows], "legal": legal})

    def render_frames(self, states: Sequence[ExtensiveFormState]) -> list[np.ndarray]:
        """Render a game in words, as one sees it who sees all."""
        return render.render_text([self.game_tree.format_node(int(state.node)) for state in states], TEXT_SIZE)
