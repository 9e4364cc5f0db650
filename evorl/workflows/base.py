"""The base of workflows, the program of step and evaluation, and helpers that they share."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from typing_extensions import get_protocol_members

from evorl import tree
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
    Key,
    Metrics,
    ParallelWorkflow,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    ShardedWorkflow,
    StagedWorkflow,
    State,
    Transition,
    Workflow,
)
from evorl.vector_env import hosts

T = TypeVar("T")
Body = Callable[[Array, Any], tuple[Any, Metrics]]


STAGES = "plan", "plan_evaluation", "rollout", "learn_from", "evaluation_metrics", "behaviour"


def bind_unless_bound(workflow: Any, state: State) -> Any:
    """Return a workflow with the numbers of a state; one that is bound already, as within `step`, as it is."""
    return workflow if is_bound(workflow) else workflow.bound(state)


def with_numbers_of_state(method: Callable[..., T]) -> Callable[..., T]:
    """Decorate a method of a workflow that takes a state, so that it has the numbers of the state."""

    @wraps(method)
    def call(self: Any, state: Any, *given: Any, **named: Any) -> T:
        return method(bind_unless_bound(self, state), state, *given, **named)

    return call


class BaseStagedWorkflow:
    """The base of workflows that define the stages of a step and an evaluation (evorl.types.StagedWorkflow).

    The stages of a subclass are decorated with `with_numbers_of_state`. In a population a member takes over the fields
    `inherited` of its parent's state. Devices share the members of `population`, or else the environments.
    """

    inherited: ClassVar[tuple[str, ...]] = ("agent",)  # fields of the state that `inherit` takes from the parent

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in STAGES:
            if name in vars(cls):
                setattr(cls, name, with_numbers_of_state(vars(cls)[name]))

    @property
    def parallel_axes(self) -> dict[str, int]:
        """By axis of a mesh, how many of what is independent there are in an iteration."""
        parallel = getattr(self, "population", None) or getattr(self, "vector_env", None)
        return parallel_axes(parallel)

    def inherit(self, state: Any, parent: Any) -> Any:
        """Return the state with the numbers of its parent and what that has learned; all else stays its own."""
        return replace(state, numbers=parent.numbers, **{name: getattr(parent, name) for name in self.inherited})

    def count_env_steps(self, state: Any) -> Array:
        """Return how many env steps have been taken, [] float32, by which schedules go: `env_steps` of the state."""
        return getattr(state, "env_steps", jnp.float32(0))

    def bound(self: T, state: Any) -> T:
        """Return the workflow with the numbers of a state, as they are by the env steps taken so far."""
        workflow: Any = self
        return bind(self, state.numbers, workflow.count_env_steps(state))

    def step(self, state: Any, key: Key) -> tuple[Any, Metrics]:
        """Return the state after an iteration, which plans, rolls out and learns, and its metrics."""
        require_key(key)
        workflow: Any = bind_to_state(self, state)
        key_plan, key_rollout, key_learn = jax.random.split(key, 3)
        plan, carry = workflow.plan(state, key_plan)
        state, played = workflow.rollout(state, plan, key_rollout)
        return workflow.learn_from(state, carry, played, key_learn)

    def evaluate(self, state: Any, key: Key) -> Metrics:
        """Return the metrics of a rollout of what was learned; the state stays as it is."""
        require_key(key)
        workflow: Any = bind_to_state(self, state)
        key_plan, key_rollout, _ = jax.random.split(key, 3)
        played = workflow.rollout(state, workflow.plan_evaluation(state, key_plan), key_rollout)[1]
        return workflow.evaluation_metrics(state, played)


def drop_shared_fields(state: State) -> State:
    """Return the state of a member as a workflow around it holds it, which has its numbers and env_params once."""
    return replace(state, numbers=None, env_params=None)


def as_evaluation(found: Metrics) -> Metrics:
    """Return metrics that are computed without episodes as those of an evaluation of one episode."""
    return found | {"episodes": jnp.int32(1), "episode_length": jnp.float32(1), "return_error": jnp.float32(0)}


def step_or_evaluate(
    workflow: Workflow, state: State, key: Key, evaluating: bool | Array
) -> tuple[State, Metrics, Metrics]:
    """Take a step or, where evaluating, evaluate, which leaves the state alone.

    Args:
        workflow: of stages, so that one program holds its rollout once; of one that has only step and evaluate it holds
            both.
        state: of the workflow.
        key: of the step or the evaluation, of which either draws as `step` and `evaluate` do.
        evaluating: the same for all vmapped copies.

    Returns:
        The state, the metrics of the step and those of the evaluation. Those of what is not done have no meaning, and
        are missing where the flag is a bool.
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
    """Return a workflow with the numbers of a state, one that has none of its own as it is."""
    return workflow.bound(state) if isinstance(workflow, BaseStagedWorkflow) and is_part(workflow) else workflow


