"""Policy-space response oracles: populations of policies that answer mixtures of each other."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int

from evorl import hyperparameters, tree
from evorl.envs.games.tree import GameTree
from evorl.errors import OptionError, require, require_whole
from evorl.hyperparameters import as_state, default
from evorl.leagues.auto import AutoSolver
from evorl.leagues.cohort import Cohort, Mixtures
from evorl.leagues.exact import in_metrics, mixture, nash_conv, payoffs
from evorl.leagues.meta_games import SMALL, deviations, filled, is_constant_sum, profiles
from evorl.leagues.oracles import Answers, BestResponses, Oracle, Rivals, nothing_spent, spent_by, tree_of
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.playing import of_newest, played, played_newest, spent_playing
from evorl.leagues.roles import Roles
from evorl.leagues.solvers import Solver, answered
from evorl.types import Declares, Env, Key, Metrics, SlotPolicy
from evorl.workflows.base import as_evaluation

LEAST = 1e-3  # weight with which a policy counts as one that is played
ZERO = 1e-6  # of NashConv, up to which nothing is left to gain
ROUNDING = 1e-4  # the most of a payoff that adding up an episode's rewards may lose


@struct.dataclass
class PSROHyperparams:
    """Those of the oracle and of the meta-solver."""

    oracle: Any = default(dict)
    solver: Any = default(dict)


@struct.dataclass
class PSROState:
    hyperparams: PSROHyperparams
    env_params: Any
    pool: Any  # what is kept of each policy, leaves [capacity, ...]
    filled: Any  # [] int32, how many there are
    payoffs: Payoffs  # [players, capacity, ..., capacity]
    weights: Any  # [players, capacity], the mixtures by the solver
    gains: Any  # [players], by how much the newest policies are better than the mixtures before them
    nash_conv: Any  # [], of the mixtures, 0 where the game has no tree
    rest: Any  # what the oracle keeps


@dataclass(frozen=True)
class PSRO:
    """An iteration is a policy for each player against the others' mixtures, what it is paid, and new mixtures.

    Lanctot et al. 2017, arXiv:1711.00832; an opponent stays for an episode. What policies pay each other is the mean of
    so many episodes or, in a game with a tree, with 0 episodes computed. The pool is full after capacity - 1
    iterations, with which a training ends. What is evaluated is the mixture: `return` is minus its exploitability in a
    game with a tree, else minus what a player gains on average by the newest policy. env_steps are those of the oracle
    and of what is played for payoffs.

    Solvers of zero-sum games take those of any constant sum. Where a game has no tree, episodes tell: init raises
    OptionError where the sum of all players' payoffs differs between them, or a training does before its first step.
    """

    env: Env
    oracle: Oracle = field(default_factory=BestResponses)
    solver: Solver = field(default_factory=AutoSolver)
    capacity: int = 64
    episodes: int = 0

    def __post_init__(self) -> None:
        require_whole("capacity", self.capacity, 2)
        require_whole("episodes", self.episodes, 0)
        self.oracle.check(self.env)
        needs = "computes payoffs, for which a game needs a tree: say how many episodes are played"
        require(self.episodes > 0 or self.tree is not None, "episodes", 0, needs)
        constant_sum = self.tree is None or self.tree.is_constant_sum
        self.solver.check(self.roles.num_players, constant_sum)

    @cached_property
    def tree(self) -> GameTree | None:
        """That of the game, where it has one."""
        return tree_of(self.env)

    @cached_property
    def roles(self) -> Roles:
        """The players of the game."""
        return Roles(self.env)

    @cached_property
    def meta_solver(self) -> Solver:
        """The solver of the tables; of AutoSolver the one for the game, where its kind is known beforehand."""
        players, tree = self.roles.num_players, self.tree
        if not isinstance(self.solver, AutoSolver) or (tree is None and players == 2):
            return self.solver
        return self.solver.chosen(players, tree is not None and tree.is_constant_sum)

    @property
    def most_iterations(self) -> int:
        """After how many the pool is full."""
        return self.capacity - 1

    def hyperparams(self) -> PSROHyperparams:
        of_solver = hyperparameters.of(self.solver) if isinstance(self.solver, Declares) else {}
        return PSROHyperparams(self.oracle.hyperparams(), of_solver)

    def init(self, key: Key, hyperparams: PSROHyperparams, env_params: Any = None) -> PSROState:
        key_first, key_pay = jax.random.split(key)
        state = self.begun(key_first, hyperparams, env_params)
        return self.accepted(replace(state, payoffs=self.paid(state, key_pay)[0]))

    def begun(self, key: Key, hyperparams: PSROHyperparams, env_params: Any = None) -> PSROState:
        """The state before anything was paid."""
        hyperparams = as_state(hyperparams)
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        players = self.roles.num_players
        first = self.oracle.first(self.env, key, hyperparams.oracle)
        pool = tree.put(tree.zeros(tree.broadcast(first.policies, self.capacity)), jnp.int32(0), first.policies)
        weights = jnp.zeros((players, self.capacity)).at[:, 0].set(1.0)
        none = Payoffs.empty(players, self.capacity)
        gains, conv = jnp.zeros(players), jnp.float32(0)
        state = PSROState(hyperparams, env_params, pool, jnp.int32(1), none, weights, gains, conv, first.rest)
        return replace(state, nash_conv=self.exploited(state))

    def step(self, state: PSROState, key: Key) -> tuple[PSROState, Metrics]:
        key_respond, key_pay = jax.random.split(key)
        rivals = Rivals(state.env_params, state.pool, self.answered(state))
        answers = self.oracle.respond(self.env, rivals, state.rest, key_respond, state.hyperparams.oracle)
        new = self.grown(state, answers)
        paid, spent = self.paid(new, key_pay)
        return self.weighed(state, replace(new, payoffs=paid), spent_by([answers.metrics, spent]))

    def grown(self, state: PSROState, answers: Answers) -> PSROState:
        """The state with the answers in the pool; in a full one they take the place of the last."""
        place = jnp.minimum(state.filled, self.most_iterations)
        pool = tree.put(state.pool, place, answers.policies)
        return replace(state, pool=pool, filled=place + 1, rest=answers.rest)

    def weighed(self, state: PSROState, new: PSROState, spent: Metrics) -> tuple[PSROState, Metrics]:
        """A state whose newest policies are paid, weighted anew; they have answered the mixtures of the one before."""
        weights, gap = self.meta_solver(new.payoffs.mean, self.there(new), new.hyperparams.solver)
        each = deviations(new.payoffs.mean, state.weights)
        gains = each[:, new.filled - 1] - (each * state.weights).sum(1)
        new = replace(new, weights=weights, gains=gains)
        new = replace(new, nash_conv=self.exploited(new))
        found = {"gap": gap, "gain": gains.mean(), "policies": new.filled, "support": (weights > LEAST).sum(1).mean()}
        if self.tree is not None:
            left = state.nash_conv
            found["reached"] = jnp.where(left > ZERO, gains.sum() / jnp.where(left > ZERO, left, 1), 1.0)
        return new, spent | {"episodes": spent["episodes"] + 1} | found | self.judged(new)

    def evaluate(self, state: PSROState, key: Key) -> Metrics:
        del key
        return as_evaluation(self.judged(state))

    def judged(self, state: PSROState) -> Metrics:
        """How good the mixtures are: "return", and of a game with a tree "nash_conv" and "exploitability"."""
        if self.tree is None:
            return {"return": jnp.where(state.filled > 1, -state.gains.mean(), jnp.nan)}  # nothing was tried before
        return in_metrics(state.nash_conv, self.tree.players)

    def exploited(self, state: PSROState) -> Float[Array, ""]:
        """NashConv of the mixtures, 0 where the game has no tree."""
        return jnp.float32(0) if self.tree is None else nash_conv(self.tree, self.mixture(state))

    def mixture(self, state: PSROState) -> Float[Array, "sets actions"]:
        """The policy that plays as the mixtures do, of a game with a tree."""
        assert self.tree is not None
        return mixture(self.tree, self.oracle.tables(self.env, state.pool), state.weights)

    def answered(self, state: PSROState) -> Float[Array, "players capacity"]:
        """The mixtures that the next policies answer."""
        return answered(self.meta_solver, state.payoffs.mean, self.there(state), state.weights)

    def there(self, state: PSROState) -> Bool[Array, "players capacity"]:
        """Which places of the pool are filled."""
        return jnp.broadcast_to(jnp.arange(self.capacity) < state.filled, (self.roles.num_players, self.capacity))

    def accepted(self, state: PSROState) -> PSROState:
        """Return the state; raises OptionError where it is refused, unless it is traced."""
        why = None if isinstance(state.filled, Tracer) else self.refusal(state)
        if why is not None:
            raise OptionError(why)
        return state

    def refusal(self, state: PSROState) -> str | None:
        """Name the payoff that is not finite, or the solver that does not solve games of such sums; else None."""
        table, there = state.payoffs, self.there(state)
        mean = jnp.where(profiles(there), table.mean, 0.0)
        try:
            filled(mean, there)
            if self.tree is None and not self.has_constant_sum(state):
                self.solver.check(self.roles.num_players, False)
        except OptionError as error:
            if not np.isfinite(mean).all():
                return str(error)
            inside = profiles(there)
            sums, spread = mean.sum(0)[inside], jnp.sqrt(table.sum_variance[0][inside].max())
            return (
                f"{error}; the players' mean payoffs sum to {sums.min():.4g} to {sums.max():.4g}, "
                f"with a standard deviation of {spread:.3g} between episodes"
            )
        return None

    def has_constant_sum(self, state: PSROState) -> bool:
        """Whether all players together got the same in all episodes that were played so far; on the host."""
        table, there = state.payoffs, self.there(state)
        lost = min(float(jnp.finfo(jnp.float32).eps) * self.env.max_episode_steps, ROUNDING)
        allowed = SMALL * jnp.sqrt(table.variance.max(0)) + lost * jnp.abs(table.mean).max()
        each = jnp.where(profiles(there), jnp.sqrt(table.sum_variance[0]) <= allowed, True)
        return bool(each.all() & is_constant_sum(table.mean, there))

    def paid(self, state: PSROState, key: Key, beyond: int = 0) -> tuple[Payoffs, Metrics]:
        """The table with the cells of the newest policies and so many beyond them, and what was played for it."""
        newest = [state.filled - 1 + i for i in range(1 + beyond)]
        found = nothing_spent()
        table, roles = state.payoffs, self.roles
        if self.episodes == 0:
            assert self.tree is not None
            expected = Payoffs.expected(payoffs(self.tree, self.oracle.tables(self.env, state.pool)))
            for one in newest:
                table = table.with_cells(expected, of_newest(one, roles.num_players, self.capacity))
            return table, found
        pool, casts = self.oracle.players(self.env, state.pool), self.oracle.casts(self.env)
        for one, key_one in zip(newest, jax.random.split(key, len(newest)), strict=True):
            cells, spent = played_newest(roles, casts, pool, state.env_params, one, self.episodes, key_one)
            table = table.with_cells(cells, of_newest(one, roles.num_players, self.capacity))
            found = spent_by([found, spent])
        return table, found

    def cells(
        self, pool: Any, env_params: Any, profiles: Int[Array, "cells players"], key: Key
    ) -> tuple[Payoffs, Metrics]:
        """What profiles of a pool are paid, leaves [cells, players], and what was played for it."""
        if self.episodes > 0:
            policies, casts = self.oracle.players(self.env, pool), self.oracle.casts(self.env)
            returns, steps = played(self.roles, casts, policies, env_params, profiles, self.episodes, key)
            return Payoffs.played(returns, axis=-1), spent_playing(steps, len(profiles) * self.episodes)
        nodes = self.tree
        assert nodes is not None
        tables = self.oracle.tables(self.env, pool)
        each = jax.vmap(lambda profile: payoffs(nodes, [tables[one][None] for one in profile]).ravel())
        return Payoffs.expected(each(profiles)), nothing_spent()

    @cached_property
    def agent(self) -> Cohort:
        """All players as they draw their policies."""
        return Cohort(self.roles, self.oracle.casts(self.env))

    def policy(self, state: PSROState, explores: bool = False) -> SlotPolicy:
        """How all players act by the mixtures; exploring or not is the oracle's choice."""
        del explores
        return partial(self.agent.act, Mixtures(self.oracle.players(self.env, state.pool), state.weights))

    def inherit(self, state: PSROState, parent: PSROState) -> PSROState:
        """The parent, but with the state's own params of the game."""
        return replace(parent, env_params=state.env_params)
