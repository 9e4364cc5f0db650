"""PPO and SAC of evorl on Brax."""

from functools import partial

import jax
from brax_sizes import EPOCHS, HIDDEN, MINIBATCHES, PHYSICS, SAC_BATCH, SAC_ITERATIONS, SAC_UPDATES, UNROLL
from brax_sizes import count_iterations as count
from jax_rounds import run_program, scan_steps
from peers_jax import unrolled
from side import Round, serve

from evorl import SAC, Brax, OffPolicy, OnPolicy
from evorl.agents import PPO


def make_ppo(name: str, size: int) -> OnPolicy:
    """Return PPO with the networks of Brax, and without normalized values."""
    return OnPolicy(
        Brax(name, backend=PHYSICS[name]),
        PPO(hidden=HIDDEN, activation="swish", state_dependent_std=True),
        normalize_values=False,
        num_envs=size,
        num_steps=UNROLL,
        num_epochs=EPOCHS,
        batch_size=size * UNROLL // MINIBATCHES,
    )


def ppo(name: str, size: int) -> Round:
    workflow, iterations = make_ppo(name, size), count(name, size)
    return scan_steps(workflow.step, jax.jit(workflow.init)(jax.random.key(0)), iterations, iterations * size * UNROLL)


def sac(size: int) -> Round:
    """Return rounds of SAC that updates everything and normalizes observations, as Brax does."""
    workflow = OffPolicy(
        Brax("ant", backend=PHYSICS["ant"]),
        SAC(hidden=HIDDEN),
        num_envs=size,
        num_steps=1,
        num_updates=SAC_UPDATES,
        batch_size=SAC_BATCH,
        capacity=200 * size,
        random_steps=2 * size,
        policy_delay=1,
        normalize_observations=True,
    )
    state = jax.jit(workflow.init)(jax.random.key(0))
    return scan_steps(workflow.step, state, SAC_ITERATIONS, SAC_ITERATIONS * size)


def steps(name: str, size: int) -> Round:
    return run_program(unrolled(Brax(name, backend=PHYSICS[name]), size))


if __name__ == "__main__":
    jobs = {f"ppo_{name}": partial(ppo, name) for name in PHYSICS}
    jobs |= {f"steps_{name}": partial(steps, name) for name in PHYSICS}
    serve({**jobs, "sac_ant": sac}, "brax", "jax")
