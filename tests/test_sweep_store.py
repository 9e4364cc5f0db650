"""The store of a sweep: what several workers, some of them killed, make of it."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from evorl.errors import OptionError
from evorl.sweeps import database, worker_pool
from evorl.sweeps import store as stores
from evorl.sweeps.definition import SweepDefinition, Variant
from evorl.sweeps.random_search import RandomSearch
from evorl.sweeps.store import MAX_DEATHS, SweepStore, require_any_success
from evorl.sweeps.trial_training import TrialRecorder
from evorl.sweeps.trials import DONE, FAILED, RUNNING, STOPPED, Evaluation, SweepTrial
from evorl.training.progress import Budget, Progress
from tests.test_sweeps import SPACE


@contextmanager
def made(folder, trials=6):
    with closing(SweepStore.create(folder, {"trials": trials, "seed": 0})) as store:
        yield store


def numbers(trials):
    return [one.number for one in trials]


WORKER = """
import os, sys
from pathlib import Path
from evorl.sweeps.store import SweepStore
from evorl.sweeps.random_search import RandomSearch
from evorl.sweeps.trials import DONE, Evaluation
from tests.test_sweeps import SPACE
store = SweepStore(Path(sys.argv[1]))
with store.register_owner() as owner:
    if sys.argv[2] == "hold":
        print(store.claim_trials(owner, 1, SPACE, RandomSearch())[0].number, flush=True)
        sys.stdin.read()
    while taken := store.claim_trials(owner, 1, SPACE, RandomSearch()):
        store.observe(taken[0].number, Evaluation(1.0, 1.0, float(os.getpid())))
        store.end_trial(taken[0].number, DONE)
