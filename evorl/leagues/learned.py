"""Trainings that answer mixtures of policies."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import hyperparameters, tree
from evorl.agents.ppo import PPOHyperparams
from evorl.errors import require_whole
from evorl.hyperparameters import Number, default, hyperparameter
from evorl.leagues.acting import Acting
from evorl.leagues.against import Against, Match
from evorl.leagues.oracles import SPENT, Answers, Rivals, nothing_spent, spent_by, tree_of
from evorl.leagues.roles import Role, Roles
from evorl.leagues.tables import tabulated
from evorl.types import Acts, Env, Key, Metrics


def of_a_player(env: Env) -> Env:
    """The environment of a training: a game as its first player plays it; raises OptionError for other games."""
    return Against(env, Roles(env).players[0])


@struct.dataclass
class LearnedHyperparams:
    """When a training ends, and those of its workflow."""

    training: Any = default(PPOHyperparams)
    iterations: Number = hyperparameter(32.0, 1, about="of a training, at most")
    patience: Number = hyperparameter(
        float("inf"), 1, about="iterations without a higher return, after which a training ends"
    )


@struct.dataclass
class Training:
    """One on its way."""

    state: Any
    best: Any  # [], the highest return of an iteration
    since: Any  # [], iterations ago
    spent: Metrics


@dataclass(frozen=True)
class Learned:
    """A training of any workflow for each player, whose environment is the game against the others' mixtures.

    Of so many restarts, all at once, the one is taken that has the highest return when it is evaluated. Trainings begin
    anew or, where `warm`, where the last one ended. Policies are kept as they explore, or greedy.
    """

    workflow: Acts = field(metadata={"env": of_a_player})
    restarts: int = 1
    warm: bool = False
    explores: bool = True

    def __post_init__(self) -> None:
        require_whole("restarts", self.restarts)

    def check(self, game: Env) -> None:
        for role in Roles(game).roles:
            self.within(game, role)

    def hyperparams(self) -> LearnedHyperparams:
        return LearnedHyperparams(hyperparameters.of(self.workflow))

    def within(self, game: Env, role: Role, casts: Any = None) -> Acts:
        """The workflow of a role, against casts, or against chance."""
        env = Against(game, role.name, casts or {})
        return in_env(self.workflow, env)

    def casts(self, game: Env) -> dict[str, Acting]:
        return _casts(self, game)

    def first(self, game: Env, key: Key, hyperparams: LearnedHyperparams) -> Answers:
        policies, rest = {}, {}
        for i, role in enumerate(Roles(game).roles):
            begin = jax.vmap(jax.vmap(lambda key, role=role: self.within(game, role).init(key, hyperparams.training)))
            keys = jax.random.split(jax.random.fold_in(key, i), (len(role.players), self.restarts))
            states = begin(keys)
            policies[role.name] = self.casts(game)[role.name].taken(jax.tree.map(lambda x: x[:, 0], states))
            rest[role.name] = replace(states, env_params=(), hyperparams=()) if self.warm else ()
        return Answers(policies, rest, nothing_spent())

    def respond(self, game: Env, rivals: Rivals, rest: Any, key: Key, hyperparams: LearnedHyperparams) -> Answers:
        policies, after, spent = {}, {}, []
        for role in Roles(game).roles:
            each = tree.vmap(lambda place, role=role: self.answer(game, role, place, rivals, rest, key, hyperparams))
            answers = each(jnp.arange(len(role.players)))
            policies[role.name], after[role.name] = answers.policies, answers.rest
            spent.append(jax.tree.map(jnp.sum, answers.metrics))
        return Answers(policies, after, spent_by(spent))

    def answer(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: Rivals,
        rest: Any,
        key: Key,
        hyperparams: LearnedHyperparams,
    ) -> Answers:
        """The best of the restarts of a player, which go on from rest where they are warm."""
        workflow = self.within(game, role, self.casts(game))
        match = Match(rivals.env_params, place, rivals.pool, rivals.weights)

        def train(key: Key, before: Any) -> tuple[Training, Array | float]:
            key_init, key_steps, key_value = jax.random.split(key, 3)
            if self.warm:
                state = replace(before, env_params=match, hyperparams=hyperparams.training)
            else:
                state = workflow.init(key_init, hyperparams.training, match)
            done = trained(workflow, state, key_steps, hyperparams)
            return done, workflow.evaluate(done.state, key_value)["return"] if self.restarts > 1 else 0.0

        key = jax.random.fold_in(key, Roles(game).roles.index(role))
        keys = jax.random.split(key, (len(role.players), self.restarts))[place]
        done, values = tree.vmap(train)(keys, tree.index(rest[role.name], place))  # of one no value is asked
        chosen = tree.index(done.state, jnp.nan_to_num(values, nan=-jnp.inf).argmax())
        after = replace(done.state, env_params=(), hyperparams=()) if self.warm else ()
        policies = self.casts(game)[role.name].taken(chosen)
        return Answers(policies, after, jax.tree.map(jnp.sum, done.spent))

    def joined(self, game: Env, answers: Sequence[Answers]) -> Answers:
        policies, rest = {}, {}
        for role in Roles(game).roles:
            own = [answers[number] for number in Roles(game).numbers(role)]
            policies[role.name] = tree.stack([one.policies for one in own])
            rest[role.name] = tree.stack([one.rest for one in own])
        return Answers(policies, rest, spent_by([one.metrics for one in answers]))

    def players(self, game: Env, pool: Any) -> dict[str, Any]:
        del game
        return pool

    def tables(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        nodes = tree_of(game)
        assert nodes is not None

        def one(kept: Any, role: Role) -> Float[Array, "sets actions"]:
            """Of a player's policy, in all information sets, also those of others."""
            return tabulated(nodes, self.casts(game)[role.name].policy(kept).probabilities)

        def of_all(policies: Any) -> Float[Array, "sets actions"]:
            found = jnp.zeros(nodes.legal.shape)
            for role in Roles(game).roles:
                each = jax.vmap(lambda kept, role=role: one(kept, role))(policies[role.name])
                for i, number in enumerate(Roles(game).numbers(role)):
                    found = jnp.where((nodes.owner == number)[:, None], each[i], found)
            return found

        return jax.vmap(of_all)(pool)


