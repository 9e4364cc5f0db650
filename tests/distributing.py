"""A training by tasks that tests interrupt: python -m tests.distributing FOLDER TASKS EXECUTOR ends by SIGKILL."""

import os
import signal
import sys
from pathlib import Path

from evorl.distributed.coordinator import coordinate
from evorl.distributed.executors import Serial
from evorl.distributed.results import Results
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.tabled import Tabled
from evorl.workflows.psro import PSRO

KUHN = Tabled(Kuhn())
EXACT = PSRO(KUHN, capacity=6)
PLAYED = PSRO(KUHN, capacity=6, episodes=20)


class Last(Results):
    """Kills this process once so many results are kept."""

    left = 0

    def put(self, name, value):
        super().put(name, value)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def state_of(psro, executor=Serial(), results=None, **options):  # noqa: B008
    """The last state of a training."""
    return list(coordinate(psro, executor, results=results, **options))[-1].state


if __name__ == "__main__":
    folder, left, executor = sys.argv[1:]
    results = Last(Path(folder))
    results.left = int(left)
    if executor == "serial":
        state_of(PLAYED, Serial(), results)
    else:
        from evorl.distributed.actors import Ray

        state_of(PLAYED, Ray(2, 0.5), results)
