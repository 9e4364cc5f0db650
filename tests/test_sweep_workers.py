"""Workers of a sweep on other machines: what they get, what happens if they are lost, and who is not let in."""

import contextlib
import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Client, answer_challenge, deliver_challenge
from pathlib import Path
from unittest.mock import Mock

import pytest

from evorl.cli import sweep
from evorl.errors import LockedError, OptionError
from evorl.sweeps import messages, store_server, trial_batch, trial_training, worker, worker_pool
from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.messages import MainProcessAddress
from evorl.sweeps.remote_queue import connect_to_sweep
from evorl.sweeps.store import SweepStore, get_trial_folder
from evorl.sweeps.trial_queue import StoreQueue
from evorl.sweeps.trial_training import TrialRecorder
from evorl.sweeps.trials import DONE, FAILED, RUNNING, STOPPED, Evaluation, SweepTrial
from evorl.training.progress import Budget, Progress
from evorl.training.records.files import lock_run_dir
from tests.test_sweep_command import TINY, started

LOCAL = "127.0.0.1"


@pytest.fixture(scope="module")
def defined(tmp_path_factory):
    """The definition of a sweep, and the settings of its store."""
    options = {"sweep_dir": tmp_path_factory.mktemp("defined") / "sweep", "trials": 6, "sampler": "random"}
    store, definition = sweep.create_sweep(options, TINY)
    with closing(store):
        return definition, store.settings


@pytest.fixture
def stored(defined, tmp_path):
    """A sweep of six trials, and its definition."""
    (tmp_path / "sweep").mkdir()
    with closing(SweepStore.create(tmp_path / "sweep", defined[1])) as store:
        yield store, defined[0]


@pytest.fixture
def served(stored):
    """A sweep of six trials, its definition, and the address at which it is served."""
    with store_server.serve_store(stored[0].folder, stored[1], LOCAL) as address:
        yield *stored, address


def connected(served, lose=lambda: None):
    store, _, address = served
    return connect_to_sweep(address, store.folder, (), lose)


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_gets_trials_and_the_main_process_its_results(served):
    store, definition, _ = served
    with connected(served) as queue:
        assert queue.definition == definition
        assert (queue.vmapped, queue.vectorized) == (1, None)
        first, *others = queue.claim_trials(1)
        assert not others
        assert queue.claim_trials(1)[0] == first  # it still belongs to this worker
        assert not queue.observe(first.number, Evaluation(0.5, 100.0, math.nan))
        assert not queue.observe(first.number, Evaluation(1.0, 200.0, 0.25))
        queue.end_trial(first.number, DONE)
        second = queue.claim_trials(1)[0]
        queue.end_trial(second.number, FAILED, message="x" * 2000)
        third = queue.claim_trials(1)[0]
    done, failed, left = store.read_trials(definition.space)
    assert done.values == first.values
    assert (done.state, [(x.used_share, x.cost) for x in done.curve]) == (DONE, [(0.5, 100.0), (1.0, 200.0)])
    assert math.isnan(done.curve[0].score)
    assert done.score == 0.25
    assert (failed.state, failed.message) == (FAILED, "x" * store_server.MAX_REASON_LENGTH)
    assert (left.number, left.state) == (third.number, RUNNING)
    wait_until(lambda: store.count_remaining(6) == 4)  # the third trial is free again


def test_a_trial_behind_the_others_is_stopped_from_afar(served):
    store, _, _ = served
    with connected(served) as queue:
        for number in range(6):
            (trial,) = queue.claim_trials(1)
            worst = number == 5
            for used in (0.25, 0.5, 0.75):
                is_behind = queue.observe(trial.number, Evaluation(used, 100 * used, -9.0 if worst else float(number)))
                assert not is_behind  # only five others, and eight are needed
            queue.end_trial(trial.number, STOPPED if worst else DONE, 0.5 if worst else 1.0)
    trials = store.read_trials()
    assert [len(one.curve) for one in trials] == [3] * 5 + [2]
    assert trials[5].state == STOPPED