def _step_or_evaluate_stages(
    workflow: StagedWorkflow, state: State, key: Key, evaluating: Array
) -> tuple[State, Metrics, Metrics]:
    """Take a step or evaluate, in a program that has one rollout for both.

    1. A branch (`lax.cond`) makes one plan or the other: a plan is small, and a branch copies all that it returns. Both
       plans have one shape, to which each is broadcast; an evaluation carries zeros.
    2. The rollout plays whichever plan it is. In an evaluation it stores nothing, so that the state stays as it is.
    3. Learning is a loop of one turn, or of none in an evaluation: unlike a branch, a loop writes its state, with the
       replay in it, in place.

    `plan` and `learn_from` are jitted, as their shapes are asked for first, so that both are traced once;
    `plan_evaluation`, which is small, is traced twice.
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
    """Return the shape and dtype to which both can be broadcast."""
    return jax.ShapeDtypeStruct(jnp.broadcast_shapes(a.shape, b.shape), jnp.result_type(a.dtype, b.dtype))


def loop_with_metrics(
    times: Int[Array, ""], body: Body, carry: Any, early_stop: Callable[[Metrics], Any] = lambda metrics: False
) -> tuple[Any, Metrics, Int[Array, ""]]:
    """Repeat `carry, metrics = body(i, carry)` for i below times, or until early_stop(metrics).

    Returns:
        The carry, the mean metrics, which are 0 where times is 0, and the number of turns.
    """
    body = jax.jit(body)  # so that its shapes and its code come from one trace
    zeros = tree.zeros_like(jax.eval_shape(body, jnp.int32(0), carry)[1])

    def add(i: Array, loop: tuple[Any, ...]) -> tuple[Any, ...]:
        carry, metrics = body(i, loop[0])
        return carry, jax.tree.map(jnp.add, loop[1], metrics), i + 1, jnp.asarray(early_stop(metrics))

    start = carry, zeros, jnp.int32(0), jnp.bool_(False)
    carry, sums, done, _ = tree.masked_fori_loop(times, add, start, lambda loop: ~loop[3])
    return carry, jax.tree.map(lambda x: x / jnp.maximum(done, 1), sums), done


def replace_nan_envs(own: Any, parent: Any, axes: Any = 0) -> Any:
    """Return a child's environments, but its parent's where one of the n holds NaN.

    Args:
        own: of the child.
        parent: of the parent.
        axes: of the environments, as in jax.vmap. Those on the host cannot be taken over: they reset.
    """
    taken = jax.vmap(lambda a, b: tree.select(tree.is_nan_free(a), a, b), (axes, axes), axes)(own, parent)
    return hosts.copy_marked_for_reset(taken, own)


def update_actor_on_batch(agent: ActorCritic, state: Any, batch: Transition, key: Key) -> tuple[Any, Metrics]:
    """Take a gradient step of the actor on its own loss."""
    return agent.update_actor(state, lambda params: agent.actor_loss(params, state, batch, key))


def update_priorities(replay: ReplayBuffer, index: Array, metrics: Metrics) -> tuple[ReplayBuffer, Metrics]:
    """Return the replay with priorities by the TD errors in metrics, where it has any, and the metrics without them.

    Those of sequences, whose steps come before the batch, lead with what index has, and end with the steps.
    """
    rest = {name: x for name, x in metrics.items() if name != TD_ERROR}
    if not isinstance(replay, PrioritizedReplayBuffer):
        return replay, rest
    if TD_ERROR not in metrics:
        raise OptionError(f'replay={type(replay).__name__}: needs of the agent\'s critic_loss the metric "{TD_ERROR}"')
    errors = metrics[TD_ERROR]
    return replay.update_priorities(index, errors if errors.ndim == index.ndim else jnp.moveaxis(errors, -2, -1)), rest


def parallel_axes(workflow: Any) -> dict[str, int]:
    """Return by mesh axis how many independent parts an iteration of a workflow has, where it says so."""
    return workflow.parallel_axes if isinstance(workflow, ParallelWorkflow) else {}


def state_sharding(workflow: Any, state: State) -> Any:
    """Return a prefix of the state with the mesh axis that its leaves lead with, "" for none."""
    return workflow.state_sharding(state) if isinstance(workflow, ShardedWorkflow) else ""


def total_iteration_cost(workflow: Any, times: int) -> dict[str, tuple[int, int]]:
    """Return the least and the most that so many iterations of a workflow take, where it says so."""
    return {
        name: (times * least, times * most) for name, (least, most) in getattr(workflow, "iteration_cost", {}).items()
    }


def max_env_steps(workflow: Any) -> tuple[float, float]:
    """Return the most env steps that the first iteration of a workflow takes, and any other one.

    Args:
        workflow: whose `iteration_cost` says so, and whose `initial_env_steps` does where the first iteration differs.

    Returns:
        Both infinite where it does not say.
    """
    _, most = getattr(workflow, "iteration_cost", {}).get("env_steps", (0, math.inf))
    return max(most, getattr(workflow, "initial_env_steps", most)), most


def max_total_env_steps(workflow: Any, iterations: int) -> float:
    """Return the most env steps that the first so many iterations of a workflow take."""
    first, later = max_env_steps(workflow)
    return first + (iterations - 1) * later


def check_parts(workflow: Any) -> None:
    """Raise OptionError where the environment or the agent of a workflow is none, but a class, say."""
    for name, protocol in (("env", Env), ("agent", Actor)):
        part = vars(workflow).get(name)
        if name not in vars(workflow) or (isinstance(part, protocol) and not isinstance(part, type)):
            continue
        given = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
        wanted = f"{protocol.__name__} of evorl.types: {', '.join(sorted(get_protocol_members(protocol)))}"
        raise OptionError(f"{name}={given}: must be an object with the members of {wanted}")


def check_positive(workflow: Any, *names: str) -> None:
    """Raise OptionError where a named field is no whole number from 1 on, or as check_parts does."""
    check_parts(workflow)
    for name in names:
        require_int(name, getattr(workflow, name))


def fill_agent_spaces(workflow: Any) -> None:
    """Give the agent of a workflow that is being made the spaces of its environment, where it has none."""
    check_parts(workflow)
    object.__setattr__(workflow, "agent", fill_spaces(workflow.agent, workflow.env))


def check_replay(workflow: Any) -> None:
    """Raise OptionError where the replay cannot hold a batch or the random steps, or does not suit the agent."""
    why = "keeps single rows, and the agent remembers: it needs sequences, replay=sequences"
    require(
        not is_recurrent(workflow.agent) or workflow.replay.has_sequences, "replay", type(workflow.replay).__name__, why
    )
    check_positive(workflow, "capacity")
    capacity, batch_size, random_steps = workflow.capacity, workflow.batch_size, workflow.random_steps
    require(capacity >= batch_size, "capacity", capacity, f"must hold a batch, {batch_size}")
    require_int("random_steps", random_steps, 0)
    require(random_steps <= capacity, "random_steps", random_steps, f"must be from 0 to capacity, {capacity}")