def trained(workflow: Acts, state: Any, key: Key, hyperparams: LearnedHyperparams) -> Training:
    """A training until its iterations are done, or none of the last few had a higher return."""

    def iteration(i: Int[Array, ""], run: Training) -> Training:
        state, metrics = workflow.step(run.state, jax.random.fold_in(key, i))
        value = jnp.nan_to_num(metrics["return"], nan=-jnp.inf)
        spent = {name: run.spent[name] + metrics[name].astype(jnp.int32) for name in SPENT}
        since = jnp.where(value > run.best, 0.0, run.since + 1)
        return Training(state, jnp.maximum(run.best, value), since, spent)

    begun = Training(state, jnp.float32(-jnp.inf), jnp.float32(0), nothing_spent())
    going_on = lambda run: run.since < hyperparams.patience  # noqa: E731
    return tree.repeat(hyperparams.iterations.astype(jnp.int32), iteration, begun, going_on)


def in_env(part: Any, env: Env) -> Any:
    """A part, and those within it, in another environment."""
    new = {"env": env, "observation_space": env.observation_space, "action_space": env.action_space}
    if not dataclasses.is_dataclass(part) or isinstance(part, (type, Env)):
        return part
    values = {x.name: getattr(part, x.name) for x in dataclasses.fields(part) if x.init}
    changed = {name: new[name] if name in new else in_env(value, env) for name, value in values.items()}
    return replace(part, **{name: value for name, value in changed.items() if value is not values[name]})


@lru_cache(maxsize=16)
def _casts(oracle: Learned, game: Env) -> dict[str, Acting]:
    given = hyperparameters.as_state(oracle.hyperparams().training)
    return {role.name: Acting(oracle.within(game, role), given, oracle.explores) for role in Roles(game).roles}
