"""Policy-space response oracles (PSRO): populations of policies that respond to mixtures of each other."""

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
from evorl.leagues.exact import (
    compute_payoffs,
    compute_payoffs_of_policy,
    mix_policies,
    nash_conv,
    nash_conv_to_metrics,
)
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
from evorl.leagues.policy_prefix import compute_on_prefix, pad_policies, take_policies
from evorl.leagues.roles import Roles
from evorl.leagues.solvers import MetaSolver, select_opponent_mixtures, solve_meta_game
from evorl.parts import bind, part, require_constants, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn, State
from evorl.workflows import base

MIN_SUPPORT_WEIGHT = 1e-3  # minimum weight of a policy in the support
NASH_CONV_TOLERANCE = 1e-6  # NashConv up to which there is nothing to gain
MAX_ROUNDING_ERROR = 1e-4  # maximum rounding error of a sum of rewards, relative to the payoff


@struct.dataclass
class PSROState:
    numbers: Numbers
    env_params: PyTree
    pool: PyTree  # stored policies, leaves [capacity, ...]
    num_policies: Int[Array, ""]  # number of policies of each player
    payoffs: Payoffs  # [players, capacity, ..., capacity]
    weights: Float[Array, "players capacity"]  # mixtures that the meta-solver computed
    gains: Float[Array, " players"]  # payoff of the newest policies minus that of the mixtures before them
    nash_conv: Float[Array, ""]  # of the mixtures, 0 if the game has no tree
    oracle_state: State  # state of the oracle after its last answer