@pytest.mark.parametrize("how", ["connection", "exception", "silence"])
def test_the_trial_of_a_lost_worker_goes_to_another(how, served, monkeypatch):
    store, _, address = served
    if how == "silence":
        monkeypatch.setattr(messages, "SILENCE_SECONDS", 0.3)
    if how == "exception":
        with pytest.raises(RuntimeError), connected(served) as queue:  # noqa: PT012
            lost = queue.claim_trials(1)[0]
            raise RuntimeError
    else:
        connection = Client((address.host, address.port))
        answer_challenge(connection, address.token.encode())
        deliver_challenge(connection, address.token.encode())
        messages.receive(connection)
        messages.send(connection, [messages.CLAIM, 1])
        lost = messages.decode_trial(messages.receive(connection)["reply"][0])
        if how == "connection":
            connection.close()
    wait_until(lambda: store.count_remaining(6) == 6)
    monkeypatch.undo()
    with connected(served) as queue:
        assert queue.claim_trials(1)[0] == lost
        if how == "silence":  # the first worker wakes up: nothing that it says is taken
            with pytest.raises((ConnectionError, OSError)):  # noqa: PT012
                messages.send(connection, [messages.END, lost.number, FAILED, 1.0, "I woke up"])
                messages.receive(connection)
        assert store.read_trials()[0].state == RUNNING
    (deaths,) = store._file.fetch_rows("SELECT deaths FROM trials")[0]
    assert deaths == 1


def test_a_worker_may_only_change_its_own_trials(served):
    store, _, _ = served
    with connected(served) as mine:
        (trial,) = mine.claim_trials(1)
        with pytest.raises(ConnectionError, match="belongs to another worker"), connected(served) as other:
            other.end_trial(trial.number, DONE)
        assert store.read_trials()[0].state == RUNNING
        mine.end_trial(trial.number, DONE)
        with pytest.raises(ConnectionError, match="belongs to another worker"):
            mine.observe(trial.number, Evaluation(1.0, 1.0, 1.0))


BAD = [
    [messages.CLAIM, 0],
    [messages.CLAIM, "1"],
    [messages.OBSERVE, 0, [2.0, 1.0, 1.0]],
    [messages.OBSERVE, 0, [0.5, 1e999, 1.0]],
    [messages.OBSERVE, 0, {"used": 1}],
    [messages.END, 0, RUNNING, 1.0, ""],
    [messages.END, 0, DONE, 1.0, 5],
    ["DROP TABLE trials"],
    {"claim": 1},
    None,
]


@pytest.mark.parametrize("message", BAD, ids=str)
def test_a_message_that_is_not_known_ends_its_worker_and_changes_nothing(message, served):
    store, _, address = served
    with Client((address.host, address.port)) as connection:
        answer_challenge(connection, address.token.encode())
        deliver_challenge(connection, address.token.encode())
        messages.receive(connection)
        messages.send(connection, [messages.CLAIM, 1])
        messages.receive(connection)
        before = store._file.fetch_rows("SELECT * FROM trials"), store._file.fetch_rows("SELECT * FROM curves")
        messages.send(connection, message)
        with pytest.raises(ConnectionError):
            messages.receive(connection)
        assert store._file.fetch_rows("SELECT * FROM curves") == before[1]
        rows = store._file.fetch_rows("SELECT number, point, options, state FROM trials")
        assert rows == [row[:4] for row in before[0]]


def test_nobody_without_the_token_is_let_in_and_nobody_blocks_the_others(served):
    _, _, address = served
    wrong = MainProcessAddress(address.host, address.port, "0" * 64)
    with pytest.raises(OptionError, match="cannot be reached"), connect_to_sweep(wrong, served[0].folder, (), int):
        pass
    silent = [socket.create_connection((address.host, address.port)) for _ in range(20)]  # say nothing at all
    noisy = socket.create_connection((address.host, address.port))
    noisy.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 1000)
    with Client((address.host, address.port)) as large, connected(served) as queue:
        answer_challenge(large, address.token.encode())
        deliver_challenge(large, address.token.encode())
        messages.receive(large)
        with pytest.raises(ConnectionError):  # noqa: PT012
            large.send_bytes(b"[" * (messages.MAX_MESSAGE_BYTES + 1))
            messages.receive(large)
        assert queue.claim_trials(1)
    for one in [*silent, noisy]:
        one.close()


