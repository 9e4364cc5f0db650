"""Players of NFSP: the states of their agents, and the learner that updates them."""

from dataclasses import dataclass, replace
from typing import Any

import jax
from flax import struct
from jaxtyping import Array, Int

from evorl import tree
from evorl.agents.average_policy import AveragePolicy
from evorl.leagues.experience import PlayerExperience
from evorl.leagues.nfsp_agents import NFSPAgents, NFSPParams
from evorl.types import Key, Metrics, State
from evorl.workflows.base import loop_with_metrics
from evorl.workflows.off_policy import OffPolicy, OffPolicyState


@struct.dataclass
class Player:
    """States of the two agents of a player."""

    response: State  # of the agent of its best response
    average: State  # of the agent of its average policy

    @property
    def strategies(self) -> NFSPParams:
        """Return the parameters of both policies."""
        return NFSPParams(self.response.actor.params, self.average.actor.params)


@dataclass(frozen=True)
class PlayerLearner:
    """Learner for the players of a role: an off-policy best response, and the average of these responses."""

    response: OffPolicy
    average: AveragePolicy

    @property
    def pair(self) -> NFSPAgents:
        """Return both agents of a player."""
        return NFSPAgents(self.response.agent, self.average)

    def init_player(self, key: Key) -> Player:
        """Return the initial state of a player."""
        key_response, key_average = jax.random.split(key)
        response = self.response.agent.init(key_response)
        return Player(response, self.average.init(key_average))

    @jax.named_scope("learning")
    def learn(
        self,
        player: Player,
        experience: PlayerExperience,
        key: Key,
        rounds: Int[Array, ""],
    ) -> tuple[Player, PlayerExperience, Metrics]:
        """Update the best response for `rounds` rounds, and the average policy for as many gradient steps.

        A round has critic_steps gradient steps of the critic. If the reservoir is empty, the average policy
        does not learn.

        Returns:
            The new player, its experience, and metrics.
        """
        off, (key_response, key_average) = self.response, jax.random.split(key)
        own = tree.fill_fields(OffPolicyState, None, agent=player.response, replay=experience.replay)
        own, metrics = off.learn(own, key_response, rounds)

        def update_average(i: Array, average: Any) -> tuple[Any, Metrics]:
            rows = experience.reservoir.sample(jax.random.fold_in(key_average, i), (off.batch_size,)).rows
            loss = lambda params: self.average.loss(params, rows["obs"], rows["action"])  # noqa: E731
            return self.average.update(average, loss)

        there = experience.reservoir.size > 0
        average, found, count = loop_with_metrics(rounds * off.critic_steps, update_average, player.average)
        average, found = tree.select(there, (average, found), (player.average, tree.zeros_like(found)))
        metrics |= found | {"gradient_steps": metrics["gradient_steps"] + there * count}
        return Player(own.agent, average), replace(experience, replay=own.replay), metrics
