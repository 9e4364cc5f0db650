"""PPO and SAC of Brax.

Brax 0.14 needs two functions that newer JAX versions removed; `patch_brax` of scripts/gpu_jobs.py gives them back.
"""

import threading
from collections.abc import Callable
from functools import partial
from queue import Queue
from typing import Any

import jax
import jax.numpy as jnp
from brax import envs
from brax.training import acting
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.agents.ppo import train as brax_ppo
from brax.training.agents.sac import networks as sac_networks
from brax.training.agents.sac import train as brax_sac
from brax_sizes import EPOCHS, HIDDEN, MINIBATCHES, PHYSICS, SAC_BATCH, SAC_ITERATIONS, SAC_UPDATES, UNROLL
from brax_sizes import count_iterations as count
from gpu_jobs import patch_brax
from jax_rounds import run_program
from peers_jax import wrapped
from side import Round, serve

patch_brax(jax, jnp)
setattr(acting.Evaluator, "run_evaluation", lambda self, params, training_metrics, **_: training_metrics)  # noqa: B010  no side evaluates
MOST = 16  # rounds that a training is long enough for


def ppo(name: str, size: int) -> Round:
    networks = partial(
        ppo_networks.make_ppo_networks, policy_hidden_layer_sizes=HIDDEN, value_hidden_layer_sizes=HIDDEN
    )
    train = partial(
        brax_ppo.train,
        envs.get_environment(name, backend=PHYSICS[name]),
        num_envs=size,
        unroll_length=UNROLL,
        batch_size=size // MINIBATCHES,
        num_minibatches=MINIBATCHES,
        num_updates_per_batch=EPOCHS,
        network_factory=networks,
    )
    return pause(train, count(name, size) * size * UNROLL)


def sac(size: int) -> Round:
    networks: Any = partial(sac_networks.make_sac_networks, hidden_layer_sizes=HIDDEN)
    train = partial(
        brax_sac.train,
        envs.get_environment("ant", backend=PHYSICS["ant"]),
        num_envs=size,
        batch_size=SAC_BATCH,
        grad_updates_per_step=SAC_UPDATES,
        max_replay_size=200 * size,
        min_replay_size=2 * size,
        network_factory=networks,
    )
    return pause(train, SAC_ITERATIONS * size)


def pause(train: Callable[..., Any], steps: int) -> Round:
    """Return rounds of some steps of a training that runs in a thread and pauses after each."""
    go: Queue[None] = Queue()
    done: Queue[BaseException | None] = Queue()

    def report(step: int, metrics: Any) -> None:
        if step:
            done.put(None)
            go.get()

    def run() -> None:
        try:
            train(
                num_timesteps=MOST * steps,
                episode_length=1000,
                normalize_observations=True,
                num_evals=MOST + 1,
                progress_fn=report,
            )
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=run, daemon=True)

    def one(i: int) -> dict[str, float]:
        thread.start() if i == 0 else go.put(None)
        error = done.get()
        if error is not None:
            raise error
        return {"work": steps}

    return one


def steps(name: str, size: int) -> Round:
    """Return rounds of steps with the wrappers of Brax's trainers, which end episodes and begin them again."""
    return run_program(wrapped(envs.get_environment(name, backend=PHYSICS[name]), size))


if __name__ == "__main__":
    jobs = {f"ppo_{name}": partial(ppo, name) for name in PHYSICS}
    jobs |= {f"steps_{name}": partial(steps, name) for name in PHYSICS}
    serve({**jobs, "sac_ant": sac}, "brax", "jax")
