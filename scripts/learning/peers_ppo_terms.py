"""Compare PPO of evorl and of rejax 0.1.3 term by term, on one rollout of CartPole and the same weights.

PYTHONPATH=.:REJAX_SITE_PACKAGES python scripts/learning/peers_ppo_terms.py

Prints the largest difference of each term, relative to its largest number. rejax's own methods are called. They have
one flag for the end of an episode, so the rollout has no truncations. The script passes them the value after the
last step.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import rejax  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from flax.training.train_state import TrainState
from rejax.algos.ppo import AdvantageMinibatch, Trajectory  # pyright: ignore[reportMissingImports]
from rejax.networks import DiscretePolicy, VNetwork  # pyright: ignore[reportMissingImports]

from evorl import Gymnax, OnPolicy
from evorl.agents import PPO
from evorl.agents.base_agent import fill_spaces

LEARNING_RATE = 1e-3


def as_rejax(params: Any, part: str) -> dict[str, Any]:
    """Convert the weights of evorl's policy or value function to those of rejax's network."""
    layers = params["params"][part]
    if part == "value":
        return {"params": layers}
    *hidden, last = sorted(layers)
    return {"params": {"features": {name: layers[name] for name in hidden}, "action_logits": layers[last]}}


def difference(ours: Any, theirs: Any) -> float:
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(x)]) for x in (ours, theirs))
    return float(np.abs(a - b).max() / np.abs(b).max())


def main() -> None:
    env = Gymnax("CartPole-v1")
    numbers: Any = {"value_clip": 0.2, "value_coef": 0.5, "max_grad_norm": float("inf")}
    agent = fill_spaces(PPO(hidden=(32, 32), learning_rate=LEARNING_RATE, **numbers), env)
    options: Any = {"normalize_observations": False, "normalize_values": False, "normalize_advantages": False}
    workflow = OnPolicy(env, agent, num_envs=16, num_steps=64, **options)
    state = jax.jit(workflow.init)(jax.random.key(0))
    state, rollout, _ = jax.jit(workflow.collect)(state, jax.random.key(1))
    t, params = rollout, state.agent.actor.params
    batch = workflow.build_batch(state, rollout)
    assert not t.truncated.any()

    actor = DiscretePolicy(2, hidden_layer_sizes=(32, 32), activation=jnp.tanh)
    critic = VNetwork(hidden_layer_sizes=(32, 32), activation=jnp.tanh)
    actor_params, critic_params = as_rejax(params, "policy"), as_rejax(params, "value")
    rows = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    log_prob, _ = actor.apply(actor_params, rows(t.obs), rows(t.action), method="log_prob_entropy")
    value = critic.apply(critic_params, rows(t.obs)).reshape(t.reward.shape)
    last = jnp.where(t.terminated[-1], 0, critic.apply(critic_params, t.next_obs[-1]))
    settings = SimpleNamespace(gamma=0.99, gae_lambda=0.95, clip_eps=0.2, ent_coef=0.01, vf_coef=0.5)
    settings.actor, settings.critic = actor, critic
    whole = Trajectory(t.obs, t.action, log_prob.reshape(t.reward.shape), t.reward, value, t.terminated)
    advantage, target = rejax.PPO.calculate_gae(settings, whole, last)
    print(f"log probability {difference(batch.log_prob, whole.log_prob):.1e}")
    print(f"value           {difference(batch.value, value):.1e}")
    print(f"advantage       {difference(batch.advantage, advantage):.1e}")
    print(f"target          {difference(batch.target, target):.1e}")

    # one minibatch from other weights, so that ratios are not 1; both normalize the advantages over it
    moved = jax.tree.map(lambda x: x + 0.05 * jax.random.normal(jax.random.key(2), x.shape), params)
    ours = workflow.split_batch(batch)
    first = jax.tree.map(lambda x: x[:256], ours)
    normalized = (first.advantage - first.advantage.mean()) / (first.advantage.std() + 1e-8)
    first = replace(first, advantage=normalized)
    gradient = jax.grad(lambda p: agent.loss(p, first)[0])(moved)
    learner = replace(state.agent, actor=replace(state.agent.actor, params=moved))
    after = agent.update(learner, lambda p: agent.loss(p, first))[0].actor.params
    theirs = jax.tree.map(lambda x: rows(x)[:256], AdvantageMinibatch(whole, advantage, target))
    for part, update in (("policy", rejax.PPO.update_actor), ("value", rejax.PPO.update_critic)):
        start, name = as_rejax(moved, part), {"policy": "actor_ts", "value": "critic_ts"}[part]

        def updated(optimizer: Any) -> Any:
            holder = SimpleNamespace(replace=lambda **new: new)
            setattr(holder, name, TrainState.create(apply_fn=(), params=start, tx=optimizer))  # noqa: B023
            return update(settings, holder, theirs)[name].params  # noqa: B023

        their_gradient = jax.tree.map(jnp.subtract, start, updated(optax.sgd(1.0)))
        print(f"gradient, {part} {difference(as_rejax(gradient, part), their_gradient):.1e}")
        print(f"after Adam, {part} {difference(as_rejax(after, part), updated(optax.adam(LEARNING_RATE))):.1e}")


if __name__ == "__main__":
    main()
