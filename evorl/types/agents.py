"""Protocols of agents: how they act, and how they learn on policy or off policy."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, Batch, Key, Memory, Metrics, Params, State, Transition


@runtime_checkable
class Actor(Protocol):
    """Protocol of an actor, which selects the actions of one environment, given parameters."""

    def initial_memory(self) -> Memory:
        """Return the recurrent state at the start of an episode.

        Returns:
            A pytree of arrays for one environment; None for an actor without recurrent state.
        """
        ...

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Select an action for one observation, with exploration.

        Args:
            params: Parameters of the actor.
            obs: Observation of one environment.
            memory: Recurrent state before the observation.
            key: Random key.

        Returns:
            The action, the recurrent state after the observation, and a dict of arrays that learning needs
            (`Transition.extras`).
        """
        ...

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """Return the greedy action for one observation.

        Args:
            params: Parameters of the actor.
            obs: Observation of one environment.
            memory: Recurrent state before the observation.
            key: Random key.

        Returns:
            The action, the recurrent state after the observation, and a dict of arrays, as `act` returns
            them.
        """
        ...


@runtime_checkable
class Agent(Actor, Protocol):
    """Protocol of an agent, an actor with a state that learning updates.

    The field `actor` of the state is a TrainState. Its `params` are the parameters that `act` and `mode`
    take.
    """

    def init(self, key: Key) -> State:
        """Return the initial state of the agent, before any learning.

        Args:
            key: Random key of the initial parameters.
        """
        ...


@runtime_checkable
class MultiAgentActor(Actor, Protocol):
    """Protocol of an actor that acts for all agents of a multi-agent environment.

    Observations and actions are dicts by group. The agents of a group are called its members.
    """

    @property
    def groups(self) -> Mapping[str, int]:
        """Return the number of members of each group, by the name of the group."""
        ...


@runtime_checkable
class HasActionProbabilities(Actor, Protocol):
    """Protocol of an actor that can compute its action probabilities in a discrete action space.

    Such an actor must not be recurrent.
    """

    def action_probabilities(self, params: Params, obs: Any) -> Any:
        """Return the probabilities with which `act` samples each action, for one observation.

        Args:
            params: Parameters of the actor.
            obs: Observation of one environment.

        Returns:
            Probabilities, shape [choices]; in a multi-agent environment a dict by group, each of shape
            [members, choices].
        """
        ...


@runtime_checkable
class EnsembleValueAgent(Agent, Protocol):
    """Protocol of an agent that may have an ensemble of value functions.

    With several value functions, its batches hold all their values in `Batch.ensemble_values`.
    """

    @property
    def num_values(self) -> int:
        """Return the number of value functions; 1 for a single one."""
        ...


@runtime_checkable
class OffPolicyAgent(Agent, Protocol):
    """Protocol of an agent that learns from a replay buffer.

    The workflow calls `update_critic` with a function of the parameters, for example `critic_loss` on one
    batch or its mean over several batches.
    """

    def critic_loss(self, params: Params, state: State, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """Return the loss of the critic on a batch.

        Args:
            params: Parameters of the critic.
            state: State of the agent, from which the targets are computed.
            batch: Transitions, leaves [batch, ...]; sequences have leaves [steps, batch, ...]. If `discount`
                is set, it is the discount of the bootstrapped value (`agents.losses.td_target`). Rows are
                weighted by `weight`.
            key: Random key.

        Returns:
            The loss [] and its metrics. A prioritized replay buffer needs the metric "td_error", shape
            [batch] (`agents.losses.mse_critic_loss`).
        """
        ...

    def update_critic(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """Take one gradient step of the critic.

        Args:
            state: State of the agent.
            loss: Function from the parameters of the critic to (loss [], metrics).

        Returns:
            The new state and the metrics.
        """
        ...

    def update_targets(self, state: State) -> State:
        """Move the target parameters towards the parameters that they follow (soft update).

        Args:
            state: State of the agent.

        Returns:
            The new state.
        """
        ...


@runtime_checkable
class ActorCritic(OffPolicyAgent, Protocol):
    """Protocol of an off-policy agent with a separate actor, which has its own loss and its own gradient steps."""

    def actor_loss(self, params: Params, state: State, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """Return the loss of the actor on a batch.

        Args:
            params: Parameters of the actor.
            state: State of the agent, whose critic the loss uses.
            batch: Transitions, leaves [batch, ...]; sequences have leaves [steps, batch, ...].
            key: Random key.

        Returns:
            The loss [] and its metrics.
        """
        ...

    def update_actor(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """Take one gradient step of the actor.

        Args:
            state: State of the agent.
            loss: Function from the parameters of the actor to (loss [], metrics).

        Returns:
            The new state and the metrics.
        """
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """Protocol of an agent that learns from its latest rollout.

    The agent builds a batch from the rollout, computes a loss on segments of the batch, and takes gradient
    steps.
    """

    def build_batch(self, params: Params, transitions: Transition, acted_by_current_params: bool) -> Batch:
        """Build the batch that the losses take from trajectories.

        Args:
            params: Current parameters, with which the advantages and the targets are computed.
            transitions: Trajectories, leaves [steps, envs, ...].
            acted_by_current_params: Whether `params` also selected the actions. If so, network outputs that
                were stored while acting can be reused.

        Returns:
            The batch, leaves [steps, envs, ...].
        """
        ...

    def loss(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the loss on segments of a batch.

        Args:
            params: Parameters to differentiate.
            batch: Segments, leaves [segments, steps, ...]; `memory`, the recurrent state before each segment,
                has leaves [segments, ...]. By default, the segments of an agent without recurrent state have
                one step.

        Returns:
            The loss [] and its metrics.
        """
        ...

    def update(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """Take one gradient step.

        Args:
            state: State of the agent.
            loss: Function from the parameters to (loss [], metrics).

        Returns:
            The new state and the metrics.
        """
        ...

    def early_stop(self, metrics: Metrics) -> bool | Array:
        """Return whether to skip the remaining epochs.

        Args:
            metrics: Mean metrics of the updates of the last epoch.
        """
        ...


@runtime_checkable
class AdvantageRecomputer(OnPolicyAgent, Protocol):
    """Protocol of an agent whose advantages can be recomputed while it learns from them.

    Its batches have the fields `ratio` and `bootstrap_value`.
    """

    def loss_with_rows(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the loss, with the current value and probability ratio of each step as additional metrics.

        Args:
            params: Parameters to differentiate.
            batch: Segments, as in `loss`.

        Returns:
            The loss [] and its metrics, among them "rows/value" and "rows/ratio"
            (`agents.losses.ROW_METRICS`), each of shape [segments, steps].
        """
        ...

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, bootstrap_value: Array
    ) -> tuple[Array, Array]:
        """Return the advantages and the value targets of trajectories.

        Args:
            transitions: Trajectories, leaves [steps, envs, ...].
            ratio: Probability of each action under the policy that learns, divided by its probability under
                the policy that sampled it, shape [steps, envs].
            value: Value of each observation, shape [steps, envs].
            bootstrap_value: Value of the successor at truncated steps and after the last step, shape [steps,
                envs].

        Returns:
            Advantages and value targets, each of shape [steps, envs].
        """
        ...
