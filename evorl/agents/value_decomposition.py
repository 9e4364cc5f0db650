"""Value decomposition: members of one group, whose values together are learned as one (VDN and QMIX)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.dqn import DQN, DQNHyperparams, DQNState
from evorl.agents.team import Team, member_spaces
from evorl.agents.train_state import Loss, TrainState
from evorl.errors import OptionError
from evorl.networks.features import features, num_features
from evorl.networks.mixers import SUM, Mixer, SumMixer
from evorl.spaces import Space
from evorl.types import Key, Memory, Metrics, Params, Transition


@dataclass(frozen=True)
class ValueDecomposition:
    """Q-learning of what a group earns together, by what a mixer makes of the values of its members.

    SumMixer is VDN (Sunehag et al. 2017, arXiv:1706.05296), MonotonicMixer QMIX (Rashid et al. 2018, arXiv:1803.11485).
    All members have the weights of one DQN; with `ids` each sees which member it is. The mixer sees the state of the
    game, which is all that is observed unless the game has its own.
    """

    observation_space: Space
    action_space: Space
    agents: DQN = field(metadata={"spaces": member_spaces})
    mixer: Mixer = SUM
    ids: bool = True

    def __post_init__(self) -> None:
        if len(self.groups) > 1:
            name = "VDN" if isinstance(self.mixer, SumMixer) else "QMIX"
            raise OptionError(
                f"env: {name} over opponents: it values what one group earns together, and here are the groups "
                f"{', '.join(self.groups)}; independent learners play it: agent=idqn"
            )

    @cached_property
    def team(self) -> Team:
        """The members as they play."""
        return Team(self.observation_space, self.action_space, self.agents, ids=self.ids)

    @property
    def groups(self) -> dict[str, int]:
        """The one group, and how many members it has."""
        return self.team.groups

    @property
    def name(self) -> str:
        """That of the group."""
        (name,) = self.groups
        return name

    @property
    def agent(self) -> DQN:
        """That of each member."""
        agent: Any = self.team.sides[self.name].agent
        return agent

    def hyperparams(self) -> DQNHyperparams:
        return self.agents.hyperparams()

    def init(self, key: Key, hyperparams: DQNHyperparams) -> DQNState:
        del hyperparams
        key_agent, key_mixer = jax.random.split(key)
        values, state = jnp.zeros(self.groups[self.name]), jnp.zeros(num_features(self.team.state_space))
        params = {"agent": self.agent.network.fresh(key_agent), "mixer": self._mixer.init(key_mixer, values, state)}
        return DQNState(TrainState.fresh(params, optimizer=self.agents.optimizer))

    def memory(self) -> Memory:
        return self.team.memory()

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: DQNHyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """For each member its greedy choice, or one at random with probability epsilon."""
        return self.team.act({self.name: params["agent"]}, obs, memory, key, hyperparams)

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: DQNHyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        return self.team.mode({self.name: params["agent"]}, obs, memory, key, hyperparams)

    def mixed(self, params: Params, values: Float[Array, "*batch members"], obs: Any) -> Float[Array, "*batch"]:
        """The value of all members together, after a game's observations."""
        state = features(self.team.state_space, self.team.state_of(obs))
        return jnp.asarray(self._mixer.apply(params, values, state))

    @property
    def _mixer(self) -> Any:
        return self.mixer

    def critic_loss(
        self, params: Params, state: DQNState, batch: Transition, key: Key, hyperparams: DQNHyperparams
    ) -> tuple[Float[Array, ""], Metrics]:
        """Huber's loss of what all are worth together, against all rewards and what each one's best choice is worth.

        Who is out of the game for good is worth 0.
        """
        del key
        agent, target, t = self.agent, state.actor.target, batch.learned
        rows = self.team.rows(self.name, batch)
        values, following = agent.values(params["agent"], rows)
        made, best = agent.made(values, rows), agent.best(target["agent"], rows, following)
        together = replace(batch, reward=batch.reward[self.name].sum(-1), ends=(), gone=())
        if not isinstance(t.ends, tuple):
            own = rows.learned
            made, best = jnp.where(own.gone, 0, made), jnp.where(own.terminated, 0, best)
            together = replace(together, truncated=batch.cut & ~batch.terminated)
        best = self.mixed(target["mixer"], best, t.next_obs)
        value = self.mixed(params["mixer"], made, t.obs)
        return agent.error_loss(together, value, agent.bootstrapped(together, best, hyperparams), hyperparams)

    def update_critic(self, state: DQNState, loss: Loss, hyperparams: DQNHyperparams) -> tuple[DQNState, Metrics]:
        return self.agent.update_critic(state, loss, hyperparams)

    def update_targets(self, state: DQNState, hyperparams: DQNHyperparams) -> DQNState:
        return self.agent.update_targets(state, hyperparams)
