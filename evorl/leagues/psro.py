"""Policy-space response oracles: populations of policies that answer mixtures of each other."""

from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PyTree

from evorl import tree
from evorl.envs.games.game_tree import GameTree
from evorl.errors import OptionError, require, require_int
from evorl.leagues.auto_solver import AutoSolver
from evorl.leagues.exact import compute_payoffs, mix_policies, nash_conv, nash_conv_to_metrics
from evorl.leagues.joint_mixture_agent import JointMixtureAgent, PolicyMixtures
from evorl.leagues.meta_games import (
    CONSTANT_SUM_TOLERANCE,
    compute_deviation_payoffs,
    compute_profile_mask,
    is_constant_sum,
    mask_payoffs,
)
from evorl.leagues.oracles import (
    BestResponseOracle,
    Oracle,
    OracleInputs,
    OracleOutputs,
    find_game_tree,
    sum_counts,
    zero_counts,
)
from evorl.leagues.payoff_estimation import (
    count_steps_and_episodes,
    evaluate_newest_profiles,
    evaluate_profiles,
    mask_newest_profiles,
)
from evorl.leagues.payoffs import Payoffs
from evorl.leagues.roles import Roles
from evorl.leagues.solvers import MetaSolver, select_opponent_mixtures
from evorl.parts import bind, part, require_constants, resolve_numbers
from evorl.tree import as_arrays
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn, State
from evorl.workflows.base import as_evaluation

MIN_SUPPORT_WEIGHT = 1e-3  # weight with which a policy counts as one that is played
NASH_CONV_TOLERANCE = 1e-6  # of NashConv, up to which nothing is left to gain
MAX_ROUNDING_ERROR = 1e-4  # the most of a payoff that adding up an episode's rewards may lose


@struct.dataclass
class PSROState:
    numbers: Numbers
    env_params: PyTree
    pool: PyTree  # what is kept of each policy, leaves [capacity, ...]
    num_policies: Int[Array, ""]  # how many there are
    payoffs: Payoffs  # [players, capacity, ..., capacity]
    weights: Float[Array, "players capacity"]  # the mixtures by the solver
    gains: Float[Array, " players"]  # by how much the newest policies are better than the mixtures before them
    nash_conv: Float[Array, ""]  # of the mixtures, 0 where the game has no tree
    oracle_state: State  # what the oracle keeps


