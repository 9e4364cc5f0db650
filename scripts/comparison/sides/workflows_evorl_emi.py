"""Workflows with EvoRL of the EMI Group, which is also imported as `evorl`.

Its wheel has no configuration files, so that all settings are here. `build_from_config` compiles the steps; the set-up
is compiled here, which is faster than EvoRL's way, without compilation. Names that jax 0.10 no longer has are restored:
`check_rep` for PBT, and `a_min` for Brax's swimmer. `chex.Array` includes traced arrays, as the normalization of
observations requires.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import chex  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
import jax
import jax.numpy as jnp
from jax_rounds import call_steps
from omegaconf import OmegaConf
from side import Round, serve

shard_map = jax.shard_map
clip: Any = jnp.clip
jax.shard_map = lambda f, *, check_rep, **options: shard_map(f, check_vma=check_rep, **options)
jnp.clip = lambda x, min=None, max=None, a_min=None: clip(x, a_min if min is None else min, max)
chex.Array = jax.Array

from evorl.algorithms.ec.so.openes import OpenESWorkflow  # noqa: E402  # pyright: ignore[reportMissingImports]
from evorl.algorithms.erl.cemrl_td3.cemrl import CEMRLWorkflow  # noqa: E402  # pyright: ignore[reportMissingImports]
from evorl.algorithms.meta.pbt_ppo.pbt_cso_param_ppo import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    PBTCSOParamPPOWorkflow,
)
from evorl.algorithms.meta.pbt_ppo.pbt_param_ppo import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    PBTParamPPOWorkflow,
)
from evorl.algorithms.ppo import PPOWorkflow  # noqa: E402  # pyright: ignore[reportMissingImports]
from evorl.algorithms.sac import SACWorkflow  # noqa: E402  # pyright: ignore[reportMissingImports]
from evorl.algorithms.td3 import TD3Workflow  # noqa: E402  # pyright: ignore[reportMissingImports]

Settings = dict[str, Any]

HIDDEN = [256, 256]
NETWORKS: Settings = {
    "agent_network": {
        "actor_hidden_layer_sizes": HIDDEN,
        "critic_hidden_layer_sizes": HIDDEN,
        "norm_layer_type": "none",
        "num_critics": 2,
        "use_bias": True,
        "policy_obs_key": "",
        "value_obs_key": "",
    }
}
ONE_EPISODE: Settings = {"num_envs": 1, "num_eval_envs": 1, "eval_episodes": 1, "episodes_for_fitness": 1}
OPENES = (
    NETWORKS
    | ONE_EPISODE
    | {
        "pop_size": 16,
        "ec_lr": {"init": 0.01, "final": 0.01, "decay": 1.0},
        "ec_noise_std": {"init": 0.02, "final": 0.02, "decay": 1.0},
        "mirror_sampling": True,
        "weight_decay": 0.005,
        "optimizer_name": "adam",
        "normalize_obs": True,
        "random_timesteps": 10_000,
        "explore": False,
        "discount": 1.0,
    }
)
PPO = NETWORKS | {
    "num_envs": 64,
    "num_eval_envs": 64,
    "eval_episodes": 64,
    "rollout_length": 32,
    "minibatch_size": 256,
    "reuse_rollout_epochs": 4,
    "clip_epsilon": 0.2,
    "gae_lambda": 0.95,
    "gae_horizon": 0,
    "discount": 0.99,
    "normalize_obs": True,
    "normalize_gae": True,
    "loss_weights": {"actor_loss": 1.0, "critic_loss": 0.5, "actor_entropy": -0.01},
    "optimizer": {"lr": 3e-4, "grad_clip_norm": 10.0},
}
OFF_POLICY = NETWORKS | {
    "num_envs": 2,
    "num_eval_envs": 1,
    "eval_episodes": 1,
    "rollout_length": 1,
    "batch_size": 256,
    "replay_buffer_capacity": 100_000,
    "random_timesteps": 2_000,
    "learning_start_timesteps": 2_000,
    "num_updates_per_iter": 1,
    "actor_update_interval": 2,
    "discount": 0.99,
    "tau": 0.005,
    "normalize_obs": False,
    "optimizer": {"lr": 3e-4, "grad_clip_norm": 0.0},
}
TD3: Settings = {
    "exploration_epsilon": 0.1,
    "policy_noise": 0.2,
    "clip_policy_noise": 0.5,
    "critics_in_actor_loss": "first",
}
SAC: Settings = {"alpha": 1.0, "adaptive_alpha": True, "target_entropy_ratio": 1.0}
CEM_RL = (
    OFF_POLICY
    | TD3
    | ONE_EPISODE
    | {
        "agent_network": NETWORKS["agent_network"] | {"norm_layer_type": "layer_norm"},
        "pop_size": 10,
        "num_elites": 5,
        "num_learning_offspring": 5,
        "cov_eps": {"init": 1e-3, "final": 1e-5, "decay": 0.05},
        "weighted_update": True,
        "rank_weight_shift": 1.0,
        "mirror_sampling": False,
        "warmup_iters": 0,
        "fitness_with_exploration": False,
        "num_rl_updates_per_iter": 64,
        "actor_update_interval": 1,
    }
)
MEMBER = PPO | {
    "workflow_cls": "evorl.algorithms.meta.pbt_ppo.param_ppo.ParamPPOWorkflow",
    "num_envs": 8,
    "num_eval_envs": 4,
    "eval_episodes": 4,
    "rollout_length": 64,
    "minibatch_size": 128,
}
PBT: Settings = {
    "pop_size": 8,
    "num_eval_envs": 4,
    "eval_episodes": 4,
    "workflow_steps_per_iter": 2,
    "warmup_steps": 0,
    "bottom_ratio": 0.25,
    "top_ratio": 0.25,
    "target_workflow": MEMBER,
    "search_space": {
        "clip_epsilon": {"low": 0.01, "high": 0.5},
        "discount_g": {"low": 1.966, "high": 11.513},  # discounts from 0.86 to 0.99999
        "gae_lambda_g": {"low": 1.204, "high": 4.605},  # lambdas from 0.7 to 0.99
    },
    "perturb_factor": {"clip_epsilon": 0.2, "discount_g": 0.2, "gae_lambda_g": 0.2},
}


def iterations(
    workflow_class: Any, settings: Settings, env: str, calls: int, fold: int = 1, max_episode_steps: int = 1000
) -> Callable[[int], Round]:
    """Return the maker of rounds of `calls` calls of the step, or of a loop of `fold` steps."""

    def make(size: int) -> Round:
        del size
        brax = {"env_type": "brax", "env_name": env, "max_episode_steps": max_episode_steps}
        workflow = workflow_class.build_from_config(
            OmegaConf.create(settings | {"env": brax, "checkpoint": {"enable": False}, "fold_iters": fold})
        )
        step = workflow.step if fold == 1 else workflow._multi_steps
        state = jax.jit(workflow.setup)(jax.random.PRNGKey(0))  # takes only keys that are arrays of integers
        return call_steps(lambda state, key: step(state)[1], state, calls, calls * fold)

    return make


off_policy = partial(iterations, calls=1, fold=512)
swimmer = partial(iterations, env="swimmer", max_episode_steps=100)

if __name__ == "__main__":
    serve(
        {
            "openes": swimmer(OpenESWorkflow, OPENES, calls=8),
            "openes_32": swimmer(OpenESWorkflow, OPENES | {"pop_size": 32}, calls=8),
            "openes_long": swimmer(OpenESWorkflow, OPENES, calls=2, max_episode_steps=1000),
            "cem_rl": swimmer(CEMRLWorkflow, CEM_RL, calls=1),
            "pbt_4": swimmer(PBTParamPPOWorkflow, PBT | {"pop_size": 4}, calls=4),
            "pbt": swimmer(PBTParamPPOWorkflow, PBT, calls=2),
            "pbt_cso": swimmer(PBTCSOParamPPOWorkflow, PBT, calls=2),
            "ppo": iterations(PPOWorkflow, PPO, "inverted_pendulum", 8),
            "ppo_swimmer": iterations(PPOWorkflow, PPO, "swimmer", 4),
            "td3": off_policy(TD3Workflow, OFF_POLICY | TD3, "inverted_pendulum"),
            "sac": off_policy(SACWorkflow, OFF_POLICY | SAC, "inverted_pendulum"),
            "td3_swimmer": off_policy(TD3Workflow, OFF_POLICY | TD3, "swimmer"),
            "sac_swimmer": off_policy(SACWorkflow, OFF_POLICY | SAC, "swimmer"),
            "cem_rl_long": iterations(CEMRLWorkflow, CEM_RL, "inverted_pendulum", 2),
            "cem_rl_hopper": iterations(CEMRLWorkflow, CEM_RL, "hopper", 2),
        },
        "evorl-jax",
        "brax",
        "jax",
    )
