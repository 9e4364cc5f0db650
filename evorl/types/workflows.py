"""What a training run is, and may be beside."""

from typing import Any, ClassVar

from typing_extensions import Protocol, runtime_checkable

from evorl.types.agents import Actor
from evorl.types.data import Array, Key, Metrics, Numbers, Params, PolicyFn, State
from evorl.types.envs import Env
from evorl.types.evolvers import Evolver, SearchResults


@runtime_checkable
class Workflow(Protocol):
    """A training run as pure functions; its state has the fields numbers and env_params."""

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> State:
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
class PolicyWorkflow(Workflow, Protocol):
    """A workflow that trains one policy, which its state holds; it is greedy unless it explores."""

    env: Env
    agent: Actor

    def policy(self, state: State, explores: bool = False) -> PolicyFn:
        """How it acts in one environment."""
        ...


@runtime_checkable
class SearchWorkflow(Workflow, Protocol):
    """A workflow that searches with an evolver."""

    evolver: Evolver

    def results(self, state: State) -> SearchResults | None:
        """What there is to be seen of it beside a policy; None where there is nothing."""
        ...


@runtime_checkable
class SupportsPolicyParams(PolicyWorkflow, Protocol):
    """A workflow whose policy may be given other parameters, as of another solution that it has found."""

    def with_policy_params(self, state: State, params: Params) -> State:
        """The state whose policy has these parameters."""
        ...


@runtime_checkable
class CombinedStepWorkflow(Protocol):
    """A workflow whose step and evaluate are one function of a flag, so that one program holds its physics once.

    step_or_evaluate returns (state, metrics of the step, metrics of the evaluation), the one not asked for without
    meaning.
    """

    def step_or_evaluate(self, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
        """A step, or an evaluation, which leaves the state alone."""
        ...


@runtime_checkable
class StagedWorkflow(Protocol):
    """A workflow of parts, which workflows.base.step_or_evaluate joins, so that one program holds its physics once.

    A step is plan, rollout, learn_from; an evaluation is plan_evaluation, rollout, evaluation_metrics. The two plans
    have one structure; leaves of different shapes are broadcast to each other. Stages have the numbers of the state
    that they are given.
    """

    def plan(self, state: State, key: Key) -> tuple[Any, Any]:
        """What a step plays, and what learn_from needs beside of what was drawn or learned for it."""
        ...

    def plan_evaluation(self, state: State, key: Key) -> Any:
        """What an evaluation plays."""
        ...

    def rollout(self, state: State, plan: Any, key: Key) -> tuple[State, Any]:
        """What was played, and the state with what of it is stored; the same state where nothing is."""
        ...

    def learn_from(self, state: State, carry: Any, played: Any, key: Key) -> tuple[State, Metrics]:
        """The state after learning from what was played, and the metrics of the step."""
        ...

    def evaluation_metrics(self, state: State, played: Any) -> Metrics:
        """The metrics of the evaluation that was played."""
        ...


@runtime_checkable
class HasMaxIterations(Protocol):
    """A workflow that has room for what so many iterations give, with which a training ends."""

    @property
    def max_iterations(self) -> int:
        """How many."""
        ...


@runtime_checkable
class HasFailureReason(Protocol):
    """A workflow that finds out by what it has computed that its options do not fit."""

    def failure_reason(self, state: State) -> str | None:
        """Say on one line why it cannot go on from a state, or return None; on the host."""
        ...


@runtime_checkable
class ParallelWorkflow(Protocol):
    """A workflow of independent parts, which several devices can share among them."""

    @property
    def parallel_axes(self) -> dict[str, int]:
        """By axis of a mesh, how many there are: its members, or the environments in which it plays."""
        ...


@runtime_checkable
class DefaultShardedWorkflow(ParallelWorkflow, Protocol):
    """A workflow that gains more by a core for each of its parts than by all cores for each of its products."""

    parallel_size_fields: ClassVar[
        tuple[str, ...]
    ]  # dotted names of fields: how many parts there are, the first one that says so


@runtime_checkable
class ShardedWorkflow(Protocol):
    """A workflow of whose state some leaves lead with what is independent."""

    def state_sharding(self, state: State) -> Any:
        """A prefix of the state: the axis of a mesh that leaves lead with, or "" where they lead with none."""
        ...
