"""Recorders, the panel, checkpoints, stopping, loading and playing, on runs of a tiny workflow."""

import csv
import io
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tensorboardX.proto.event_pb2 import Event

import evorl
from evorl import tree
from evorl.cli import play, train
from evorl.errors import OptionError
from evorl.replay.prioritized import PrioritizedReplay
from evorl.training.fit import Budget, fit
from evorl.training.progress import Progress
from evorl.training.records import checkpoint
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.display import Panel
from evorl.training.records.recorders import Wandb
from evorl.training.runs import restore_run
from evorl.workflows import PBT, Vmapped
from tests.conftest import leaves_equal
from tests.test_train import TINY, rows
from tests.test_train import train as command
from tests.tiers import program_fixture
from tests.tiny import OFF_POLICY

SEARCHED = replace(OFF_POLICY, agent=replace(OFF_POLICY.agent, actor_lr=evorl.LogUniform(1e-5, 1e-1)))


@program_fixture(scope="module")
def run(tmp_path_factory):
    """A run of two seeds."""
    folder = tmp_path_factory.mktemp("host")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train.main(["agent=td3", "run_dir=run", "iterations=4", "chunk=2", "num_seeds=2", "seed=5", *TINY])
    return folder / "run"


def events(folder):
    """The scalars of TensorBoard's files as (tag, step, value): a file is a row of [length, crc, Event, crc]."""
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            yield from ((value.tag, event.step, value.simple_value) for value in event.summary.value)


def test_tensorboard_holds_every_return_over_env_steps(run):
    written = {(tag, step): value for tag, step, value in events(run / "tensorboard")}
    for row in rows(run):
        assert written[f"{row['kind']}/return", row["env_steps"]] == pytest.approx(row["return"])
        seeds = [written[f"{row['kind']}_by_seed/return/{seed}", row["env_steps"]] for seed in (5, 6)]
        assert seeds == pytest.approx(row["seeds"]["return"])


def test_tables_have_a_line_for_each_seed(run):
    with (run / "evaluation.csv").open() as file:
        table = list(csv.DictReader(file))
    evaluations = [row for row in rows(run) if row["kind"] == "evaluation"]
    assert [line["seed"] for line in table] == ["5", "6"] * len(evaluations)
    assert [float(line["return"]) for line in table] == [x for row in evaluations for x in row["seeds"]["return"]]


@pytest.fixture
def wandb(monkeypatch):
    """Replace the package; return what its runs were opened with, and the steps and rows that they were sent."""
    opened, sent = [], []
    api = SimpleNamespace(
        log=lambda values, step: sent.append((step, values)), define_metric=lambda *_, **__: None, finish=lambda: None
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: opened.append(given) or api))
    return SimpleNamespace(opened=opened, sent=sent)


def train_row(iteration):
    return {"kind": "train", "iteration": iteration, "env_steps": 7 * iteration, "return": 2.0, "progress": 0.5}


def test_wandb_is_sent_every_row_once(wandb, tmp_path):
    recorder = Wandb(tmp_path / "name", {"seed": 1}, project="mine", tags=["a"])
    for i in range(1, 5):
        recorder(train_row(i))
    first = wandb.opened[0]
    assert (first["name"], first["config"], first["project"], first["tags"]) == ("name", {"seed": 1}, "mine", ["a"])
    assert wandb.sent[0] == (1, {"train/env_steps": 7, "train/return": 2.0, "env_steps": 7})
    again = Wandb(tmp_path / "name", {"seed": 1}, project="mine")  # it was killed after the fourth row
    again.resume(Progress(row_counts={"train": 2, "evaluation": 0}))  # with the checkpoint of the second
    for i in range(3, 7):
        again(train_row(i))
    again.close()
    assert [step for step, _ in wandb.sent] == [1, 2, 3, 4, 5, 6]
    assert [one["id"] for one in wandb.opened] == [first["id"]] * 2
    assert [one["resume"] for one in wandb.opened] == [None, "allow"]


