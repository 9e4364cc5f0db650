"""Measure the speed of IPPO and MAPPO on MPE's spread, and the overhead of a team of one compared with its agent.

taskset -c 0 env PJRT_NPROC=1 python scripts/benchmarks/teams.py [--repeats 7] [--iterations 8]

Measured are CPU seconds of iterations, without evaluation, and of first steps, with the settings in the agents' files.
Programs take turns. "team / agent" above 1.05 means that a team of one takes over 5 % more time than its agent. The
first step is compared with a goal: compiling the environment's reset and step once each, and 6 CPU seconds for an
agent.
"""

import argparse
from typing import Any

import jax
from peers_timing import Program, compiled, in_turn, surroundings

from evorl.training import runs
from evorl.training.configuration import config

FEW = ("agent.workflow.random_steps=64", "agent.workflow.capacity=20_000")
ALONE = "wrappers=[alone]"
PAIRS = {
    "ppo on cartpole": (
        ("agent=ippo", "env=cartpole", ALONE),
        ("agent=ppo", "env=cartpole", "agent.workflow.num_envs=16", "agent.workflow.num_steps=128"),
    ),
    "dqn on cartpole": (("agent=idqn", "env=cartpole", ALONE, *FEW), ("agent=dqn", "env=cartpole", *FEW)),
    "td3 on pendulum": (("agent=itd3", "env=pendulum", ALONE, *FEW), ("agent=td3", "env=pendulum", *FEW)),
}
SAME = {  # options by which the file of ippo differs from the file of ppo
    "agent=ppo": (
        "agent.workflow.batch_size=512",
        "agent.workflow.agent.hidden=[64,64]",
        "agent.workflow.normalize_observations=false",
        "agent.workflow.normalize_values=false",
    )
}


def training(options: tuple[str, ...], iterations: int) -> tuple[Program, Any]:
    """Return a program with this number of iterations in a row, and the environment."""
    cfg = config.compose_config([*options, *SAME.get(options[0], ())])
    workflow, _ = runs.build(cfg)
    state = jax.jit(workflow.init)(jax.random.key(0))
    state, metrics = jax.jit(workflow.step)(state, jax.random.key(1))
    work = int(metrics["env_steps"]) * iterations

    def step(state: Any) -> Any:
        return workflow.step(state, jax.random.key(2))[0]

    return Program(step, (state,), work, iterations, restart=lambda state: state), workflow.env


def physics(env: Any) -> float:
    """Return the CPU seconds of compiling an environment's reset and step."""
    key = jax.random.key(0)
    reset, seconds = compiled(env.reset, key, env.default_params)
    state, _ = reset(key, env.default_params)
    return seconds + compiled(env.step, key, state, env.action_space.sample(key), env.default_params)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()
    print(surroundings(options.repeats))
    print("| | env steps a CPU second | first step, CPU s | goal |\n|---|---|---|---|")
    for agent in ("ippo", "mappo"):
        program, env = training((f"agent={agent}", "env=mpe/spread"), options.iterations)
        goal = physics(env) + 6
        row = in_turn({agent: program}, "us", options.repeats)[agent]
        speed = f"{program.work / row['cpu_s']:,.0f}"
        print(f"| {agent} on spread | {speed} | {row['compile_cpu_s']:.1f} | {goal:.1f} |", flush=True)
    print("\n| | team of one, CPU ms an iteration | agent | team / agent |\n|---|---|---|---|")
    for name, pair in PAIRS.items():
        programs = {of: training(one, options.iterations)[0] for of, one in zip(("team", "agent"), pair, strict=True)}
        rows = in_turn(programs, "us", options.repeats)
        team, agent = (1e3 * rows[one]["cpu_s"] / options.iterations for one in ("team", "agent"))
        print(f"| {name} | {team:.2f} | {agent:.2f} | {team / agent:.3f} |", flush=True)


if __name__ == "__main__":
    main()