def test_an_error_of_the_sampler_reaches_the_log_of_the_worker(served, monkeypatch):
    def fail(*given):
        raise ZeroDivisionError("no suggestion")

    monkeypatch.setattr("evorl.sweeps.random_search.RandomSearch.suggest", fail)
    with pytest.raises(ConnectionError, match="has ended this worker: no suggestion"), connected(served) as queue:
        queue.claim_trials(1)


def test_the_address_is_for_its_user_alone_and_is_removed(served, tmp_path):
    store, _, address = served
    path = store.folder / messages.ADDRESS_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert MainProcessAddress.read(store.folder, "worker") == address
    for text in (
        "{}",
        "[" * 9999,
        json.dumps({"host": 1, "port": 5, "token": ""}),
        '{"host":"x","port":0,"token":"x"}',
    ):
        (tmp_path / messages.ADDRESS_FILE).write_text(text)
        with pytest.raises(OptionError, match="cannot be read"):
            MainProcessAddress.read(tmp_path, "worker")
    (tmp_path / messages.ADDRESS_FILE).unlink()
    with pytest.raises(OptionError, match="start the sweep with listen=HOST"):
        MainProcessAddress.read(tmp_path, "worker")


def test_a_worker_notices_that_the_main_process_is_gone(stored, monkeypatch):
    monkeypatch.setattr(messages, "PING_SECONDS", 0.05)
    store, definition = stored
    lost, server = threading.Event(), store_server.serve_store(store.folder, definition, LOCAL)
    address = server.__enter__()
    with pytest.raises(OSError), connect_to_sweep(address, store.folder, (), lost.set) as queue:  # noqa: PT011, PT012
        assert queue.claim_trials(1)
        server.__exit__(None, None, None)
        assert lost.wait(5)
        queue.claim_trials(1)
    assert not (store.folder / messages.ADDRESS_FILE).exists()


def test_a_training_goes_on_to_save_if_the_main_process_is_lost(stored):
    store, definition = stored
    lost, server = threading.Event(), store_server.serve_store(store.folder, definition, LOCAL)
    with contextlib.suppress(OSError), connect_to_sweep(server.__enter__(), store.folder, (), lost.set) as queue:
        (trial,) = queue.claim_trials(1)
        server.__exit__(None, None, None)
        assert queue.observe(trial.number, Evaluation(0.5, 1.0, 2.0)) is False
    assert lost.is_set()


def test_a_resumed_trial_reports_what_the_main_process_has_missed(stored):
    store, definition = stored
    row = {"kind": "evaluation", "seconds": 1.0, "env_steps": 1}
    rows = [row | {"iteration": i, "progress": i / 4, "return": float(i)} for i in range(1, 4)]
    with store.register_owner() as owner:
        store.claim_trials(owner, 1, definition.space, definition.build_sampler())
        folder = get_trial_folder(store.folder, 0)
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[:2]))
        again = TrialRecorder(store, definition, 0, Budget(env_steps=4))
        again.resume(Progress(totals={"env_steps": [2]}))
        again(rows[2])
        (found,) = store.read_trials()
    assert [(one.used_share, one.score) for one in found.curve] == [(0.25, 1), (0.5, 2), (0.75, 3)]


def test_the_main_process_starts_its_workers_although_a_remote_one_has_a_trial(served):
    store, definition, _ = served
    started = []

    class Pool(worker_pool.WorkerPool):
        def _start_worker(self, place):
            started.append(place)
            os.kill(os.getpid(), signal.SIGINT)  # asks the sweep to stop

    with connected(served) as queue:
        queue.claim_trials(1)
        too_late = threading.Timer(5, os.kill, (os.getpid(), signal.SIGINT))
        too_late.start()
        assert worker_pool.run_sweep(store, definition, 1, lambda line: None, pool=Pool(store.folder, 1, ()))
        too_late.cancel()
    assert started == [0]