@part
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
    oracle: Oracle = field(default_factory=BestResponseOracle)
    solver: MetaSolver = field(default_factory=AutoSolver)
    capacity: int = 64
    episodes: int = 0

    def __post_init__(self) -> None:
        require_int("capacity", self.capacity, 2)
        require_int("episodes", self.episodes, 0)
        self.oracle.check(self.env)
        require_constants(self, but="oracle.workflow")
        needs = "computes payoffs, for which a game needs a tree: say how many episodes are played"
        require(self.episodes > 0 or self.tree is not None, "episodes", 0, needs)
        constant_sum = self.tree is None or self.tree.is_constant_sum
        self.solver.check(self.roles.num_players, constant_sum)

    @cached_property
    def tree(self) -> GameTree | None:
        """That of the game, where it has one."""
        return find_game_tree(self.env)

    @cached_property
    def roles(self) -> Roles:
        """The players of the game."""
        return Roles(self.env)

    @cached_property
    def meta_solver(self) -> MetaSolver:
        """The solver of the tables; of AutoSolver the one for the game, where its kind is known beforehand."""
        players, tree = self.roles.num_players, self.tree
        if not isinstance(self.solver, AutoSolver) or (tree is None and players == 2):
            return self.solver
        return self.solver.select_solver(players, tree is not None and tree.is_constant_sum)

    @property
    def max_iterations(self) -> int:
        """After how many the pool is full."""
        return self.capacity - 1

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        key_first, key_pay = jax.random.split(key)
        state = self.init_without_payoffs(key_first, numbers, env_params)
        return self.check_accepted(replace(state, payoffs=self.update_payoffs(state, key_pay)[0]))

    def init_without_payoffs(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        """Return the initial state, in which no payoff is known yet."""
        numbers = resolve_numbers(self, numbers)
        env_params = as_arrays(self.env.default_params if env_params is None else env_params)
        players = self.roles.num_players
        first = bind(self, numbers, None).oracle.init_policies(self.env, key)
        pool = tree.set_row(
            tree.zeros_like(tree.broadcast(first.policies, self.capacity)), jnp.int32(0), first.policies
        )
        weights = jnp.zeros((players, self.capacity)).at[:, 0].set(1.0)
        none = Payoffs.empty(players, self.capacity)
        gains, conv = jnp.zeros(players), jnp.float32(0)
        state = PSROState(numbers, env_params, pool, jnp.int32(1), none, weights, gains, conv, first.oracle_state)
        return replace(state, nash_conv=self.compute_nash_conv(state))

    def step(self, state: PSROState, key: Key) -> tuple[PSROState, Metrics]:
        key_respond, key_pay = jax.random.split(key)
        rivals = OracleInputs(state.env_params, state.pool, self.target_mixtures(state))
        oracle = bind(self, state.numbers, None).oracle
        answers = oracle.respond(self.env, rivals, state.oracle_state, key_respond)
        new = self.add_policies(state, answers)
        paid, spent = self.update_payoffs(new, key_pay)
        return self.update_meta_strategy(state, replace(new, payoffs=paid), sum_counts([answers.metrics, spent]))

    def add_policies(self, state: PSROState, answers: OracleOutputs) -> PSROState:
        """The state with the answers in the pool; in a full one they take the place of the last."""
        place = jnp.minimum(state.num_policies, self.max_iterations)
        pool = tree.set_row(state.pool, place, answers.policies)
        return replace(state, pool=pool, num_policies=place + 1, oracle_state=answers.oracle_state)

    def update_meta_strategy(self, state: PSROState, new: PSROState, spent: Metrics) -> tuple[PSROState, Metrics]:
        """A state whose newest policies are paid, weighted anew; they have answered the mixtures of the one before."""
        weights, gap = bind(self, new.numbers).meta_solver(new.payoffs.mean, self.valid_policies(new))
        each = compute_deviation_payoffs(new.payoffs.mean, state.weights)
        gains = each[:, new.num_policies - 1] - (each * state.weights).sum(1)
        new = replace(new, weights=weights, gains=gains)
        new = replace(new, nash_conv=self.compute_nash_conv(new))
        found = {
            "gap": gap,
            "gain": gains.mean(),
            "policies": new.num_policies,
            "support": (weights > MIN_SUPPORT_WEIGHT).sum(1).mean(),
        }
        if self.tree is not None:
            left = state.nash_conv
            found["reached"] = jnp.where(
                left > NASH_CONV_TOLERANCE, gains.sum() / jnp.where(left > NASH_CONV_TOLERANCE, left, 1), 1.0
            )
        return new, spent | {"episodes": spent["episodes"] + 1} | found | self.mixture_metrics(new)

    def evaluate(self, state: PSROState, key: Key) -> Metrics:
        del key
        return as_evaluation(self.mixture_metrics(state))

    def mixture_metrics(self, state: PSROState) -> Metrics:
        """How good the mixtures are: "return", and of a game with a tree "nash_conv" and "exploitability"."""
        if self.tree is None:
            return {
                "return": jnp.where(state.num_policies > 1, -state.gains.mean(), jnp.nan)
            }  # nothing was tried before
        return nash_conv_to_metrics(state.nash_conv, self.tree.players)

    def compute_nash_conv(self, state: PSROState) -> Float[Array, ""]:
        """NashConv of the mixtures, 0 where the game has no tree."""
        return jnp.float32(0) if self.tree is None else nash_conv(self.tree, self.mixture(state))

    def mixture(self, state: PSROState) -> Float[Array, "sets actions"]:
        """The policy that plays as the mixtures do, of a game with a tree."""
        assert self.tree is not None
        return mix_policies(self.tree, self.oracle.tabulate_policies(self.env, state.pool), state.weights)

    def target_mixtures(self, state: PSROState) -> Float[Array, "players capacity"]:
        """The mixtures that the next policies answer."""
        return select_opponent_mixtures(self.meta_solver, state.payoffs.mean, self.valid_policies(state), state.weights)

    def valid_policies(self, state: PSROState) -> Bool[Array, "players capacity"]:
        """Which places of the pool are filled."""
        return jnp.broadcast_to(jnp.arange(self.capacity) < state.num_policies, (self.roles.num_players, self.capacity))

    def check_accepted(self, state: PSROState) -> PSROState:
        """Return the state; raises OptionError where it is refused, unless it is traced."""
        why = None if isinstance(state.num_policies, Tracer) else self.failure_reason(state)
        if why is not None:
            raise OptionError(why)
        return state

    def failure_reason(self, state: PSROState) -> str | None:
        """Name the payoff that is not finite, or the solver that does not solve games of such sums; else None."""
        table, there = state.payoffs, self.valid_policies(state)
        mean = jnp.where(compute_profile_mask(there), table.mean, 0.0)
        try:
            mask_payoffs(mean, there)
            if self.tree is None and not self.has_constant_sum(state):
                self.solver.check(self.roles.num_players, False)
        except OptionError as error:
            if not np.isfinite(mean).all():
                return str(error)
            inside = compute_profile_mask(there)
            sums, spread = mean.sum(0)[inside], jnp.sqrt(table.sum_variance[0][inside].max())
            return (
                f"{error}; the players' mean payoffs sum to {sums.min():.4g} to {sums.max():.4g}, "
                f"with a standard deviation of {spread:.3g} between episodes"
            )
        return None

    def has_constant_sum(self, state: PSROState) -> bool:
        """Whether all players together got the same in all episodes that were played so far; on the host."""
        table, there = state.payoffs, self.valid_policies(state)
        lost = min(float(jnp.finfo(jnp.float32).eps) * self.env.max_episode_steps, MAX_ROUNDING_ERROR)
        allowed = CONSTANT_SUM_TOLERANCE * jnp.sqrt(table.variance.max(0)) + lost * jnp.abs(table.mean).max()
        each = jnp.where(compute_profile_mask(there), jnp.sqrt(table.sum_variance[0]) <= allowed, True)
        return bool(each.all() & is_constant_sum(table.mean, there))

    def update_payoffs(self, state: PSROState, key: Key, num_extra: int = 0) -> tuple[Payoffs, Metrics]:
        """The table with the cells of the newest policies and so many beyond them, and what was played for it."""
        newest = [state.num_policies - 1 + i for i in range(1 + num_extra)]
        found = zero_counts()
        table, roles = state.payoffs, self.roles
        if self.episodes == 0:
            assert self.tree is not None
            expected = Payoffs.from_expected(
                compute_payoffs(self.tree, self.oracle.tabulate_policies(self.env, state.pool))
            )
            for one in newest:
                table = table.with_cells(expected, mask_newest_profiles(one, roles.num_players, self.capacity))
            return table, found
        pool, casts = self.oracle.split_pool_by_role(self.env, state.pool), self.oracle.policy_sets(self.env)
        for one, key_one in zip(newest, jax.random.split(key, len(newest)), strict=True):
            cells, spent = evaluate_newest_profiles(roles, casts, pool, state.env_params, one, self.episodes, key_one)
            table = table.with_cells(cells, mask_newest_profiles(one, roles.num_players, self.capacity))
            found = sum_counts([found, spent])
        return table, found

    def evaluate_profiles(
        self, pool: Any, env_params: Any, profiles: Int[Array, "cells players"], key: Key
    ) -> tuple[Payoffs, Metrics]:
        """What profiles of a pool are paid, leaves [cells, players], and what was played for it."""
        if self.episodes > 0:
            policies, casts = self.oracle.split_pool_by_role(self.env, pool), self.oracle.policy_sets(self.env)
            returns, steps = evaluate_profiles(self.roles, casts, policies, env_params, profiles, self.episodes, key)
            return Payoffs.from_returns(returns, axis=-1), count_steps_and_episodes(
                steps, len(profiles) * self.episodes
            )
        nodes = self.tree
        assert nodes is not None
        tables = self.oracle.tabulate_policies(self.env, pool)
        each = jax.vmap(lambda profile: compute_payoffs(nodes, [tables[one][None] for one in profile]).ravel())
        return Payoffs.from_expected(each(profiles)), zero_counts()

    @cached_property
    def agent(self) -> JointMixtureAgent:
        """All players as they draw their policies."""
        return JointMixtureAgent(self.roles, self.oracle.policy_sets(self.env))

    def policy(self, state: PSROState, explores: bool = False) -> PolicyFn:
        """How all players act by the mixtures; exploring or not is the oracle's choice."""
        del explores
        return partial(
            self.agent.act, PolicyMixtures(self.oracle.split_pool_by_role(self.env, state.pool), state.weights)
        )

    def inherit(self, state: PSROState, parent: PSROState) -> PSROState:
        """The parent, but with the state's own params of the game."""
        return replace(parent, env_params=state.env_params)
