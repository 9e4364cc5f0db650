"""Processes that environments on the host start end with their worker, and with the training, however that ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from evorl.envs.host import HostEnv, pool_registry
from evorl.errors import HostError
from evorl.training.fit import fit
from evorl.training.progress import Budget
from tests.clusters import alive, gone_within
from tests.test_host_envs import played, ppo

pytestmark = pytest.mark.program
EACH = 3  # processes that an environment starts
SECONDS = 5


class Started:
    """The processes that environments have started."""

    def __init__(self, file):
        self.file = file

    def wait(self, environments):
        """Return their numbers, once so many environments have started theirs."""
        until = time.monotonic() + 60
        while len(found := self.numbers()) < environments * EACH:
            assert time.monotonic() < until, found
            time.sleep(0.05)
        return found

    def numbers(self):
        return {int(line) for line in self.file.read_text().split()}


@pytest.fixture
def started(tmp_path):
    found = Started(tmp_path / "started")
    found.file.touch()
    yield found
    pool_registry.close_all()
    for number in found.numbers():
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def simulated(started, workers, timeout_seconds=60.0, **options):
    return HostEnv("tests.hosted:Simulated-v0", {"started": str(started.file), **options}, workers, timeout_seconds)


def test_they_end_when_a_training_ends(started):
    fit(ppo(simulated(started, 2)), budget=Budget(iterations=1))
    numbers = started.wait(2)
    assert not gone_within(numbers, SECONDS)


def test_they_end_when_a_training_fails(started):
    with pytest.raises(HostError, match="step: RuntimeError: told to"):
        fit(ppo(simulated(started, 2, fault="step")), budget=Budget(iterations=1))
    numbers = started.wait(2)
    assert not gone_within(numbers, SECONDS)


@pytest.mark.parametrize(
    ("fault", "timeout", "why"),
    [
        ("kill", 60.0, "worker 0 has ended by SIGKILL"),
        ("exit", 60.0, "worker 0 has ended with exit code 3"),
        ("hang", 1.0, "no answer for 1 s"),
        ("stuck", 1.0, "no answer for 1 s"),
    ],
)
def test_they_end_with_their_worker(fault, timeout, why, started):
    """The end of a worker is noticed although processes that it has started go on."""
    played(simulated(started, 1, timeout, fault=fault), 1, 4)
    assert str(pool_registry.find_fault()).endswith(why)
    assert not gone_within(started.wait(1), SECONDS)


PARENT = """
import sys, jax
from evorl.envs.host import HostEnv, pool_registry
env = HostEnv("tests.hosted:Simulated-v0", {"started": sys.argv[1], "fault": sys.argv[2], "at": 1}, workers=1)
state, _ = env.reset(jax.random.key(0), env.default_params)
(worker,) = pool_registry.get_pool(env).places._processes.values()
print(worker.popen.pid, flush=True)
if sys.argv[2]:
    env.step(jax.random.key(0), state, 0, env.default_params)
sys.stdin.read()
"""


@pytest.mark.parametrize("worker", ["waits", "hangs", "is stuck", "was killed"])
def test_they_end_when_the_parent_is_killed(worker, started):
    fault = {"hangs": "hang", "is stuck": "stuck"}.get(worker, "")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(started.file), fault],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        number = int(parent.stdout.readline())
        numbers = {number, *started.wait(1)}
        time.sleep(1)  # in which a step begins
        if worker == "was killed":
            os.kill(number, signal.SIGKILL)
            time.sleep(0.5)
        assert started.numbers() <= alive(numbers)
        parent.kill()
    assert not gone_within(numbers, SECONDS)
