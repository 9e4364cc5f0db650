"""Neural fictitious self-play: each player learns a best response to the others and the average of its responses."""

from dataclasses import field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl import mesh, tree
from evorl.agents.average_policy import AveragePolicy
from evorl.agents.members import merge_group_metrics
from evorl.agents.memory import is_recurrent
from evorl.envs.games.game_tree import GameTree
from evorl.errors import require
from evorl.leagues.exact import exploitability_metrics
from evorl.leagues.experience import PlayerExperience, add_player_experience
from evorl.leagues.nfsp_agents import JointNFSPAgent, NFSPParams
from evorl.leagues.oracles import find_game_tree
from evorl.leagues.pending_choices import select_role_transitions
from evorl.leagues.players import Player, PlayerLearner
from evorl.leagues.roles import Roles
from evorl.leagues.single_player_game import SinglePlayerGame
from evorl.leagues.tabular_policies import tabulate_agent
from evorl.leagues.training_oracle import make_single_player_env, with_env
from evorl.parts import Number, bind, number, part, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn, Transition
from evorl.vector_env import UNLIMITED, Behaviour, EnvInstance, Rollout, RolloutPlan, TransitionStore, VectorEnv, hosts
from evorl.workflows import base
from evorl.workflows.base import check_positive, replace_nan_envs
from evorl.workflows.off_policy import OffPolicy
from evorl.workflows.trajectories import find_lost_transitions


@struct.dataclass
class NFSPState:
    numbers: Numbers
    env_params: PyTree
    agent: dict[str, Player]  # by role, leaves [players, ...]
    experience: dict[str, PlayerExperience]  # by role, leaves [players, ...]
    envs: EnvInstance  # leaves [num_envs, ...]
    iteration: Int[Array, ""]

    @property
    def strategies(self) -> dict[str, NFSPParams]:
        """Return the parameters of both policies of each player, by role."""
        return {name: player.strategies for name, player in self.agent.items()}

    @property
    def replay_sizes(self) -> Int[Array, " players"]:
        """Return the number of transitions in the replay buffer of each player, shape [players]."""
        return jnp.concatenate([experience.replay.size for experience in self.experience.values()])


