"""What agents are, on policy and off policy."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import Protocol, runtime_checkable

from evorl.types.data import Array, Batch, Key, Memory, Metrics, Params, State, Transition


@runtime_checkable
class Actor(Protocol):
    """How to act by params."""

    def initial_memory(self) -> Memory:
        """The memory at the start of an episode; None without one."""
        ...

    def act(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """An action that explores, for one observation, the memory after it, and what learning needs beside."""
        ...

    def mode(self, params: Params, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        """The same for the greedy action."""
        ...


@runtime_checkable
class Agent(Actor, Protocol):
    """What is learned, and how it acts. The actor of an agent's state is a TrainState; act and mode take its params."""

    def init(self, key: Key) -> State:
        """The state before anything is learned."""
        ...


@runtime_checkable
class MultiAgentActor(Actor, Protocol):
    """One that acts for every member of a game, by group."""

    @property
    def groups(self) -> Mapping[str, int]:
        """How many members each group has."""
        ...


@runtime_checkable
class HasActionProbabilities(Actor, Protocol):
    """One that tells how likely it takes each choice of an action that is one; it must not remember."""

    def action_probabilities(self, params: Params, obs: Any) -> Any:
        """Those with which `act` draws after one observation, [choices]; of a game by group, [members, choices]."""
        ...


@runtime_checkable
class EnsembleValueAgent(Agent, Protocol):
    """An agent that may have several values, which its batches have side by side."""

    @property
    def num_values(self) -> int:
        """How many."""
        ...


@runtime_checkable
class OffPolicyAgent(Agent, Protocol):
    """An agent that learns from a replay: the loss of its critic on a batch, and one gradient step on any such loss."""

    def critic_loss(self, params: Params, state: State, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """The loss [] of a critic with params on a batch, leaves [batch, ...]; targets are those of the state.

        Where the batch has a discount of its own, it is that of the bootstrap (agents.losses.td_target). Rows count
        by their weight; a replay with priorities asks for the metric "td_error" [batch]
        (agents.losses.mse_critic_loss).
        """
        ...

    def update_critic(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """One gradient step of the critic on loss(params) -> (loss [], metrics)."""
        ...

    def update_targets(self, state: State) -> State:
        """A soft step of the targets towards what they follow."""
        ...


@runtime_checkable
class ActorCritic(OffPolicyAgent, Protocol):
    """An off-policy agent with an actor, which has its own loss and steps."""

    def actor_loss(self, params: Params, state: State, batch: Transition, key: Key) -> tuple[Array, Metrics]:
        """The loss [] of an actor with params on a batch, by the critic of the state."""
        ...

    def update_actor(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """One gradient step of the actor on loss(params) -> (loss [], metrics)."""
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """An agent that learns from what it has just done: a batch, a loss on segments of it, a gradient step on a loss."""

    def build_batch(self, params: Params, transitions: Transition, acted_by_current_params: bool) -> Batch:
        """What is learned from trajectories, leaves [steps, envs, ...], with targets by params: where fresh, those
        that acted.
        """
        ...

    def loss(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """The loss [] on segments of a batch, leaves [segments, steps, ...], but those of memory [segments, ...].

        An agent without memory has segments of one step.
        """
        ...

    def update(self, state: State, loss: Any) -> tuple[State, Metrics]:
        """One gradient step on loss(params) -> (loss [], metrics)."""
        ...

    def early_stop(self, metrics: Metrics) -> bool | Array:
        """Whether, after updates with these mean metrics, no further epoch is to come."""
        ...


@runtime_checkable
class AdvantageRecomputer(OnPolicyAgent, Protocol):
    """One whose advantages can be estimated anew while it learns from them.

    Its batches have `ratio` and `bootstrap_value`.
    """

    def loss_with_rows(self, params: Params, batch: Batch) -> tuple[Array, Metrics]:
        """Return the loss with the metrics "rows/value" and "rows/ratio" too, [segments, steps] (agents.losses)."""
        ...

    def compute_advantages(
        self, transitions: Transition, ratio: Array, value: Array, bootstrap_value: Array
    ) -> tuple[Array, Array]:
        """The advantages and the targets of the value of trajectories, leaves [steps, envs].

        `bootstrap_value` is that of the successor where time ran out, and after the last step.
        """
        ...