@part
class PSRO:
    """Policy-space response oracles (PSRO; Lanctot et al. 2017, arXiv:1711.00832).

    An iteration computes a policy for each player that responds to the mixtures of the other players, the
    payoffs of the new profiles, and new mixtures (the meta-strategy). An opponent is sampled from its mixture
    at the start of an episode. A payoff is the mean over `episodes` episodes or, with episodes=0, computed
    from the game tree. The pool is full after capacity - 1 iterations, and the training ends.

    The mixtures are evaluated. In a game with a tree, `return` is minus their exploitability. In other games,
    it is minus the mean gain of the players by their newest policies over the mixtures before them. env_steps
    counts the steps of the oracle and of the episodes for payoffs.

    A solver of zero-sum games accepts games of any constant sum. If the game has no tree, episodes show
    whether the sum is constant: `init` raises OptionError if the sum of all players' payoffs differs between
    episodes. If `init` is jitted, a training raises it before its first step.

    Args:
        env: Multi-agent game.
        oracle: Oracle, which computes the new policies.
        solver: Meta-solver, which computes the mixtures from the payoffs.
        capacity: Maximum number of policies of each player.
        episodes: Number of episodes for the payoffs of each new profile; 0 to compute them, in a game with a
            tree.

    Raises:
        OptionError: If the oracle or the solver cannot be used in the game, or if episodes=0 and the game has
            no tree.
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
        needs = "computes exact payoffs, which need a game tree; use episodes above 0"
        require(self.episodes > 0 or self.tree is not None, "episodes", 0, needs)
        constant_sum = self.tree is None or self.tree.is_constant_sum
        self.solver.check(self.roles.num_players, constant_sum)

    @cached_property
    def tree(self) -> GameTree | None:
        """Return the game tree, or None if the game has no tree."""
        return find_game_tree(self.env)

    @cached_property
    def roles(self) -> Roles:
        """Return the players of the game, by role."""
        return Roles(self.env)

    @cached_property
    def meta_solver(self) -> MetaSolver:
        """Return the meta-solver; for AutoSolver, the one that it selects if the kind of game is known.

        The kind of a two-player game without a tree is not known in advance.
        """
        players, tree = self.roles.num_players, self.tree
        if not isinstance(self.solver, AutoSolver) or (tree is None and players == 2):
            return self.solver
        return self.solver.select_solver(players, tree is not None and tree.is_constant_sum)

    @property
    def max_iterations(self) -> int:
        """Return the number of iterations after which the pool is full."""
        return self.capacity - 1

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of environments of a training of the oracle, which can be distributed."""
        return base.parallel_axes(self.oracle)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        key_first, key_pay = jax.random.split(key)
        state = self.init_without_payoffs(key_first, numbers, env_params)
        return self.check_accepted(replace(state, payoffs=self.update_payoffs(state, key_pay)[0]))

    def init_without_payoffs(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> PSROState:
        """Return the initial state, in which no payoffs are known yet.

        Args:
            key: Random key.
            numbers: Hyperparameters, nested by field name; None for those of the components.
            env_params: Environment parameters; None for the default parameters of the game.
        """
        numbers = resolve_numbers(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
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
        """Add the policies of an oracle to the pool; if the pool is full, they replace the last ones.

        Args:
            state: State of the workflow.
            answers: Outputs of the oracle.

        Returns:
            The new state.
        """
        place = jnp.minimum(state.num_policies, self.max_iterations)
        pool = tree.set_row(state.pool, place, answers.policies)
        return replace(state, pool=pool, num_policies=place + 1, oracle_state=answers.oracle_state)

    def update_meta_strategy(self, state: PSROState, new: PSROState, spent: Metrics) -> tuple[PSROState, Metrics]:
        """Compute new mixtures from the payoffs, and the gains of the newest policies.

        Args:
            state: State before the newest policies, which responded to its mixtures.
            new: State with the newest policies and their payoffs.
            spent: Env steps, episodes and gradient steps of the iteration so far.

        Returns:
            The new state, and the metrics of the iteration.
        """
        solver = bind(self, new.numbers).meta_solver
        weights, gap = solve_meta_game(solver, new.payoffs.mean, self.valid_policies(new))
        new = replace(new, weights=weights, gains=self._compute_gains(state.weights, new))
        new = replace(new, nash_conv=self.compute_nash_conv(new))
        found = {
            "gap": gap,
            "gain": new.gains.mean(),
            "policies": new.num_policies,
            "support": (weights > MIN_SUPPORT_WEIGHT).sum(1).mean(),
        }
        if self.tree is not None:
            left = state.nash_conv
            found["reached"] = jnp.where(
                left > NASH_CONV_TOLERANCE, new.gains.sum() / jnp.where(left > NASH_CONV_TOLERANCE, left, 1), 1.0
            )
        return new, spent | {"episodes": spent["episodes"] + 1} | found | self.mixture_metrics(new)

    def _compute_gains(self, weights: Float[Array, "players capacity"], new: PSROState) -> Float[Array, " players"]:
        """Return the payoff of the newest policy of each player minus that of its mixture, against mixtures."""

        def compute(size: int) -> Float[Array, " players"]:
            table = take_policies(new.payoffs.mean, size, self.roles.num_players)
            each = compute_deviation_payoffs(table, weights[:, :size])
            return each[:, new.num_policies - 1] - (each * weights[:, :size]).sum(1)

        return compute_on_prefix(self.valid_policies(new), compute)

    def evaluate(self, state: PSROState, key: Key) -> Metrics:
        del key
        return base.as_evaluation(self.mixture_metrics(state))

    def mixture_metrics(self, state: PSROState) -> Metrics:
        """Return the metrics of the mixtures: "return"; with a game tree, "nash_conv" and "exploitability", too.

        Args:
            state: State of the workflow.
        """
        if self.tree is None:
            # no gain is known before the first iteration
            return {"return": jnp.where(state.num_policies > 1, -jnp.maximum(state.gains, 0).mean(), jnp.nan)}
        return nash_conv_to_metrics(state.nash_conv, self.tree.players)

    def compute_nash_conv(self, state: PSROState) -> Float[Array, ""]:
        """Return NashConv of the mixtures; 0 if the game has no tree.

        Args:
            state: State of the workflow.
        """
        return jnp.float32(0) if self.tree is None else nash_conv(self.tree, self.mixture(state))

    def mixture(self, state: PSROState) -> Float[Array, "sets actions"]:
        """Return the policy that is equivalent to the mixtures, shape [sets, actions]; the game must have a tree.

        Args:
            state: State of the workflow.
        """
        nodes = self.tree
        assert nodes is not None

        def mix(size: int) -> Float[Array, "sets actions"]:
            policies = self.oracle.tabulate_policies(self.env, tree.index(state.pool, slice(size)))
            return mix_policies(nodes, policies, state.weights[:, :size])

        return compute_on_prefix(state.weights != 0, mix)

    def target_mixtures(self, state: PSROState) -> Float[Array, "players capacity"]:
        """Return the mixtures to which the next policies respond, shape [players, capacity].

        Args:
            state: State of the workflow.
        """
        return select_opponent_mixtures(self.meta_solver, state.payoffs.mean, self.valid_policies(state), state.weights)

    def valid_policies(self, state: PSROState) -> Bool[Array, "players capacity"]:
        """Return a mask of the filled places of the pool, shape [players, capacity].

        Args:
            state: State of the workflow.
        """
        return jnp.broadcast_to(jnp.arange(self.capacity) < state.num_policies, (self.roles.num_players, self.capacity))

    def check_accepted(self, state: PSROState) -> PSROState:
        """Return the state if a training can continue from it. A traced state is not checked.

        Args:
            state: State of the workflow.

        Raises:
            OptionError: If there is a `failure_reason`.
        """
        why = None if isinstance(state.num_policies, Tracer) else self.failure_reason(state)
        if why is not None:
            raise OptionError(why)
        return state

    def failure_reason(self, state: PSROState) -> str | None:
        """Return a message about a payoff that is not finite or a game that the solver cannot solve; else None."""
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
        """Return whether the players' payoffs had the same sum in all episodes so far. Runs on the host.

        Args:
            state: State of the workflow.
        """
        table, there = state.payoffs, self.valid_policies(state)
        lost = min(float(jnp.finfo(jnp.float32).eps) * self.env.max_episode_steps, MAX_ROUNDING_ERROR)
        allowed = CONSTANT_SUM_TOLERANCE * jnp.sqrt(table.variance.max(0)) + lost * jnp.abs(table.mean).max()
        each = jnp.where(compute_profile_mask(there), jnp.sqrt(table.sum_variance[0]) <= allowed, True)
        return bool(each.all() & is_constant_sum(table.mean, there))

    def update_payoffs(self, state: PSROState, key: Key, num_extra: int = 0) -> tuple[Payoffs, Metrics]:
        """Compute the payoffs of all profiles that contain the newest policies.

        Args:
            state: State of the workflow.
            key: Random key of the episodes.
            num_extra: Number of policies after the newest ones whose profiles are filled, too.

        Returns:
            The payoff table, and the counts of env steps and episodes.
        """
        newest = [state.num_policies - 1 + i for i in range(1 + num_extra)]
        found = zero_counts()
        table, roles = state.payoffs, self.roles
        if self.episodes == 0:
            for one in newest:
                table = self._compute_exact_payoffs(table, state.pool, one)
            return table, found
        pool, policy_sets = self.oracle.split_pool_by_role(self.env, state.pool), self.oracle.policy_sets(self.env)
        for one, key_one in zip(newest, jax.random.split(key, len(newest)), strict=True):
            cells, spent = evaluate_newest_profiles(
                roles, policy_sets, pool, state.env_params, one, self.episodes, key_one
            )
            table = table.with_cells(cells, mask_newest_profiles(one, roles.num_players, self.capacity))
            found = sum_counts([found, spent])
        return table, found

    def _compute_exact_payoffs(self, table: Payoffs, pool: Any, newest: Int[Array, ""]) -> Payoffs:
        """Return the table with the exact payoffs of all profiles with the newest policy and no later one."""
        nodes, capacity = self.tree, self.capacity
        assert nodes is not None

        def compute(size: int) -> list[Float[Array, "players ..."]]:
            policies = self.oracle.tabulate_policies(self.env, tree.index(pool, slice(size)))
            return [pad_policies(x, capacity) for x in compute_payoffs_of_policy(nodes, policies, newest)]

        filled = jnp.arange(capacity) <= newest
        for player, mean in enumerate(compute_on_prefix(filled, compute)):
            table = table.with_policy(player, newest, Payoffs.from_expected(mean), filled)
        return table

    def evaluate_profiles(
        self, pool: Any, env_params: Any, profiles: Int[Array, "cells players"], key: Key
    ) -> tuple[Payoffs, Metrics]:
        """Compute the payoffs of given profiles of a pool.

        Args:
            pool: Policies as the pool stores them, leaves [capacity, ...].
            env_params: Environment parameters of the game.
            profiles: Index of each player's policy, shape [cells, players].
            key: Random key of the episodes.

        Returns:
            The payoffs, leaves [cells, players], and the counts of env steps and episodes.
        """
        if self.episodes > 0:
            policies, policy_sets = self.oracle.split_pool_by_role(self.env, pool), self.oracle.policy_sets(self.env)
            returns, steps = evaluate_profiles(
                self.roles, policy_sets, policies, env_params, profiles, self.episodes, key
            )
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
        """Return the actor for all players, which samples a policy of each player for an episode."""
        return JointMixtureAgent(self.roles, self.oracle.policy_sets(self.env))

    def policy(self, state: PSROState, explores: bool = False) -> PolicyFn:
        """Return the policy by which all players act with their mixtures; `explores` is ignored, the oracle decides."""
        del explores
        return partial(
            self.agent.act, PolicyMixtures(self.oracle.split_pool_by_role(self.env, state.pool), state.weights)
        )

    def inherit(self, state: PSROState, parent: PSROState) -> PSROState:
        """Return the state of the parent, with the env_params of the inheriting state."""
        return replace(parent, env_params=state.env_params)