@part
class NFSP(base.BaseStagedWorkflow):
    """Neural fictitious self-play (NFSP; Heinrich and Silver 2016, arXiv:1603.01121).

    An iteration takes num_steps steps in each of num_envs games, then num_updates gradient steps of each
    network. At the start of an episode, each player samples which policy it plays: its best response, with
    exploration, with probability `anticipation`, and its average policy otherwise.

    All transitions of a player go to the replay buffer of its best response. The actions of its best response
    also go to a reservoir, from which the average policy learns. The average policies are evaluated: in a
    game with a tree, `return` is minus their exploitability.

    num_envs, num_steps, num_updates, the replay buffer and the initial random steps are those of `response`.
    Its discount applies once per choice of a player.

    Args:
        env: Multi-agent game whose groups have one member each.
        response: Off-policy workflow of the best responses, in the game as a single player plays it. Its
            agent must not be recurrent, its replay buffer must store single transitions, and n_step must be
            1.
        average: Agent of the average policies.
        reservoir: Capacity of the reservoir of each player.

    Raises:
        OptionError: If `env` or `response` does not meet these conditions.
    """

    env: Env
    response: OffPolicy = field(metadata={"env": make_single_player_env})
    average: AveragePolicy = field(metadata={"env": make_single_player_env})
    reservoir: int = 2_000_000
    anticipation: Number = number(0.1, 0, 1, "probability that a player plays its best response in an episode (eta)")

    def __post_init__(self) -> None:
        check_positive(self, "reservoir")
        off, agent = self.response, type(self.response.agent).__name__
        require(not is_recurrent(off.agent), "response.agent", agent, "must not be recurrent; use core=none")
        require(
            not off.replay.has_sequences,
            "response.replay",
            type(off.replay).__name__,
            "must be a replay buffer of single transitions",
        )
        base.require_env_steps(off, "response")
        require(off.n_step == 1, "response.n_step", off.n_step, "must be 1")
        plain = not off.normalize_observations
        require(plain, "response.normalize_observations", "true", "must be false")
        teams = any(role.is_team for role in self.roles.roles)
        require(not teams, "env", type(self.env).__name__, "must have one agent in each group")

    @cached_property
    def roles(self) -> Roles:
        """Return the players of the game, by role."""
        return Roles(self.env)

    @cached_property
    def tree(self) -> GameTree | None:
        """Return the game tree, or None if the game has no tree."""
        return find_game_tree(self.env)

    @cached_property
    def learners(self) -> dict[str, PlayerLearner]:
        """Return the learner of the players of each role, by the name of the role."""
        envs = {role.name: SinglePlayerGame(self.env, role.name) for role in self.roles.roles}
        return {
            name: PlayerLearner(with_env(self.response, env), with_env(self.average, env)) for name, env in envs.items()
        }

    @cached_property
    def agent(self) -> JointNFSPAgent:
        """Return the actor for all players, which plays their average policies."""
        pairs = {name: learning.pair for name, learning in self.learners.items()}
        return JointNFSPAgent(self.roles, pairs, self.anticipation)

    @cached_property
    def vector_env(self) -> VectorEnv:
        """Return the vectorized games in which the players collect and are evaluated."""
        return replace(self.response.vector_env, env=self.env, agent=replace(self.agent, is_anticipatory=True))

    def state_sharding(self, state: NFSPState) -> NFSPState:
        return tree.fill_fields(NFSPState, "", envs=mesh.ENVS)

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return the minimum and the maximum of the env steps and the gradient steps of an iteration, by name.

        The first iteration takes random_steps env steps instead.
        """
        steps, players = self.response.num_envs * self.response.num_steps, self.roles.num_players
        return {"env_steps": (steps, steps), "gradient_steps": (0, 2 * players * self.response.num_updates)}

    @property
    def prefill_steps(self) -> int:
        """Return the number of random steps of each game in the first iteration; 0 if there are none."""
        return -(-self.response.random_steps // self.response.num_envs)

    @property
    def initial_env_steps(self) -> int:
        """Return the number of env steps of the first iteration."""
        return self.response.num_envs * (self.prefill_steps or self.response.num_steps)

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> NFSPState:
        numbers, off = resolve_numbers(self, numbers), self.response
        bound = bind(self, numbers)
        env_params = resolve_env_params(self.env, env_params)
        keys, agents, experience = {}, {}, {}
        for i, role in enumerate(self.roles.roles):
            keys[role.name] = jax.random.split(jax.random.fold_in(key, i), (2, len(role.players)))
            agents[role.name] = jax.vmap(bound.learners[role.name].init_player)(keys[role.name][0])
        strategies = {name: player.strategies for name, player in agents.items()}
        envs, row = bound.vector_env.init_blank_envs(strategies, env_params)
        seen = tree.broadcast(tree.zeros_like(row), 1, 1)
        for role in self.roles.roles:
            rows = jax.eval_shape(partial(select_role_transitions, self.roles, role), seen)
            own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[3:], x.dtype), rows)
            empty = partial(PlayerExperience.empty, own, off.num_envs, (off.replay, off.capacity), self.reservoir)
            experience[role.name] = jax.vmap(empty)(keys[role.name][1])
        return NFSPState(numbers, env_params, agents, experience, envs, jnp.int32(0))

    def count_env_steps(self, state: NFSPState) -> Array:
        """Return the number of env steps so far, as if the first iteration had the same length as the others.

        Args:
            state: State of the workflow.
        """
        return state.iteration.astype(jnp.float32) * self.response.num_envs * self.response.num_steps

    def plan(self, state: NFSPState, key: Key) -> tuple[RolloutPlan, None]:
        """Plan num_steps steps of every game with best responses and average policies, or the random steps."""
        del key
        off = self.response
        random = (state.replay_sizes.max() == 0) & (off.random_steps > 0)
        plan = RolloutPlan(
            self.vector_env.make_starts(every=random),
            restart=(state.iteration == 0) | random,
            episodes=UNLIMITED,
            steps=jnp.where(random, self.prefill_steps, off.num_steps),
            params=tree.broadcast(state.strategies, 1),
            explores=True,
            random_actions=random,
            stores=True,
        )
        return plan, None

    def plan_evaluation(self, state: NFSPState, key: Key) -> RolloutPlan:
        """Plan whole episodes with the average policies."""
        del key
        return self.vector_env.plan_evaluation(
            tree.broadcast(state.strategies, 1), explores=False, random=False, stores=False
        )

    def rollout(self, state: NFSPState, plan: RolloutPlan, key: Key) -> tuple[NFSPState, Rollout]:
        """Run a plan and add its transitions to the experience in the state."""
        anew = jnp.asarray(plan.random_actions)
        experience = {
            name: replace(x, pending_choices=x.pending_choices.clear(anew)) for name, x in state.experience.items()
        }
        behaviour, stores = Behaviour(self.env, self.vector_env.agent), jnp.asarray(plan.stores)

        def add(stored: tuple[dict[str, PlayerExperience], Array], t: Transition, mask: Array) -> Any:
            experience, left = stored
            lost = find_lost_transitions(t, mask) & stores
            if not hosts.has_late_answers(state.env_params):
                lost &= (jnp.arange(len(mask)) < left)[:, None]  # no environment is behind, so later rows are idle
            return add_player_experience(self.roles, experience, t, mask & stores, lost, ~anew), left - len(mask)

        store = TransitionStore(self.vector_env.scan_length, (experience, jnp.int32(plan.steps)), add)
        played = self.vector_env.rollout(behaviour, state.env_params, plan, state.envs, key, store)
        assert played.stored is not None
        return replace(state, experience=played.stored[0]), replace(played, stored=None)

    def learn_from(self, state: NFSPState, carry: None, played: Rollout, key: Key) -> tuple[NFSPState, Metrics]:
        del carry
        rounds = self.response.num_updates // self.response.critic_steps
        rounds = jnp.where(tree.any_unbatched(state.replay_sizes > 0), rounds, 0)
        agents, experience, found, spent = {}, {}, {}, jnp.int32(0)
        for i, (name, learning) in enumerate(self.learners.items()):
            keys = jax.random.split(jax.random.fold_in(key, i), tree.leading_size(state.agent[name]))
            learn = jax.vmap(learning.learn, (0, 0, 0, None))
            agents[name], experience[name], metrics = learn(state.agent[name], state.experience[name], keys, rounds)
            spent += metrics.pop("gradient_steps").sum()
            found[name] = tree.mean(metrics)
        new = replace(state, agent=agents, experience=experience, envs=played.envs, iteration=state.iteration + 1)
        return new, played.metrics() | merge_group_metrics(found) | {"gradient_steps": spent}

    def evaluation_metrics(self, state: NFSPState, played: Rollout) -> Metrics:
        found = played.stats.evaluation_metrics()
        if self.tree is None:
            return found
        exact = partial(exploitability_metrics, self.tree)
        nothing = tree.zeros_like(jax.eval_shape(lambda: exact(self.average_strategy(state))))
        # otherwise each training iteration would compute the exploitability
        examined = tree.any_unbatched(jnp.asarray(played.plan.releases))
        judgement = jax.lax.cond(examined, lambda: exact(self.average_strategy(state)), lambda: nothing)
        return found | judgement | {"return_error": jnp.float32(0)}

    def average_strategy(self, state: NFSPState) -> Float[Array, "sets actions"]:
        """Return the average policies as action probabilities in each information set, shape [sets, actions].

        The game must have a tree.

        Args:
            state: State of the workflow.
        """
        assert self.tree is not None
        return tabulate_agent(self.tree, self.agent, state.strategies)

    def policy(self, state: NFSPState, explores: bool = False) -> PolicyFn:
        """Return the policy in which all players play their average policies; `explores` is ignored."""
        del explores
        return Behaviour(self.env, self.agent).bind_params(state.strategies, True)

    def inherit(self, state: NFSPState, parent: NFSPState) -> NFSPState:
        """Return the state with the players and hyperparameters of the parent, but its own experience and games.

        Games that contain NaN, or whose pending choices do, are replaced by those of the parent.
        """
        turns, theirs = ({name: x.pending_choices for name, x in s.experience.items()} for s in (state, parent))
        envs, turns = replace_nan_envs((state.envs, turns), (parent.envs, theirs), (0, 1))
        experience = {name: replace(x, pending_choices=turns[name]) for name, x in state.experience.items()}
        state = replace(state, envs=envs, experience=experience)
        return replace(state, agent=parent.agent, numbers=parent.numbers)
