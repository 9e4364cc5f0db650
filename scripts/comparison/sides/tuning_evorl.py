"""Search of hyperparameters with evorl."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from evorl_ppo import make_ppo
from evorl_training import train_from_scratch
from jax_rounds import score
from side import Round, serve

from evorl import PBT, Gymnax, Linear, LogUniform, OffPolicy, SharedReplay, Tournament, Truncation, Uniform, Vmapped
from evorl.agents import DQN
from evorl.sweeps.space import Parameter, SearchSpace
from evorl.sweeps.tpe import TPE
from evorl.sweeps.trials import DONE, Evaluation, SweepTrial

LEARNING_RATE, CLIP = LogUniform(1e-4, 1e-2), Uniform(0.1, 0.4)
TRIALS, TRIAL_STEPS = 16, 10_240


def pbt_ppo(size: int) -> Round:
    """PBT of 8 members of PPO, 5 generations of 4,096 steps of each member."""
    del size
    population = Vmapped(make_ppo(LEARNING_RATE, CLIP), 8)
    return run_pbt(PBT(population, Truncation(0.25), steps_per_generation=16), 5, 8 * 5 * 4_096)


def pbt_dqn(size: int) -> Round:
    """PBT of 4 members of DQN with one replay buffer, 4 generations of 2,496 steps of each member."""
    del size
    member = OffPolicy(
        Gymnax("CartPole-v1"),
        DQN(hidden=(64, 64, 64), learning_rate=LEARNING_RATE, tau=0.01, epsilon=Linear(1.0, 0.05, over=5_000.0)),
        num_envs=8,
        num_steps=1,
        num_updates=4,
        policy_delay=1,
        batch_size=64,
        capacity=10_000,
        random_steps=0,
        eval_episodes=8,
    )
    workflow = PBT(SharedReplay(member, 4), Tournament(), steps_per_generation=312, search=("learning_rate",))
    return run_pbt(workflow, 4, 4 * 4 * 2_496)


def run_pbt(workflow: PBT, generations: int, work: float) -> Round:
    """Return rounds that run PBT from scratch; the score is that of the best member in the last generation."""
    return score(lambda key: train_from_scratch(workflow, key, generations)[0].fitness.max(), work)


def search_ppo(size: int, together: int = 1) -> Round:
    """Search of PPO's learning rate and clip range with TPE, `together` trials at a time in one program."""
    del size
    space = SearchSpace((Parameter("learning_rate", LEARNING_RATE, 1e-3), Parameter("clip", CLIP, 0.2)))
    workflow = make_ppo()

    @jax.jit
    def train(key: jax.Array, learning_rates: jax.Array, clips: jax.Array) -> jax.Array:
        def one(key: jax.Array, numbers: Any) -> jax.Array:
            key_init, key_steps, key_evaluation = jax.random.split(key, 3)
            state = workflow.init(key_init, {"agent": numbers})
            state = jax.lax.scan(workflow.step, state, jax.random.split(key_steps, TRIAL_STEPS // 256))[0]
            return workflow.evaluate(state, key_evaluation)["return"]

        return jax.vmap(one)(jax.random.split(key, together), {"learning_rate": learning_rates, "clip": clips})

    def one(i: int) -> dict[str, float]:
        trials: list[SweepTrial] = []
        while len(trials) < TRIALS:
            points = TPE().suggest(space, trials, together, i)
            values = [space.decode(point) for point in points]
            rates, clips = (jnp.array([value[name] for value in values]) for name in ("learning_rate", "clip"))
            key = jax.random.fold_in(jax.random.key(i), len(trials))
            scores = train(key, rates, clips).tolist()
            for point, value, found in zip(points, values, scores, strict=True):
                evaluation = Evaluation(1.0, TRIAL_STEPS, found)
                trials.append(SweepTrial(len(trials), tuple(point), value, DONE, (evaluation,)))
        return {"work": TRIALS * TRIAL_STEPS, "score": max(trial.score for trial in trials)}

    return one


if __name__ == "__main__":
    jobs = {
        "pbt_ppo": pbt_ppo,
        "pbt_dqn": pbt_dqn,
        "search_ppo": search_ppo,
        "search_ppo_8": partial(search_ppo, together=8),
    }
    serve(jobs, "jax", "optuna")