def test_runs_of_equal_names_have_identities_of_their_own_in_wandb(wandb, tmp_path):
    for folder in ("a/seed-0", "b/seed-0"):
        Wandb(tmp_path / folder, {})
    first, second = wandb.opened
    assert (first["name"], second["name"]) == ("seed-0", "seed-0")
    assert first["id"] != second["id"]
    with pytest.raises(OptionError, match=r"wandb\.project=other: must be evorl, as before the run was resumed"):
        Wandb(tmp_path / "a" / "seed-0", {}, project="other")


@pytest.mark.parametrize(
    "written",
    ["", "[]", "3", "[" * 10_000, '{"id": "../x", "project": null, "entity": null, "rows": 0}',
     '{"id": "0123456789abcdef", "project": 3, "entity": null, "rows": 0}',
     '{"id": "0123456789abcdef", "project": null, "entity": null, "rows": "0"}'],
)  # fmt: skip
def test_an_identity_in_wandb_that_evorl_did_not_write_is_refused(written, wandb, tmp_path):
    (tmp_path / "wandb.json").write_text(written)
    with pytest.raises(OptionError, match=r"wandb\.json: is not a valid file of evorl"):
        Wandb(tmp_path, {})
    assert wandb.opened == []


@pytest.mark.program
def test_the_panel_shows_returns_with_intervals_speed_time_and_memory(run):
    shown = io.StringIO()
    panel = Panel("td3 on fast", every=0.0, console=Console(file=shown, force_terminal=True, width=110))
    for row in rows(run):
        panel(row)
    panel.close()
    last = shown.getvalue().rpartition("td3 on fast")[2]
    for fact in (
        "100%",
        "over 2 seeds",
        "env steps/s",
        "gradient steps",
        "evaluation",
        "recording",
        "compilation",
        "B",
    ):
        assert fact in last


@pytest.mark.program
def test_checkpoints_keep_the_last_ones_and_the_replay_with_the_newest_alone(tmp_path):
    reported = []
    checkpoints = Checkpoints(tmp_path, minutes=0, keep=2, report=reported.append)
    whole = fit(OFF_POLICY, 3, Budget(iterations=6), chunk=2, evaluations=2, checkpoints=checkpoints)
    checkpoints.close()
    saved = sorted(int(path.name) for path in tmp_path.iterdir())
    assert (len(saved), saved[-1]) == (2, 6)
    assert [(tmp_path / str(step) / "replay").is_dir() for step in saved] == [False, True]
    light, replays = checkpoint.split_replays(whole.state)
    size = checkpoint.format_bytes(checkpoint.estimate_disk_size(whole.state))
    assert reported[0].startswith(f"a checkpoint takes up to {size}")
    assert leaves_equal(checkpoint.join_replays(light, replays), whole.state)


def of_leaves(count, shape):
    key = jax.random.key(0)  # random bits cannot be compressed
    return {f"layer_{i}": {"kernel": jax.random.bits(jax.random.fold_in(key, i), shape)} for i in range(count)}


@pytest.mark.program
@pytest.mark.parametrize(
    "state",
    [
        lambda: {"x": jnp.zeros(())},
        lambda: of_leaves(100, (8,)),
        lambda: of_leaves(10, (100, 1000)),
        lambda: OFF_POLICY.init(jax.random.key(0)),
        lambda: PBT(Vmapped(SEARCHED, 5), search=("actor_lr",)).init(jax.random.key(0)),
    ],
    ids=["a number", "100 leaves", "4 MB", "TD3", "PBT of 5 TD3"],
)
def test_a_checkpoint_takes_at_most_what_was_announced_and_a_third_of_it(state, tmp_path):
    state = state()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, checkpoint.split_replays(state)[0], {})
    checkpoints.close()
    found = sum(path.lstat().st_blocks * 512 for path in [tmp_path / "1", *(tmp_path / "1").rglob("*")])
    assert checkpoint.estimate_disk_size(state) / 3 < found <= checkpoint.estimate_disk_size(state)


