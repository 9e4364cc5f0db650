"""What answers mixtures of policies: exact best responses, or trainings."""

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
from evorl.leagues.policy_sets import PolicySet
from evorl.leagues.roles import Role, Roles
from evorl.leagues.tabular_policies import make_uniform_policy
from evorl.leagues.tabular_policy_set import TabularPolicySet
from evorl.parts import part
from evorl.types import Env, Key, Metrics, State


@struct.dataclass
class OracleOutputs:
    """A policy for each player, and how it was come by."""

    policies: PyTree  # what the pool keeps of them
    oracle_state: State  # what the oracle keeps until the next time
    metrics: Metrics  # env_steps, episodes and gradient_steps


@struct.dataclass
class OracleInputs:
    """The policies that there are, and how likely each player draws them."""

    env_params: PyTree  # of the game
    pool: PyTree  # what is kept of policies, leaves [capacity, ...]
    weights: Float[Array, "players capacity"]


@runtime_checkable
class Oracle(Protocol):
    """What answers the mixtures of others with a policy for each player of a game."""

    def check(self, game: Env) -> None:
        """Raises OptionError for games in which it has no answers."""
        ...

    def init_policies(self, game: Env, key: Key) -> OracleOutputs:
        """The policies that a pool begins with."""
        ...

    def respond(self, game: Env, rivals: OracleInputs, rest: Any, key: Key) -> OracleOutputs:
        """A policy for each player that does well against the mixtures of all others."""
        ...

    def policy_sets(self, game: Env) -> dict[str, PolicySet]:
        """By role, how players act by what is kept."""
        ...

    def split_pool_by_role(self, game: Env, pool: Any) -> dict[str, Any]:
        """What policy sets act by of a pool, by role, leaves [capacity, players, ...]."""
        ...

    def tabulate_policies(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        """What the policies of a pool do in each information set of a game with a tree."""
        ...


@runtime_checkable
class DivisibleOracle(Oracle, Protocol):
    """An oracle that can answer for one player at a time, with the same numbers."""

    def respond_for_player(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: OracleInputs,
        rest: Any,
        key: Key,
    ) -> OracleOutputs:
        """What respond finds for the player in a place among those of a role."""
        ...

    def join_outputs(self, game: Env, answers: Sequence[OracleOutputs]) -> OracleOutputs:
        """What respond gives, of the answers for all players in their order."""
        ...


def find_game_tree(game: Env) -> GameTree | None:
    """The tree of a game that has one."""
    return game.game_tree if isinstance(game, ExtensiveFormGame) and not game.together else None


COUNT_NAMES = "env_steps", "episodes", "gradient_steps"


def zero_counts() -> Metrics:
    """Counts before anything is played."""
    return {name: jnp.int32(0) for name in COUNT_NAMES}


def sum_counts(counts: Sequence[Metrics]) -> Metrics:
    """Counts of all together."""
    return {name: sum((one[name] for one in counts[1:]), counts[0][name]) for name in COUNT_NAMES}


@part
class BestResponseOracle:
    """Exact best responses in a game with a tree, from the policy on that takes all actions alike.

    Of actions that are worth the same one is drawn, or with random_ties=false the first is taken.
    """

    random_ties: bool = True

    def check(self, game: Env) -> None:
        if find_game_tree(game) is None:
            raise OptionError(
                f"oracle=BestResponseOracle: needs a game with a tree whose players are groups of their own, such as "
                f"env=leduc; {type(game).__name__} takes a training for an oracle"
            )

    def init_policies(self, game: Env, key: Key) -> OracleOutputs:
        return OracleOutputs(make_uniform_policy(self._get_tree(game)), None, zero_counts())

    def respond(self, game: Env, rivals: OracleInputs, rest: Any, key: Key) -> OracleOutputs:
        tree = self._get_tree(game)
        policy = mix_policies(tree, rivals.pool, rivals.weights)
        ties = jax.random.uniform(key, tree.legal_mask.shape) if self.random_ties else None
        return OracleOutputs(best_response(tree, policy, ties)[1], rest, zero_counts())

    def respond_for_player(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: OracleInputs,
        rest: Any,
        key: Key,
    ) -> OracleOutputs:
        every = self.respond(game, rivals, rest, key)  # one pass over the tree, as for one of them
        own = jnp.asarray(self._get_tree(game).owner) == jnp.asarray(Roles(game).get_player_indices(role))[place]
        return replace(every, policies=jnp.where(own[:, None], every.policies, 0.0))

    def join_outputs(self, game: Env, answers: Sequence[OracleOutputs]) -> OracleOutputs:
        own = sum((one.policies for one in answers[1:]), answers[0].policies)  # each has its player's rows alone
        return OracleOutputs(own, answers[-1].oracle_state, sum_counts([one.metrics for one in answers]))

    def policy_sets(self, game: Env) -> dict[str, PolicySet]:
        return {role.name: TabularPolicySet(self._get_tree(game)) for role in Roles(game).roles}

    def split_pool_by_role(self, game: Env, pool: Any) -> dict[str, Any]:
        return {role.name: jnp.stack([pool] * len(role.players), 1) for role in Roles(game).roles}

    def tabulate_policies(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        return pool

    def _get_tree(self, game: Env) -> GameTree:
        assert isinstance(game, ExtensiveFormGame)
        return game.game_tree
