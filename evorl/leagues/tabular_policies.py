"""Tabular policies of a game tree: the probability of each action in each information set."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.envs.games.extensive_form import ExtensiveFormGame, ExtensiveFormState
from evorl.envs.games.game_tree import GameTree
from evorl.spaces import Discrete
from evorl.types import Actor, MultiAgentActor, Params
from evorl.vector_env.vector_env import action_probabilities


def make_uniform_policy(tree: GameTree) -> Float[Array, "sets actions"]:
    """Return the policy that takes all legal actions with equal probability."""
    return jnp.asarray(tree.legal_mask / tree.legal_mask.sum(1, keepdims=True), jnp.float32)


def normalize_policy(tree: GameTree, weights: Float[Array, "sets actions"]) -> Float[Array, "sets actions"]:
    """Return the policy that takes actions in proportion to nonnegative weights, or uniformly if all are 0."""
    total = weights.sum(-1, keepdims=True)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), make_uniform_policy(tree))


def tabulate_policy(
    tree: GameTree, probabilities: Callable[[Any], Float[Array, " actions"]]
) -> Float[Array, "sets actions"]:
    """Return the values of a function of a player's observation in each information set, computed as one batch.

    Observations are those of ExtensiveFormGame: {"obs": features, "legal": mask of the legal actions}.
    """
    obs = {"obs": tree.features[: len(tree.legal_mask)], "legal": tree.legal_mask}
    return jax.vmap(probabilities)(jax.tree.map(jnp.asarray, obs))


def tabulate_agent(tree: GameTree, agent: Actor, params: Params, greedy: bool = False) -> Float[Array, "sets actions"]:
    """Return an agent's action probabilities in each information set: those of `act` or, if `greedy`, of `mode`.

    A single-agent actor plays for all players, and a multi-agent actor plays each player by its group. Raise
    OptionError if the agent is recurrent, since its policy cannot be tabulated, or if it has no action
    probabilities and is not greedy.
    """
    own = agent.groups if isinstance(agent, MultiAgentActor) else {}
    env = ExtensiveFormGame(tree, together="player" in own)
    space = env.action_space if own else Discrete(tree.num_actions)
    one = partial(action_probabilities, agent, space, params, explores=not greedy)
    if not own:
        return tabulate_policy(tree, one)
    # one node of each information set
    some = jnp.asarray(np.unique(tree.information_sets, return_index=True)[1][-len(tree.owner) :], jnp.int32)
    return jax.vmap(
        lambda node, owner: env.player_groups.concatenate(one(env.observe(ExtensiveFormState(node))))[owner]
    )(some, tree.owner)
