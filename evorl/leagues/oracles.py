"""Oracles of PSRO, which compute policies that respond to mixtures: exact best responses, or results of training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import Protocol, runtime_checkable

from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.game_tree import GameTree
from evorl.errors import OptionError
from evorl.leagues.exact import best_response, mix_policies
from evorl.leagues.policy_prefix import compute_on_prefix
from evorl.leagues.policy_sets import PolicySet
from evorl.leagues.roles import Role, Roles
from evorl.leagues.tabular_policies import make_uniform_policy
from evorl.leagues.tabular_policy_set import TabularPolicySet
from evorl.parts import part
from evorl.types import Env, Key, Metrics, State


@struct.dataclass
class OracleOutputs:
    """Answer of an oracle: a policy for each player, the next state of the oracle, and the cost of the answer."""

    policies: PyTree  # as the pool stores them
    oracle_state: State  # state for the next answer
    metrics: Metrics  # env_steps, episodes and gradient_steps


@struct.dataclass
class OracleInputs:
    """Pool of policies, and the probabilities with which each player samples from it."""

    env_params: PyTree  # parameters of the game
    pool: PyTree  # stored policies, leaves [capacity, ...]
    weights: Float[Array, "players capacity"]


@runtime_checkable
class Oracle(Protocol):
    """Protocol of an oracle, which responds to mixtures of policies with a new policy for each player."""

    def check(self, game: Env) -> None:
        """Raise OptionError if the oracle cannot answer in a game.

        Args:
            game: Multi-agent game.
        """
        ...

    def init_policies(self, game: Env, key: Key) -> OracleOutputs:
        """Return the initial policies of the pool.

        Args:
            game: Multi-agent game.
            key: Random key.
        """
        ...

    def respond(self, game: Env, rivals: OracleInputs, oracle_state: Any, key: Key) -> OracleOutputs:
        """Return a policy for each player that performs well against the mixtures of all other players.

        Args:
            game: Multi-agent game.
            rivals: Pool of policies, and the mixture of each player.
            oracle_state: State of the oracle (`OracleOutputs.oracle_state`) after its last answer.
            key: Random key.
        """
        ...

    def policy_sets(self, game: Env) -> dict[str, PolicySet]:
        """Return the policy set of each role, which acts with stored policies.

        Args:
            game: Multi-agent game.
        """
        ...

    def split_pool_by_role(self, game: Env, pool: Any) -> dict[str, Any]:
        """Return the policies of a pool by role, as the policy sets read them, leaves [capacity, players, ...].

        Args:
            game: Multi-agent game.
            pool: Stored policies, leaves [capacity, ...].
        """
        ...

    def tabulate_policies(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        """Return the action probabilities of all policies of a pool in each information set.

        Args:
            game: Multi-agent game, which must have a tree.
            pool: Stored policies, leaves [capacity, ...].

        Returns:
            Probabilities, shape [capacity, sets, actions].
        """
        ...


@runtime_checkable
class DivisibleOracle(Oracle, Protocol):
    """Protocol of an oracle that can answer for one player at a time, with the same results as for all players."""

    def respond_for_player(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: OracleInputs,
        oracle_state: Any,
        key: Key,
    ) -> OracleOutputs:
        """Return the answer of `respond` for one player.

        Args:
            game: Multi-agent game.
            role: Role of the player.
            place: Index of the player within its role.
            rivals: Pool of policies, and the mixture of each player.
            oracle_state: State of the oracle after its last answer for all players.
            key: Random key, the same for all players.
        """
        ...

    def join_outputs(self, game: Env, answers: Sequence[OracleOutputs]) -> OracleOutputs:
        """Combine the answers for all players into the output of `respond`.

        Args:
            game: Multi-agent game.
            answers: Answers for the players, in their order.
        """
        ...


def find_game_tree(game: Env) -> GameTree | None:
    """Return the tree of a game, or None if it has no tree or if its players are members of one group."""
    return game.game_tree if isinstance(game, ExtensiveFormGame) and not game.together else None


COUNT_NAMES = "env_steps", "episodes", "gradient_steps"


def zero_counts() -> Metrics:
    """Return env steps, episodes and gradient steps of 0."""
    return {name: jnp.int32(0) for name in COUNT_NAMES}


def sum_counts(counts: Sequence[Metrics]) -> Metrics:
    """Return the sums of env steps, episodes and gradient steps."""
    return {name: sum((one[name] for one in counts[1:]), counts[0][name]) for name in COUNT_NAMES}


@part
class BestResponseOracle:
    """Oracle of exact best responses in a game with a tree.

    The pool starts with the policy that takes all legal actions with equal probability.

    Args:
        random_ties: Whether one of several actions of equal value is sampled; otherwise the first one is
            taken.
    """

    random_ties: bool = True

    def check(self, game: Env) -> None:
        """Raise OptionError if the game has no tree, or if its players are members of one group."""
        if find_game_tree(game) is None:
            raise OptionError(
                f"oracle=BestResponseOracle: needs a game tree with one group per player, such as env=leduc; "
                f"use TrainingOracle for {type(game).__name__}"
            )

    def init_policies(self, game: Env, key: Key) -> OracleOutputs:
        """Return the uniform policy."""
        return OracleOutputs(make_uniform_policy(self._get_tree(game)), None, zero_counts())

    def respond(self, game: Env, rivals: OracleInputs, oracle_state: Any, key: Key) -> OracleOutputs:
        """Return the exact best response of each player to the mixtures, in one table."""
        tree = self._get_tree(game)
        mix = lambda size: mix_policies(tree, rivals.pool[:size], rivals.weights[:, :size])  # noqa: E731
        policy = compute_on_prefix(rivals.weights != 0, mix)
        ties = jax.random.uniform(key, tree.legal_mask.shape) if self.random_ties else None
        return OracleOutputs(best_response(tree, policy, ties)[1], oracle_state, zero_counts())

    def respond_for_player(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: OracleInputs,
        oracle_state: Any,
        key: Key,
    ) -> OracleOutputs:
        """Return the exact best response of one player, with 0 in the information sets of other players."""
        # one pass over the tree, which would cost the same for a single player
        every = self.respond(game, rivals, oracle_state, key)
        own = jnp.asarray(self._get_tree(game).owner) == jnp.asarray(Roles(game).get_player_indices(role))[place]
        return replace(every, policies=jnp.where(own[:, None], every.policies, 0.0))

    def join_outputs(self, game: Env, answers: Sequence[OracleOutputs]) -> OracleOutputs:
        """Sum the tables of the players, each of which is 0 in the information sets of other players."""
        # each answer is 0 outside of the rows of its player
        own = sum((one.policies for one in answers[1:]), answers[0].policies)
        return OracleOutputs(own, answers[-1].oracle_state, sum_counts([one.metrics for one in answers]))

    def policy_sets(self, game: Env) -> dict[str, PolicySet]:
        """Return the policy set of each role, which acts by the tables of a pool."""
        return {role.name: TabularPolicySet(self._get_tree(game)) for role in Roles(game).roles}

    def split_pool_by_role(self, game: Env, pool: Any) -> dict[str, Any]:
        """Return the tables of the pool once for each player, by role, shape [capacity, players, sets, actions]."""
        return {role.name: jnp.stack([pool] * len(role.players), 1) for role in Roles(game).roles}

    def tabulate_policies(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        """Return the pool, which consists of tables."""
        return pool

    def _get_tree(self, game: Env) -> GameTree:
        assert isinstance(game, ExtensiveFormGame)
        return game.game_tree