def test_the_main_process_waits_for_workers_of_one_that_has_died_before_it_listens(stored, monkeypatch):
    store, definition = stored
    address, waiting = store.folder / messages.ADDRESS_FILE, threading.Event()

    def poll(seconds):
        waiting.set()
        assert not address.exists()
        time.sleep(0.01)

    monkeypatch.setattr(worker_pool, "time", Mock(sleep=poll))
    monkeypatch.setattr(worker_pool, "run_sweep", lambda *given: address.exists() and has_ended.is_set())
    has_ended = threading.Event()

    def save():
        with closing(SweepStore(store.folder)) as own, own.register_owner() as owner:
            own.claim_trials(owner, 1, definition.space, definition.build_sampler())
            claimed.set()
            assert waiting.wait(10)
            has_ended.set()

    claimed, thread = threading.Event(), threading.Thread(target=save)
    thread.start()
    assert claimed.wait(10)
    with pytest.raises(SystemExit) as stopped:
        sweep.start_or_resume_sweep([f"resume={store.folder}", f"listen={LOCAL}"])
    thread.join()
    assert stopped.value.code == 130


def test_a_command_that_is_refused_changes_no_settings(stored):
    store, _ = stored
    before = store.settings
    with lock_run_dir(store.folder, "resume"), pytest.raises(LockedError, match="is writing to it"):
        sweep.start_or_resume_sweep([f"resume={store.folder}", "trials=3", "workers=7"])
    assert store.settings == before


class Recorded:
    """A queue of equal trials, from which a worker gets its own again."""

    def __init__(self, values):
        self.open, self.count, self.values = [], 0, values

    def claim_trials(self, n):
        while len(self.open) < n:
            self.open.append(SweepTrial(self.count, (), self.values, RUNNING))
            self.count += 1
        return self.open[:n]

    folder = Path()
    observe = end_trial = lambda *_: None


def test_trials_in_one_program_have_one_device(defined):
    (variant,) = defined[0].variants
    several = replace(defined[0], variants=(replace(variant, base=variant.base | {"devices": 2}),))
    trial_batch.require_batchable(several, 1)
    with pytest.raises(OptionError, match="vmapped=4: needs devices=1, not 2"):
        trial_batch.require_batchable(several, 4)


@pytest.mark.parametrize(("vmapped", "most"), [(1, 5), (4, 3), (4, 10), (8, 1)])
def test_a_worker_begins_no_more_trials_than_it_may(vmapped, most, defined, monkeypatch):
    begun = []

    def begin(queue, trial):
        begun.append(trial.number)
        queue.open.remove(trial)

    class Batch:
        def __init__(self, queue, definition, trials, vectorized):
            self.queue = queue
            for one in trials:
                begin(queue, one)

        def train(self, stop, more):
            while (trial := more(0)) is not None:
                begin(self.queue, trial)

    monkeypatch.setattr(worker, "TrialBatch", Batch)
    monkeypatch.setattr("evorl.sweeps.trial_training.train_trial", lambda queue, _, trial, stop: begin(queue, trial))
    queue = Recorded(defined[0].space.defaults)
    worker.run_worker(queue, defined[0], vmapped, None, lambda: False, most)
    assert begun == list(range(most))
    assert queue.count == most  # it claims no others