@pytest.mark.program
def test_saving_does_not_change_the_run(tmp_path):
    """The next chunk takes over the memory of the state while it is still being written."""
    checkpoints = Checkpoints(tmp_path, minutes=0)
    saved = fit(OFF_POLICY, 3, Budget(iterations=6), chunk=1, evaluations=6, checkpoints=checkpoints)
    checkpoints.close()
    alone = fit(OFF_POLICY, 3, Budget(iterations=6), chunk=1, evaluations=6)
    assert leaves_equal(saved.state, alone.state)
    assert leaves_equal(saved.best, alone.best)
    assert [(row["kind"], row["iteration"]) for row in saved.rows] == [
        (row["kind"], row["iteration"]) for row in alone.rows
    ]
    shapes = jax.eval_shape(lambda: saved.state)
    state, best, _ = Checkpoints(tmp_path).restore(shapes)
    assert leaves_equal(state, saved.state)
    assert leaves_equal(best, saved.best)


@pytest.mark.program
def test_without_its_replay_a_resumed_run_fills_a_new_one(tmp_path):
    reported = []
    first = Checkpoints(tmp_path, replay=False, report=reported.append)
    fit(OFF_POLICY, 3, Budget(iterations=4), checkpoints=first)
    first.close()
    assert "not bitwise" in reported[0]
    resumed = fit(OFF_POLICY, 3, Budget(iterations=5), checkpoints=Checkpoints(tmp_path, replay=False))
    assert resumed.progress.iteration == 5
    assert int(resumed.state.replay.size) == 12  # the random steps again


@pytest.mark.program
def test_a_prioritized_replay_that_was_not_saved_is_a_new_one(tmp_path):
    """Not zeros: with a highest priority of 0, no row could be sampled."""
    workflow = replace(OFF_POLICY, replay=PrioritizedReplay())
    for iterations in (4, 5):
        with closing(Checkpoints(tmp_path, replay=False, report=lambda line: None)) as checkpoints:
            result = fit(workflow, 3, Budget(iterations=iterations), checkpoints=checkpoints)
    assert float(result.state.replay.priorities.max_priority) >= 1
    assert float(result.state.replay.priorities.sum_tree.total) > 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.state.agent))
    with pytest.raises(OptionError, match="checkpoint=5: has no replay buffer"):
        Checkpoints(tmp_path).restore(jax.eval_shape(lambda: result.state))


def test_a_disk_that_is_too_small_is_refused_before_compiling(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OptionError, match=r"checkpoints need .* MB and 1 kB are free; .* checkpoint.replay=false"):
        fit(OFF_POLICY, 3, Budget(iterations=1), checkpoints=Checkpoints(tmp_path))


@pytest.mark.program
def test_the_best_is_each_seeds_best_evaluation():
    snapshots = []
    training = fit(OFF_POLICY, 3, Budget(iterations=8), callbacks=[snapshots.append], evaluations=8, num_seeds=2)
    returns = np.array([row["seeds"]["return"] for row in training.rows if row["kind"] == "evaluation"])
    np.testing.assert_allclose(training.progress.best_returns, returns.max(0), rtol=1e-6)
    last_is_best = returns[-1] == returns.max(0)
    for seed in range(2):
        same = leaves_equal(tree.index(training.best, seed).agent, tree.index(training.state, seed).agent)
        assert same == last_is_best[seed]


@pytest.mark.program
def test_weights_are_taken_over_and_hyperparameters_are_not():
    parent = fit(OFF_POLICY, 3, Budget(iterations=3)).state
    new = replace(OFF_POLICY, agent=replace(OFF_POLICY.agent, actor_lr=0.0, critic_lr=0.0, tau=0.0))
    child = fit(new, 4, Budget(iterations=2), init_from=checkpoint.split_replays(parent)[0]).state
    assert leaves_equal(child.agent.actor.params, parent.agent.actor.params)
    assert float(child.numbers["agent"]["tau"]) == 0.0


