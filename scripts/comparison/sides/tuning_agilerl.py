"""Evolutionary search of hyperparameters with AgileRL."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from agilerl.algorithms import DQN  # pyright: ignore[reportMissingImports]
from agilerl.algorithms.core.registry import (  # pyright: ignore[reportMissingImports]
    HyperparameterConfig,
    RLParameter,
)
from agilerl.components import ReplayBuffer  # pyright: ignore[reportMissingImports]
from agilerl.hpo.mutation import Mutations  # pyright: ignore[reportMissingImports]
from agilerl.hpo.tournament import TournamentSelection  # pyright: ignore[reportMissingImports]
from agilerl.training.train_off_policy import train_off_policy  # pyright: ignore[reportMissingImports]
from agilerl.utils.utils import make_vect_envs  # pyright: ignore[reportMissingImports]
from side import Round, serve

MEMBERS, GENERATIONS, GENERATION_STEPS = 4, 4, 2_496
NETWORKS = {"latent_dim": 64, "encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}


def evolve_dqn(size: int) -> Round:
    """Search of DQN's learning rate with 4 members and tournament selection."""
    del size
    torch.set_num_threads(1)

    def one(i: int) -> dict[str, float]:
        torch.manual_seed(i)
        np.random.seed(i)
        env = make_vect_envs("CartPole-v1", num_envs=8, should_async_vector=False)
        members = DQN.population(
            MEMBERS,
            env.single_observation_space,
            env.single_action_space,
            hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)),
            net_config=NETWORKS,
            batch_size=64,
            lr=1e-3,
            learn_step=2,
            tau=0.01,
            double=True,
        )
        _, returns = train_off_policy(
            env,
            "CartPole-v1",
            "DQN",
            members,
            ReplayBuffer(10_000),
            max_steps=GENERATIONS * GENERATION_STEPS,
            evo_steps=GENERATION_STEPS,
            eps_end=0.05,
            eps_decay=0.995,
            selection_strategy=TournamentSelection(2, True, MEMBERS),
            mutation=Mutations(0.5, 0.0, 0.0, 0.0, 0.0, 0.5, rand_seed=i),
            verbose=False,
        )
        return {"work": MEMBERS * GENERATIONS * GENERATION_STEPS, "score": float(max(returns))}

    return one


if __name__ == "__main__":
    serve({"evolve_dqn": evolve_dqn}, "agilerl", "torch", "gymnasium")
