"""A training by tasks that tests interrupt: python -m tests.distributing FOLDER TASKS EXECUTOR ends by SIGKILL."""

import os
import signal
import sys
from pathlib import Path

from evorl.agents import PolicyGradient
from evorl.agents.ppo import PPOHyperparams
from evorl.distributed.coordinator import coordinate
from evorl.distributed.executors import Serial
from evorl.distributed.results import Results
from evorl.envs.games.kuhn import Kuhn
from evorl.envs.games.tabled import Tabled
from evorl.leagues.learned import Learned, LearnedHyperparams, of_a_player
from evorl.workflows.on_policy import OnPolicy
from evorl.workflows.psro import PSRO, PSROHyperparams

KUHN = Tabled(Kuhn())
EXACT = PSRO(KUHN, capacity=6)
PLAYED = PSRO(KUHN, capacity=6, episodes=20)
OPPOSED = of_a_player(KUHN)
AGENT = PolicyGradient(OPPOSED.observation_space, OPPOSED.action_space, hidden=(8,))
PPO = OnPolicy(OPPOSED, AGENT, 8, 8, 2, 32, eval_episodes=8)
LEARNED = PSRO(KUHN, Learned(PPO, restarts=2, warm=True), capacity=4, episodes=0)
FEW = PSROHyperparams(LearnedHyperparams(PPOHyperparams(), iterations=2.0))


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
