"""A league: agents that learn at once from games with each other and with their past, and some that exploit them."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl import hyperparameters, tree
from evorl.agents.ppo import PPOHyperparams
from evorl.envs.games.tree import GameTree
from evorl.errors import OptionError
from evorl.hyperparameters import as_state, default
from evorl.leagues import matchmaking
from evorl.leagues.acting import Acting
from evorl.leagues.against import Against, Match
from evorl.leagues.cohort import Cohort, Mixtures
from evorl.leagues.exact import judged, mixture, nash_conv, payoffs
from evorl.leagues.learned import in_env, of_a_player
from evorl.leagues.matchmaking import LEAGUE_EXPLOITER, MAIN_EXPLOITER, MatchHyperparams, Record, Roster
from evorl.leagues.nash import Nash
from evorl.leagues.oracles import SPENT, tree_of
from evorl.leagues.roles import Roles
from evorl.leagues.seated import Seated, plain, told
from evorl.leagues.tables import tabulated
from evorl.types import Acts, Env, Key, Metrics, SlotPolicy, State
from evorl.workflows import base, members
from evorl.workflows.base import as_evaluation


@struct.dataclass
class LeagueHyperparams:
    """Those of the learners, and of who meets whom."""

    training: Any = default(PPOHyperparams)
    matches: Any = default(MatchHyperparams)


@struct.dataclass
class LeagueState:
    hyperparams: LeagueHyperparams
    env_params: Any
    learners: Any  # their states, leaves [learners, ...]
    pool: Any  # what is kept of past policies, leaves [past, ...]
    taken: Any  # [learners] int32, how many of each are there
    newest: Any  # [learners] int32, where in the pool the last one is
    since: Any  # [learners], environment steps since then
    record: Record


@dataclass(frozen=True)
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
    workflow: Acts = field(metadata={"env": of_a_player})
    roster: Roster = field(default_factory=Roster)
    explores: bool = True

    def __post_init__(self) -> None:
        if len(self.roles.roles) > 1:
            apart = ", ".join(role.name for role in self.roles.roles)
            raise OptionError(f"env: a league's policies play every seat, and spaces of {apart} differ; agent=psro")
        self.inner  # noqa: B018  which raises

    @cached_property
    def tree(self) -> GameTree | None:
        """That of the game, where it has one."""
        return tree_of(self.env)

    @cached_property
    def roles(self) -> Roles:
        """The players of the game, all of one role."""
        return Roles(self.env)

    @cached_property
    def acting(self) -> Acting:
        """How all policies act."""
        alone = in_env(self.workflow, Against(self.env, self.role))
        return Acting(alone, as_state(self.hyperparams().training), self.explores)

    @cached_property
    def inner(self) -> Acts:
        """The workflow of a learner, in the game as it plays it."""
        against = Against(self.env, self.role, {self.role: self.acting})
        return in_env(self.workflow, Seated(against, self.roster.policies))

    @property
    def role(self) -> str:
        """The name of the one role."""
        return self.roles.roles[0].name

    def hyperparams(self) -> LeagueHyperparams:
        return LeagueHyperparams(hyperparameters.of(self.workflow))

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """The least and the most that an iteration of all learners takes, where their workflow says so."""
        return base.work(self.inner, self.roster.learners)

    @property
    def first_steps(self) -> float:
        """The most env steps that the first iteration of all learners takes."""
        return self.roster.learners * base.most_steps(self.inner)[0]

    def init(self, key: Key, hyperparams: LeagueHyperparams, env_params: Any = None) -> LeagueState:
        hyperparams, roster = as_state(hyperparams), self.roster
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        learners = self.begun(key, hyperparams, env_params)
        kept = jax.vmap(self.acting.taken)(learners)
        rows = jnp.arange(roster.learners)
        pool = tree.zeros(jax.tree.map(lambda x: jnp.broadcast_to(x[:1], (roster.past, *x.shape[1:])), kept))
        pool = jax.tree.map(lambda x, new: x.at[rows * roster.capacity].set(new), pool, kept)
        taken = (rows < roster.main).astype(jnp.int32)
        newest = rows * roster.capacity
        since = jnp.zeros(roster.learners)
        return LeagueState(hyperparams, env_params, learners, pool, taken, newest, since, Record.empty(roster))

    def begun(self, key: Key, hyperparams: LeagueHyperparams, env_params: Any) -> State:
        """All learners before they have learned, leaves [learners, ...]."""
        keys = jax.random.split(key, self.roster.learners)
        match = self.inner.env.default_params.replace(game=env_params)
        return jax.vmap(lambda key: bare(self.inner.init(key, hyperparams.training, match)))(keys)

    def step(self, state: LeagueState, key: Key) -> tuple[LeagueState, Metrics]:
        key_train, key_take = jax.random.split(key)
        roster, given = self.roster, state.hyperparams
        past, opponents = roster.filled(state.taken), self.opponents(state)
        weights = matchmaking.weights(roster, past, state.record.won, given.matches)

        def train(learner: State, weights: Array, key: Key) -> tuple[State, Metrics]:
            learner = replace(learner, env_params=self.match(state, opponents, weights), hyperparams=given.training)
            learner, metrics = self.inner.step(learner, key)
            return bare(learner), metrics

        keys = jax.random.split(key_train, roster.learners)
        learners, metrics = jax.vmap(train)(state.learners, weights, keys)
        record = state.record.after(*told(metrics, roster.policies), given.matches.decay)
        since = state.since + metrics["env_steps"]
        new, found = self.taking(replace(state, learners=learners, record=record, since=since), key_take)
        found |= {"won": record.won[0].mean(where=past), "won_least": record.won[0].min(where=past, initial=1)}
        found["policies"] = roster.filled(new.taken).sum()
        spent = {name: metrics[name].sum() for name in SPENT}
        of_main = {name: x[0] for name, x in plain(metrics).items() if name not in SPENT}
        return new, of_main | found | spent

    def taking(self, state: LeagueState, key: Key) -> tuple[LeagueState, Metrics]:
        """With the policies in the pool that are to be taken, and those learners new that begin anew or were lost."""
        key_reset, key_begin = jax.random.split(key)
        roster, given, kinds = self.roster, state.hyperparams, self.roster.kinds
        past, won, rows = roster.filled(state.taken), state.record.won, jnp.arange(roster.learners)
        kept = jax.vmap(self.acting.taken)(state.learners)
        sound = members.has_no_nan(state.learners) & tree.finite_rows(kept)
        ready = sound & matchmaking.ready(roster, past, won, state.since, given.matches)

        own = won[:, : roster.past].reshape(roster.learners, roster.learners, roster.capacity)[rows, rows]
        place = rows * roster.capacity + jnp.where(state.taken < roster.capacity, state.taken, own.argmax(1))
        rows_new = tree.where(ready, kept, tree.index(state.pool, place))
        pool = jax.tree.map(lambda x, new: x.at[place].set(new), state.pool, rows_new)
        newest = jnp.where(ready, place, state.newest)
        count = jnp.minimum(state.taken + ready, roster.capacity)

        draws = jax.random.bernoulli(key_reset, given.matches.reset, (roster.learners,))
        resets = ready & ((kinds == MAIN_EXPLOITER) | ((kinds == LEAGUE_EXPLOITER) & draws))

        def anew() -> State:
            fresh = self.begun(key_begin, given, state.env_params)
            back = jax.vmap(self.acting.given)(fresh, tree.index(pool, newest))
            fresh = tree.where(~sound & (count > 0), back, fresh)
            return tree.where(resets | ~sound, fresh, state.learners)

        begins = resets | ~sound
        learners = jax.lax.cond(tree.any_unbatched(begins), anew, lambda: state.learners)
        changed_places = jnp.zeros(roster.policies, bool).at[place].set(ready).at[roster.past + rows].set(begins)
        record = state.record.without(begins, changed_places)
        since = jnp.where(ready | begins, 0.0, state.since)
        new = replace(state, learners=learners, pool=pool, taken=count, newest=newest, since=since, record=record)
        return new, {"snapshots": ready.sum(), "resets": resets.sum(), "lost": (~sound).sum()}

    def evaluate(self, state: LeagueState, key: Key) -> Metrics:
        if self.tree is None:
            past = self.roster.filled(state.taken)
            match = self.match(state, self.opponents(state), past / past.sum())
            main = replace(tree.index(state.learners, 0), env_params=match, hyperparams=state.hyperparams.training)
            return plain(self.inner.evaluate(main, key))
        main = self.acting.taken(tree.index(state.learners, 0))
        per = judged(self.tree, self.tables(tree.broadcast(main, 1))[0])
        constant_sum = self.tree.players == 2 and self.tree.is_constant_sum
        return as_evaluation(per) | ({"league_exploitability": self.exploited(state)} if constant_sum else {})

    def exploited(self, state: LeagueState) -> Float[Array, ""]:
        """The exploitability of an equilibrium among all policies, past and present, of two with a constant sum."""
        assert self.tree is not None
        tables = self.tables(self.policies(state))
        there = jnp.broadcast_to(self.roster.filled(state.taken) | self.roster.now, (2, self.roster.policies))
        weights, _ = Nash()(payoffs(self.tree, tables), there)
        return nash_conv(self.tree, mixture(self.tree, tables, weights)) / 2

    def tables(self, kept: Any) -> Float[Array, "policies sets actions"]:
        """What policies do in each information set of a game with a tree."""
        nodes = self.tree
        assert nodes is not None
        return jax.vmap(lambda one: tabulated(nodes, self.acting.policy(one).probabilities))(kept)

    def policies(self, state: LeagueState) -> Any:
        """Past ones and learners as they are, leaves [policies, ...]."""
        now = jax.vmap(self.acting.taken)(state.learners)
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), state.pool, now)

    def opponents(self, state: LeagueState) -> dict[str, Any]:
        """All policies in all seats, leaves [policies, players, ...]."""
        n = self.roles.num_players
        seats = lambda x: jnp.broadcast_to(x[:, None], (len(x), n, *x.shape[1:]))  # noqa: E731
        return {self.role: jax.tree.map(seats, self.policies(state))}

    def match(self, state: LeagueState, opponents: Any, weights: Float[Array, " policies"]) -> Match:
        """Against opponents of whom each other seat draws one."""
        return Match(state.env_params, jnp.int32(0), opponents, tree.broadcast(weights, self.roles.num_players))

    @cached_property
    def agent(self) -> Cohort:
        """All players, who draw the one policy there is."""
        return Cohort(self.roles, {self.role: self.acting})

    def policy(self, state: LeagueState, explores: bool = False) -> SlotPolicy:
        """How the first main agent plays all seats; exploring or not is an option."""
        del explores
        n = self.roles.num_players
        kept = tree.broadcast(self.acting.taken(tree.index(state.learners, 0)), 1, n)
        return partial(self.agent.act, Mixtures({self.role: kept}, jnp.ones((n, 1))))

    def inherit(self, state: LeagueState, parent: LeagueState) -> LeagueState:
        """The parent, but with the state's own params of the game."""
        return replace(parent, env_params=state.env_params)


def bare(learner: State) -> State:
    """A learner without what all have in common."""
    return replace(learner, env_params=(), hyperparams=())