"""


def worker(folder, how):
    command = [sys.executable, "-c", WORKER, str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.program
def test_two_processes_share_the_trials_and_none_is_taken_twice(tmp_path):
    with made(tmp_path, trials=40) as store, worker(tmp_path, "work") as one, worker(tmp_path, "work") as two:
        assert [one.wait(), two.wait()] == [0, 0]
        trials = store.read_trials()
    assert numbers(trials) == list(range(40))
    assert {one.state for one in trials} == {DONE}
    assert all(len(one.curve) == 1 for one in trials)
    alone = [RandomSearch().suggest(SPACE, trials[:i], 1, 0)[0] for i in range(40)]  # whoever took it
    np.testing.assert_array_equal([one.point for one in trials], alone)


@pytest.mark.program
def test_a_killed_workers_trial_is_taken_over_and_keeps_its_point(tmp_path):
    with made(tmp_path) as store, worker(tmp_path, "hold") as process, store.register_owner() as owner:
        assert process.stdout.readline() == "0\n"
        point = store.read_trials()[0].point
        assert numbers(store.claim_trials(owner, 1, SPACE, RandomSearch())) == [1]
        assert store.count_remaining(6) == 4
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert store.count_remaining(6) == 5
        taken = store.claim_trials(owner, 2, SPACE, RandomSearch())
        assert numbers(taken) == [0, 1]
        assert taken[0].point == point


def test_a_worker_that_ends_lets_go_of_its_trials(tmp_path):
    with made(tmp_path) as store:
        for _ in range(2 * MAX_DEATHS):
            with store.register_owner() as owner:
                assert numbers(store.claim_trials(owner, 2, SPACE, RandomSearch())) == [0, 1]
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_trial_on_which_workers_die_has_failed(tmp_path):
    with made(tmp_path) as store, closing(sqlite3.connect(tmp_path / database.NAME, isolation_level=None)) as file:

        def taken(owner):
            return numbers(store.claim_trials(owner, 1, SPACE, RandomSearch()))

        with store.register_owner() as owner:
            for death in range(MAX_DEATHS + 1):
                assert taken(owner) == [0]
                if death == 0:
                    file.execute("UPDATE trials SET owner = '0123456789abcdef'")
                    assert taken(owner) == [0]
                    store.observe(
                        0, Evaluation(0.5, 1.0, 1.0)
                    )  # it came further, so that the death before counts no more
                else:
                    file.execute("UPDATE trials SET owner = '0123456789abcdef'")
            assert taken(owner) == [1]
        assert store.read_trials()[0].state == FAILED
        assert "5 workers died at the same point" in store.read_trials()[0].message


def test_a_worker_that_fails_counts_as_one_that_has_died(tmp_path):
    def fail(store):
        with store.register_owner() as owner:
            assert numbers(store.claim_trials(owner, 1, SPACE, RandomSearch())) == [0]
            raise RuntimeError("out of luck")

    with made(tmp_path) as store:
        for _ in range(MAX_DEATHS):
            with pytest.raises(RuntimeError):
                fail(store)
        with store.register_owner() as owner:
            assert numbers(store.claim_trials(owner, 1, SPACE, RandomSearch())) == [1]
        assert store.read_trials()[0].state == FAILED


class Asked:
    """A sampler that does something else while it is asked."""

    def __init__(self, meanwhile):
        self.meanwhile, self.known = list(meanwhile), []

    def suggest(self, space, trials, n, seed):
        self.known.append(len(trials))
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return RandomSearch().suggest(space, trials, n, seed)


def test_nobody_waits_for_a_suggestion_who_tells_of_a_trial(tmp_path):
    with (
        made(tmp_path) as store,
        closing(SweepStore(tmp_path)) as other,
        other.register_owner() as owner,
        store.register_owner() as own,
    ):
        other.claim_trials(owner, 1, SPACE, RandomSearch())
        told = Asked([lambda: (other.observe(0, Evaluation(1.0, 2.0, 3.0)), other.end_trial(0, DONE))])
        assert numbers(store.claim_trials(own, 1, SPACE, told)) == [1]
        assert [one.state for one in store.read_trials()] == [DONE, RUNNING]


def test_who_suggests_without_knowing_all_trials_suggests_anew(tmp_path):
    def puts_one():  # as a process without the lock would
        assert other._insert_suggestions(owner, 1, SPACE, RandomSearch())

    with (
        made(tmp_path) as store,
        closing(SweepStore(tmp_path)) as other,
        other.register_owner() as owner,
        store.register_owner() as own,
    ):
        asked = Asked([puts_one])
        assert numbers(store.claim_trials(own, 2, SPACE, asked)) == [1, 2]
        assert asked.known == [0, 1]
        trials = store.read_trials()
    alone = [RandomSearch().suggest(SPACE, trials[:i], 1, 0)[0] for i in range(3)]
    np.testing.assert_array_equal([one.point for one in trials], alone)


def test_a_store_that_has_read_before_gives_what_one_gives_that_has_not(tmp_path):
    rng = np.random.default_rng(0)
    with made(tmp_path, trials=30) as store, store.register_owner() as owner:
        for _ in range(200):
            taken = store.claim_trials(owner, 3, SPACE, RandomSearch())
            if not taken:
                break
            one = taken[rng.integers(len(taken))]
            if rng.uniform() < 0.5:
                store.observe(one.number, Evaluation(float(rng.uniform()), 1.0, float(rng.normal())))
            else:
                store.end_trial(one.number, (DONE, STOPPED, FAILED)[rng.integers(3)])
            with closing(SweepStore(tmp_path)) as new:
                assert [*map(repr, store.read_trials(SPACE))] == [*map(repr, new.read_trials(SPACE))]
        assert sorted(store._cache.ended) == [*range(30)]


def test_trials_that_have_ended_are_parsed_once_by_all_stores_of_a_process(tmp_path, monkeypatch):
    parsed = []
    parse = SweepStore._parse_trial
    monkeypatch.setattr(
        SweepStore, "_parse_trial", lambda self, row, curve: parsed.append(row[0]) or parse(self, row, curve)
    )
    with made(tmp_path, trials=30) as store, store.register_owner() as owner:
        for _ in range(20):
            (one, *_) = [x for x in store.claim_trials(owner, 2, SPACE, RandomSearch()) if x.number]
            store.end_trial(one.number, DONE)  # trial 0 goes on
        cache = store._cache
        parsed.clear()
        with closing(SweepStore(tmp_path, cache=cache)) as other:
            assert len(other.read_trials(SPACE)) == len(store.read_trials(SPACE)) == 21
            assert set(parsed) == {0, 20}
            store.end_trial(0, DONE)
            assert [x.state for x in other.read_trials()] == [DONE] * 21
            parsed.clear()
            assert len(store.read_trials()) == 21
            assert parsed == []


def test_a_read_searches_the_index_for_what_is_new_and_scans_no_table(tmp_path):
    with made(tmp_path, trials=30) as store, store.register_owner() as owner:
        for number in range(20):
            store.claim_trials(owner, 2, SPACE, RandomSearch())
            if number:
                store.end_trial(number, DONE)  # trial 0 goes on
        with patch.object(store._file, "fetch_rows", wraps=store._file.fetch_rows) as fetch:
            assert len(store.read_trials()) == 20
        queries = [call.args[0] for call in fetch.call_args_list]
        assert len(queries) == 2
        for query in queries:
            plan = store._file.fetch_rows(f"EXPLAIN QUERY PLAN {query}")
            assert all(step[3].startswith("SEARCH") for step in plan)


FLAKY = """
import os, signal, sys
from pathlib import Path
starts = Path(sys.argv[1]) / "starts"
count = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(count + 1))
if count == 0:
    raise RuntimeError("out of luck")
