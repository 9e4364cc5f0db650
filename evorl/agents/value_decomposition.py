"""Value decomposition (VDN and QMIX): the mixed value of a group's members is learned from their total reward."""

from dataclasses import field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from evorl.agents.base_agent import BaseAgent
from evorl.agents.dqn import DQN, DQNState
from evorl.agents.group_agent import member_spaces
from evorl.agents.team import Team
from evorl.agents.train_state import LossFn, TrainState
from evorl.errors import OptionError
from evorl.networks.features import features, num_features
from evorl.networks.mixers import SUM, Mixer, SumMixer
from evorl.parts import part
from evorl.types import Key, Memory, Metrics, Params, Transition


@part
class ValueDecomposition(BaseAgent):
    """Value decomposition: Q-learning of a group's total reward with a mixture of its members' values.

    SumMixer gives VDN (Sunehag et al. 2017, arXiv:1706.05296), MonotonicMixer gives QMIX (Rashid et al. 2018,
    arXiv:1803.11485). All members share the parameters of one DQN. The mixer sees the state of the
    environment: the joint observation, unless the environment defines a state.

    Args:
        agents: Agent of every member, a template whose spaces are replaced by those of a member.
        mixer: Module that combines the members' values into one.
        obs_agent_id: Whether each member sees its index within the group.
    """

    agents: DQN = field(default_factory=DQN, metadata={"spaces": member_spaces})
    mixer: Mixer = SUM
    obs_agent_id: bool = True

    def check_spaces(self) -> None:
        """Raise OptionError if the environment has more than one group."""
        if len(self.groups) > 1:
            name = "VDN" if isinstance(self.mixer, SumMixer) else "QMIX"
            raise OptionError(
                f"env: {name} needs a single group of cooperating agents, not the groups "
                f"{', '.join(self.groups)}; use independent learners, agent=idqn"
            )

    @property
    def discount(self) -> Any:
        """Return the discount factor of the agents."""
        return self.agents.discount

    @cached_property
    def team(self) -> Team:
        """Return the members as a Team, which acts for them."""
        return Team(
            self.agents,
            obs_agent_id=self.obs_agent_id,
            observation_space=self.observation_space,
            action_space=self.action_space,
        )

    @property
    def groups(self) -> dict[str, int]:
        """Return the number of members of the only group, by its name."""
        return self.team.groups

    @property
    def group_name(self) -> str:
        """Return the name of the group."""
        (name,) = self.groups
        return name

    @property
    def agent(self) -> DQN:
        """Return the agent of each member."""
        agent: Any = self.team.group_agents[self.group_name].agent
        return agent

    def init(self, key: Key) -> DQNState:
        key_agent, key_mixer = jax.random.split(key)
        values, state = jnp.zeros(self.groups[self.group_name]), jnp.zeros(num_features(self.team.observer.state_space))
        params = {
            "agent": self.agent.network.init_params(key_agent),
            "mixer": self._mixer.init(key_mixer, values, state),
        }
        return DQNState(TrainState.create(params, optimizer=self.agents.optimizer))

    def initial_memory(self) -> Memory:
        return self.team.initial_memory()

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Return for each member its greedy action, or a random one with probability epsilon."""
        return self.team.act({self.group_name: params["agent"]}, obs, memory, key)

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        return self.team.mode({self.group_name: params["agent"]}, obs, memory, key)

    def mix_values(self, params: Params, values: Float[Array, "*batch members"], obs: Any) -> Float[Array, "*batch"]:
        """Return the joint value of all members.

        Args:
            params: Parameters of the mixer.
            values: Values of the members, shape [*batch, members].
            obs: Observations of the environment, leaves [*batch, ...].

        Returns:
            Joint values, shape [*batch].
        """
        state = features(self.team.observer.state_space, self.team.observer.state(obs))
        return jnp.asarray(self._mixer.apply(params, values, state))

    @property
    def _mixer(self) -> Any:
        return self.mixer

    def critic_loss(
        self, params: Params, state: DQNState, batch: Transition, key: Key
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the Huber loss of the mixed value of the actions taken, mean over the batch.

        The target is the sum of the members' rewards plus the discounted mixture of their best next values. A
        member that left the episode for good has value 0.
        """
        del key
        agent, target, t = self.agent, state.actor.target_params, batch.training_steps
        rows = self.team.group_transitions(self.group_name, batch)
        values, following = agent.values(params["agent"], rows)
        made, best = agent.q_taken(values, rows), agent.best_next_q(target["agent"], rows, following)
        together = replace(batch, reward=batch.reward[self.group_name].sum(-1), member_ends=None, members_done=None)
        if t.member_ends is not None:
            own = rows.training_steps
            made, best = jnp.where(own.members_done, 0, made), jnp.where(own.terminated, 0, best)
            terminated = rows.terminated.all(-1)  # a member may be truncated in the step that terminates the game
            together = replace(together, terminated=terminated, truncated=batch.is_trace_end & ~terminated)
        best = self.mix_values(target["mixer"], best, t.next_obs)
        value = self.mix_values(params["mixer"], made, t.obs)
        return agent.huber_loss(together, value, agent.bootstrap_target(together, best))

    def update_critic(self, state: DQNState, loss: LossFn) -> tuple[DQNState, Metrics]:
        return self.agent.update_critic(state, loss)

    def update_targets(self, state: DQNState) -> DQNState:
        return self.agent.update_targets(state)
