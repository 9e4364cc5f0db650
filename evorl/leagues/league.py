"""League: agents that train at the same time against each other, against past policies, and against exploiters."""

from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import tree
from evorl.envs.games.game_tree import GameTree
from evorl.errors import OptionError
from evorl.leagues import matchmaking
from evorl.leagues.exact import compute_payoffs, exploitability_metrics, mix_policies, nash_conv
from evorl.leagues.joint_mixture_agent import JointMixtureAgent, PolicyMixtures
from evorl.leagues.league_game import LeagueGame, drop_match_metrics, sum_match_results
from evorl.leagues.matchmaking import LEAGUE_EXPLOITER, MAIN_EXPLOITER, Matchmaking, MatchRecord, Roster
from evorl.leagues.nash import Nash
from evorl.leagues.oracles import COUNT_NAMES, find_game_tree
from evorl.leagues.policy_sets import WorkflowPolicySet
from evorl.leagues.roles import Roles
from evorl.leagues.single_player_game import MatchParams, SinglePlayerGame
from evorl.leagues.tabular_policies import tabulate_policy
from evorl.leagues.training_oracle import make_single_player_env, with_env
from evorl.parts import bind, part, require_constants, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn, PolicyWorkflow, State
from evorl.workflows import base, members
from evorl.workflows.base import as_evaluation


@struct.dataclass
class LeagueState:
    numbers: Numbers
    env_params: PyTree
    learners: State  # states of the learners, leaves [learners, ...]
    pool: dict[str, Array]  # past policies, leaves [past, ...]
    num_snapshots: Int[Array, " learners"]  # number of past policies of each learner
    latest_snapshot: Int[Array, " learners"]  # index in the pool of each learner's latest snapshot
    steps_since_snapshot: Float[Array, " learners"]  # env steps since the latest snapshot or restart
    record: MatchRecord


