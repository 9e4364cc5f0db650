"""Compile workloads for an H100 on a machine without a GPU, and count what one iteration launches.

pip install -e ".[gpu]"                                    JAX's compiler for CUDA; a GPU is not needed
python scripts/trust/gpu_programs.py [NAME ...]            prints the table, of all workloads or some
python scripts/trust/gpu_programs.py --check [NAME ...]    exits with 1 if a figure is above that of gpu_programs.json
python scripts/trust/gpu_programs.py --write               records gpu_programs.json
python scripts/trust/gpu_programs.py NAME --text FILE      writes the optimized HLO of one workload
python scripts/trust/gpu_programs.py "agent=ppo env=mjx/Hopper-v5 num_envs=1024"     an iteration of any training

kernels is the number of kernels, library calls and copies that an iteration of the workflow launches; the body of a
loop counts as often as it runs if the compiler knows the number, once otherwise. dynamic_loops are loops whose trip
count the compiler does not know: before each of their iterations, the host waits for the GPU. branches are conditions
for which it waits, too. temporary_mb is the memory in addition to the state. The sizes are those of
`guard_workloads.py`, and of `gpu_jobs.py` for names that begin with S. Kernels are chosen without timing them
(autotuning level 0), for the description of an H100 in `gpu_target.py`.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gpu_target import H100
from hlo import Instruction, Module

sys.path.append(str(Path(__file__).parents[1]))  # for gpu_jobs
RECORDED = Path(__file__).with_suffix(".json")
FIGURES = ("kernels", "dynamic_loops", "branches", "temporary_mb")
NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("copy-done", "async-done", "async-update", "opt-barrier", "while", "conditional", "call"),
}
Table = dict[str, dict[str, int]]


def list_workloads() -> dict[str, Any]:
    """Return a function for each workload that builds its workflow."""
    import gpu_jobs as full
    import guard_workloads as small

    from evorl import SAC, TD3, Brax, Gymnax
    from evorl.population import Pairs, Swarm, Truncation

    return {
        "E1 OpenES": small.evolution,
        "E4 CEM-RL": small.cem_rl,
        "E5 PBT": lambda: small.pbt(selection=Truncation(0.25)),
        "E6 PBT-CSO": lambda: small.pbt(selection=Pairs(), variation=Swarm()),
        "E7 PPO": lambda: small.on_policy(Brax("fast", max_episode_steps=8)),
        "E8 TD3": lambda: small.off_policy(TD3),
        "E9 SAC": lambda: small.off_policy(SAC),
        "J2 PPO on CartPole": lambda: small.on_policy(Gymnax("CartPole-v1")),
        "M2 PSRO": small.psro,
        "P1 Puffer": small.puffer,
        "U2 PPO on mazes": small.maze_student,
        "S2 PPO ant/spring": lambda: full.ppo("ant/spring", False),
        "S2 SAC ant/spring": lambda: full.off_policy("sac", "ant/spring", False, 128, 64),
        "S4 openes 32768": lambda: full.evolution("openes", 32_768, False),
        "S4 low_rank 1048576": lambda: full.evolution("low_rank", 2**20, False),
        "S6 td3 1 envs": lambda: full.off_policy("td3", "inverted_pendulum/spring", False, 1),
    }


@cache
def find_trip_count(loop: Instruction) -> int | None:
    """Return how often a loop runs; None if the compiler does not know it."""
    found = loop.rest.partition('known_trip_count":{"n":"')[2].partition('"')[0]
    return int(found) if found else None


def count_launches(module: Module, computation: str) -> int:
    """Return the number of kernels, library calls and copies that a computation launches."""
    total = 0
    for one in module.computations[computation]:
        parts = [name for name in one.called if name in module.computations]
        if one.opcode == "while":
            total += (find_trip_count(one) or 1) * sum(count_launches(module, name) for name in parts)
        elif one.opcode == "conditional":
            total += max(count_launches(module, name) for name in parts)
        elif one.opcode == "call":
            total += sum(count_launches(module, name) for name in parts)
        else:
            total += one.opcode not in NO_KERNEL
    return total


def find_launching(module: Module, computation: str) -> list[Instruction]:
    """Return the instructions that are launched by the host, each once, also those in loops."""
    found = []
    for one in module.computations[computation]:
        found.append(one)
        if one.opcode in ("while", "conditional", "call"):
            for name in one.called:
                found += find_launching(module, name)
    return found


def compile_step(workflow: Any) -> Any:
    """Compile an iteration of a workflow for the GPU, with a donated state."""
    import jax
    import numpy as np
    from jax.experimental import topologies

    with contextlib.redirect_stderr(io.StringIO()):
        jax.devices()  # registers the plugin for CUDA, which finds no GPU
    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")

    from evorl.parts import resolve_numbers
    from evorl.training.device_mesh import make_mesh

    here = make_mesh((1, 1, 1))
    devices = np.array(topology.devices).reshape(here.devices.shape)
    mesh = jax.sharding.Mesh(devices, here.axis_names, axis_types=here.axis_types)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def place(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), tree)

    jax.default_backend = lambda: "gpu"  # what is chosen by backend is chosen for a GPU
    key = jax.eval_shape(lambda: jax.random.key(0))
    key, state = place((key, jax.eval_shape(workflow.init, key, resolve_numbers(workflow))))
    with jax.set_mesh(mesh):
        return jax.jit(workflow.step, donate_argnums=0).lower(state, key).compile()


def measure(name: str) -> tuple[dict[str, int], str]:
    """Return the figures of a workload and the text of its program."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_gpu_autotune_level=0", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if "=" in name:
        from gpu_jobs import configured

        compiled = compile_step(configured(name, False))
    else:
        compiled = compile_step(list_workloads()[name]())
    text = compiled.as_text()
    module = Module.parse(text)
    entry = text.partition("\nENTRY %")[2].partition(" ")[0]
    launched = find_launching(module, entry)
    loops = [one for one in launched if one.opcode == "while"]
    return {
        "kernels": count_launches(module, entry),
        "dynamic_loops": sum(find_trip_count(one) is None for one in loops),
        "branches": sum(one.opcode == "conditional" for one in launched),
        "temporary_mb": round(compiled.memory_analysis().temp_size_in_bytes / 1e6),
    }, text


def main() -> None:
    names = list(list_workloads())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--text", type=Path, metavar="FILE")
    args = parser.parse_args()
    chosen = [name for name in names if not args.names or {name, name.split()[0]} & {*args.names}]
    chosen += [name for name in args.names if "=" in name]
    recorded: Table = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    found: Table = {}
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        print(f"| workload | {' | '.join(FIGURES)} |", "|---|---|---|---|---|", sep="\n", flush=True)
        for name, (figures, text) in zip(chosen, pool.map(measure, chosen), strict=True):
            found[name] = figures
            before = recorded.get(name, {})
            cells = [
                f"{before[one]} -> {figures[one]}" if before.get(one, figures[one]) != figures[one] else figures[one]
                for one in FIGURES
            ]
            print("|", name, "|", *(f"{cell} |" for cell in cells), flush=True)
            if args.text:
                args.text.write_text(text)
    if args.write:
        RECORDED.write_text(json.dumps(recorded | found, indent=1) + "\n")
    rose = [name for name in found if any(found[name][one] > recorded.get(name, found[name])[one] for one in FIGURES)]
    if args.check and rose:
        sys.exit(f"more than recorded: {', '.join(rose)}")


if __name__ == "__main__":
    main()
