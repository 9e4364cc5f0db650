"""Measure how one training spreads over devices and processes, and predict it for GPUs and machines.

python scripts/benchmarks/scaling.py                        CPU seconds on 1, 2, 4, 8 devices, and in two processes
python scripts/benchmarks/scaling.py --before FOLDER        the same with the checkout in FOLDER, in alternation
python scripts/benchmarks/scaling.py --predict              only the model: prints when devices stop paying

The devices are those of one CPU, which they share, so what is measured is work: the CPU seconds of an iteration in all
devices together, divided by those of one device. It is 1 if nothing is repeated. Two processes talk over the loopback
address; the column has their wall time minus that of one process with two devices. Each figure is the median of
--rounds fresh processes, taken in turn.

The model of an iteration on D devices: seconds(D) = compute * (1 - repeated) / D + compute * repeated + sum over its
exchanges of (latency * log2(D) + bytes * 2 (D - 1) / D / bandwidth).
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAMILIES = ("OpenES", "PBT", "CEM-RL", "MAP-Elites", "PPO", "TD3")
COUNTS = (1, 2, 4, 8)


def build(name: str) -> Any:
    """Return the workflow of a family, in which 8 devices divide what is distributed."""
    import evorl
    from evorl.ec import GridArchive, IsoLineEmitter, MapElites
    from evorl.population import Truncation

    env: Any = evorl.Gymnax("Pendulum-v1")
    wide = (64, 64)
    if name == "OpenES":
        return evorl.Evolution(env, evorl.MLPPolicy(hidden=wide), evorl.OpenES(4096))
    if name == "MAP-Elites":
        archive = GridArchive((-2000.0,), (0.0,), (1000,), threshold_min=-2000.0)
        evolver = MapElites(archive, IsoLineEmitter(512), descriptors=("return",))
        return evorl.Evolution(env, evorl.MLPPolicy(hidden=wide), evolver, normalization="none")
    if name == "PBT":
        inner = evorl.OnPolicy(env, evorl.PPO(hidden=wide), num_envs=8, num_steps=64, batch_size=128, eval_episodes=8)
        return evorl.PBT(evorl.Vmapped(inner, 16), Truncation(0.25), search=("learning_rate",), steps_per_generation=2)
    if name == "PPO":
        return evorl.OnPolicy(env, evorl.PPO(hidden=(256, 256)), num_envs=16, num_steps=128, batch_size=512)
    sizes: Any = {"capacity": 100_000, "random_steps": 1000}
    if name == "TD3":
        return evorl.OffPolicy(env, evorl.TD3(hidden=(256, 256)), num_envs=8, num_steps=8, batch_size=256, **sizes)
    agent = evorl.TD3(hidden=(256, 256), layer_norm=True)
    return evorl.CEMRL(env, agent, evorl.CEM(8), min_updates=64, max_updates=64, fitness_episodes=2, **sizes)


def measure(name: str, devices: int, option: str, repeats: int) -> dict[str, float]:
    """Return the CPU and wall seconds of an iteration in this process, with its part of the devices."""
    import jax

    several = option != "off"
    if several:
        from evorl.training import processes

        jax.config.update("jax_num_cpu_devices", devices // 2)
        processes.connect(option)
    else:
        jax.config.update("jax_num_cpu_devices", devices)
    os.environ["PJRT_NPROC"] = "1"

    from evorl.parts import resolve_numbers
    from evorl.training.devices import compiler_options, fast_compile_options
    from evorl.training.program import Program, make_run_args

    workflow = build(name)
    program, numbers = Program(workflow, [0], 1, False, devices), resolve_numbers(workflow)
    traced = program.trace(numbers)
    state = traced.init.lower().compile(fast_compile_options())(program.keys, numbers)
    run = traced.run.compile(compiler_options())
    times = []
    for i in range(repeats + 2):  # the first two: random steps, then the first training
        begun = time.perf_counter(), time.process_time()
        state, _, _ = jax.block_until_ready(run(state, program.keys, *make_run_args(i, 1, False)))
        times.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    wall, cpu = (statistics.median(column) for column in zip(*times[2:], strict=True))
    return {"wall": wall, "cpu": cpu}


def start(name: str, devices: int, count: int, source: Path | None, repeats: int) -> list[dict[str, float]]:
    """Return what each of `count` fresh processes measures."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = ["off"] if count == 1 else [f"localhost:{port},{count},{i}" for i in range(count)]
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    command = [sys.executable, str(Path(__file__)), "--one", name, str(devices), str(repeats)]
    started = [subprocess.Popen([*command, one], env=environment, stdout=subprocess.PIPE, text=True) for one in options]
    said = [process.communicate()[0] for process in started]
    return [json.loads(text.splitlines()[-1]) for text in said if text.strip()]