if count == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sys.argv.append("work")
"""


@pytest.fixture
def swept_by(tmp_path, monkeypatch):
    """Return what a sweep says whose workers run some code."""

    def sweep(code, trials=3):
        (tmp_path / "own_worker.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
        monkeypatch.setattr(worker_pool, "MODULE", "own_worker")
        monkeypatch.setattr(worker_pool, "POLL_SECONDS", 0.05)
        (tmp_path / "sweep").mkdir()
        lines = []
        with made(tmp_path / "sweep", trials) as store:
            worker_pool.run_sweep(store, SweepDefinition((), SPACE, {}, "return", "env_steps", 0), 1, lines.append)
        return lines

    return sweep


@pytest.mark.program
def test_a_worker_that_fails_or_is_killed_does_not_end_the_sweep(swept_by):
    lines = swept_by(FLAKY + WORKER)
    assert lines[:2] == [
        "a worker has failed: RuntimeError: out of luck; it is replaced",
        "a worker was killed by SIGKILL; it is replaced",
    ]
    assert [line.partition(":")[0] for line in lines[2:]] == ["trial 0", "trial 1", "trial 2"]


@pytest.mark.program
def test_a_sweep_whose_workers_all_fail_ends(swept_by):
    problem = (
        "^10 consecutive workers were lost; the last one has failed: RuntimeError: out of luck; see .*worker-0.log"
    )
    with pytest.raises(OptionError, match=problem):
        swept_by("raise RuntimeError('out of luck')")


def test_what_is_told_again_is_there_once_and_nan_is_none(tmp_path):
    with made(tmp_path) as store, store.register_owner() as owner:
        store.claim_trials(owner, 1, SPACE, RandomSearch())
        for _ in range(2):
            for used, score in ((0.5, math.nan), (1.0, 3.0)):
                assert not store.observe(0, Evaluation(used, 10 * used, score))
        (trial,) = store.read_trials()
        assert (trial.state, len(trial.curve), math.isnan(trial.curve[0].score)) == (RUNNING, 2, True)
        store.end_trial(0, STOPPED, used=0.5)
        assert len(store.read_trials()[0].curve) == 1


def test_scores_and_costs_of_any_finite_size_are_read_as_they_were_written(tmp_path):
    with made(tmp_path) as store, store.register_owner() as owner:
        store.claim_trials(owner, 1, SPACE, RandomSearch())
        told = Evaluation(0.5, 1e19, -3e20), Evaluation(1.0, 2.0**63, 1e38)
        for one in told:
            store.observe(0, one)
        assert store.read_trials()[0].curve == told
    with closing(SweepStore(tmp_path)) as again:
        assert again.read_trials()[0].curve == told


def test_a_running_trial_that_is_damaged_stays_damaged(tmp_path):
    with (
        made(tmp_path) as store,
        closing(sqlite3.connect(tmp_path / database.NAME, isolation_level=None)) as file,
        store.register_owner() as owner,
    ):
        store.claim_trials(owner, 2, SPACE, RandomSearch())
        file.execute("INSERT INTO curves VALUES (0, 0.5, 1.0, 'much')")
        for _ in range(2):
            with pytest.raises(OptionError, match="damaged: its trial 0 is not valid"):
                store.read_trials()
        with pytest.raises(OptionError, match="damaged: its trial 0 is not valid"):
            store.claim_trials(owner, 3, SPACE, RandomSearch())  # it had suggested trials forever


@pytest.mark.parametrize("name", ["trials", "seed", "workers", "vmapped", "vectorized"])
def test_a_sweep_without_one_of_its_settings_is_damaged(name, tmp_path):
    with made(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / database.NAME, isolation_level=None)) as file:
        file.execute("DELETE FROM sweep WHERE name = ?", (name,))
    with pytest.raises(OptionError, match="is damaged: its settings are not complete"):
        SweepStore(tmp_path)


def test_a_value_of_deep_lists_is_damaged(tmp_path):
    with made(tmp_path) as store, store.register_owner() as owner:
        store.claim_trials(owner, 2, SPACE, RandomSearch())
        with closing(sqlite3.connect(tmp_path / database.NAME, isolation_level=None)) as file:
            file.execute(
                "UPDATE trials SET options = ? WHERE number = 0", (f'{{"env_steps": {"[" * 600}{"]" * 600}}}',)
            )
        found, (damage,) = store.read_intact_trials(SPACE)
    assert numbers(found) == [1]
    assert "its trial 0 is not valid" in str(damage)


def test_a_full_disk_is_named_and_the_store_stays_as_it_was(tmp_path):
    with made(tmp_path) as store, store.register_owner() as owner:
        store.claim_trials(owner, 1, SPACE, RandomSearch())
        ((pages,),) = store._file.fetch_rows("PRAGMA page_count")
        store._file.fetch_rows(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match="database or disk is full"):
            store.end_trial(0, FAILED, message="x" * 100_000)
        assert store.read_trials()[0].state == RUNNING
        store.end_trial(0, FAILED, message="x")
        assert store.read_trials()[0].state == FAILED


def test_a_store_whose_making_was_killed_is_made_anew(tmp_path):
    (tmp_path / database.PARTIAL_NAME).write_bytes(b"half")
    assert stores.is_empty_or_partial(tmp_path)
    with made(tmp_path) as store:
        assert store.settings["trials"] == 6
    assert not stores.is_empty_or_partial(tmp_path)


def test_what_is_no_sweep_is_refused(tmp_path):
    with pytest.raises(OptionError, match="is not a sweep, it has no"):
        SweepStore(tmp_path)
    (tmp_path / database.NAME).write_bytes(os.urandom(4096))
    with pytest.raises(OptionError, match="is damaged: file is not a database"):
        SweepStore(tmp_path)
    with pytest.raises(OptionError, match="all 2 trials have failed; the first one: out of memory"):
        require_any_success([SweepTrial(i, (), {}, FAILED, message="out of memory") for i in range(2)])


def row(kind, used, **numbers):
    return {"kind": kind, "progress": used, "env_steps": 100 * used} | numbers


def test_a_score_of_steps_is_told_at_as_many_points_as_evaluations_and_the_same_after_a_stop(tmp_path):
    rows = [row("train", used, **{"return": used}) for used in (0.2, 0.3, 0.55, 0.7, 0.8)]
    rows += [row("evaluation", 0.8, **{"return": 9.0}), row("train", 1.0, **{"return": 1.0}), row("evaluation", 1.0)]
    found = SweepDefinition((Variant({"evaluations": 4}, (), {}),), SPACE, {}, "train/return", "env_steps", 0)
    budget = Budget(env_steps=100)
    with made(tmp_path) as store, store.register_owner() as owner:
        store.claim_trials(owner, 2, SPACE, RandomSearch())
        whole, first, second = (
            TrialRecorder(store, found, 0, budget),
            TrialRecorder(store, found, 1, budget),
            TrialRecorder(store, found, 1, budget),
        )
        for one in rows:
            whole(one)
        for one in rows[:4]:
            first(one)
        second.resume(Progress(totals={"env_steps": [30]}))  # the checkpoint is older than what was told
        for one in rows[2:]:
            second(one)
        curves = [one.curve for one in store.read_trials()]
    assert [(one.used_share, one.score) for one in curves[0]] == [(0.3, 0.3), (0.55, 0.55), (0.8, 0.8), (1.0, 1.0)]
    assert curves[0] == curves[1]