def test_a_trial_that_another_process_still_writes_is_not_failed(stored, monkeypatch):
    monkeypatch.setattr(trial_training, "LOCK_SECONDS", 0.01)
    store, definition = stored
    with store.register_owner() as owner:
        queue = StoreQueue(store, definition, definition.build_sampler(), owner)
        (trial,) = queue.claim_trials(1)
        folder = get_trial_folder(store.folder, 0)
        folder.mkdir(parents=True)
        with lock_run_dir(folder, "resume"), pytest.raises(LockedError, match="is writing to it"):
            trial_training.train_trial(queue, definition, trial, lambda: False)

        assert store.read_trials()[0].state == RUNNING
        assert not (folder / "checkpoints").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["workers=0"], "workers=0: must be a whole number, at least 1"),
        (["executor=dask"], "unknown executor dask"),
        (["gpus_per_worker=1"], "gpus_per_worker=1: needs executor=ray"),
        (["address=10.0.0.7:6379"], "address=10.0.0.7:6379: needs executor=ray"),
        (["listen=host:99999"], "listen=host:99999: must be HOST or HOST:PORT"),
        (["listen=203.0.113.7"], "listen=203.0.113.7:0: "),
    ],
)
def test_options_of_workers_that_cannot_be_are_refused(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        sweep.main([*TINY, "sweep_dir=sweep", *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.program
def test_workers_of_a_job_array_train_a_sweep_although_one_is_killed(tmp_path):
    """The main process trains nothing; one job takes one trial, others all that are left."""
    join = lambda *more: started(tmp_path, "worker", "sweep", *more)  # noqa: E731
    main = started(tmp_path, *TINY, "trials=6", "workers=0", f"listen={LOCAL}", "sweep_dir=sweep", "sampler=random")
    try:
        wait_until((tmp_path / "sweep" / messages.ADDRESS_FILE).exists, 60)
        with closing(SweepStore(tmp_path / "sweep")) as store:
            with join("most=1") as one:
                out, err = one.communicate(timeout=120)
                assert (one.returncode, out, err) == (0, "", "")
            assert [trial.state for trial in store.read_trials()] == [DONE]
            with join() as victim:
                wait_until(lambda: len(store.read_trials()) == 2, 60)
                os.kill(victim.pid, signal.SIGKILL)
            with join() as other:
                out, err = other.communicate(timeout=120)
                assert (other.returncode, err) == (0, "")
            trials = store.read_trials()
        out, err = main.communicate(timeout=60)
        assert (main.returncode, err) == (0, "")
        assert [trial.number for trial in trials] == list(range(6))
        assert all(trial.state in (DONE, STOPPED) for trial in trials)
        assert not (tmp_path / "sweep" / messages.ADDRESS_FILE).exists()
    finally:
        main.kill()
        main.communicate()


@pytest.mark.program
def test_the_first_trials_of_remote_workers_are_those_of_local_ones(tmp_path):
    """The same points and bitwise the same scores, one worker each."""
    run = lambda *more: subprocess.run(  # noqa: E731
        [sys.executable, "-m", "evorl.sweep", *TINY, "trials=3", "sampler=random", *more],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    run("sweep_dir=local")
    main = started(tmp_path, *TINY, "trials=3", "sampler=random", "workers=0", f"listen={LOCAL}", "sweep_dir=remote")
    wait_until((tmp_path / "remote" / messages.ADDRESS_FILE).exists, 60)
    subprocess.run([sys.executable, "-m", "evorl.sweep", "worker", "remote"], cwd=tmp_path, check=True)
    assert main.wait(60) == 0
    main.communicate()
    found = {}
    for name in ("local", "remote"):
        with closing(SweepStore(tmp_path / name)) as store:
            found[name] = [(one.point, one.values, one.curve) for one in store.read_trials()]
    assert found["local"] == found["remote"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_workers_of_a_deterministic_sweep_set_the_flag_of_the_compiler(deterministic, monkeypatch):
    monkeypatch.setattr(os, "environ", {"XLA_FLAGS": "--mine"})
    queue, definition = Mock(spec=StoreQueue), Mock(spec=SweepDefinition, base={"deterministic": deterministic})
    queue.claim_trials.return_value = []
    for _ in range(2):
        worker.run_worker(queue, definition, 1, None, lambda: False)
    flag = " --xla_gpu_deterministic_ops=true"
    assert os.environ["XLA_FLAGS"] == "--mine" + flag * deterministic