def compare(names: list[str], rounds: int, before: Path | None, repeats: int) -> None:
    """Print the work of each number of devices relative to one, and two processes compared with one."""
    sources = [("after", None)] if before is None else [("before", before), ("after", None)]
    columns = " | ".join(f"{n} devices" for n in COUNTS[1:])
    print(f"| | one device, CPU s | {columns} | two processes |\n|{'---|' * (len(COUNTS) + 2)}", flush=True)
    for name in names:
        found: dict[tuple[str, int], list[float]] = {}
        walls: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for label, source in sources:
                for devices in COUNTS:
                    (one,) = start(name, devices, 1, source, repeats) or ({"cpu": float("nan"), "wall": float("nan")},)
                    found.setdefault((label, devices), []).append(one["cpu"])
                    walls.setdefault((label, devices), []).append(one["wall"])
                both = (
                    start(name, 2, 2, source, repeats)
                    if label == "after" and name not in ("PPO", "TD3", "CEM-RL")
                    else []
                )
                if both:
                    walls.setdefault((label, 0), []).append(max(one["wall"] for one in both))
        for label, _ in sources:
            single = statistics.median(found[label, 1])
            ratios = [f"{statistics.median(found[label, n]) / single:.2f}" for n in COUNTS[1:]]
            pair = walls.get((label, 0))
            extra = 0.0 if pair is None else statistics.median(pair) - statistics.median(walls[label, 2])
            two = "" if pair is None else f"{1000 * extra:+.0f} ms"
            title = name if before is None else f"{name}, {label}"
            print(f"| {title} | {single:.3f} | {' | '.join(ratios)} | {two} |", flush=True)


@dataclass(frozen=True)
class Case:
    """A training on one GPU, and what its devices exchange in an iteration."""

    seconds: float  # of an iteration on one GPU: docs/howto/gpu.md, or shared measurements on the same H100
    parts: int  # that can be distributed
    repeated: float  # share of the work that every device repeats, from the CPU table: (ratio at 8 devices - 1) / 7
    exchanges: int
    bytes: float  # of all exchanges


FLOAT, STATE = 4, 3  # bytes of a number; weights and two moments of Adam
WIDE, ANT = 67_586, 90_000  # weights of a policy [256, 256] on CartPole, and of PPO on ant with its value function
CASES = {
    "OpenES, CartPole, 4,096 individuals": Case(0.34, 4096, 0.0, 2, FLOAT * (WIDE + 4096)),
    "OpenES, CartPole, 32,768 individuals": Case(2.05, 32_768, 0.0, 2, FLOAT * (WIDE + 32_768)),
    "PBT of PPO, ant (spring), 64 members, 13 replaced": Case(2.097, 64, 0.0, 14, 13 * FLOAT * STATE * ANT),
    "PPO, ant (spring), 4,096 x 16, 32 minibatches": Case(0.038, 4096, 0.1, 33, FLOAT * (32 * ANT + 65_536 * 45)),
}
LINKS = {
    8: (10e-6, 450e9),
    64: (25e-6, 50e9),
    512: (25e-6, 50e9),
}  # latency in s and bytes/s: NVLink 4; 400 Gb/s per GPU


def predict() -> None:
    """Print the predicted speedup of each case on 8 GPUs, and on 8 and 64 machines with 8 GPUs each."""
    print("| | one GPU, s | exchanged, MB | 8 GPUs | 64 GPUs | 512 GPUs |\n|---|---|---|---|---|---|")
    for name, case in CASES.items():
        speedups = []
        for devices, (latency, bandwidth) in LINKS.items():
            used = min(devices, case.parts)
            own = case.seconds * (case.repeated + (1 - case.repeated) / used)
            talk = case.exchanges * latency * math.log2(used) + case.bytes * 2 * (used - 1) / used / bandwidth
            speedups.append(f"{case.seconds / (own + talk):.3g}x")
        print(f"| {name} | {case.seconds} | {case.bytes / 1e6:.1f} | {' | '.join(speedups)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--only", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.predict:
        predict()
        return
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.one[3], int(given.one[2]))))
        return
    compare(given.only, given.rounds, given.before, given.repeats)


if __name__ == "__main__":
    main()
