"""What answers mixtures of policies: exact best responses, or trainings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl.envs.games.tabled import Tabled
from evorl.envs.games.tree import GameTree
from evorl.errors import OptionError
from evorl.leagues.acting import Cast
from evorl.leagues.exact import best_response, mixture
from evorl.leagues.roles import Role, Roles
from evorl.leagues.table_cast import TableCast
from evorl.leagues.tables import uniform
from evorl.types import Env, Hyperparams, Key, Metrics


@struct.dataclass
class Answers:
    """A policy for each player, and how it was come by."""

    policies: Any  # what the pool keeps of them
    rest: Any  # what the oracle keeps until the next time
    metrics: Any  # env_steps, episodes and gradient_steps, by name


@struct.dataclass
class Rivals:
    """The policies that there are, and how likely each player draws them."""

    env_params: Any  # of the game
    pool: Any  # what is kept of policies, leaves [capacity, ...]
    weights: Any  # [players, capacity]


@runtime_checkable
class Oracle(Protocol):
    """What answers the mixtures of others with a policy for each player of a game."""

    def check(self, game: Env) -> None:
        """Raises OptionError for games in which it has no answers."""
        ...

    def hyperparams(self) -> Hyperparams:
        """Those that it takes."""
        ...

    def first(self, game: Env, key: Key, hyperparams: Hyperparams) -> Answers:
        """The policies that a pool begins with."""
        ...

    def respond(self, game: Env, rivals: Rivals, rest: Any, key: Key, hyperparams: Hyperparams) -> Answers:
        """A policy for each player that does well against the mixtures of all others."""
        ...

    def casts(self, game: Env) -> dict[str, Cast]:
        """By role, how players act by what is kept."""
        ...

    def players(self, game: Env, pool: Any) -> dict[str, Any]:
        """What casts act by of a pool, by role, leaves [capacity, players, ...]."""
        ...

    def tables(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        """What the policies of a pool do in each information set of a game with a tree."""
        ...


@runtime_checkable
class Divides(Oracle, Protocol):
    """An oracle that can answer for one player at a time, with the same numbers."""

    def answer(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: Rivals,
        rest: Any,
        key: Key,
        hyperparams: Hyperparams,
    ) -> Answers:
        """What respond finds for the player in a place among those of a role."""
        ...

    def joined(self, game: Env, answers: Sequence[Answers]) -> Answers:
        """What respond gives, of the answers for all players in their order."""
        ...


def tree_of(game: Env) -> GameTree | None:
    """The tree of a game that has one."""
    return game.nodes if isinstance(game, Tabled) and not game.together else None


SPENT = "env_steps", "episodes", "gradient_steps"


def nothing_spent() -> Metrics:
    """Counts before anything is played."""
    return {name: jnp.int32(0) for name in SPENT}


def spent_by(counts: Sequence[Metrics]) -> Metrics:
    """Counts of all together."""
    return {name: sum((one[name] for one in counts[1:]), counts[0][name]) for name in SPENT}


@dataclass(frozen=True)
class BestResponses:
    """Exact best responses in a game with a tree, from the policy on that takes all actions alike.

    Of actions that are worth the same one is drawn, or with random_ties=false the first is taken.
    """

    random_ties: bool = True

    def check(self, game: Env) -> None:
        if tree_of(game) is None:
            raise OptionError(
                f"oracle=BestResponses: needs a game with a tree whose players are groups of their own, such as "
                f"env=leduc; {type(game).__name__} takes a training for an oracle"
            )

    def hyperparams(self) -> dict[str, Any]:
        return {}

    def first(self, game: Env, key: Key, hyperparams: Hyperparams) -> Answers:
        return Answers(uniform(self._tree(game)), (), nothing_spent())

    def respond(self, game: Env, rivals: Rivals, rest: Any, key: Key, hyperparams: Hyperparams) -> Answers:
        tree = self._tree(game)
        policy = mixture(tree, rivals.pool, rivals.weights)
        ties = jax.random.uniform(key, tree.legal.shape) if self.random_ties else None
        return Answers(best_response(tree, policy, ties)[1], rest, nothing_spent())

    def answer(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: Rivals,
        rest: Any,
        key: Key,
        hyperparams: Hyperparams,
    ) -> Answers:
        every = self.respond(game, rivals, rest, key, hyperparams)  # one pass over the tree, as for one of them
        own = jnp.asarray(self._tree(game).owner) == jnp.asarray(Roles(game).numbers(role))[place]
        return replace(every, policies=jnp.where(own[:, None], every.policies, 0.0))

    def joined(self, game: Env, answers: Sequence[Answers]) -> Answers:
        own = sum((one.policies for one in answers[1:]), answers[0].policies)  # each has its player's rows alone
        return Answers(own, answers[-1].rest, spent_by([one.metrics for one in answers]))

    def casts(self, game: Env) -> dict[str, Cast]:
        return {role.name: TableCast(self._tree(game)) for role in Roles(game).roles}

    def players(self, game: Env, pool: Any) -> dict[str, Any]:
        return {role.name: jnp.stack([pool] * len(role.players), 1) for role in Roles(game).roles}

    def tables(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        return pool

    def _tree(self, game: Env) -> GameTree:
        assert isinstance(game, Tabled)
        return game.nodes
