"""Rollouts as tasks: the training by one program, in any order, and after any stop."""

import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest
from flax import ids

from evorl import tree
from evorl.agents import PPO
from evorl.agents.team import Team
from evorl.cli import distribute
from evorl.distributed import task_training
from evorl.distributed.executors import SerialExecutor, SerialWorkers
from evorl.distributed.results import ResultStore
from evorl.distributed.rollout_coordinator import coordinate_rollouts
from evorl.distributed.rollout_programs import RolloutSpec
from evorl.distributed.task import ROLLOUT, Task, format_envs_name, format_policy_name
from evorl.distributed.values import pack_value
from evorl.distributed.worker import RayWorker
from evorl.envs.sanity import probe
from evorl.errors import DivergedError, OptionError
from evorl.parts import resolve_numbers
from evorl.training import runs
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.run_recorder import RunContext
from evorl.types import HostParams
from evorl.workflows.on_policy import OnPolicy
from tests.conftest import leaves_equal
from tests.distributing import AHEAD, Reordered, learners_of
from tests.gaming import Chase
from tests.tiers import program_fixture


def by_one_program(workflow, iterations):
    """States and metrics of a training by one program, with the same keys."""
    keys = jax.random.split(jax.random.key(0), 3)
    state, step = jax.jit(workflow.init)(keys[0]), jax.jit(workflow.step)
    for i in range(iterations):
        state, metrics = step(state, jax.random.fold_in(keys[1], i))
        yield state, metrics


@program_fixture(scope="module")
def ahead():
    """What learns after each of five iterations, from rollouts in two parts."""
    return learners_of()


@pytest.mark.program
@pytest.mark.parametrize(
    "workflow",
    [
        pytest.param(replace(AHEAD, staleness=0), id="at once"),
        pytest.param(replace(AHEAD, normalize_observations=False), id="ahead"),
    ],
)
def test_in_one_part_it_is_the_training_by_one_program(workflow):
    done = coordinate_rollouts(workflow, iterations=4)
    for one, (state, metrics) in zip(done, by_one_program(workflow, 4), strict=True):
        assert set(one.metrics) == {*metrics, "age"}
        for name, found in metrics.items():
            np.testing.assert_allclose(one.metrics[name], found, atol=1e-5, err_msg=name)
        for found, expected in zip(jax.tree.leaves(one.state), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        assert int(one.metrics["age"]) == min(one.number - 1, workflow.staleness)


@dataclass(frozen=True)
class Watched:
    """A SerialExecutor that keeps what was published, and all tasks."""

    values: dict = field(default_factory=dict)
    tasks: list = field(default_factory=list)
    left: list = field(default_factory=list)

    @contextmanager
    def start_workers(self, programs):
        workers = SerialWorkers(programs)
        publish, submit = workers.publish, workers.submit
        workers.publish = lambda name, value: (self.values.update({name: value}), publish(name, value))
        workers.submit = lambda task: (self.tasks.append(task), submit(task))
        yield workers
        self.left.extend(workers._values)


def test_who_acts_is_so_many_iterations_behind_with_what_it_had_seen_then(ahead):
    watched = Watched()
    assert leaves_equal(learners_of(watched)[-1], ahead[-1])
    assert [task.name for task in watched.tasks[:6]] == [f"rollout-{i}-{part}" for i in range(3) for part in range(2)]
    assert sorted(task.name for task in watched.tasks) == [f"rollout-{i}-{part}" for i in range(5) for part in range(2)]
    for task in watched.tasks:
        version = max(0, task.version - 2)
        assert task.value_names == (format_policy_name(version), format_envs_name(task.version, task.part))
        *_, count, _, _ = watched.values[format_policy_name(version)]  # the last leaves are statistics
        assert int(count) == 24 * version
    np.testing.assert_array_equal(ahead[-1].stale_obs_statistics.count, [72, 96])
    for version, learner in enumerate(ahead, 1):
        now = learner.state.agent.actor.params, learner.state.obs_statistics
        assert leaves_equal(pack_value(now), watched.values[format_policy_name(version)])
        for part in range(2):  # side by side
            own = tree.index(learner.state.envs, slice(2 * part, 2 * part + 2))
            assert leaves_equal(pack_value(own), watched.values[format_envs_name(version, part)])
    assert sorted(watched.left) == ["policy-3", "policy-4", "policy-5", "slots-5-0", "slots-5-1"]


def test_the_order_in_which_rollouts_end_changes_nothing(ahead):
    drawn = np.random.default_rng(0)
    found = learners_of(Reordered(lambda tasks: int(drawn.integers(len(tasks)))))
    assert leaves_equal(found[-1], ahead[-1])


@pytest.mark.program
def test_parts_learn_the_best_action():
    env = probe.ActionDependentReward()
    agent = PPO(hidden=(8,), learning_rate=3e-2)
    workflow = OnPolicy(env, agent, 32, 8, 4, 64, staleness=1, eval_episodes=8)
    done = coordinate_rollouts(workflow, iterations=20, parts=2)
    returns = [float(one.metrics["return"]) for one in done]
    assert returns[0] < 0.5
    assert np.mean(returns[-3:]) > 0.97  # the best is 1


@pytest.mark.program
def test_of_games_too():
    env = Chase()
    spaces = env.observation_space, env.action_space
    agent = Team(PPO(hidden=(8,)), observation_space=spaces[0], action_space=spaces[1])
    workflow = OnPolicy(env, agent, 4, 8, 1, 32, staleness=1, eval_episodes=4)
    states = [list(coordinate_rollouts(workflow, iterations=3, parts=parts))[-1].state for parts in (1, 2)]
    assert not leaves_equal(*states)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states[1].agent))


