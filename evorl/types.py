"""The types and protocols that all parts share. Protocols are structural: nothing inherits from them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import jax
from flax import struct

from evorl.spaces import Space

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Params: TypeAlias = Any
Memory: TypeAlias = Any
Hyperparams: TypeAlias = Any
State: TypeAlias = Any
Metrics: TypeAlias = dict[str, jax.Array]
# how the agent acts in one environment: (obs, memory, key) -> (action, memory, extras)
SlotPolicy: TypeAlias = Callable[[Any, Memory, Key], tuple[Any, Memory, dict[str, Any]]]


@struct.dataclass
class TimeStep:
    """What an environment answers to one action."""

    obs: Any
    reward: Any  # []; several numbers, of agents or objectives, where the workflow takes them
    terminated: Any  # [] bool: the task ended; do not bootstrap
    truncated: Any  # [] bool: time ran out; bootstrap
    info: Any = struct.field(default_factory=dict)


@struct.dataclass
class Transition:
    """One step as it is learned from."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any  # the true successor, never the observation after a reset
    terminated: Any  # do not bootstrap
    truncated: Any  # bootstrap, but cut traces and reset memory
    extras: Any = struct.field(default_factory=dict)
    discount: Any = ()  # what a value at next_obs is worth, where rows are over several steps; () for that of one step
    memory: Any = ()  # of the policy before the step; () where it has none
    weight: Any = ()  # of the row in the loss; () where all count alike
    burn_in: int = struct.field(pytree_node=False, default=0)  # first steps of a sequence, which only warm the memory
    n_step: int = struct.field(pytree_node=False, default=1)  # how many rewards of a sequence a target takes

    @property
    def ended(self) -> Array:
        """Whether the episode ended, either way."""
        return self.terminated | self.truncated

    @property
    def learned(self) -> "Transition":
        """The steps that are learned from: of a sequence, leaves [steps, ...], those after the burn-in."""
        if not self.burn_in:
            return self
        steps = jax.tree.map(lambda x: x[self.burn_in :], replace(self, memory=(), weight=(), burn_in=0))
        return replace(steps, memory=self.memory, weight=self.weight)


@struct.dataclass
class Sample:
    """Rows that a replay has drawn, leaves [*shape, ...].

    Sequences have their steps before the last axis of the shape, but the memory before the first, leaves [*shape, ...].
    """

    rows: Any
    index: Any  # int32, where they lie
    weight: Any = ()  # of each in the loss; () where all count alike


@struct.dataclass
class Batch:
    """What the losses of an on-policy agent take; leaves share their leading axes, the last of which are steps."""

    obs: Any
    sample: Any  # what the action came from
    log_prob: Any  # of the sample, by the policy that drew it
    value: Any  # before learning
    advantage: Any
    target: Any  # of the value
    ended: Any = ()  # bool, whether the next step begins an episode; () without memory
    memory: Any = ()  # before each step; where steps are cut into segments, before the first of each


@runtime_checkable
class Env(Protocol):
    """One environment, unbatched; the caller vmaps."""

    @property
    def observation_space(self) -> Space:
        """What observations are."""
        ...

    @property
    def action_space(self) -> Space:
        """What actions are."""
        ...

    @property
    def max_episode_steps(self) -> int:
        """After how many steps time runs out at the latest."""
        ...

    @property
    def default_params(self) -> Any:
        """The numbers of the environment that may differ between runs, as a pytree; () where there are none."""
        ...

    @property
    def fresh_reset(self) -> bool:
        """Whether each episode needs a start that nothing used before; else starts may be drawn once and come again."""
        ...

    def reset(self, key: Key, params: Any) -> tuple[State, Any]:
        """The state at the start of an episode, and its observation."""
        ...

    def step(self, key: Key, env_state: State, action: Any, params: Any) -> tuple[State, TimeStep]:
        """The state after an action, and what is seen of it; never resets itself."""
        ...


@runtime_checkable
class Describes(Protocol):
    """An environment that tells what is being played in a state, such as how hard its level is, as metrics."""

    def describe(self, env_state: State) -> Metrics:
        """What is being played, leaves []."""
        ...