@part
class League:
    """League of main agents, main exploiters and league exploiters (Vinyals et al. 2019).

    doi:10.1038/s41586-019-1724-z. In each iteration of the league, every learner runs one iteration of
    `workflow`. In each episode, a learner plays as a randomly sampled player of the game (a seat), against
    opponents that are sampled for the other seats and stay until the episode ends:

    - Main agents meet the current main agents, all past policies, and the past policies to which they lose.
    - Main exploiters meet main agents, or past policies of main agents if they win too rarely.
    - League exploiters meet all past policies.

    At times, a snapshot of a learner's policy is added to the pool of past policies. An exploiter may then
    restart from new parameters. The pool starts with the initial policies of the main agents. If the state of
    a learner contains NaN, the learner restarts from its latest snapshot.

    The policy of the league is the first main agent in all seats. In a game with a tree, `return` is minus
    its exploitability. In other games, `return` is the mean return of the first main agent against all past
    policies, each equally likely.

    Args:
        env: Multi-agent game, whose players must all have the same observation and action spaces.
        workflow: Workflow of each learner, in the game as a single player plays it.
        roster: Number of learners of each kind, and size of the pool.
        explore: Whether policies act with exploration, as opponents and in the exact evaluation; otherwise
            they are greedy.
        matches: Probabilities of the opponents, and conditions for snapshots.

    Raises:
        OptionError: If the spaces of the players differ.
    """

    env: Env
    workflow: PolicyWorkflow = field(metadata={"env": make_single_player_env})
    roster: Roster = field(default_factory=Roster)
    explore: bool = True
    matches: Matchmaking = field(default_factory=Matchmaking)

    def __post_init__(self) -> None:
        if len(self.roles.roles) > 1:
            apart = ", ".join(role.name for role in self.roles.roles)
            raise OptionError(
                f"env: the players of a league must have equal spaces, but {apart} differ; use agent=psro"
            )
        require_constants(self, but="workflow")
        self.inner  # noqa: B018  raises if the workflow does not fit the game

    @cached_property
    def tree(self) -> GameTree | None:
        """Return the game tree, or None if the game has no tree."""
        return find_game_tree(self.env)

    @cached_property
    def roles(self) -> Roles:
        """Return the players of the game, which all have the same role."""
        return Roles(self.env)

    @cached_property
    def acting(self) -> WorkflowPolicySet:
        """Return the policy set with which all policies of the league act."""
        alone = with_env(self.workflow, SinglePlayerGame(self.env, self.role))
        return WorkflowPolicySet(alone, self.explore)

    @cached_property
    def inner(self) -> PolicyWorkflow:
        """Return the workflow of a learner, in the game as a player of the league plays it."""
        against = SinglePlayerGame(self.env, self.role, {self.role: self.acting})
        return with_env(self.workflow, LeagueGame(against, self.roster.num_policies))

    @property
    def role(self) -> str:
        """Return the name of the single role."""
        return self.roles.roles[0].name

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of environments of a learner, which can be distributed."""
        return base.parallel_axes(self.inner)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and maximum env steps and gradient steps of an iteration of all learners, by name.

        The result is empty if the workflow of the learners reports no costs.
        """
        return base.total_iteration_cost(self.inner, self.roster.num_learners)

    @property
    def initial_env_steps(self) -> float:
        """Return the maximum number of env steps of the first iteration of all learners."""
        return self.roster.num_learners * base.max_env_steps(self.inner)[0]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> LeagueState:
        numbers, roster = resolve_numbers(self, numbers), self.roster
        env_params = resolve_env_params(self.env, env_params)
        learners = self.init_learners(key, numbers, env_params)
        kept = self._extract_policies(learners, numbers)
        rows = jnp.arange(roster.num_learners)
        pool = tree.zeros_like(jax.tree.map(lambda x: jnp.broadcast_to(x[:1], (roster.num_past, *x.shape[1:])), kept))
        pool = jax.tree.map(lambda x, new: x.at[rows * roster.capacity].set(new), pool, kept)
        taken = (rows < roster.main).astype(jnp.int32)
        newest = rows * roster.capacity
        since = jnp.zeros(roster.num_learners)
        return LeagueState(numbers, env_params, learners, pool, taken, newest, since, MatchRecord.empty(roster))

    def init_learners(self, key: Key, numbers: Numbers, env_params: Any) -> State:
        """Return the initial states of all learners, leaves [learners, ...].

        Args:
            key: Random key.
            numbers: Hyperparameters of the league, nested by field name.
            env_params: Environment parameters of the game.
        """
        keys = jax.random.split(key, self.roster.num_learners)
        match = self.inner.env.default_params.replace(game=env_params)
        return jax.vmap(lambda key: base.drop_shared_fields(self.inner.init(key, numbers.get("workflow", {}), match)))(
            keys
        )

    def _extract_policies(self, learners: State, numbers: Numbers) -> dict[str, Any]:
        """Return what the pool stores of the policies of all learners, leaves [learners, ...].

        Args:
            learners: States of all learners.
            numbers: Hyperparameters of the league, which a policy may read, such as DQN its epsilon.
        """

        def extract(learner: State) -> dict[str, Any]:
            return self.acting.extract_policy(replace(learner, numbers=numbers.get("workflow", {})))

        return jax.vmap(extract)(learners)

    def step(self, state: LeagueState, key: Key) -> tuple[LeagueState, Metrics]:
        key_train, key_take = jax.random.split(key)
        roster, given = self.roster, state.numbers
        matches = bind(self.matches, given["matches"])
        past, opponents = roster.compute_past_mask(state.num_snapshots), self.opponents(state)
        weights = matchmaking.compute_match_weights(roster, past, state.record.estimate(matches.decay), matches)

        def train(learner: State, weights: Array, key: Key) -> tuple[State, Metrics]:
            learner = replace(
                learner, env_params=self.make_match(state, opponents, weights), numbers=given.get("workflow", {})
            )
            learner, metrics = self.inner.step(learner, key)
            return base.drop_shared_fields(learner), metrics

        keys = jax.random.split(key_train, roster.num_learners)
        learners, metrics = jax.vmap(train)(state.learners, weights, keys)
        record = state.record.update(*sum_match_results(metrics, roster.num_policies), matches.decay)
        since = state.steps_since_snapshot + metrics["env_steps"]
        new, found = self.update_pool(
            replace(state, learners=learners, record=record, steps_since_snapshot=since), key_take
        )
        found |= {
            "won": record.win_rate[0].mean(where=past),
            "won_least": record.win_rate[0].min(where=past, initial=1),
        }
        found["policies"] = roster.compute_past_mask(new.num_snapshots).sum()
        spent = {name: metrics[name].sum() for name in COUNT_NAMES}
        of_main = {name: x[0] for name, x in drop_match_metrics(metrics).items() if name not in COUNT_NAMES}
        return new, of_main | found | spent

    def update_pool(self, state: LeagueState, key: Key) -> tuple[LeagueState, Metrics]:
        """Add the snapshots that are due to the pool, and restart learners.

        After its snapshot, a main exploiter restarts from new parameters, and a league exploiter does so with
        probability `matches.reset`. A learner whose state contains NaN, or whose policy is not finite,
        continues from its latest snapshot, or restarts from new parameters if it has none.

        Args:
            state: State of the league.
            key: Random key.

        Returns:
            The new state, and the numbers of snapshots ("snapshots"), of restarts after a snapshot ("resets")
            and of learners with NaN ("lost").
        """
        key_reset, key_begin = jax.random.split(key)
        roster, given, kinds = self.roster, state.numbers, self.roster.learner_kinds
        matches = bind(self.matches, given["matches"])
        past = roster.compute_past_mask(state.num_snapshots)
        kept = self._extract_policies(state.learners, given)
        sound = members.has_no_nan(state.learners) & tree.find_finite_rows(kept)
        ready = sound & matchmaking.find_due_snapshots(roster, past, state.record, state.steps_since_snapshot, matches)

        place = self.find_snapshot_places(state, matches.decay)
        stored = tree.select(ready, kept, tree.index(state.pool, place))
        pool = jax.tree.map(lambda x, new: x.at[place].set(new), state.pool, stored)
        newest = jnp.where(ready, place, state.latest_snapshot)
        count = jnp.minimum(state.num_snapshots + ready, roster.capacity)

        draws = jax.random.bernoulli(key_reset, matches.reset, (roster.num_learners,))
        resets = ready & ((kinds == MAIN_EXPLOITER) | ((kinds == LEAGUE_EXPLOITER) & draws))
        restarts = resets | ~sound

        def restart_learners() -> State:
            fresh = self.init_learners(key_begin, given, state.env_params)
            back = jax.vmap(self.acting.insert_policy)(fresh, tree.index(pool, newest))
            fresh = tree.select(~sound & (count > 0), back, fresh)
            return tree.select(restarts, fresh, state.learners)

        learners = jax.lax.cond(tree.any_unbatched(restarts), restart_learners, lambda: state.learners)
        changed = jnp.zeros(roster.num_policies, bool).at[place].set(ready).at[roster.num_past :].set(restarts)
        record = state.record.forget(restarts, changed)
        since = jnp.where(ready | restarts, 0.0, state.steps_since_snapshot)
        new = replace(
            state,
            learners=learners,
            pool=pool,
            num_snapshots=count,
            latest_snapshot=newest,
            steps_since_snapshot=since,
            record=record,
        )
        return new, {"snapshots": ready.sum(), "resets": resets.sum(), "lost": (~sound).sum()}

    def find_snapshot_places(self, state: LeagueState, decay: Array) -> Int[Array, " learners"]:
        """Return the index in the pool of each learner's next snapshot: a free one, or that of its easiest opponent.

        Args:
            state: State of the league.
            decay: Decay of the record, with which win rates are estimated, [].
        """
        roster, learners = self.roster, jnp.arange(self.roster.num_learners)
        oldest_first = (state.latest_snapshot[:, None] + 1 + jnp.arange(roster.capacity)) % roster.capacity
        own_places = learners[:, None] * roster.capacity + oldest_first
        easiest = jnp.take_along_axis(state.record.estimate(decay), own_places, 1).argmax(1)
        free = learners * roster.capacity + state.num_snapshots
        return jnp.where(state.num_snapshots < roster.capacity, free, own_places[learners, easiest])

    def evaluate(self, state: LeagueState, key: Key) -> Metrics:
        if self.tree is None:
            past = self.roster.compute_past_mask(state.num_snapshots)
            match = self.make_match(state, self.opponents(state), past / past.sum())
            main = replace(tree.index(state.learners, 0), env_params=match, numbers=state.numbers.get("workflow", {}))
            return drop_match_metrics(self.inner.evaluate(main, key))
        main = tree.index(self._extract_policies(state.learners, state.numbers), 0)
        per = exploitability_metrics(self.tree, self.policy_tables(tree.broadcast(main, 1))[0])
        constant_sum = self.tree.players == 2 and self.tree.is_constant_sum
        return as_evaluation(per) | (
            {"league_exploitability": self.compute_league_exploitability(state)} if constant_sum else {}
        )

    def compute_league_exploitability(self, state: LeagueState) -> Float[Array, ""]:
        """Return the exploitability of a Nash equilibrium among all past and current policies.

        The game must have a tree, two players and a constant sum.

        Args:
            state: State of the league.
        """
        assert self.tree is not None
        tables = self.policy_tables(self.policies(state))
        there = jnp.broadcast_to(
            self.roster.compute_past_mask(state.num_snapshots) | self.roster.current_mask, (2, self.roster.num_policies)
        )
        weights, _ = Nash()(compute_payoffs(self.tree, tables), there)
        return nash_conv(self.tree, mix_policies(self.tree, tables, weights)) / 2

    def policy_tables(self, kept: Any) -> Float[Array, "policies sets actions"]:
        """Return the action probabilities of policies in each information set of a game with a tree.

        Args:
            kept: Policies as the pool stores them, leaves [policies, ...].

        Returns:
            Probabilities, shape [policies, sets, actions].
        """
        nodes = self.tree
        assert nodes is not None
        return jax.vmap(lambda one: tabulate_policy(nodes, self.acting.policy(one).action_probabilities))(kept)

    def policies(self, state: LeagueState) -> Any:
        """Return all past policies, then the current policies of the learners, leaves [policies, ...].

        Args:
            state: State of the league.
        """
        now = self._extract_policies(state.learners, state.numbers)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.pool, now)

    def opponents(self, state: LeagueState) -> dict[str, Any]:
        """Return all policies for each seat, by role, leaves [policies, players, ...].

        Args:
            state: State of the league.
        """
        n = self.roles.num_players
        seats = lambda x: jnp.broadcast_to(x[:, None], (len(x), n, *x.shape[1:]))  # noqa: E731
        return {self.role: jax.tree.map(seats, self.policies(state))}

    def make_match(self, state: LeagueState, opponents: Any, weights: Float[Array, " policies"]) -> MatchParams:
        """Return the environment parameters of a match in which an opponent is sampled for each other seat.

        Args:
            state: State of the league.
            opponents: Policies for each seat, as `opponents` returns them.
            weights: Probability of each policy as an opponent, shape [policies].
        """
        return MatchParams(state.env_params, jnp.int32(0), opponents, tree.broadcast(weights, self.roles.num_players))

    @cached_property
    def agent(self) -> JointMixtureAgent:
        """Return the actor for all players; its pool consists of a single policy."""
        return JointMixtureAgent(self.roles, {self.role: self.acting})

    def policy(self, state: LeagueState, explores: bool = False) -> PolicyFn:
        """Return the policy of the first main agent in all seats. The argument `explores` is ignored."""
        del explores
        n = self.roles.num_players
        kept = tree.broadcast(tree.index(self._extract_policies(state.learners, state.numbers), 0), 1, n)
        return partial(self.agent.act, PolicyMixtures({self.role: kept}, jnp.ones((n, 1))))

    def inherit(self, state: LeagueState, parent: LeagueState) -> LeagueState:
        """Return the state of the parent, with the env_params of the inheriting state."""
        return replace(parent, env_params=state.env_params)
