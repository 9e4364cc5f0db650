"""Finite games that are played on the device by their game tree."""

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

TEXT_SIZE = 24  # font size in frames, in pixels


@struct.dataclass
class ExtensiveFormState:
    node: Int[Array, ""]


@dataclass(frozen=True)
class ExtensiveFormGame:
    """Finite extensive-form game, in which players move in turn.

    Each player observes the features of its information state. A player that is not to move has one legal
    action, 0. An illegal action is replaced by the first legal one. Chance moves within a step. Payoffs are
    the rewards of the last step.

    Args:
        tree: Game tree, rules of a game, or the name of a game in OpenSpiel.
        together: Whether all players are members of one group, player; otherwise, each player is a group:
            player_0, player_1 and so on.
        limit: Maximum number of nodes of the game tree.

    Raises:
        OptionError: If the game has more nodes than `limit`, or no player ever moves.
    """

    tree: GameTree | Rules | str
    together: bool = False
    limit: int = MAX_NODES

    default_params = None
    fresh_reset = True
    render_fps = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", GameTree.from_game(self.tree, self.limit))
        require(len(self.game_tree.owner) > 0, "tree", self.tree, "has no decision of any player")

    @property
    def game_tree(self) -> GameTree:
        """Return the game tree."""
        assert isinstance(self.tree, GameTree)
        return self.tree

    @cached_property
    def player_groups(self) -> PlayerGroups:
        """Return the grouping of the players."""
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
        """Return the largest number of moves by players in a game."""
        turns = np.zeros(len(self.game_tree.player), int)
        for level in range(1, len(self.game_tree.level_offsets) - 1):
            nodes = self.game_tree.level_slice(level)
            above = self.game_tree.parent[nodes]
            turns[nodes] = turns[above] + (self.game_tree.player[above] >= 0)
        return int(turns.max())

    @cached_property
    def chance_tables(self) -> tuple[ChanceTable, ChanceTable]:
        """Return the table of chance at the start of the game, and the table of chance after that."""
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
        """Return the observations of all players, by group.

        Args:
            env_state: State to observe.
        """
        tree, node = self.game_tree, env_state.node
        player, rows = jnp.asarray(tree.player)[node], jnp.asarray(tree.information_rows)[node]
        own = jnp.asarray(tree.legal_mask)[jnp.asarray(tree.information_sets)[node]]
        moves = np.arange(tree.players)[:, None] == player
        legal = jnp.where(moves, own, np.arange(tree.num_actions) == 0)
        return self.player_groups.split({"obs": jnp.asarray(tree.features)[rows], "legal": legal})

    def render_frames(self, states: Sequence[ExtensiveFormState]) -> list[np.ndarray]:
        """Render states as text, including all hidden information.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        return render.render_text([self.game_tree.format_node(int(state.node)) for state in states], TEXT_SIZE)
