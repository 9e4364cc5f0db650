"""Measure the training speed of the PufferLib recipe, and compare its advantages with PufferLib's own function.

python scripts/benchmarks/puffer.py                      P1: steps per CPU second, one thread on one core; two minutes
python scripts/benchmarks/puffer.py --source FOLDER      compare the advantages of 1,000 arrays with PufferLib's C++

P1 is `agent=puffer env=arcade/grid` without changes: 1024 environments of 64 steps, one pass of 8 minibatches of 8192
rows, Muon, advantages computed again before each; a network 121-128-GELU, alone and with an LSTM of 128.
FOLDER is the unpacked source of PufferLib 3.0.0, of which nothing is installed; it needs gcc.
"""

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ONE_THREAD = {"PJRT_NPROC": "1", "OMP_NUM_THREADS": "1"}


def speed(core: str, iterations: int, repeats: int) -> str:
    """Measure the training with a core, and return a row of the table."""
    import jax

    from evorl.training import runs
    from evorl.training.configuration import config
    from evorl.training.devices import compiler_options

    workflow, _ = runs.build(config.compose_config(["agent=puffer", "env=arcade/grid", f"core={core}"]))
    began = time.process_time()
    step = jax.jit(workflow.step, donate_argnums=0, compiler_options=compiler_options())
    state = jax.jit(workflow.init)(jax.random.key(0))
    compiled = step.lower(state, jax.random.key(0)).compile()
    compile_seconds = time.process_time() - began
    state, _ = jax.block_until_ready(compiled(state, jax.random.key(0)))
    rates = []
    for i in range(repeats):
        began = time.process_time()
        for j in range(iterations):
            state, _ = compiled(state, jax.random.key(i * iterations + j))
        jax.block_until_ready(state)
        rates.append(iterations * workflow.num_transitions / (time.process_time() - began))
    size = sum(x.size for x in jax.tree.leaves(state.agent.actor.params))
    return f"| {core} | {size:,} | {median(rates):,.0f} | {compile_seconds:.1f} |"


def difference(source: Path) -> float:
    """Return the largest difference of the advantages of 1,000 random arrays."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from evorl.agents.puffer import Puffer
    from evorl.types import Transition

    code = (source / "pufferlib" / "extensions" / "pufferlib.cpp").read_text(encoding="utf-8")
    found = re.search(r"void puff_advantage_row\(.*?\n}\n", code, re.DOTALL)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "row.c"
        path.write_text(f"#include <math.h>\n{found[0]}", encoding="utf-8")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", path.with_suffix(".so"), path], check=True)
        row = ctypes.CDLL(str(path.with_suffix(".so"))).puff_advantage_row
    rng, most = np.random.default_rng(0), 0.0
    h = Puffer(discount=0.995, gae_lambda=0.9, max_rho=1.2, max_c=0.8)
    ours = jax.jit(h.compute_advantages)
    for _ in range(1000):
        values, rewards = rng.normal(size=(2, 65)).astype(np.float32)
        dones = (rng.random(65) < 0.1).astype(np.float32)
        ratio = np.exp(rng.normal(size=65)).astype(np.float32)
        theirs = np.zeros(65, np.float32)
        pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (values, rewards, dones, ratio, theirs)]
        numbers = (h.discount, h.gae_lambda, h.max_rho, h.max_c)
        row(*pointers, *map(ctypes.c_float, numbers), ctypes.c_int(65))
        t = Transition(None, None, jnp.asarray(rewards[1:]), None, jnp.asarray(dones[1:] > 0), jnp.zeros(64, bool))
        advantage, _ = ours(t, ratio[:-1], values[:-1], values[1:])
        most = max(most, float(np.abs(advantage - theirs[:-1]).max()))
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.source:
        print(f"largest difference of the advantages of 1,000 arrays: {difference(options.source):.1e}")
        return
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):  # JAX reads them when it starts
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ONE_THREAD)
    print("| core | parameters | steps per CPU second | CPU s to compile |\n|---|---|---|---|")
    for core in ("none", "lstm"):
        print(speed(core, 4, options.repeats), flush=True)


if __name__ == "__main__":
    main()
