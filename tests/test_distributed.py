"""PSRO by tasks: the same as by one program, in any order, and after any death of who says what is next."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.cli import distribute
from evorl.distributed.cluster import LOOPBACK, connect_to_ray
from evorl.distributed.coordinator import coordinate_psro
from evorl.distributed.jobs import Job
from evorl.distributed.ray_executor import describe_cause
from evorl.distributed.results import ResultStore
from evorl.distributed.task import BEST_RESPONSE
from evorl.distributed.values import pack_value, unpack_value
from evorl.errors import OptionError
from evorl.leagues.exact import compute_payoffs
from evorl.leagues.prioritized_solvers import RectifiedNash
from evorl.leagues.psro import PSRO
from evorl.training import runs
from evorl.training.configuration import config_file
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.configuration.multirun import quote_run_dir
from tests.conftest import leaves_equal
from tests.distributing import EXACT, FEW, KUHN, LEARNED, PLAYED, Reordered, state_of
from tests.tiers import program_fixture


def answers_first(tasks):
    return next((i for i, task in enumerate(tasks) if task.kind == BEST_RESPONSE), 0)


def by_one_program(psro, iterations, seed=0):
    """The state that a training by one program ends with, with the same keys."""
    keys = jax.random.split(jax.random.key(seed), 3)

    def run(keys):
        step = lambda state, i: psro.step(state, jax.random.fold_in(keys[1], i))  # noqa: E731
        return jax.lax.scan(step, psro.init(keys[0]), jnp.arange(iterations))

    return jax.jit(run)(keys)


@program_fixture(scope="module")
def played():
    return state_of(PLAYED)


@pytest.mark.program
@pytest.mark.parametrize("psro", [EXACT, replace(EXACT, solver=RectifiedNash())])
def test_it_is_the_training_by_one_program(psro):
    trained = list(coordinate_psro(psro, seed=3))
    state, metrics = by_one_program(psro, 5, seed=3)
    for name in metrics:
        found = [float(one.metrics[name]) for one in trained]
        np.testing.assert_allclose(found, np.asarray(metrics[name], float), atol=1e-5, err_msg=name)
    np.testing.assert_array_equal(trained[-1].state.pool, state.pool)
    np.testing.assert_allclose(trained[-1].state.weights, state.weights, atol=1e-5)
    assert [int(one.metrics["age"]) for one in trained] == [0] * 5


@pytest.mark.program
def test_trainings_are_those_of_one_program():
    trained = list(coordinate_psro(FEW, iterations=2))
    state, metrics = by_one_program(FEW, 2)
    assert [int(one.metrics["env_steps"]) for one in trained] == list(metrics["env_steps"])
    for found, expected in zip(jax.tree.leaves(trained[-1].state.pool), jax.tree.leaves(state.pool), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_played_payoffs_are_those_that_are_expected(played):
    expected = compute_payoffs(PLAYED.tree, played.pool)
    assert np.asarray(played.payoffs.episodes == 20).all()
    apart = np.abs(played.payoffs.mean - expected) / np.where(
        played.payoffs.standard_errors > 0, played.payoffs.standard_errors, np.inf
    )
    assert float(np.asarray(apart).max()) < 5
    assert float(np.abs(played.payoffs.mean - expected).mean()) > 0.01  # they are played


@pytest.mark.parametrize("seed", range(3))
def test_the_order_in_which_tasks_end_changes_nothing(seed, played):
    drawn = np.random.default_rng(seed)
    assert leaves_equal(state_of(PLAYED, Reordered(lambda tasks: int(drawn.integers(len(tasks))))), played)


@pytest.mark.parametrize("staleness", [1, 2])
def test_best_responses_may_begin_on_an_older_table(staleness):
    ages = [int(one.metrics["age"]) for one in coordinate_psro(EXACT, Reordered(answers_first), staleness=staleness)]
    assert max(ages) == staleness
    assert len(ages) == 5


def test_a_training_that_was_killed_and_stopped_goes_on_as_if_nothing_had_been(tmp_path, played):
    command = [sys.executable, "-m", "tests.distributing", str(tmp_path), "6", "serial"]
    killed = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stopped = coordinate_psro(PLAYED, results=ResultStore(tmp_path))
    assert [next(stopped).number for _ in range(2)] == [1, 2]
    stopped.close()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert len(kept) == 10  # the first policies and their payoff; two answers, payoffs and the time of two iterations
    (tmp_path / ".payoff-1-0.npz.0").write_bytes(b"half")  # what a kill may leave
    assert leaves_equal(state_of(PLAYED, results=ResultStore(tmp_path)), played)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}.items() > kept.items()


def test_a_damaged_result_comes_again(tmp_path, played):
    assert leaves_equal(state_of(PLAYED, results=ResultStore(tmp_path)), played)
    for path in sorted(tmp_path.glob("payoff-*.npz"))[:2]:
        whole = path.read_bytes()
        path.write_bytes(
            whole[:-40] if path.name == "payoff-0-0.npz" else whole.replace(whole[200:204], b"\1\2\3\4", 1)
        )
    assert leaves_equal(state_of(PLAYED, results=ResultStore(tmp_path)), played)


@pytest.mark.program
@pytest.mark.parametrize("psro", [EXACT, LEARNED], ids=["exact", "learned"])
def test_a_result_of_another_kind_comes_again(psro, tmp_path):
    whole, results = state_of(psro, results=ResultStore(tmp_path)), ResultStore(tmp_path)
    for name in ("best_response-1-0", "payoff-1-0", "seconds-1"):
        assert results.get(name) is not None
        results.put(name, [np.zeros(3), np.array("text")])
    results.put("best_response-2-1", [])
    assert leaves_equal(state_of(psro, results=results), whole)


def test_results_hold_nothing_that_could_run(tmp_path):
    results = ResultStore(tmp_path)
    np.savez(tmp_path / "evil.npz", arr_0=np.array([{}], object), allow_pickle=True)
    assert results.get("evil") is None
    with pytest.raises(ValueError, match="allow_pickle"):
        results.put("evil", [np.array([{}], object)])


def test_a_tree_with_keys_is_packed_and_comes_back():
    tree = {"key": jax.random.split(jax.random.key(0), 3), "x": jnp.ones((2, 2), jnp.bfloat16), "n": jnp.int32(1)}
    back = unpack_value(jax.eval_shape(lambda: tree), pack_value(tree))
    assert leaves_equal(jax.random.key_data(back["key"]), jax.random.key_data(tree["key"]))
    assert leaves_equal({**tree, "key": 0}, {**back, "key": 0})
    with pytest.raises(ValueError, match="is int32"):
        unpack_value(jax.eval_shape(lambda: jnp.ones(2)), [np.ones(2, np.int32)])


class AllAtOnce:
    """An oracle that does not divide."""

    check = init_policies = respond = policy_sets = split_pool_by_role = tabulate_policies = lambda *_: None


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (
            lambda folder: coordinate_psro(EXACT, iterations=6),
            "iterations=6: must be from 1 to 5, when the policy pool is full",
        ),
        (lambda folder: coordinate_psro(EXACT, iterations=0), "iterations=0: must be from 1 to 5"),
        (lambda folder: coordinate_psro(EXACT, staleness=-1), "staleness=-1: must not be negative"),
        (
            lambda folder: coordinate_psro(PSRO(KUHN, AllAtOnce())),
            "oracle=AllAtOnce: must compute the best responses of players",
        ),
        (
            lambda folder: coordinate_psro(PLAYED, seed=1, results=ResultStore(folder)),
            "resume: the stored results are from another",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(begin, message, tmp_path):
    ResultStore(tmp_path).put("first", [np.zeros((12, 2), np.float32)])
    with pytest.raises(OptionError, match=message) as error:
        next(begin(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("agent=sac env=pendulum executor=serial", "agent=sac: must be PSRO, an on-policy agent, an evolver"),
        ("agent=psro_exact env=kuhn executor=rya", "unknown executor rya; did you mean ray?"),
        (
            "agent=psro_exact env=kuhn executor=serial env_steps=9",
            "env_steps=9: is not supported with PSRO; use iterations=",
        ),
        ("agent=psro_exact env=kuhn executor=serial evaluations=2", "evaluations=2: is not supported with PSRO"),
        ("agent=ppo env=cartpole executor=serial json=true", "json=true: is not supported in distributed training"),
        ("agent=psro_exact env=kuhn executor=serial iterations=64", "iterations=64: must be from 1 to 63"),
        (
            "agent=psro_exact env=kuhn executor=serial agent.workflow.capactiy=3",
            "unknown option agent.workflow.capactiy",
        ),
        ("resume=nowhere executor=serial", "resume=nowhere: is not a run directory"),
        ("agent=psro_exact env=kuhn workers=0", "workers=0: must be at least 1"),
        ("agent=psro_exact env=kuhn workers=two", "workers=two: must be a whole number"),
        ("agent=psro_exact env=kuhn cpus_per_worker=0", "cpus_per_worker=0: must be above 0"),
        ("agent=psro_exact env=kuhn workers=4000", "workers=4000: need 4000 CPUs, and "),
        (
            "agent=impala env=cartpole staleness=1 executor=serial",
            "staleness=1: is for PSRO; use agent.workflow.staleness",
        ),
        (
            "agent=psro_exact env=kuhn parts=2 executor=serial",
            "parts=2: is for agents such as ppo and openes",
        ),
        ("agent=impala env=cartpole parts=two executor=serial", "parts=two: must be a whole number"),
        ("agent=impala env=cartpole parts=3 executor=serial", "parts=3: must divide num_envs, 16"),
        ("agent=impala env=cartpole minutes=1 executor=serial", "minutes=1: is not supported in distributed training"),
        ("agent=impala env=cartpole env_steps=-1 executor=serial", "env_steps=-1: must be a number above 0"),
    ],
)
def test_a_wrong_command_is_told_in_one_line(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PJRT_NPROC", "1")
    with pytest.raises(SystemExit) as end:
        distribute.main(given.split())
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("new", "resumed"),
    [({}, {"iterations": 1000}), ({"iterations": 50}, {"env_steps": 1e6}), ({"env_steps": 1e3, "iterations": 9}, {})],
)
def test_limits_on_resume_replace_the_saved_ones(new, resumed, tmp_path):
    saved = distribute._load_new(new, ["agent=ppo", "env=cartpole"])[2]
    config_file.write_config(saved, tmp_path)
    (tmp_path / "tasks").mkdir()
    data = distribute._load_resumed({"resume": tmp_path} | resumed, [])[0]
    expected = resumed or new or {"env_steps": 1e6}
    assert {name: data[name] for name in BUDGET_OPTIONS if data[name] is not None} == expected


def test_the_budget_of_an_experiment_is_used_and_one_of_its_seeds(capsys):
    _, data, saved = distribute._load_new({}, ["experiment=classic/openes_cartpole"])
    assert data["iterations"] == 100
    assert data["num_seeds"] == saved["num_seeds"] == 1
    assert capsys.readouterr().out == "num_seeds=8: one seed is trained; -m seed=0,1,2 trains several\n"


@pytest.mark.parametrize("option", ["minutes: 5", "precision: high", "debug: {nans: true}", "eval_env: {name: maze}"])
def test_what_an_experiment_asks_for_in_vain_is_refused(option, tmp_path, monkeypatch):
    (tmp_path / "configs" / "experiment").mkdir(parents=True)
    text = f"# @package _global_\ndefaults:\n  - override /agent: ppo\n  - override /env: cartpole\n\n{option}\n"
    (tmp_path / "configs" / "experiment" / "own.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=f"^{option.partition(':')[0]}=.*: of the experiment: is not supported"):
        distribute._load_new({}, ["experiment=own"])


def test_recording_with_wandb_continues_on_resume(tmp_path):
    config_file.write_config(distribute._load_new({}, ["agent=ppo", "env=cartpole", "wandb=true"])[2], tmp_path)
    (tmp_path / "tasks").mkdir()
    for refused in ("agent=sac", "~agent", "json=true"):
        with pytest.raises(OptionError, match=f"^{refused}: a resumed run keeps its configuration"):
            distribute._load_resumed({"resume": tmp_path}, [refused])
    data, _, kept = distribute._load_resumed({"resume": tmp_path}, ["wandb=true", "wandb.project=mine"])
    assert (data["wandb"]["enabled"], data["wandb"]["project"], kept["wandb"]["enabled"]) == (True, "mine", None)
    job = Job(["agent=ppo", "wandb.mode=offline"], tmp_path)
    assert job.arguments[2:] == [f"resume={quote_run_dir(tmp_path)}", "wandb.mode=offline"]


def test_where_there_is_no_ray_one_line_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit):
        distribute.main(["agent=psro_exact", "env=kuhn", "workers=1"])
    assert capsys.readouterr().err == 'error: executor=ray: Ray is missing; pip install "ray>=2.60"\n'


@pytest.mark.program
def test_the_folder_of_ray_is_private_although_ray_opens_its_own(monkeypatch):
    """A stub does what Ray does first: it creates its folder and lets every user write to it."""
    given = []

    def init(_temp_dir, **_):
        os.makedirs(_temp_dir, exist_ok=True)
        os.chmod(_temp_dir, 0o777)
        given.append(Path(_temp_dir))

    util = SimpleNamespace(get_node_ip_address=lambda: LOOPBACK)
    stub = SimpleNamespace(init=init, util=util, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", stub)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with connect_to_ray(cpus=1):
        folder = given[0].parent
        found = folder.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.getuid())
        session = "session_2026-11-26_01-52-40_123456_1234567"  # named by Ray after the time and its process
        assert len(str(given[0] / session / "sockets" / "plasma_store")) <= 107  # a socket's longest path on Linux
    assert not folder.exists()


def test_what_a_script_defines_itself_is_named_where_workers_fail_by_it():
    own, other = TypeError("<class '__main__.Mine'> is not a valid JAX type\n..."), ValueError("no")
    assert describe_cause(own).startswith(
        "TypeError: <class '__main__.Mine'> is not a valid JAX type; workers cannot import"
    )
    assert describe_cause(other) == "ValueError: no"


@pytest.mark.program
def test_a_run_by_tasks_that_is_stopped_before_its_first_one_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evorl.distributed.task_training.train_psro", stop)
        with pytest.raises(SystemExit):
            distribute.main(["agent=psro_exact", "env=kuhn", "iterations=1", "executor=serial", "run_dir=run"])
    distribute.main(["resume=run", "executor=serial"])
    assert "saved in run" in capsys.readouterr().out


@pytest.mark.program
def test_the_command_trains_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PJRT_NPROC", "1")
    small = "agent.workflow.capacity=6 tensorboard=false"
    distribute.main(f"agent=psro_exact env=kuhn {small} iterations=2 executor=serial run_dir=run".split())
    distribute.main(["resume=run", "iterations=5", "executor=serial"])
    said = capsys.readouterr().out
    assert "watch it: python -m evorl.play run" in said
    assert "random policy, minus its exploitability: -0.4583; the final return is better" in said
    assert "resume: python -m evorl.distribute resume=run executor=serial iterations=4" in said
    rows = [line for line in (tmp_path / "run" / "train.csv").read_text().splitlines()[1:] if line]
    assert len(rows) == 5
    assert leaves_equal(runs.restore_run(tmp_path / "run", "run", "last").state.pool, state_of(EXACT).pool)
