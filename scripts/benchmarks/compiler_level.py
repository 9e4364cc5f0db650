"""Compare LLVM's optimization levels on a CPU: the time to compile a training step, and the time to run it.

python scripts/benchmarks/compiler_level.py ["agent=ppo env=cartpole" ...]

A training is given by options of evorl.train. Two times are measured for each:
  - CPU seconds to compile its step at level 1 (evorl's) and 3 (XLA's): medians of ROUNDS fresh processes, in turn;
  - CPU seconds of about a second of steps: medians of REPEATS, in turn, in one process.
Times are meaningless on a machine that does other work at the same time.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

LEVELS = (1, 3)
ROUNDS, REPEATS, SECONDS = 3, 7, 1.0
TRAININGS = (
    "agent=ppo env=cartpole",
    "agent=dqn env=cartpole",
    "agent=td3 env=swimmer agent.workflow.random_steps=64",
    "agent=ppo env=maze",
    "agent=ippo env=mpe/spread",
    "agent=search problem=zdt1",
)


def lowered(training: str) -> tuple[Any, Any]:
    """Return the lowered step of a training, and its initial state."""
    import jax

    from evorl.training import runs
    from evorl.training.configuration import config

    workflow, _ = runs.build(config.compose_config([*training.split(), "iterations=1"]))
    state = jax.jit(lambda key: workflow.init(key))(jax.random.key(0))

    def steps(state: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, state: workflow.step(state, jax.random.key(i))[0], state)

    return jax.jit(steps).lower(state, 1), state


def compiled(training: Any, level: int) -> tuple[Any, float]:
    """Compile a program at a level; return it and the CPU seconds of compiling."""
    from evorl.training.devices import CPU_OPTIONS, OPTIMIZATION_LEVEL

    began = time.process_time()
    program = training.compile(CPU_OPTIONS | {OPTIMIZATION_LEVEL: level})
    return program, time.process_time() - began


def run(training: str) -> float:
    """Return the CPU seconds of steps at the first level divided by those at the last."""
    import jax

    program, state = lowered(training)
    programs, times = [compiled(program, level)[0] for level in LEVELS], [[], []]

    def timed(program: Any, count: int) -> float:
        began = time.process_time()
        jax.block_until_ready(program(state, count))
        return time.process_time() - began

    count = 1
    while (took := timed(programs[0], count)) < SECONDS / 2:
        count *= 2 if took > SECONDS / 100 else 8
    for _ in range(REPEATS):
        for one, program in zip(times, programs, strict=True):
            one.append(timed(program, count))
    first, last = map(statistics.median, times)
    return first / last


def in_a_process(*arguments: str) -> float:
    command = [sys.executable, __file__, "--one", *arguments]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        training, *level = sys.argv[2:]
        print(json.dumps(compiled(lowered(training)[0], int(level[0]))[1] if level else run(training)))
        return
    print("| | compiling at level 1, CPU s | at 3 | running at 1 / at 3 |\n|---|---|---|---|")
    for training in sys.argv[1:] or TRAININGS:
        rounds = [[in_a_process(training, str(level)) for level in LEVELS] for _ in range(ROUNDS)]
        first, last = map(statistics.median, zip(*rounds, strict=True))
        print(f"| `{training}` | {first:.1f} | {last:.1f} | {in_a_process(training):.2f} |", flush=True)


if __name__ == "__main__":
    main()
