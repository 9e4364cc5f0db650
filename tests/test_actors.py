"""Tasks in actors of Ray: the same bits with any number of them, and after any death."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from evorl.distributed import ray_executor
from evorl.distributed.cluster import SHORT_TEMP_FOLDER, connect_to_ray
from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.executors import SerialExecutor
from evorl.distributed.ray_executor import RayExecutor
from evorl.distributed.results import ResultStore
from evorl.errors import OptionError, WorkerError
from evorl.leagues.oracles import BestResponseOracle
from evorl.leagues.psro import PSRO
from tests.clusters import require_ray
from tests.conftest import leaves_equal
from tests.distributing import EXACT, FEW, KUHN, PLAYED, learners_of, state_of

require_ray()
pytestmark = pytest.mark.program


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all: of this machine's CPUs."""
    with connect_to_ray() as ray:
        yield ray


@pytest.fixture(scope="module")
def played():
    return state_of(PLAYED)


@pytest.mark.parametrize(("workers", "cpus"), [(1, 1.0), (2, 1.0), (4, 0.5)])
def test_any_number_of_workers_gives_the_bits_of_serial(workers, cpus, played):
    assert leaves_equal(state_of(PLAYED, RayExecutor(workers, cpus)), played)


def test_so_do_trainings():
    assert leaves_equal(*(state_of(FEW, by, iterations=2) for by in (RayExecutor(2), SerialExecutor())))


@dataclass(frozen=True)
class Killed:
    """Actors, of which after so many results one dies each."""

    after: tuple[int, ...]

    @contextmanager
    def start_workers(self, programs):
        with RayExecutor(4, 0.5).start_workers(programs) as workers:
            completed, left, count = workers.wait_for_result, list(workers.processes), 0

            def killing():
                nonlocal count
                count += 1
                if count in self.after:
                    os.kill(left.pop(), signal.SIGKILL)
                return completed()

            workers.wait_for_result = killing
            yield workers
            assert len(left) == 4 - len(self.after)


def test_three_that_are_killed_change_nothing(played):
    assert leaves_equal(state_of(PLAYED, Killed((2, 3, 6))), played)


@pytest.fixture(scope="module")
def learners():
    return learners_of(parts=4)


@pytest.mark.parametrize(
    "executor",
    [RayExecutor(1), RayExecutor(2), RayExecutor(4, 0.5), Killed((3, 9))],
    ids=["one", "two", "four", "two of four killed"],
)
def test_rollouts_of_any_number_give_the_bits_of_serial(executor, learners):
    assert leaves_equal(learners_of(executor, parts=4), learners)


def test_after_the_coordinator_was_killed_twice_it_goes_on_as_if_nothing_had_been(tmp_path, played):
    before = set(SHORT_TEMP_FOLDER.glob("evorl-ray-*"))
    for tasks in (6, 7):
        command = [sys.executable, "-m", "tests.distributing", str(tmp_path), str(tasks), "ray"]
        killed = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list(tmp_path.glob("*.npz"))) == 13
    assert leaves_equal(state_of(PLAYED, RayExecutor(2), ResultStore(tmp_path)), played)
    until = time.monotonic() + 30
    while set(SHORT_TEMP_FOLDER.glob("evorl-ray-*")) - before and time.monotonic() < until:
        time.sleep(0.1)
    assert set(SHORT_TEMP_FOLDER.glob("evorl-ray-*")) <= before


def test_best_responses_may_begin_on_an_older_table():
    ages = [int(one.metrics["age"]) for one in coordinate_psro(EXACT, RayExecutor(2), staleness=1)]
    assert len(ages) == 5
    assert set(ages) <= {0, 1}


@dataclass(frozen=True)
class Faulty(BestResponseOracle):
    """Fails, or ends its process, where that is not this one."""

    here: int = 0
    dies: bool = False

    def respond_for_player(self, *args):
        if self.dies and os.getpid() != self.here:
            os._exit(1)
        raise ValueError("no cards left\nand more")


def test_a_task_that_fails_ends_it_with_one_line():
    with pytest.raises(WorkerError, match=r"^best_response-1-[01] has failed: ValueError: no cards left$"):
        state_of(PSRO(KUHN, Faulty(), capacity=6), RayExecutor(1))


def test_workers_that_die_without_end_end_it(monkeypatch):
    monkeypatch.setattr(ray_executor, "MAX_DEATHS", 1)
    with pytest.raises(WorkerError, match=r"workers have died 2 times without a result, the last one at best_response"):
        state_of(PSRO(KUHN, Faulty(here=os.getpid(), dies=True), capacity=6), RayExecutor(1))


def test_what_cannot_be_sent_is_told_in_one_line():
    oracle = BestResponseOracle()
    object.__setattr__(oracle, "lock", __import__("threading").Lock())
    with pytest.raises(OptionError, match="executor=ray: the training cannot be pickled: cannot pickle"):
        state_of(PSRO(KUHN, oracle, capacity=6), RayExecutor(1))


def test_more_than_there_are_are_refused(cluster):
    there = int(cluster.cluster_resources()["CPU"])
    more = f"workers={there + 1}: need {there + 1} CPUs, and {there} are available; use cpus_per_worker="
    with pytest.raises(OptionError, match=more):
        state_of(EXACT, RayExecutor(there + 1))
