"""Base class of workflows, the combined program of iteration and evaluation, and helpers that workflows share."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from typing_extensions import get_protocol_members

from evorl import mesh, tree
from evorl.agents.base_agent import fill_spaces
from evorl.agents.losses import TD_ERROR
from evorl.agents.memory import is_recurrent
from evorl.errors import OptionError, require, require_int
from evorl.keys import require_key
from evorl.parts import bind, is_bound, is_part
from evorl.types import (
    Actor,
    ActorCritic,
    CombinedStepWorkflow,
    Env,
    HasIndependentParts,
    Key,
    Metrics,
    ParallelWorkflow,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Sample,
    ShardedWorkflow,
    StagedWorkflow,
    State,
    Transition,
    Workflow,
)
from evorl.vector_env import Behaviour, hosts

T = TypeVar("T")
Body = Callable[[Array, Any], tuple[Any, Metrics]]


STAGES = "plan", "plan_evaluation", "rollout", "learn_from", "evaluation_metrics", "behaviour"


def bind_unless_bound(workflow: Any, state: State) -> Any:
    """Return a workflow with the hyperparameters of a state, or the workflow itself if it is already bound.

    Within `step`, a workflow is already bound.
    """
    return workflow if is_bound(workflow) else workflow.bound(state)


def with_numbers_of_state(method: Callable[..., T]) -> Callable[..., T]:
    """Decorate a workflow method that takes a state, so that `self` has the hyperparameters of that state."""

    @wraps(method)
    def call(self: Any, state: Any, *given: Any, **named: Any) -> T:
        return method(bind_unless_bound(self, state), state, *given, **named)

    return call


class BaseStagedWorkflow:
    """Base class of workflows that consist of stages (`evorl.types.StagedWorkflow`).

    Each stage of a subclass is decorated with `with_numbers_of_state`, so that `self` has the hyperparameters
    of the state. Several devices share the members of the field `population` or, without one, the
    environments of `vector_env`.

    Attributes:
        inherited: Fields of the state that a member of a population takes from its parent, together with the
            hyperparameters.
    """

    inherited: ClassVar[tuple[str, ...]] = ("agent",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in STAGES:
            if name in vars(cls):
                setattr(cls, name, with_numbers_of_state(vars(cls)[name]))

    @property
    def parallel_axes(self) -> dict[str, int]:
        """Return the number of independent parts of an iteration by mesh axis."""
        parallel = getattr(self, "population", None) or getattr(self, "vector_env", None)
        return parallel_axes(parallel)

    def inherit(self, state: Any, parent: Any) -> Any:
        """Return the state with the hyperparameters and the fields `inherited` of the parent, otherwise unchanged."""
        return replace(state, numbers=parent.numbers, **{name: getattr(parent, name) for name in self.inherited})

    def evaluation_metrics(self, state: Any, played: Any) -> Metrics:
        """Return the metrics of an evaluation: by default, those of its episodes."""
        del state
        return played.stats.evaluation_metrics()

    def count_env_steps(self, state: Any) -> Array:
        """Return the number of env steps so far, [] float32, on which schedules depend.

        The base class returns the field `env_steps` of the state, or 0 without such a field.

        Args:
            state: State of the workflow.
        """
        return getattr(state, "env_steps", jnp.float32(0))

    def bound(self: T, state: Any) -> T:
        """Return the workflow with the hyperparameters of a state.

        Schedules are evaluated at the env steps taken so far.

        Args:
            state: State of the workflow.
        """
        workflow: Any = self
        return bind(self, state.numbers, workflow.count_env_steps(state))

    def step(self, state: Any, key: Key) -> tuple[Any, Metrics]:
        """Run one iteration: plan, roll out and learn."""
        require_key(key)
        workflow: Any = bind_to_state(self, state)
        key_plan, key_rollout, key_learn = jax.random.split(key, 3)
        plan, carry = workflow.plan(state, key_plan)
        state, played = workflow.rollout(state, plan, key_rollout)
        return workflow.learn_from(state, carry, played, key_learn)

    def evaluate(self, state: Any, key: Key) -> Metrics:
        """Run a rollout of the learned policy and return its metrics; the state stays unchanged."""
        require_key(key)
        workflow: Any = bind_to_state(self, state)
        key_plan, key_rollout, _ = jax.random.split(key, 3)
        played = workflow.rollout(state, workflow.plan_evaluation(state, key_plan), key_rollout)[1]
        return workflow.evaluation_metrics(state, played)


class BasePolicyWorkflow(BaseStagedWorkflow):
    """Base class of workflows whose agent acts on observations, normalized if the state has `obs_statistics`."""

    def behaviour(self, state: Any) -> Behaviour:
        """Return the behavior of the agent in one environment, for any parameters."""
        workflow: Any = self
        return Behaviour(workflow.env, workflow.agent, partial(self.normalize_obs, state))

    def normalize_obs(self, state: Any, obs: Any) -> Any:
        """Return an observation as the policy sees it: normalized, if the workflow normalizes observations.

        Args:
            state: State of the workflow, with the statistics.
            obs: Observation of the environment.
        """
        return obs if state.obs_statistics is None else state.obs_statistics.normalize(obs)


def drop_shared_fields(state: State) -> State:
    """Return the state of a member without numbers and env_params, which the state of the outer workflow holds once."""
    return replace(state, numbers=None, env_params=None)


def as_evaluation(found: Metrics) -> Metrics:
    """Return metrics that were computed without episodes in the form of an evaluation of one episode."""
    return found | {"episodes": jnp.int32(1), "episode_length": jnp.float32(1), "return_error": jnp.float32(0)}


def step_or_evaluate(
    workflow: Workflow, state: State, key: Key, evaluating: bool | Array
) -> tuple[State, Metrics, Metrics]:
    """Run one iteration or, if `evaluating`, an evaluation, which leaves the state unchanged.

    Args:
        workflow: Workflow. If it has stages, the program contains the rollout once; if it has only step and
            evaluate, the program contains both.
        state: State of the workflow.
        key: Random key, used as `step` and `evaluate` use it.
        evaluating: Whether to evaluate; the same for all vmapped copies.

    Returns:
        The state, the metrics of the iteration, and the metrics of the evaluation. The metrics of the one
        that did not run have no meaning; if `evaluating` is a Python bool, they are empty.
    """
    require_key(key)
    if isinstance(workflow, CombinedStepWorkflow):
        return workflow.step_or_evaluate(state, key, evaluating)
    if isinstance(evaluating, bool):
        return (state, {}, workflow.evaluate(state, key)) if evaluating else (*workflow.step(state, key), {})
    if isinstance(workflow, StagedWorkflow):
        return _step_or_evaluate_stages(bind_to_state(workflow, state), state, key, evaluating)
    shapes = jax.eval_shape(lambda: (workflow.step(state, key)[1], workflow.evaluate(state, key)))
    no_step, no_evaluation = tree.zeros_like(shapes)
    return jax.lax.cond(
        evaluating,
        lambda: (state, no_step, workflow.evaluate(state, key)),
        lambda: (*workflow.step(state, key), no_evaluation),
    )


def bind_to_state(workflow: T, state: State) -> T:
    """Return a workflow with the hyperparameters of a state, or the workflow itself if it has no hyperparameters."""
    return workflow.bound(state) if isinstance(workflow, BaseStagedWorkflow) and is_part(workflow) else workflow


def _step_or_evaluate_stages(
    workflow: StagedWorkflow, state: State, key: Key, evaluating: Array
) -> tuple[State, Metrics, Metrics]:
    """Run one iteration or an evaluation, in a program that contains one rollout for both.

    1. A branch (`lax.cond`) computes one of the two plans. A plan is small, which matters because a branch
      copies everything that it returns. Both plans are broadcast to a common shape; the carry of an
      evaluation is zeros.
    2. The rollout runs either plan. In an evaluation it stores nothing, so that the state stays unchanged.
    3. Learning is a loop of one turn, or of no turn in an evaluation. Unlike a branch, a loop writes its
      state, with the replay buffer in it, in place.

    `plan` and `learn_from` are jitted, so that each is traced only once although its output shapes are needed
    first. `plan_evaluation`, which is small, is traced twice.
    """
    key_plan, key_rollout, key_learn = jax.random.split(key, 3)
    make_plan = jax.jit(workflow.plan)
    (step_plan, step_carry), evaluation_plan = jax.eval_shape(
        lambda: (make_plan(state, key_plan), workflow.plan_evaluation(state, key_plan))
    )
    shapes = jax.tree.map(_broadcast_struct, step_plan, evaluation_plan)

    def broadcast_plan(plan: Any) -> Any:
        return jax.tree.map(lambda x, to: jnp.broadcast_to(x, to.shape).astype(to.dtype), plan, shapes)

    def plan_step() -> tuple[Any, Any]:
        plan, carry = make_plan(state, key_plan)
        return broadcast_plan(plan), tree.drop_weak_types(carry)

    def plan_evaluation() -> tuple[Any, Any]:
        return broadcast_plan(workflow.plan_evaluation(state, key_plan)), tree.zeros_like(step_carry)

    plan, carry = jax.lax.cond(evaluating, plan_evaluation, plan_step)
    state, played = workflow.rollout(state, plan, key_rollout)
    learn = jax.jit(lambda state: workflow.learn_from(state, carry, played, key_learn))
    no_metrics = tree.zeros_like(jax.eval_shape(learn, state)[1])
    evaluation = workflow.evaluation_metrics(state, played)
    once = (~evaluating).astype(jnp.int32)
    state, metrics = tree.masked_fori_loop(once, lambda _, loop: learn(loop[0]), (state, no_metrics))
    return state, metrics, evaluation


def _broadcast_struct(a: jax.ShapeDtypeStruct, b: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Return the shape and the dtype to which both arguments can be broadcast."""
    return jax.ShapeDtypeStruct(jnp.broadcast_shapes(a.shape, b.shape), jnp.result_type(a.dtype, b.dtype))


