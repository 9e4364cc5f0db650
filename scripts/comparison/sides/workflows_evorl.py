"""Workflows with evorl: the workloads of `scripts/benchmarks`, with the settings of EvoRL where they differ."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax_rounds import call_steps
from side import Round, serve
from workloads import KEY, WORKLOADS, jitted

from evorl.parts import resolve_numbers
from evorl.priors import LogUniform, OneMinus
from evorl.training.devices import fast_compile_options
from evorl.workflows import PBT, OnPolicy


def equal(workflow: Any) -> Any:
    """Return the workflow with the networks, the normalization and the search space of EvoRL."""
    if isinstance(workflow, OnPolicy):
        agent: Any = workflow.agent
        agent = replace(agent, activation="relu", state_dependent_std=True)
        return replace(workflow, agent=agent, normalize_values=False)
    if isinstance(workflow, PBT):
        population: Any = workflow.population
        inner = equal(population.inner)
        priors = {"clip": LogUniform(0.01, 0.5), "gae_lambda": OneMinus(LogUniform(0.01, 0.3))}
        inner = replace(inner, agent=replace(inner.agent, learning_rate=3e-4, **priors))
        search = "clip", "discount", "gae_lambda"
        return replace(workflow, population=replace(population, inner=inner), search=search)
    return workflow


ROUNDS = {  # workload of each job, and in a round the calls of its step, or of a loop of all steps of the workload
    "openes": ("E1", 8),
    "openes_32": ("E2", 8),
    "openes_long": ("E3", 2),
    "cem_rl": ("E4", 1),
    "pbt_4": ("E5-4", 4),
    "pbt": ("E5-8", 2),
    "pbt_cso": ("E6", 2),
    "ppo": ("E7", 8),
    "ppo_swimmer": ("E7-swimmer", 4),
    "td3": ("E8", 1),
    "td3_swimmer": ("E8-swimmer", 1),
    "sac": ("E9", 1),
    "sac_swimmer": ("E9-swimmer", 1),
    "cem_rl_long": ("E10", 2),
    "cem_rl_hopper": ("E10-hopper", 2),
}


def iterate(workload: str, calls: int, size: int) -> Round:
    """Return rounds of iterations of a workload."""
    del size
    workflow, _, count, _ = WORKLOADS[workload]()
    workflow = equal(workflow)

    def run(state: Any, key: jax.Array) -> Any:
        if count == 1:
            return workflow.step(state, key)[0]
        return jax.lax.scan(workflow.step, state, jax.random.split(key, count))[0]

    init = jax.jit(workflow.init, compiler_options=fast_compile_options())
    state = init(KEY, resolve_numbers(workflow))
    return call_steps(jitted(run, donate_argnums=0), state, calls, calls * count)


if __name__ == "__main__":
    serve({name: partial(iterate, *of) for name, of in ROUNDS.items()}, "jax", "brax")
