"""Oracle that responds to mixtures of policies by training."""

import dataclasses
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import tree
from evorl.errors import require_int
from evorl.leagues.oracles import COUNT_NAMES, OracleInputs, OracleOutputs, find_game_tree, sum_counts, zero_counts
from evorl.leagues.policy_sets import WorkflowPolicySet
from evorl.leagues.roles import Role, Roles
from evorl.leagues.single_player_game import MatchParams, SinglePlayerGame
from evorl.leagues.tabular_policies import tabulate_policy
from evorl.parts import Number, get_skeleton, number, part, read_numbers
from evorl.types import Env, Key, Metrics, PolicyWorkflow, State
from evorl.workflows import base


def make_single_player_env(env: Env) -> Env:
    """Return a game as its first player plays it, for training; raise OptionError if it is not a multi-agent game."""
    return SinglePlayerGame(env, Roles(env).players[0])


@struct.dataclass
class OracleTrainingState:
    """State of a training while it runs."""

    state: State
    best_return: Float[Array, ""]  # highest return of an iteration so far
    iterations_since_best: Float[Array, ""]
    counts: Metrics


@part
class TrainingOracle:
    """Oracle that trains a policy of each player with any workflow, in the game against the others' mixtures.

    All restarts are trained at the same time, and the one with the highest evaluation return is kept.

    Args:
        workflow: Workflow of a training, in the game as a single player plays it.
        restarts: Number of trainings of each player.
        warm: Whether a training continues from the state of the last one; otherwise it starts from new
            parameters.
        explore: Whether policies in the pool act with exploration; otherwise they are greedy.
    """

    workflow: PolicyWorkflow = field(metadata={"env": make_single_player_env})
    restarts: int = 1
    warm: bool = False
    explore: bool = True
    iterations: Number = number(32.0, 1, about="maximum number of iterations of a training")
    patience: Number = number(
        float("inf"), 1, about="number of iterations without a higher return after which a training ends"
    )

    def __post_init__(self) -> None:
        require_int("restarts", self.restarts)
        base.require_env_steps(self.workflow, "workflow")

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of environments of the workflow, which can be distributed."""
        return base.parallel_axes(self.workflow)

    def check(self, game: Env) -> None:
        """Raise OptionError if the workflow cannot be used in the game."""
        for role in Roles(game).roles:
            self.build_role_workflow(game, role)

    def build_role_workflow(self, game: Env, role: Role, policy_sets: Any = None) -> PolicyWorkflow:
        """Return the workflow of the players of a role.

        Args:
            game: Multi-agent game.
            role: Role of the players.
            policy_sets: Policy sets of the opponents by role; None for opponents that act at random.
        """
        env = SinglePlayerGame(game, role.name, policy_sets or {})
        return with_env(self.workflow, env)

    def policy_sets(self, game: Env) -> dict[str, WorkflowPolicySet]:
        """Return the policy set of each role, which acts by what its workflow's policy reads."""
        return _build_policy_sets(get_skeleton(self), game)

    def init_policies(self, game: Env, key: Key) -> OracleOutputs:
        """Return the policies of the first restarts, before any training."""
        policies, oracle_state, policy_sets = {}, {}, self.policy_sets(game)
        for i, role in enumerate(Roles(game).roles):
            workflow = self.build_role_workflow(game, role, policy_sets)
            keys = jax.random.split(jax.random.fold_in(key, i), (len(role.players), self.restarts))
            states = jax.vmap(jax.vmap(workflow.init))(keys)
            policies[role.name] = policy_sets[role.name].extract_policy(jax.tree.map(lambda x: x[:, 0], states))
            oracle_state[role.name] = replace(states, env_params=None, numbers=None) if self.warm else None
        return OracleOutputs(policies, oracle_state, zero_counts())

    def respond(self, game: Env, rivals: OracleInputs, oracle_state: Any, key: Key) -> OracleOutputs:
        """Train all players of a role in parallel, and the roles sequentially."""
        policies, after, spent = {}, {}, []
        for role in Roles(game).roles:
            each = tree.vmap_unless_single(
                lambda place, role=role: self.respond_for_player(game, role, place, rivals, oracle_state, key)
            )
            answers = each(jnp.arange(len(role.players)))
            policies[role.name], after[role.name] = answers.policies, answers.oracle_state
            spent.append(jax.tree.map(jnp.sum, answers.metrics))
        return OracleOutputs(policies, after, sum_counts(spent))

    def respond_for_player(
        self,
        game: Env,
        role: Role,
        place: Int[Array, ""],
        rivals: OracleInputs,
        oracle_state: Any,
        key: Key,
    ) -> OracleOutputs:
        """Train one player with all restarts, from `oracle_state` if they are warm, and return the best one.

        Args:
            game: Multi-agent game.
            role: Role of the player.
            place: Index of the player within its role.
            rivals: Pool of policies, and the mixture of each player.
            oracle_state: State of the oracle after its last answer.
            key: Random key, the same for all players.
        """
        workflow = self.build_role_workflow(game, role, self.policy_sets(game))
        match = MatchParams(rivals.env_params, place, rivals.pool, rivals.weights)

        def train(key: Key, before: Any) -> tuple[OracleTrainingState, Array | float]:
            key_init, key_steps, key_value = jax.random.split(key, 3)
            if self.warm:
                state = replace(before, env_params=match, numbers=read_numbers(self.workflow))
            else:
                state = workflow.init(key_init, None, match)
            done = self.run_training(workflow, state, key_steps)
            return done, workflow.evaluate(done.state, key_value)["return"] if self.restarts > 1 else 0.0

        key = jax.random.fold_in(key, Roles(game).roles.index(role))
        keys = jax.random.split(key, (len(role.players), self.restarts))[place]
        # a single restart is not evaluated
        done, values = tree.vmap_unless_single(train)(keys, tree.index(oracle_state[role.name], place))
        chosen = tree.index(done.state, jnp.nan_to_num(values, nan=-jnp.inf).argmax())
        after = replace(done.state, env_params=None, numbers=None) if self.warm else None
        policies = self.policy_sets(game)[role.name].extract_policy(chosen)
        return OracleOutputs(policies, after, jax.tree.map(jnp.sum, done.counts))

    def run_training(self, workflow: PolicyWorkflow, state: Any, key: Key) -> OracleTrainingState:
        """Run a training until its iterations are complete, or `patience` iterations in a row had no higher return.

        Iterations in which no episode ended do not count.

        Args:
            workflow: Workflow of the training.
            state: Its initial state.
            key: Random key.
        """

        def iteration(i: Int[Array, ""], run: OracleTrainingState) -> OracleTrainingState:
            state, metrics = workflow.step(run.state, jax.random.fold_in(key, i))
            judged = (metrics["episodes"] > 0) & ~jnp.isnan(metrics["return"])
            value = jnp.where(judged, metrics["return"], -jnp.inf)
            spent = {name: run.counts[name] + metrics[name].astype(jnp.int32) for name in COUNT_NAMES}
            since = jnp.where(value > run.best_return, 0.0, run.iterations_since_best + judged)
            return OracleTrainingState(state, jnp.maximum(run.best_return, value), since, spent)

        begun = OracleTrainingState(state, jnp.float32(-jnp.inf), jnp.float32(0), zero_counts())
        going_on = lambda run: run.iterations_since_best < self.patience  # noqa: E731
        return tree.masked_fori_loop(jnp.asarray(self.iterations).astype(jnp.int32), iteration, begun, going_on)

    def join_outputs(self, game: Env, answers: Sequence[OracleOutputs]) -> OracleOutputs:
        """Stack the policies and the states of the players by role."""
        policies, oracle_state = {}, {}
        for role in Roles(game).roles:
            own = [answers[player] for player in Roles(game).get_player_indices(role)]
            policies[role.name] = tree.stack([one.policies for one in own])
            oracle_state[role.name] = tree.stack([one.oracle_state for one in own])
        return OracleOutputs(policies, oracle_state, sum_counts([one.metrics for one in answers]))

    def split_pool_by_role(self, game: Env, pool: Any) -> dict[str, Any]:
        """Return the pool, which is stored by role."""
        del game
        return pool

    def tabulate_policies(self, game: Env, pool: Any) -> Float[Array, "capacity sets actions"]:
        """Return tables in which each information set has the probabilities of the player that moves there."""
        nodes = find_game_tree(game)
        assert nodes is not None

        def tabulate_player(kept: Any, role: Role) -> Float[Array, "sets actions"]:
            """Return the action probabilities of a player's policy in all information sets, also in those of others."""
            return tabulate_policy(nodes, self.policy_sets(game)[role.name].policy(kept).action_probabilities)

        def tabulate_joint(policies: Any) -> Float[Array, "sets actions"]:
            found = jnp.zeros(nodes.legal_mask.shape)
            for role in Roles(game).roles:
                each = jax.vmap(lambda kept, role=role: tabulate_player(kept, role))(policies[role.name])
                for i, player in enumerate(Roles(game).get_player_indices(role)):
                    found = jnp.where((nodes.owner == player)[:, None], each[i], found)
            return found

        return jax.vmap(tabulate_joint)(pool)


def with_env(part: Any, env: Env) -> Any:
    """Return a component, and all components inside it, with another environment and its spaces."""
    new = {"env": env, "observation_space": env.observation_space, "action_space": env.action_space}
    if not dataclasses.is_dataclass(part) or isinstance(part, (type, Env)):
        return part
    values = {x.name: getattr(part, x.name) for x in dataclasses.fields(part) if x.init}
    changed = {name: new[name] if name in new else with_env(value, env) for name, value in values.items()}
    return replace(part, **{name: value for name, value in changed.items() if value is not values[name]})


@lru_cache(maxsize=16)
def _build_policy_sets(oracle: TrainingOracle, game: Env) -> dict[str, WorkflowPolicySet]:
    return {
        role.name: WorkflowPolicySet(oracle.build_role_workflow(game, role), oracle.explore)
        for role in Roles(game).roles
    }