def loop_with_metrics(
    times: Int[Array, ""], body: Body, carry: Any, early_stop: Callable[[Metrics], Any] = lambda metrics: False
) -> tuple[Any, Metrics, Int[Array, ""]]:
    """Repeat `carry, metrics = body(i, carry)` for i < times, or until early_stop(metrics) is true.

    Returns:
        The carry, the mean metrics (0 if times is 0), and the number of repetitions.
    """
    body = jax.jit(body)  # traced once, for its output shapes and for the loop
    zeros = tree.zeros_like(jax.eval_shape(body, jnp.int32(0), carry)[1])

    def add(i: Array, loop: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, metrics = body(i, loop[0])
        return carry, jax.tree.map(jnp.add, loop[1], metrics), i + 1, jnp.asarray(early_stop(metrics))

    start = carry, zeros, jnp.int32(0), jnp.bool_(False)
    carry, sums, done, _ = tree.masked_fori_loop(times, add, start, lambda loop: ~loop[3])
    return carry, jax.tree.map(lambda x: x / jnp.maximum(done, 1), sums), done


def loop_with_replay(
    times: Int[Array, ""],
    body: Callable[[Array, Any, ReplayBuffer], tuple[Any, ReplayBuffer, Metrics]],
    carry: Any,
    replay: ReplayBuffer,
) -> tuple[Any, ReplayBuffer, Metrics]:
    """Repeat carry, replay, metrics = body(i, carry, replay); a replay buffer without priorities is not carried."""
    changes = isinstance(replay, PrioritizedReplayBuffer)

    def run_once(i: Array, loop: tuple[Any, Any]) -> tuple[tuple[Any, Any], Metrics]:
        after, changed, metrics = body(i, loop[0], loop[1] if changes else replay)
        return (after, changed if changes else None), metrics

    (carry, changed), metrics, _ = loop_with_metrics(times, run_once, (carry, replay if changes else None))
    return carry, changed if changes else replay, metrics


def replace_nan_envs(own: Any, parent: Any, axes: Any = 0) -> Any:
    """Return a child's environments, in which each one of the n that contains NaN is replaced by the parent's.

    Args:
        own: Environments of the child.
        parent: Environments of the parent.
        axes: Axis of the environments in the leaves, as in jax.vmap. Environments on the host cannot be
            copied; they stay the child's and are reset.
    """
    taken = jax.vmap(lambda a, b: tree.select(tree.is_nan_free(a), a, b), (axes, axes), axes)(own, parent)
    return hosts.copy_marked_for_reset(taken, own)


def update_actor_on_batch(agent: ActorCritic, state: Any, batch: Transition, key: Key) -> tuple[Any, Metrics]:
    """Take one gradient step of the actor on its own loss."""
    return agent.update_actor(state, lambda params: agent.actor_loss(params, state, batch, key))


def spread_samples(samples: Sample) -> Sample:
    """Spread the batch of each gradient step over the devices.

    Args:
        samples: Rows with leaves [updates, batch, ...], or sequences with leaves [updates, steps, batch, ...],
            whose `memory` has no axis of steps.
    """
    rows = replace(samples.rows, memory=None)
    rows = mesh.spread_rows(rows, mesh.ENVS, at=rows.terminated.ndim - 1)
    memory, index, weight = mesh.spread_rows((samples.rows.memory, samples.index, samples.weight), mesh.ENVS, at=1)
    return Sample(replace(rows, memory=memory), index, weight)


def update_priorities(replay: ReplayBuffer, index: Array, metrics: Metrics) -> tuple[ReplayBuffer, Metrics]:
    """Set the priorities of a replay buffer from the TD errors in the metrics, and remove these from the metrics.

    A replay buffer without priorities stays unchanged. TD errors of sequences have the axis of steps before
    the axis of the batch; it is moved to the end.
    """
    rest = {name: x for name, x in metrics.items() if name != TD_ERROR}
    if not isinstance(replay, PrioritizedReplayBuffer):
        return replay, rest
    if TD_ERROR not in metrics:
        raise OptionError(f'replay={type(replay).__name__}: needs the metric "{TD_ERROR}" of the agent\'s critic_loss')
    errors = metrics[TD_ERROR]
    return replay.update_priorities(index, errors if errors.ndim == index.ndim else jnp.moveaxis(errors, -2, -1)), rest


def parallel_axes(workflow: Any) -> dict[str, int]:
    """Return the number of independent parts of a workflow by mesh axis; empty if the workflow does not report it."""
    return workflow.parallel_axes if isinstance(workflow, ParallelWorkflow) else {}


def independent_axes(workflow: Any) -> dict[str, int]:
    """Return the number of parts that exchange nothing, by mesh axis; empty if the workflow does not report it."""
    return workflow.independent_axes if isinstance(workflow, HasIndependentParts) else {}


def state_sharding(workflow: Any, state: State) -> Any:
    """Return a prefix of the state with the mesh axis of the leading axis of its leaves, or "" for none."""
    return workflow.state_sharding(state) if isinstance(workflow, ShardedWorkflow) else ""


def total_iteration_cost(workflow: Any, times: int) -> dict[str, tuple[int, int]]:
    """Return the minimum and the maximum cost of `times` iterations by name; empty if the workflow reports none."""
    return {
        name: (times * least, times * most) for name, (least, most) in getattr(workflow, "iteration_cost", {}).items()
    }


def max_env_steps(workflow: Any) -> tuple[float, float]:
    """Return the maximum number of env steps of the first iteration of a workflow, and of any other iteration.

    Args:
        workflow: Workflow that reports them in `iteration_cost` and, if the first iteration differs, in
            `initial_env_steps`.

    Returns:
        Both numbers; infinite if the workflow does not report them.
    """
    _, most = getattr(workflow, "iteration_cost", {}).get("env_steps", (0, math.inf))
    return max(most, getattr(workflow, "initial_env_steps", most)), most


def max_total_env_steps(workflow: Any, iterations: int) -> float:
    """Return the maximum number of env steps of the first `iterations` iterations of a workflow."""
    first, later = max_env_steps(workflow)
    return first + (iterations - 1) * later


def check_parts(workflow: Any) -> None:
    """Raise OptionError if `env` or `agent` lacks the required members or is a class instead of an object."""
    for name, protocol in (("env", Env), ("agent", Actor)):
        part = vars(workflow).get(name)
        if name not in vars(workflow) or (isinstance(part, protocol) and not isinstance(part, type)):
            continue
        given = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
        wanted = f"{protocol.__name__} of evorl.types: {', '.join(sorted(get_protocol_members(protocol)))}"
        raise OptionError(f"{name}={given}: must be an object with the members of {wanted}")


def check_positive(workflow: Any, *names: str) -> None:
    """Raise OptionError if a named field is not an integer of at least 1; also runs `check_parts`."""
    check_parts(workflow)
    for name in names:
        require_int(name, getattr(workflow, name))


def require_env_steps(workflow: Any, name: str) -> None:
    """Raise OptionError if a workflow within another one takes no env steps, since it gets no demonstrations."""
    alone = getattr(workflow, "num_steps", None) == 0 and hasattr(workflow, "replay")
    require(not alone, f"{name}.num_steps", 0, "must be at least 1: demonstrations can be given to single runs only")


def fill_agent_spaces(workflow: Any) -> None:
    """Set the missing spaces of the agent to those of the environment, while the workflow is being created."""
    check_parts(workflow)
    object.__setattr__(workflow, "agent", fill_spaces(workflow.agent, workflow.env))


def check_replay(workflow: Any) -> None:
    """Raise OptionError if the replay buffer is too small for a batch or the random steps, or unfit for the agent."""
    why = "stores single transitions, and the agent is recurrent; use replay=sequences"
    require(
        not is_recurrent(workflow.agent) or workflow.replay.has_sequences, "replay", type(workflow.replay).__name__, why
    )
    check_positive(workflow, "capacity")
    capacity, batch_size, random_steps = workflow.capacity, workflow.batch_size, workflow.random_steps
    require(capacity >= batch_size, "capacity", capacity, f"must be at least batch_size, {batch_size}")
    require_int("random_steps", random_steps, 0)
    require(random_steps <= capacity, "random_steps", random_steps, f"must be from 0 to capacity, {capacity}")
