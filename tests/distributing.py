"""A training by tasks that tests interrupt: python -m tests.distributing FOLDER TASKS EXECUTOR ends by SIGKILL."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evorl import agents
from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.executors import SerialExecutor, SerialWorkers
from evorl.distributed.results import ResultStore
from evorl.distributed.rollout_coordinator import coordinate_rollouts
from evorl.envs.games.extensive_form import ExtensiveFormGame
from evorl.envs.games.kuhn import Kuhn
from evorl.leagues.psro import PSRO
from evorl.leagues.training_oracle import TrainingOracle, make_single_player_env
from evorl.workflows.on_policy import OnPolicy
from tests.counting import Counting

KUHN = ExtensiveFormGame(Kuhn())
EXACT = PSRO(KUHN, capacity=6)
PLAYED = PSRO(KUHN, capacity=6, episodes=20)
OPPOSED = make_single_player_env(KUHN)
AGENT = agents.PPO(hidden=(8,))
PPO = OnPolicy(OPPOSED, AGENT, 8, 8, 2, 32, eval_episodes=8)
LEARNED = PSRO(KUHN, TrainingOracle(PPO, restarts=2, warm=True), capacity=4, episodes=0)
FEW = replace(LEARNED, oracle=replace(LEARNED.oracle, iterations=2.0))
COUNTING = Counting()
FAST = agents.PPO(hidden=(8,), learning_rate=1e-2)
AHEAD = OnPolicy(COUNTING, FAST, 4, 6, 2, 8, staleness=2, eval_episodes=16)  # rollouts are two iterations ahead


@dataclass(frozen=True)
class Reordered:
    """Completes that task next which a function of those that wait chooses."""

    chooses: Callable[[Any], int]

    @contextmanager
    def start_workers(self, programs):
        workers = SerialWorkers(programs)
        in_turn = workers.wait_for_result

        def completed():
            workers._tasks.rotate(-self.chooses(workers._tasks))
            return in_turn()

        workers.wait_for_result = completed
        yield workers


class Last(ResultStore):
    """Kills this process once so many results are kept."""

    left = 0

    def put(self, name, value):
        super().put(name, value)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def state_of(psro, executor=SerialExecutor(), results=None, **options):  # noqa: B008
    """The last state of a training."""
    return list(coordinate_psro(psro, executor, results=results, **options))[-1].state


def learners_of(executor=SerialExecutor(), iterations=5, workflow=AHEAD, parts=2, **options):  # noqa: B008
    """What learns after each iteration."""
    done = coordinate_rollouts(workflow, executor, iterations, 0, parts=parts, **options)
    return [one.learner for one in done]


if __name__ == "__main__":
    folder, left, executor = sys.argv[1:]
    results = Last(Path(folder))
    results.left = int(left)
    if executor == "serial":
        state_of(PLAYED, SerialExecutor(), results)
    else:
        from evorl.distributed.ray_executor import RayExecutor

        state_of(PLAYED, RayExecutor(2, 0.5), results)
