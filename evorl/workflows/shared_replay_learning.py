"""Functions that hybrids of evolution and gradients share: many actors add to one replay buffer and learn from it."""

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from evorl import tree
from evorl.agents.train_state import TrainState
from evorl.ec import search
from evorl.errors import require, require_int
from evorl.types import (
    ActorCritic,
    Key,
    Metrics,
    Params,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Transition,
)
from evorl.vector_env import UNLIMITED, Behaviour, Rollout, RolloutPlan, TransitionStore
from evorl.workflows.base import (
    BaseStagedWorkflow,
    check_positive,
    check_replay,
    fill_agent_spaces,
    loop_with_replay,
    spread_samples,
    update_actor_on_batch,
    update_priorities,
)


class BaseHybrid(BaseStagedWorkflow):
    """Base class of hybrids of evolution and gradients, whose rollouts are added to a replay buffer."""

    inherited: ClassVar[tuple[str, ...]] = ("agent", "evolver")

    def behaviour(self, state: Any) -> Behaviour:
        """Return the behavior of the agent in one environment, for any parameters."""
        hybrid: Any = self
        return Behaviour(hybrid.env, hybrid.agent)

    def rollout(self, state: Any, plan: RolloutPlan, key: Key) -> tuple[Any, Rollout]:
        """Run a plan and add its transitions to the replay buffer of the state."""
        hybrid: Any = self

        def add(replay: ReplayBuffer, rows: Transition, mask: Array) -> ReplayBuffer:
            return replay.add(rows, mask & jnp.asarray(plan.stores))

        store = TransitionStore(hybrid.scan_length, state.replay, add)
        played = hybrid.vector_env.rollout(hybrid.behaviour(state), state.env_params, plan, None, key, store)
        return replace(state, replay=played.stored), replace(played, stored=None)


def check_hybrid(workflow: Any) -> None:
    """Set the missing spaces of a hybrid's agent; raise OptionError if the sizes of the hybrid do not fit together."""
    fill_agent_spaces(workflow)
    check_positive(workflow, "min_updates", "fitness_episodes", "batch_size", "eval_episodes", "scan_length")
    check_replay(workflow)
    search.require_learns_from_others(workflow.evolver, "evolver", "actors that were trained by gradient")
    n, fewest, most = workflow.evolver.population_size, workflow.min_updates, workflow.max_updates
    require_int("population_size", n, 2)
    require(most >= fewest, "max_updates", most, f"must be at least min_updates, {fewest}")
    require(most <= UNLIMITED, "max_updates", most, f"must be at most {UNLIMITED}")
    warmup = workflow.warmup_generations
    require(warmup >= 0, "warmup_generations", warmup, "must not be negative")


def init_agent_evolver_replay(workflow: Any, key: Key, env_params: Any) -> tuple[Any, Any, ReplayBuffer]:
    """Return the initial agent, evolver state and empty replay buffer of a bound hybrid that learns in its plan.

    Raises:
        OptionError: If the replay buffer has priorities, since a plan cannot write to the replay buffer.
    """
    key_agent, key_evolver = jax.random.split(key)
    agent = workflow.agent.init(key_agent)
    draw = lambda key: workflow.agent.init(key).actor.params  # noqa: E731
    evolver = search.init_evolver_state(workflow.evolver, key_evolver, agent.actor.params, draw)
    _, row = workflow.vector_env.init_blank_envs(agent.actor.params, env_params)
    replay = workflow.replay.empty(workflow.capacity, row, workflow.vector_env.num_envs)
    given, name = type(workflow.replay).__name__, type(workflow).__name__
    why = f"has priorities, which {name} does not support"
    require(not isinstance(replay, PrioritizedReplayBuffer), "replay", given, why)
    return agent, evolver, replay


@jax.named_scope("learning")
def update_actors_and_critic(
    workflow: Any, learners: Any, replay: ReplayBuffer, key: Key, updates: Int[Array, ""]
) -> tuple[Any, ReplayBuffer, Metrics]:
    """Take gradient steps of m actors and of the critic that they share.

    The loss of the critic is the mean over the batches of the actors.

    Args:
        workflow: Hybrid workflow.
        learners: State of the agent, whose actor has leaves [m, ...]. Everything else in it, such as a
            temperature, moves by the mean over the actors.
        replay: Replay buffer.
        key: Random key.
        updates: Number of gradient steps, [].

    Returns:
        The new learners, the replay buffer, and the mean metrics.
    """
    agent: ActorCritic = workflow.agent
    m = tree.leading_size(learners.actor)

    def learn_once(i: Array, learners: Any, replay: ReplayBuffer) -> tuple[Any, ReplayBuffer, Metrics]:
        key_batch, key_critic, key_actor = jax.random.split(jax.random.fold_in(key, i), 3)
        samples = spread_samples(replay.sample(key_batch, (m, workflow.batch_size)))
        batches = replace(samples.rows, weight=samples.weight)

        def mean_critic_loss(params: Params) -> tuple[Array, Metrics]:
            def loss(actor: TrainState, batch: Transition, key: Key) -> tuple[Array, Metrics]:
                return agent.critic_loss(params, replace(learners, actor=actor), batch, key)

            values, metrics = jax.vmap(loss)(learners.actor, batches, jax.random.split(key_critic, m))
            return values.mean(), metrics

        learners, critic_metrics = agent.update_critic(learners, mean_critic_loss)
        replay, critic_metrics = update_priorities(replay, samples.index, critic_metrics)

        def update_actor(actor: TrainState, batch: Transition, key: Key) -> tuple[Any, Metrics]:
            return update_actor_on_batch(agent, replace(learners, actor=actor), batch, key)

        moved, metrics = jax.vmap(update_actor)(learners.actor, batches, jax.random.split(key_actor, m))
        learners = replace(average_over_actors(moved), actor=moved.actor, critic=learners.critic)
        return agent.update_targets(learners), replay, tree.mean(critic_metrics | metrics)

    return loop_with_replay(updates, learn_once, learners, replay)


def average_over_actors(states: Any) -> Any:
    """Return the mean over the leading axis of every leaf, in its dtype; exact if all values are equal (counts)."""
    return jax.tree.map(lambda x: x[0] + (x - x[0]).mean(0).astype(x.dtype), states)
