"""Search of hyperparameters with Ray Tune."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ray  # pyright: ignore[reportMissingImports]  # not a dependency of evorl
from ray import tune  # pyright: ignore[reportMissingImports]
from ray.tune.schedulers import PopulationBasedTraining  # pyright: ignore[reportMissingImports]
from ray.tune.schedulers.pb2 import PB2  # pyright: ignore[reportMissingImports]
from ray.tune.search.basic_variant import BasicVariantGenerator  # pyright: ignore[reportMissingImports]
from sb3_ppo import make_evaluator, make_ppo
from side import Round, serve

MEMBERS, GENERATIONS, GENERATION_STEPS = 8, 5, 4_096
SPACE: Any = {"learning_rate": tune.loguniform(1e-4, 1e-2), "clip": tune.uniform(0.1, 0.4)}


class Member(tune.Trainable):
    """PPO of Stable-Baselines3, whose iteration is a generation: 4,096 steps and 10 greedy episodes."""

    def setup(self, config: dict[str, Any]) -> None:
        self.model = make_ppo(config["seed"], config["learning_rate"], config["clip"])
        self.evaluate = make_evaluator(1_000_000 + config["seed"])

    def step(self) -> dict[str, float]:
        self.model.learn(GENERATION_STEPS, reset_num_timesteps=False, log_interval=None)
        return {"score": self.evaluate(self.model)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self.model.save(Path(checkpoint_dir) / "model.zip")

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.model.set_parameters(Path(checkpoint) / "model.zip")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start again with other hyperparameters; Tune then loads a checkpoint."""
        self.setup(new_config)
        return True


def make_pbt() -> Any:
    """Return PBT with the selection and the perturbation of evorl; with synch=True, Tune 2.60 stops and waits."""
    return PopulationBasedTraining(
        perturbation_interval=1,
        hyperparam_mutations=SPACE,
        quantile_fraction=0.25,
        resample_probability=0.0,
    )


def make_pb2() -> Any:
    """Return PB2, which chooses hyperparameters with a Gaussian process."""
    bounds: Any = {"learning_rate": [1e-4, 1e-2], "clip": [0.1, 0.4]}
    return PB2(perturbation_interval=1, hyperparam_bounds=bounds, quantile_fraction=0.25)


def tune_ppo(size: int, make_scheduler: Any) -> Round:
    """Run 8 members with 5 generations, two members at a time."""
    del size
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}}
    )

    def one(i: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            tuner = tune.Tuner(
                tune.with_resources(Member, {"cpu": 1}),
                param_space=SPACE | {"seed": tune.randint(0, 1_000_000)},
                tune_config=tune.TuneConfig(
                    metric="score",
                    mode="max",
                    num_samples=MEMBERS,
                    search_alg=BasicVariantGenerator(random_state=i),
                    scheduler=make_scheduler(),
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(stop={"training_iteration": GENERATIONS}, storage_path=folder, verbose=0),
            )
            results: Any = tuner.fit()
            if results.num_errors:
                raise results.errors[0]
            score = max(result.metrics["score"] for result in results)
        return {"work": MEMBERS * GENERATIONS * GENERATION_STEPS, "score": score}

    return one


if __name__ == "__main__":
    jobs = {
        "pbt_ppo": partial(tune_ppo, make_scheduler=make_pbt),
        "pb2_ppo": partial(tune_ppo, make_scheduler=make_pb2),
    }
    serve(jobs, "ray", "stable_baselines3", "torch", "gymnasium")