@pytest.mark.program
def test_a_worker_has_modules_of_its_own(monkeypatch):
    """Of another process their numbers may be those of modules that a worker makes."""
    spec = RolloutSpec(AHEAD, 2, resolve_numbers(AHEAD), None)
    begun = spec.build_programs().init_learner(jax.random.key(0))
    values = {
        format_policy_name(0): pack_value(spec.build_programs().get_acting_policy(begun, 2)),
        format_envs_name(0, 1): spec.build_programs().split_envs(begun.state.envs)[1],
    }
    task = Task(ROLLOUT, 0, 1, np.asarray(jax.random.key_data(jax.random.key(1))), np.array(0), tuple(values))
    expected = spec.build_programs()(task, values.__getitem__)
    sent = pickle.dumps(spec)
    monkeypatch.setattr(ids.uuid, "_id", AHEAD.agent.encoder._id.id - 1)
    assert leaves_equal(RayWorker({}, False, sent)._programs(task, values.__getitem__), expected)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (lambda: learners_of(parts=3), "parts=3: must divide num_envs, 4"),
        (lambda: learners_of(parts=0), "parts=0: must divide num_envs, 4"),
        (lambda: learners_of(iterations=0), "iterations=0: must be at least 1"),
        (lambda: learners_of(env_params=HostParams()), "env=Counting: must not run on the host"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(begin, message):
    with pytest.raises(OptionError, match=message) as error:
        begin()
    assert "\n" not in str(error.value)


SMALL = (
    "agent=impala env=cartpole agent.workflow.agent.hidden=[8] agent.workflow.eval_episodes=4 chunk=2 executor=serial"
)
SMALL += " tensorboard=false checkpoint.minutes=1e-9"


DATA = {"seed": 0, "env_steps": None, "episodes": None, "minutes": None, "agent": {}, "chunk": None}
DATA |= {"evaluations": 20, "evaluation_share": None, "checkpoint": {"minutes": 1e-9, "keep": 2}}


def test_a_run_goes_on_from_its_newest_checkpoint(ahead, tmp_path):
    rows = []
    for iterations, workers in ((3, 2), (5, 4)):
        data = DATA | {"iterations": iterations}
        assert (
            len(
                list(
                    task_training.train_from_rollouts(
                        AHEAD, RunContext(data, tmp_path, [rows.append]), SerialExecutor(), None, workers
                    )
                )
            )
            > 1
        )
    of_training = [row for row in rows if row["kind"] == "train"]
    assert [row["iteration"] for row in of_training] == [1, 2, 3, 4, 5]
    assert [row["env_steps"] for row in of_training] == [24, 48, 72, 96, 120]
    assert [row["age"] for row in of_training] == [0, 1, 2, 2, 2]
    shapes = jax.eval_shape(lambda: ahead[-1].state)
    assert leaves_equal(Checkpoints(tmp_path / "checkpoints", writes=False).restore(shapes)[0], ahead[-1].state)
    kept = sorted(path.name for path in (tmp_path / "tasks").iterdir())
    assert kept == ["parts.npz", "seen-3.npz", "seen-4.npz", "seen-5.npz"]
    for parts, message in (
        (4, "parts=4: must be 2, as at the start"),
        (None, "seen-5.npz, which belongs to the checkpoint, is"),
    ):
        with pytest.raises(OptionError, match=message):
            next(
                task_training.train_from_rollouts(
                    AHEAD, RunContext(DATA | {"iterations": 6}, tmp_path), SerialExecutor(), parts, 2
                )
            )
        (tmp_path / "tasks" / "seen-5.npz").write_bytes(b"half")
    for kept in ([], [np.array("x")], [np.zeros((3, 3))]):
        results = ResultStore(tmp_path / "tasks")
        results.put("seen-5", pack_value(ahead[-1].stale_obs_statistics))
        results.put("parts", kept)
        with pytest.raises(
            OptionError, match=r"tasks/parts.npz, which belongs to the checkpoint, is missing or damaged"
        ):
            next(
                task_training.train_from_rollouts(
                    AHEAD, RunContext(DATA | {"iterations": 6}, tmp_path), SerialExecutor(), None, 2
                )
            )


@pytest.mark.program
def test_what_diverges_is_told_and_not_saved(tmp_path):
    rows, endless = [], replace(AHEAD, agent=replace(AHEAD.agent, value_coef=float("inf")))
    told = "diverged: agent.* is not finite after iteration 1; there is no checkpoint yet"
    with pytest.raises(DivergedError, match=told):
        list(
            task_training.train_from_rollouts(
                endless, RunContext(DATA | {"iterations": 5}, tmp_path, [rows.append]), SerialExecutor(), None, 2
            )
        )
    assert [(row["kind"], row["iteration"]) for row in rows] == [("evaluation", 0), ("train", 1)]
    assert Checkpoints(tmp_path / "checkpoints", writes=False).latest_iteration is None


@pytest.mark.program
def test_the_command_trains_and_goes_on_as_if_never_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PJRT_NPROC", "1")
    distribute.main([*SMALL.split(), "env_steps=1280", "run_dir=stopped"])
    distribute.main(["resume=stopped", "env_steps=2560", "executor=serial", "workers=4"])
    distribute.main([*SMALL.split(), "iterations=8", "run_dir=whole"])
    said = capsys.readouterr().out
    assert "watch it: python -m evorl.play stopped" in said
    assert "resume: python -m evorl.distribute resume=stopped executor=serial workers=4 env_steps=5120" in said
    states = [runs.restore_run(tmp_path / name, "run", "last").state for name in ("stopped", "whole")]
    assert leaves_equal(*states)
    rows = [(tmp_path / name / "train.csv").read_text().splitlines() for name in ("stopped", "whole")]
    of = [
        dict(zip(rows[0][0].split(","), zip(*(row.split(",") for row in lines[1:]), strict=True), strict=True))
        for lines in rows
    ]
    for name in ("iteration", "env_steps", "episodes", "return", "age", "critic_loss"):
        assert of[0][name] == of[1][name]
    assert of[0]["env_steps"] == ("640", "1280", "1920", "2560")
    assert of[0]["age"] == ("0.5", "2.0", "2.0", "2.0")


@pytest.mark.program
def test_a_run_that_was_killed_goes_on_as_if_nothing_had_been(tmp_path):
    command = [sys.executable, "-m", "evorl.distribute"]
    process = subprocess.Popen([*command, *SMALL.split(), "iterations=60", "run_dir=killed"], cwd=tmp_path)
    try:
        until = time.monotonic() + 240
        while not list(tmp_path.glob("killed/tasks/seen-??.npz")) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    for rest in ("resume=killed", f"{SMALL} iterations=60 run_dir=whole"):
        subprocess.run([*command, *rest.split(), "executor=serial"], cwd=tmp_path, check=True, capture_output=True)
    states = [runs.restore_run(tmp_path / name, "run", "last").state for name in ("killed", "whole")]
    assert leaves_equal(*states)
    assert len((tmp_path / "killed" / "train.csv").read_text().splitlines()) == 31


def test_the_last_of_a_kind_are_kept(tmp_path):
    results = ResultStore(tmp_path)
    for name in ("seen-9", "seen-10", "seen-11", "other-1", "seen-x"):
        results.put(name, [np.zeros(1)])
    results.trim("seen", 2)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["other-1", "seen-10", "seen-11", "seen-x"]
    ResultStore().trim("seen", 2)
