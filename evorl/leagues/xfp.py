"""Extensive-form fictitious play: averages of exact best responses to each other."""

from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int, PyTree

from evorl.envs.games.game_tree import GameTree
from evorl.errors import OptionError
from evorl.leagues.exact import best_response, exploitability_metrics
from evorl.leagues.joint_mixture_agent import JointMixtureAgent, PolicyMixtures
from evorl.leagues.oracles import BestResponseOracle, find_game_tree, zero_counts
from evorl.leagues.roles import Roles
from evorl.leagues.sequence_form import SequenceForm
from evorl.leagues.tabular_policies import make_uniform_policy, normalize_policy
from evorl.parts import part, resolve_numbers
from evorl.tree import resolve_env_params
from evorl.types import Env, Key, Metrics, Numbers, PolicyFn
from evorl.workflows.base import as_evaluation


@struct.dataclass
class XFPState:
    numbers: Numbers
    env_params: PyTree
    realization_plan: Float[Array, " sequences"]  # of the average policies
    iteration: Int[Array, ""]


@part
class XFP:
    """Extensive-form fictitious play (XFP; Heinrich et al. 2015).

    An iteration averages the policies so far with each player's best response br to them. In each information
    set, the new policy is pi + a x_br (br - pi) / ((1 - a) x_pi + a x_br), where x is the player's own
    probability of reaching the set (eq. 4) and a = 1 / (t + 1). All best responses and the initial uniform
    policy therefore have the same weight. Among actions of equal value, the first one is taken.

    `return` is minus the exploitability. An iteration counts as one episode.

    Args:
        env: Multi-agent game with a tree, whose players are groups of their own.

    Raises:
        OptionError: If `env` is not such a game.
    """

    env: Env

    def __post_init__(self) -> None:
        needs = "XFP needs a game tree with one group per player, such as env=leduc; use nfsp for other games"
        if find_game_tree(self.env) is None:
            raise OptionError(f"env={type(self.env).__name__}: {needs}")

    @property
    def tree(self) -> GameTree:
        """Return the game tree."""
        tree = find_game_tree(self.env)
        assert tree is not None
        return tree

    @property
    def iteration_cost(self) -> dict[str, tuple[int, int]]:
        """Return 0 env steps and 0 gradient steps, since nothing is played or trained."""
        return {"env_steps": (0, 0), "gradient_steps": (0, 0)}

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> XFPState:
        del key
        env_params = resolve_env_params(self.env, env_params)
        plan = SequenceForm.from_tree(self.tree).compute_realization_plan(make_uniform_policy(self.tree))
        return XFPState(resolve_numbers(self, numbers), env_params, plan, jnp.int32(0))

    def step(self, state: XFPState, key: Key) -> tuple[XFPState, Metrics]:
        del key
        form = SequenceForm.from_tree(self.tree)
        response = form.compute_realization_plan(best_response(self.tree, self.average_strategy(state))[1])
        # averaging plans averages policies by reach probability
        plan = state.realization_plan + (response - state.realization_plan) / (state.iteration + 2)
        new = replace(state, realization_plan=plan, iteration=state.iteration + 1)
        return new, zero_counts() | {"episodes": jnp.int32(1)} | exploitability_metrics(
            self.tree, self.average_strategy(new)
        )

    def evaluate(self, state: XFPState, key: Key) -> Metrics:
        del key
        return as_evaluation(exploitability_metrics(self.tree, self.average_strategy(state)))

    def average_strategy(self, state: XFPState) -> Float[Array, "sets actions"]:
        """Return the average policies as action probabilities in each information set, shape [sets, actions].

        Args:
            state: State of the workflow.
        """
        return normalize_policy(self.tree, SequenceForm.from_tree(self.tree).to_table(state.realization_plan))

    @cached_property
    def agent(self) -> JointMixtureAgent:
        """Return the actor for all players, which acts by one table."""
        return JointMixtureAgent(Roles(self.env), BestResponseOracle().policy_sets(self.env))

    def policy(self, state: XFPState, explores: bool = False) -> PolicyFn:
        """Return the policy in which all players play their average policies; `explores` is ignored."""
        del explores
        pool = BestResponseOracle().split_pool_by_role(self.env, self.average_strategy(state)[None])
        return partial(self.agent.act, PolicyMixtures(pool, jnp.ones((self.tree.players, 1))))

    def inherit(self, state: XFPState, parent: XFPState) -> XFPState:
        """Return the state of the parent, with the env_params of the inheriting state."""
        return replace(parent, env_params=state.env_params)
