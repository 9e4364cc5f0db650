"""Protocols of workflows, which are training runs, and of their optional features."""

from typing import Any, ClassVar

from typing_extensions import Protocol, runtime_checkable

from evorl.types.agents import Actor
from evorl.types.data import Array, Key, Metrics, Numbers, Params, PolicyFn, State
from evorl.types.envs import Env
from evorl.types.evolvers import Evolver, SearchResults


@runtime_checkable
class Workflow(Protocol):
    """Protocol of a workflow: a training run as pure functions of a state.

    The state has the fields `numbers` (hyperparameters) and `env_params`.
    """

    def init(self, key: Key, numbers: Numbers | None = None, env_params: Any = None) -> State:
        """Return the initial state of a run.

        Args:
            key: Random key.
            numbers: Hyperparameters, nested by field name; None for those of the workflow's components.
            env_params: Environment parameters; None for the default parameters of the environment.
        """
        ...

    def step(self, state: State, key: Key) -> tuple[State, Metrics]:
        """Run one iteration.

        Args:
            state: State of the run.
            key: Random key.

        Returns:
            The new state, and metrics with leaves []. They include env_steps, episodes and gradient_steps.
        """
        ...

    def evaluate(self, state: State, key: Key) -> Metrics:
        """Evaluate the learned policy greedily.

        Args:
            state: State of the run.
            key: Random key.

        Returns:
            Metrics, which include "return" and "episodes".
        """
        ...

    def inherit(self, state: State, parent: State) -> State:
        """Return the state of a member of a population after it inherits from a parent.

        The member takes over the agent and the hyperparameters of its parent. It keeps its own replay buffer
        and environments.

        Args:
            state: State of the member.
            parent: State of the parent.
        """
        ...


@runtime_checkable
class PolicyWorkflow(Workflow, Protocol):
    """Protocol of a workflow that trains one policy, which is part of its state.

    Attributes:
        env: Environment of the policy.
        agent: Actor of the policy.
    """

    env: Env
    agent: Actor

    def policy(self, state: State, explores: bool = False) -> PolicyFn:
        """Return the policy of a state, as a function of one environment's observations.

        Args:
            state: State of the run.
            explores: Whether the policy explores; otherwise it is greedy.
        """
        ...


@runtime_checkable
class SearchWorkflow(Workflow, Protocol):
    """Protocol of a workflow that searches with an evolver.

    Attributes:
        evolver: The evolver.
    """

    evolver: Evolver

    def results(self, state: State) -> SearchResults | None:
        """Return the solutions of the search, such as an archive; None if there are none besides the policy.

        Args:
            state: State of the run.
        """
        ...


@runtime_checkable
class SupportsPolicyParams(PolicyWorkflow, Protocol):
    """Protocol of a workflow whose policy can be given other parameters, such as those of another solution."""

    def with_policy_params(self, state: State, params: Params) -> State:
        """Return a state whose policy has the given parameters.

        Args:
            state: State of the run.
            params: Parameters of the policy.
        """
        ...


@runtime_checkable
class CombinedStepWorkflow(Protocol):
    """Protocol of a workflow that can step or evaluate in one function.

    The compiled program then contains the rollout, with the physics of the environment, only once.
    """

    def step_or_evaluate(self, state: State, key: Key, evaluating: bool | Array) -> tuple[State, Metrics, Metrics]:
        """Run one iteration, or an evaluation, which leaves the state unchanged.

        Args:
            state: State of the run.
            key: Random key.
            evaluating: Whether to evaluate, [].

        Returns:
            The state, the metrics of the iteration, and the metrics of the evaluation. The metrics of the one
            that was not requested have no meaning.
        """
        ...


@runtime_checkable
class StagedWorkflow(Protocol):
    """Protocol of a workflow whose iterations and evaluations consist of stages.

    An iteration is `plan`, `rollout` and `learn_from`. An evaluation is `plan_evaluation`, `rollout` and
    `evaluation_metrics`. `workflows.base.step_or_evaluate` joins them in one program that contains the
    rollout, with the physics of the environment, only once. To this end, the two plans have the same
    structure; leaves of different shapes are broadcast to each other. Each stage uses the hyperparameters of
    the state that it is given.
    """

    def plan(self, state: State, key: Key) -> tuple[Any, Any]:
        """Plan the rollout of an iteration.

        Args:
            state: State of the run.
            key: Random key.

        Returns:
            The plan, and what else `learn_from` needs of the values that were sampled or learned for the
            plan.
        """
        ...

    def plan_evaluation(self, state: State, key: Key) -> Any:
        """Return the plan of an evaluation.

        Args:
            state: State of the run.
            key: Random key.
        """
        ...

    def rollout(self, state: State, plan: Any, key: Key) -> tuple[State, Any]:
        """Run a plan.

        Args:
            state: State of the run.
            plan: Plan of an iteration or of an evaluation.
            key: Random key.

        Returns:
            The state, which contains what was stored of the rollout and is unchanged if nothing was, and the
            result of the rollout.
        """
        ...

    def learn_from(self, state: State, carry: Any, played: Any, key: Key) -> tuple[State, Metrics]:
        """Learn from the rollout of an iteration.

        Args:
            state: State after the rollout.
            carry: Second result of `plan`.
            played: Result of the rollout.
            key: Random key.

        Returns:
            The new state and the metrics of the iteration.
        """
        ...

    def evaluation_metrics(self, state: State, played: Any) -> Metrics:
        """Return the metrics of an evaluation.

        Args:
            state: State of the run.
            played: Result of the rollout of the evaluation.
        """
        ...


@runtime_checkable
class HasMaxIterations(Protocol):
    """Protocol of a workflow with room for a limited number of iterations, after which a training ends."""

    @property
    def max_iterations(self) -> int:
        """Return the maximum number of iterations."""
        ...


@runtime_checkable
class HasFailureReason(Protocol):
    """Protocol of a workflow that can find out only from computed values that its options do not fit."""

    def failure_reason(self, state: State) -> str | None:
        """Return why training cannot continue from a state, in one line, or None if it can. Runs on the host.

        Args:
            state: State of the run.
        """
        ...


@runtime_checkable
class ParallelWorkflow(Protocol):
    """Protocol of a workflow with independent parts, which can be distributed over several devices."""

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of independent parts by mesh axis: the members of a population, or the environments."""
        ...


@runtime_checkable
class HasIndependentParts(ParallelWorkflow, Protocol):
    """Protocol of a workflow with parts that exchange nothing during most of an iteration.

    These parts may be in several processes.

    Attributes:
        is_sharded_by_default: Whether the parts are distributed over all devices by default, because on a CPU
            one core for each of them is faster than all cores for each matrix product.
    """

    is_sharded_by_default: ClassVar[bool]

    @property
    def independent_axes(self) -> dict[str, int]:
        """Return the number of these parts by mesh axis; a part of `parallel_axes`."""
        ...


@runtime_checkable
class ShardedWorkflow(Protocol):
    """Protocol of a workflow in whose state some leaves have a leading axis of independent parts."""

    def state_sharding(self, state: State) -> Any:
        """Return along which mesh axis each leaf of the state is sharded.

        Args:
            state: State of the run.

        Returns:
            A prefix of the state: the mesh axis of the leading axis of the leaves, or "" for leaves that are
            not sharded.
        """
        ...
