"""python -m tests.several_processes OPTION DEVICES FOLDER ITERATIONS CASE ...: train cases in FOLDER, rows as JSON.

OPTION is that of the command's `distributed`, DEVICES the number of devices of this process.
"""

import json
import sys
from contextlib import closing
from pathlib import Path

import jax

from evorl.training import processes


def train(folder, iterations, names):
    from evorl import Budget, fit  # the cases start JAX when they are imported
    from evorl.ec import OpenES
    from evorl.training.records.checkpoint import Checkpoints
    from tests.contract_cases import META
    from tests.tiny import evolution

    cases = {"pbt": META["pbt_ppo"], "openes": evolution(OpenES(8), "vbn")}
    for name in names:
        rows, budget = [], Budget(iterations=iterations)
        with closing(Checkpoints(folder / name, minutes=1e-9)) as checkpoints:
            fit(cases[name], 0, budget, [rows.append], evaluations=2, checkpoints=checkpoints)
        if processes.is_first():
            print(json.dumps(rows))


if __name__ == "__main__":
    option, devices, folder, iterations, *names = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    with processes.session(option):
        train(Path(folder), float(iterations), names)
