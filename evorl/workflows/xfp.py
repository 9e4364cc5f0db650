"""Fictitious play in extensive form: averages of exact best responses to each other."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from evorl.envs.games.tree import GameTree
from evorl.errors import OptionError
from evorl.hyperparameters import as_state
from evorl.leagues.cohort import Cohort, Mixtures
from evorl.leagues.exact import best_response, judged
from evorl.leagues.oracles import BestResponses, nothing_spent, tree_of
from evorl.leagues.roles import Roles
from evorl.leagues.sequences import SequenceForm
from evorl.leagues.tables import normalized, uniform
from evorl.types import Env, Key, Metrics, SlotPolicy
from evorl.workflows.base import as_evaluation


@struct.dataclass
class XFPHyperparams:
    """None."""


@struct.dataclass
class XFPState:
    hyperparams: XFPHyperparams
    env_params: Any
    plan: Any  # [sequences], the average policies' realization plan
    iteration: Any  # [] int32


@dataclass(frozen=True)
class XFP:
    """An iteration averages the policies so far with a best response of each player to them (Heinrich et al. 2015).

    pi + a x_br (br - pi) / ((1 - a) x_pi + a x_br) in each information set, where x is how likely the player itself
    comes there (eq. 4) and a = 1 / (t + 1), so that all best responses and the policy at first, which takes all actions
    alike, weigh the same. Of actions that are worth the same the first is taken. Needs a game with a tree; `return` is
    minus the exploitability. An iteration counts as an episode.
    """

    env: Env

    def __post_init__(self) -> None:
        needs = (
            "XFP needs a game with a tree whose players are groups of their own, such as env=leduc; nfsp plays others"
        )
        if tree_of(self.env) is None:
            raise OptionError(f"env={type(self.env).__name__}: {needs}")

    @property
    def tree(self) -> GameTree:
        """That of the game."""
        tree = tree_of(self.env)
        assert tree is not None
        return tree

    def hyperparams(self) -> XFPHyperparams:
        return XFPHyperparams()

    @property
    def work(self) -> dict[str, tuple[int, int]]:
        """What an iteration takes: nothing is played, and no gradient is followed."""
        return {"env_steps": (0, 0), "gradient_steps": (0, 0)}

    def init(self, key: Key, hyperparams: XFPHyperparams, env_params: Any = None) -> XFPState:
        del key
        env_params = as_state(self.env.default_params if env_params is None else env_params)
        plan = SequenceForm.of(self.tree).plan(uniform(self.tree))
        return XFPState(as_state(hyperparams), env_params, plan, jnp.int32(0))

    def step(self, state: XFPState, key: Key) -> tuple[XFPState, Metrics]:
        del key
        form = SequenceForm.of(self.tree)
        response = form.plan(best_response(self.tree, self.average(state))[1])
        plan = state.plan + (response - state.plan) / (state.iteration + 2)  # plans average as policies do by reach
        new = replace(state, plan=plan, iteration=state.iteration + 1)
        return new, nothing_spent() | {"episodes": jnp.int32(1)} | judged(self.tree, self.average(new))

    def evaluate(self, state: XFPState, key: Key) -> Metrics:
        del key
        return as_evaluation(judged(self.tree, self.average(state)))

    def average(self, state: XFPState) -> Float[Array, "sets actions"]:
        """The average policies: how likely each action is in each information set."""
        return normalized(self.tree, SequenceForm.of(self.tree).table(state.plan))

    @cached_property
    def agent(self) -> Cohort:
        """All players, who act by one table."""
        return Cohort(Roles(self.env), BestResponses().casts(self.env))

    def policy(self, state: XFPState, explores: bool = False) -> SlotPolicy:
        """How all players act by the average policies, exploring or not."""
        del explores
        pool = BestResponses().players(self.env, self.average(state)[None])
        return partial(self.agent.act, Mixtures(pool, jnp.ones((self.tree.players, 1))))

    def inherit(self, state: XFPState, parent: XFPState) -> XFPState:
        """The parent, but with the state's own params of the game."""
        return replace(parent, env_params=state.env_params)