@pytest.mark.program
def test_a_run_is_stopped_by_ctrl_c_and_goes_on(tmp_path):
    arguments = [sys.executable, "-u", "-m", "evorl.train", "agent=td3", "run_dir=run", *TINY]
    endless = [*arguments, "iterations=100000000"]
    with subprocess.Popen(endless, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "evaluation" in line:
                process.send_signal(signal.SIGINT)
                break
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped and saved; resume: python -m evorl.train resume=run" in rest
    done = rows(tmp_path / "run")[-1]["iteration"]
    result = command(tmp_path, "resume=run", f"iterations={done + 16}")
    assert result.returncode == 0, result.stderr
    written = [row["iteration"] for row in rows(tmp_path / "run") if row["kind"] == "train"]
    assert written == sorted(set(written))
    assert written[-1] >= done + 16


def test_a_loaded_policy_acts_as_its_seed_did(run):
    found = restore_run(run, "run", "best")
    assert int(np.argmax(found.best_returns)) in (0, 1)
    for seed in (5, 6):
        policy = evorl.load(run, seed=seed)
        agent = found.workflow.agent
        obs = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3, 1)
        obs = np.broadcast_to(obs, (2, 3, policy.env.observation_space.shape[0]))
        params = tree.index(found.state.agent.actor.params, seed - 5)
        greedy = agent.to_action(agent.actor.apply(params, jax.numpy.asarray(obs)))
        np.testing.assert_allclose(policy(obs), greedy, rtol=1e-5, atol=1e-6)
        assert policy(obs[0, 0]).shape == policy.env.action_space.shape
        assert not np.allclose(policy(obs, jax.random.key(1)), policy(obs))
    with pytest.raises(OptionError, match="obs"):
        evorl.load(run)(np.zeros(99))


@pytest.mark.program
def test_play_evaluates_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = [option for option in TINY if not option.startswith("env")]
    train.main(["agent=td3", "env=pendulum", "env.max_episode_steps=12", "run_dir=run", "iterations=1", *tiny])
    capsys.readouterr()
    played = play.play_run(play.parse_play_options(["run", "episodes=6"]))
    assert "over 6 episodes of 12 steps" in capsys.readouterr().out
    assert [path.name for path in played["files"]] == ["episode.gif", "episode.png"]
    assert all(path.stat().st_size > 500 for path in played["files"])
    again = play.play_run(play.parse_play_options(["run", "episodes=6", "out=null"]))
    np.testing.assert_array_equal(again["returns"], played["returns"])
    assert again["files"] == []


def test_returns_of_play_are_those_of_the_environment_stepped_by_hand(run):
    from evorl.training import episodes

    policy = evorl.load(run)
    stats = episodes.evaluate_policy(policy, 3, seed=1)
    returns, lengths = stats.returns, stats.lengths
    key = jax.random.split(jax.random.key(1))[0]
    for i, start in enumerate(jax.random.split(key, 3)):
        state, obs = policy.env.reset(start, None)
        total, ended, count = 0.0, False, 0
        while not ended:
            state, timestep = jax.jit(policy.env.step)(start, state, policy(obs), None)
            obs, total, count = timestep.obs, total + float(timestep.reward), count + 1
            ended = bool(timestep.terminated | timestep.truncated)
        assert (count, returns[i]) == (lengths[i], pytest.approx(total, rel=1e-4))


@pytest.mark.program
def test_help_and_list_need_nothing_heavy():
    code = "import sys; from evorl import train; train.main(['--list']); train.main(['--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    *printed, modules = out.splitlines()
    assert not {"jax", "brax", "hydra", "numpy"} & set(modules.split())
    assert ["td3", "Twin delayed DDPG (TD3)"] in [line.split(None, 1) for line in printed]
    assert "  ant                       Brax ant" in printed