@runtime_checkable
class Summarizes(Protocol):
    """An environment of whose episodes more than their return is kept, such as energy spent, or a win."""

    @property
    def episode_info(self) -> Mapping[str, str]:
        """By the name in TimeStep.info what it becomes of an episode: the "sum", the "mean" or the "last" of its steps.

        Arrays of numbers, of any shape.
        """
        ...


@runtime_checkable
class Agent(Protocol):
    """What is learned, and how it acts. The actor of an agent's state is a TrainState; act and mode take its params."""

    def init(self, key: Key, hyperparams: Hyperparams) -> State:
        """The state before anything is learned."""
        ...

    def memory(self) -> Memory:
        """The memory at the start of an episode; () without one."""
        ...

    def act(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """An action that explores, for one observation, the memory after it, and what learning needs beside."""
        ...

    def mode(
        self, params: Params, obs: Any, memory: Memory, key: Key, hyperparams: Hyperparams
    ) -> tuple[Any, Memory, dict[str, Any]]:
        """The same for the greedy action."""
        ...


@runtime_checkable
class OffPolicyAgent(Agent, Protocol):
    """An agent that learns from a replay: the loss of its critic on a batch, and one gradient step on any such loss."""

    def critic_loss(
        self, params: Params, state: State, batch: Transition, key: Key, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The loss [] of a critic with params on a batch, leaves [batch, ...]; targets are those of the state.

        Where the batch has a discount of its own, it is that of the bootstrap (agents.losses.bootstrapped). Rows count
        by their weight; a replay with priorities asks for the metric "td_error" [batch] (agents.losses.squared_error).
        """
        ...

    def update_critic(self, state: State, loss: Any, hyperparams: Hyperparams) -> tuple[State, Metrics]:
        """One gradient step of the critic on loss(params) -> (loss [], metrics)."""
        ...

    def update_targets(self, state: State, hyperparams: Hyperparams) -> State:
        """A soft step of the targets towards what they follow."""
        ...


@runtime_checkable
class ActorCritic(OffPolicyAgent, Protocol):
    """An off-policy agent with an actor, which has its own loss and steps."""

    def actor_loss(
        self, params: Params, state: State, batch: Transition, key: Key, hyperparams: Hyperparams
    ) -> tuple[Array, Metrics]:
        """The loss [] of an actor with params on a batch, by the critic of the state."""
        ...

    def update_actor(self, state: State, loss: Any, hyperparams: Hyperparams) -> tuple[State, Metrics]:
        """One gradient step of the actor on loss(params) -> (loss [], metrics)."""
        ...


@runtime_checkable
class OnPolicyAgent(Agent, Protocol):
    """An agent that learns from what it has just done: a batch, a loss on segments of it, a gradient step on a loss."""

    def batch(self, params: Params, behaviour: Params, transitions: Transition, hyperparams: Hyperparams) -> Batch:
        """What is learned from trajectories, leaves [steps, slots, ...], that behaviour played: targets by params."""
        ...

    def loss(self, params: Params, batch: Batch, hyperparams: Hyperparams) -> tuple[Array, Metrics]:
        """The loss [] on segments of a batch, leaves [segments, steps, ...], but those of memory [segments, ...].

        An agent without memory has segments of one step.
        """
        ...

    def update(self, state: State, loss: Any, hyperparams: Hyperparams) -> tuple[State, Metrics]:
        """One gradient step on loss(params) -> (loss [], metrics)."""
        ...

    def early_stop(self, metrics: Metrics, hyperparams: Hyperparams) -> bool | Array:
        """Whether, after updates with these mean metrics, no further epoch is to come."""
        ...


@runtime_checkable
class Declares(Protocol):
    """A part with hyperparameters, or of parts that have them."""

    def hyperparams(self) -> Hyperparams:
        """Those of its parts at their defaults."""
        ...


@runtime_checkable
class Scheduled(Protocol):
    """Hyperparameters that change with the env steps taken, which at returns as they are by then."""

    def at(self, env_steps: Array) -> Hyperparams:
        """As they are after so many env steps, []."""
        ...


@runtime_checkable
class Discounted(Protocol):
    """Hyperparameters by which later rewards count less."""

    discount: Any


@runtime_checkable
class Replay(Protocol):
    """Experience to learn from: a pytree that changes by adding."""

    @property
    def size(self) -> Array:
        """How many rows it holds, []."""
        ...

    def add(self, rows: Any, mask: Array) -> "Replay":
        """The replay with the rows, leaves [steps, slots, ...], where mask: what each slot did next."""
        ...

    def sample(self, key: Key, shape: tuple[int, ...]) -> Sample:
        """What to learn from, leaves [*shape, ...]; it must hold some."""
        ...


@runtime_checkable
class Prioritizes(Replay, Protocol):
    """A replay that is told of the rows that it gave how much was to be learned from them."""

    def update(self, index: Array, priority: Array) -> "Prioritizes":
        """The replay with other priorities, [...], of what lies at index, int32 [...]: the sizes of their TD errors.

        Of a sequence there is one for each of its steps, [..., steps].
        """
        ...


@runtime_checkable
class Replays(Protocol):
    """Which replay a workflow has."""

    @property
    def sequences(self) -> bool:
        """Whether it gives sequences rather than single rows."""
        ...

    def empty(self, capacity: int, row: Any, num_slots: int = 1) -> Replay:
        """One for `capacity` rows, from so many slots, like row, a pytree of arrays or of their shapes."""
        ...


@runtime_checkable
class Prior(Protocol):
    """A distribution over one number, as a monotonic map from the unit interval, in which search moves."""

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the most that it gives."""
        ...

    @property
    def span(self) -> float:
        """How wide it is where search moves, so that a factor f is a step of log(f): e-folds, or 1 where linear."""
        ...

    def decode(self, u: Array) -> Array:
        """The number at u in [0, 1]."""
        ...

    def encode(self, x: Array) -> Array:
        """Where in [0, 1] a number lies, clipped to its ends."""
        ...


@runtime_checkable
class Evolver(Protocol):
    """Search by ask and tell. Fitness is maximized; NaN counts as the worst."""

    @property
    def population_size(self) -> int:
        """How many genomes it asks for, n."""
        ...

    def init(self, key: Key, mean: Params, hyperparams: Hyperparams) -> State:
        """The state of a search that begins around mean."""
        ...

    def ask(self, key: Key, state: State, hyperparams: Hyperparams) -> tuple[Any, State]:
        """Genomes to be evaluated, leaves [n, ...], in whatever form the evolver keeps them."""
        ...

    def to_params(self, state: State, genome: Any, hyperparams: Hyperparams) -> Params:
        """The parameters that one genome stands for."""
        ...

    def tell(
        self, key: Key, genomes: Any, fitness: Any, state: State, hyperparams: Hyperparams
    ) -> tuple[State, Metrics]:
        """The state after the genomes that it asked for turned out to have fitness, [n] or as fitness() gives it."""
        ...

    def solution(self, state: State) -> Params:
        """The parameters that the search stands for: its mean, or the best that it knows."""
        ...


@runtime_checkable
class Judges(Protocol):
    """An evolver that searches for more than the highest return: several objectives, or behaviour of every kind."""

    def fitness(self, means: dict[str, Any]) -> Any:
        """What tell takes as fitness, leaves [n, ...], of means over the episodes of each member, leaves [n, ...].

        They are "return" and, by name, what the environment summarizes.
        """
        ...


@runtime_checkable
class FromMembers(Protocol):
    """An evolver whose first generation is given, leaves [n, ...], rather than drawn around the mean."""

    def from_members(self, key: Key, members: Params, mean: Params, hyperparams: Hyperparams) -> State:
        """The state of a search that asks for members first."""
        ...


@runtime_checkable
class TakesParams(Protocol):
    """An evolver with a way back from parameters to a genome: it can be told of others than those that it asked for."""

    def from_params(self, state: State, params: Params, hyperparams: Hyperparams) -> Any:
        """The genome that stands for one member's parameters."""
        ...


@runtime_checkable
class Workflow(Protocol):
    """A training run as pure functions; its state has the fields hyperparams and env_params."""

    def init(self, key: Key, hyperparams: Hyperparams, env_params: Any = None) -> State:
        """The state before the first step; env_params are by default those of the environment."""
        ...

    def step(self, state: State, key: Key) -> tuple[State, Metrics]:
        """One iteration; metrics, leaves [], have env_steps, episodes and gradient_steps."""
        ...

    def evaluate(self, state: State, key: Key) -> Metrics:
        """What is learned, played greedily: "return" and "episodes"."""
        ...

    def inherit(self, state: State, parent: State) -> State:
        """The state with the agent and the hyperparameters of its parent; its own replay and environments stay."""
        ...


@runtime_checkable
class Acts(Workflow, Protocol):
    """A workflow that trains one policy, which its state holds; it is greedy unless it explores."""

    env: Env
    agent: Agent

    def policy(self, state: State, explores: bool = False) -> SlotPolicy:
        """How it acts in one environment."""
        ...


@runtime_checkable
class Advances(Protocol):
    """A workflow whose step and evaluate are one function of a flag, so that one program holds its physics once.

    advance returns (state, metrics of the step, metrics of the evaluation), the one not asked for without meaning.
    """

    def advance(self, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
        """A step, or an evaluation, which leaves the state alone."""
        ...


@runtime_checkable
class Iterates(Protocol):
    """A workflow of parts, which workflows.base.advance joins, so that one program holds its physics once.

    A step is plan, play, absorb; an evaluation is exam, play, report. The two plans have one structure; leaves of
    different shapes are broadcast to each other.
    """

    def plan(self, state: State, key: Key) -> tuple[Any, Any]:
        """What a step plays, and what absorb needs beside of what was drawn or learned for it."""
        ...

    def exam(self, state: State, key: Key) -> Any:
        """What an evaluation plays."""
        ...

    def play(self, state: State, plan: Any, key: Key) -> tuple[State, Any]:
        """What was played, and the state with what of it is stored; the same state where nothing is."""
        ...

    def absorb(self, state: State, carry: Any, played: Any, key: Key) -> tuple[State, Metrics]:
        """The state after learning from what was played, and the metrics of the step."""
        ...

    def report(self, state: State, played: Any) -> Metrics:
        """The metrics of the evaluation that was played."""
        ...


@runtime_checkable
class Parallel(Protocol):
    """A workflow of independent parts, which several devices can share among them."""

    @property
    def parallel(self) -> dict[str, int]:
        """By axis of a mesh, how many there are: its members, or the slots in which it plays."""
        ...


@runtime_checkable
class SpreadByDefault(Parallel, Protocol):
    """A workflow that gains more by a core for each of its parts than by all cores for each of its products."""

    spread_by: ClassVar[tuple[str, ...]]  # dotted names of fields: how many parts there are, the first one that says so


@runtime_checkable
class Placed(Protocol):
    """A workflow of whose state some leaves lead with what is independent."""

    def axes(self, state: State) -> Any:
        """A prefix of the state: the axis of a mesh that leaves lead with, or "" where they lead with none."""
        ...


@runtime_checkable
class Population(Workflow, Advances, Protocol):
    """A workflow of members, with which the leaves of its state lead, but for a replay that they share."""

    @property
    def inner(self) -> Any:
        """The workflow of one member."""
        ...

    @property
    def size(self) -> int:
        """How many members, n."""
        ...

    def hyperparams(self, state: State | None = None) -> Hyperparams:
        """Those of the members, leaves [n]; without a state the defaults of each."""
        ...

    def with_hyperparams(self, state: State, hyperparams: Hyperparams) -> State:
        """The state with others, leaves [n]."""
        ...

    def copy_members(self, state: State, source: Array) -> State:
        """The state in which each member inherits from member source[i], itself where it lives on."""
        ...

    def has_no_nan(self, state: State) -> Array:
        """[n] bool, of whose state no number is NaN, replays left out."""
        ...

    def member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """The workflow and the state of one member."""
        ...


@runtime_checkable
class Evolves(Workflow, Protocol):
    """A workflow around a population that lives on in the members of its state, of whom the fittest stands for all."""

    @property
    def population(self) -> Population:
        """The population."""
        ...

    def fittest(self, state: State) -> int | Array:
        """Which member was the fittest when they were last evaluated."""
        ...

    def member(self, state: State, i: int | Array) -> tuple[Workflow, State]:
        """The workflow and the state of one member."""
        ...
