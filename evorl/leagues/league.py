"""A league: agents that learn at once from games with each other and with their past, and some that exploit them."""

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
from evorl.tree import as_arrays
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn, PolicyWorkflow, State
from evorl.workflows import base, members
from evorl.workflows.base import as_evaluation


@struct.dataclass
class LeagueState:
    numbers: Numbers
    env_params: PyTree
    learners: State  # their states, leaves [learners, ...]
    pool: dict[str, Array]  # what is kept of past policies, leaves [past, ...]
    num_snapshots: Int[Array, " learners"]  # how many of each are there
    latest_snapshot: Int[Array, " learners"]  # where in the pool the last one is
    steps_since_snapshot: Float[Array, " learners"]  # environment steps since then
    record: MatchRecord


@part
class League:
    """An iteration is one of each learner, who all play in the seats that are drawn, against opponents that are drawn.

    Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z. An opponent stays for an episode. Main agents meet themselves,
    all past policies, and those that they lose to; main exploiters meet main agents; league exploiters all past ones.
    When a policy is taken into the pool its learner, if it is an exploiter, may begin anew. The pool begins with the
    main agents' first policies. A learner whose numbers are lost goes on from the last that was taken. What is
    evaluated is the first main agent, which then plays all seats: `return` is minus its exploitability in a game with a
    tree, else its mean against all past policies.
    """

    env: Env
    workflow: PolicyWorkflow = field(metadata={"env": make_single_player_env})
    roster: Roster = field(default_factory=Roster)
    explores: bool = True
    matches: Matchmaking = field(default_factory=Matchmaking)

    def __post_init__(self) -> None:
        if len(self.roles.roles) > 1:
            apart = ", ".join(role.name for role in self.roles.roles)
            raise OptionError(f"env: a league's policies play every seat, and spaces of {apart} differ; agent=psro")
        require_constants(self, but="workflow")
        self.inner  # noqa: B018  which raises

    @cached_property
    def tree(self) -> GameTree | None:
        """That of the game, where it has one."""
        return find_game_tree(self.env)

    @cached_property
    def roles(self) -> Roles:
        """The players of the game, all of one role."""
        return Roles(self.env)

    @cached_property
    def acting(self) -> WorkflowPolicySet:
        """How all policies act."""
        alone = with_env(self.workflow, SinglePlayerGame(self.env, self.role))
        return WorkflowPolicySet(alone, self.explores)

    @cached_property
    def inner(self) -> PolicyWorkflow:
        """The workflow of a learner, in the game as it plays it."""
        against = SinglePlayerGame(self.env, self.role, {self.role: self.acting})
        return with_env(self.workflow, LeagueGame(against, self.roster.num_policies))

    @property
    def role(self) -> str:
        """The name of the one role."""
        return self.roles.roles[0].name

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration of all learners takes, where their workflow says so."""
        return base.total_iteration_cost(self.inner, self.roster.num_learners)

    @property
    def initial_env_steps(self) -> float:
        """The most env steps that the first iteration of all learners takes."""
        return self.roster.num_learners * base.max_env_steps(self.inner)[0]

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> LeagueState:
        numbers, roster = resolve_numbers(self, numbers), self.roster
        env_params = as_arrays(self.env.default_params if env_params is None else env_params)
        learners = self.init_learners(key, numbers, env_params)
        kept = jax.vmap(self.acting.extract_policy)(learners)
        rows = jnp.arange(roster.num_learners)
        pool = tree.zeros_like(jax.tree.map(lambda x: jnp.broadcast_to(x[:1], (roster.num_past, *x.shape[1:])), kept))
        pool = jax.tree.map(lambda x, new: x.at[rows * roster.capacity].set(new), pool, kept)
        taken = (rows < roster.main).astype(jnp.int32)
        newest = rows * roster.capacity
        since = jnp.zeros(roster.num_learners)
        return LeagueState(numbers, env_params, learners, pool, taken, newest, since, MatchRecord.empty(roster))

    def init_learners(self, key: Key, numbers: Numbers, env_params: Any) -> State:
        """All learners before they have learned, leaves [learners, ...]."""
        keys = jax.random.split(key, self.roster.num_learners)
        match = self.inner.env.default_params.replace(game=env_params)
        return jax.vmap(lambda key: base.drop_shared_fields(self.inner.init(key, numbers.get("workflow", {}), match)))(
            keys
        )

    def step(self, state: LeagueState, key: Key) -> tuple[LeagueState, Metrics]:
        key_train, key_take = jax.random.split(key)
        roster, given = self.roster, state.numbers
        matches = bind(self.matches, given["matches"])
        past, opponents = roster.compute_past_mask(state.num_snapshots), self.opponents(state)
        weights = matchmaking.compute_match_weights(roster, past, state.record.win_rate, matches)

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
        """With the policies in the pool that are to be taken, and those learners new that begin anew or were lost."""
        key_reset, key_begin = jax.random.split(key)
        roster, given, kinds = self.roster, state.numbers, self.roster.learner_kinds
        matches = bind(self.matches, given["matches"])
        past, won, rows = (
            roster.compute_past_mask(state.num_snapshots),
            state.record.win_rate,
            jnp.arange(roster.num_learners),
        )
        kept = jax.vmap(self.acting.extract_policy)(state.learners)
        sound = members.has_no_nan(state.learners) & tree.find_finite_rows(kept)
        ready = sound & matchmaking.find_due_snapshots(roster, past, won, state.steps_since_snapshot, matches)

        own = won[:, : roster.num_past].reshape(roster.num_learners, roster.num_learners, roster.capacity)[rows, rows]
        place = rows * roster.capacity + jnp.where(
            state.num_snapshots < roster.capacity, state.num_snapshots, own.argmax(1)
        )
        rows_new = tree.select(ready, kept, tree.index(state.pool, place))
        pool = jax.tree.map(lambda x, new: x.at[place].set(new), state.pool, rows_new)
        newest = jnp.where(ready, place, state.latest_snapshot)
        count = jnp.minimum(state.num_snapshots + ready, roster.capacity)

        draws = jax.random.bernoulli(key_reset, matches.reset, (roster.num_learners,))
        resets = ready & ((kinds == MAIN_EXPLOITER) | ((kinds == LEAGUE_EXPLOITER) & draws))

        def reset_learners() -> State:
            fresh = self.init_learners(key_begin, given, state.env_params)
            back = jax.vmap(self.acting.insert_policy)(fresh, tree.index(pool, newest))
            fresh = tree.select(~sound & (count > 0), back, fresh)
            return tree.select(resets | ~sound, fresh, state.learners)

        begins = resets | ~sound
        learners = jax.lax.cond(tree.any_unbatched(begins), reset_learners, lambda: state.learners)
        changed_places = (
            jnp.zeros(roster.num_policies, bool).at[place].set(ready).at[roster.num_past + rows].set(begins)
        )
        record = state.record.forget(begins, changed_places)
        since = jnp.where(ready | begins, 0.0, state.steps_since_snapshot)
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

    def evaluate(self, state: LeagueState, key: Key) -> Metrics:
        if self.tree is None:
            past = self.roster.compute_past_mask(state.num_snapshots)
            match = self.make_match(state, self.opponents(state), past / past.sum())
            main = replace(tree.index(state.learners, 0), env_params=match, numbers=state.numbers.get("workflow", {}))
            return drop_match_metrics(self.inner.evaluate(main, key))
        main = self.acting.extract_policy(tree.index(state.learners, 0))
        per = exploitability_metrics(self.tree, self.policy_tables(tree.broadcast(main, 1))[0])
        constant_sum = self.tree.players == 2 and self.tree.is_constant_sum
        return as_evaluation(per) | (
            {"league_exploitability": self.compute_league_exploitability(state)} if constant_sum else {}
        )

    def compute_league_exploitability(self, state: LeagueState) -> Float[Array, ""]:
        """The exploitability of an equilibrium among all policies, past and present, of two with a constant sum."""
        assert self.tree is not None
        tables = self.policy_tables(self.policies(state))
        there = jnp.broadcast_to(
            self.roster.compute_past_mask(state.num_snapshots) | self.roster.current_mask, (2, self.roster.num_policies)
        )
        weights, _ = Nash()(compute_payoffs(self.tree, tables), there)
        return nash_conv(self.tree, mix_policies(self.tree, tables, weights)) / 2

    def policy_tables(self, kept: Any) -> Float[Array, "policies sets actions"]:
        """What policies do in each information set of a game with a tree."""
        nodes = self.tree
        assert nodes is not None
        return jax.vmap(lambda one: tabulate_policy(nodes, self.acting.policy(one).action_probabilities))(kept)

    def policies(self, state: LeagueState) -> Any:
        """Past ones and learners as they are, leaves [policies, ...]."""
        now = jax.vmap(self.acting.extract_policy)(state.learners)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.pool, now)

    def opponents(self, state: LeagueState) -> dict[str, Any]:
        """All policies in all seats, leaves [policies, players, ...]."""
        n = self.roles.num_players
        seats = lambda x: jnp.broadcast_to(x[:, None], (len(x), n, *x.shape[1:]))  # noqa: E731
        return {self.role: jax.tree.map(seats, self.policies(state))}

    def make_match(self, state: LeagueState, opponents: Any, weights: Float[Array, " policies"]) -> MatchParams:
        """Against opponents of whom each other seat draws one."""
        return MatchParams(state.env_params, jnp.int32(0), opponents, tree.broadcast(weights, self.roles.num_players))

    @cached_property
    def agent(self) -> JointMixtureAgent:
        """All players, who draw the one policy there is."""
        return JointMixtureAgent(self.roles, {self.role: self.acting})

    def policy(self, state: LeagueState, explores: bool = False) -> PolicyFn:
        """How the first main agent plays all seats; exploring or not is an option."""
        del explores
        n = self.roles.num_players
        kept = tree.broadcast(self.acting.extract_policy(tree.index(state.learners, 0)), 1, n)
        return partial(self.agent.act, PolicyMixtures({self.role: kept}, jnp.ones((n, 1))))

    def inherit(self, state: LeagueState, parent: LeagueState) -> LeagueState:
        """The parent, but with the state's own params of the game."""
        return replace(parent, env_params=state.env_params)
