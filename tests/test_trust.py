"""That nothing is lost: divergence, damaged checkpoints, a full disk, what does not fit, foreign configurations."""

import json
import os
import resource
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from evorl import tree
from evorl.agents import TD3
from evorl.cli import train
from evorl.errors import DivergedError, OptionError
from evorl.replay.ring import RingBuffer
from evorl.replay.state_replays import split_replays
from evorl.spaces import Box
from evorl.training import devices
from evorl.training.fit import Budget, fit
from evorl.training.nans import DivergenceMonitor
from evorl.training.program import Program
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.recorders import JsonLines
from evorl.types import TimeStep
from evorl.workflows import OffPolicy, Vmapped
from tests.conftest import leaves_equal
from tests.test_train import TINY, rows
from tests.tiers import program_fixture
from tests.tiny import OFF_POLICY, SMALL


@dataclass(frozen=True)
class Breaking:
    """One long episode; in half of all runs the rewards after 30 steps are so large that their squares are infinite."""

    max_episode_steps: int = 200
    fresh_reset: bool = False

    default_params = None
    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key, params):
        return (jax.random.uniform(key) < 0.5, jnp.int32(0)), jnp.zeros(1)

    def step(self, key, env_state, action, params):
        breaks, steps = env_state
        reward = jnp.where(breaks & (steps >= 30), 3e38, 1.0)
        truncated = steps + 1 == self.max_episode_steps
        return (breaks, steps + 1), TimeStep(jnp.zeros(1), reward, jnp.bool_(False), truncated)


AGENT = TD3(hidden=(8, 8))
BREAKING = OffPolicy(Breaking(), AGENT, num_envs=1, num_steps=4, num_updates=2, **SMALL | {"eval_episodes": 1})


@program_fixture(scope="module")
def diverged():
    """Four seeds, of which some break."""
    return fit(BREAKING, 0, Budget(iterations=12), num_seeds=4, chunk=3, evaluations=1)


@pytest.mark.program
def test_a_seed_that_diverges_is_marked_and_the_others_go_on_unchanged(diverged):
    lost = diverged.progress.divergence_iterations
    assert {type(x) for x in lost} == {int, type(None)}
    assert {x for x in lost if x} == {6}  # step 31 is the 3rd of iteration 6: 12 at random, then 4 in each
    whole = lost.index(None)
    row = [row for row in diverged.rows if row["kind"] == "train"][-1]
    assert row["diverged"] == 4 - lost.count(None)
    assert row["seeds"]["diverged"] == [int(x is not None) for x in lost]
    sound = [x for x, at in zip(row["seeds"]["critic_loss"], lost, strict=True) if at is None]
    assert row["critic_loss"] == pytest.approx(np.mean(sound))
    alone = fit(BREAKING, whole, Budget(iterations=12), chunk=3, evaluations=1)
    for a, b in zip(jax.tree.leaves(tree.index(diverged.state, whole)), jax.tree.leaves(alone.state), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.program
def test_a_run_that_diverges_stops_says_where_and_keeps_its_checkpoint(diverged, tmp_path):
    seed = next(i for i, at in enumerate(diverged.progress.divergence_iterations) if at is not None)
    checkpoints = Checkpoints(tmp_path, minutes=0)
    with pytest.raises(DivergedError, match=r"^diverged: \S+ is not finite after iteration 6$"):
        fit(BREAKING, seed, Budget(iterations=12), chunk=1, evaluations=1, checkpoints=checkpoints)
    checkpoints.close()
    state, _, progress = Checkpoints(tmp_path).restore(jax.eval_shape(lambda: tree.index(diverged.state, seed)))
    assert progress["iteration"] < 6
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent))


def test_debugging_names_the_operation_that_made_the_first_nan(diverged):
    seed = next(i for i, at in enumerate(diverged.progress.divergence_iterations) if at is not None)
    with pytest.raises(
        DivergedError, match=r"; iteration 6, div in TrainState.optimizer_step \(\S*train_state.py:\d+\)$"
    ):
        fit(BREAKING, seed, Budget(iterations=12), chunk=4, evaluations=1, debug_nans=True)


@pytest.mark.program
def test_a_population_has_diverged_where_all_of_its_members_have():
    program = Program(Vmapped(OFF_POLICY, 2), [0], 1, False)
    state = program.init(program.keys, {"agent": {"max_grad_norm": jnp.full(2, jnp.inf)}})
    sentinel = DivergenceMonitor(program, state)  # max_grad_norm is infinite, and may be
    assert sentinel.find_diverged(np.asarray(sentinel.find_nonfinite(state))) == [None]
    broken = state
    for member, lost in ((0, False), (1, True)):
        broken = jax.tree_util.tree_map_with_path(
            lambda path, x, i=member: x.at[i].set(jnp.nan) if "mu" in str(path) else x, broken
        )
        found = sentinel.find_diverged(np.asarray(sentinel.find_nonfinite(broken)))
        assert found == (["agent.actor.opt_state.mu.params.MLP_0.Dense_0.bias"] if lost else [None])
        if not lost:
            resumed = DivergenceMonitor(program, broken)
    assert resumed.find_diverged(np.asarray(resumed.find_nonfinite(broken))) == found


def checkpointed(folder, iterations):
    checkpoints = Checkpoints(folder / "checkpoints", minutes=0, keep=3)
    training = fit(OFF_POLICY, 3, Budget(iterations=iterations), [JsonLines(folder)], chunk=2, evaluations=2,
                   checkpoints=checkpoints)  # fmt: skip
    checkpoints.close()
    return training


def damage(folder, how):
    """Does it to every file of an item of a checkpoint."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        how(path)


def flip(path):
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a bit flipped": flip,
    "emptied": lambda path: path.write_bytes(b""),
    "lost": lambda path: path.unlink(),
    "foreign": lambda path: path.write_text("not a checkpoint"),
}


@pytest.mark.program
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("item", ["state", "progress"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(how, item, tmp_path):
    checkpointed(tmp_path, 6)
    folder = tmp_path / "checkpoints"
    damage(folder / "6" / item, DAMAGES[how])
    reported = []
    checkpoints = Checkpoints(folder, keep=3, report=reported.append)
    resumed = fit(OFF_POLICY, 3, Budget(iterations=6), [JsonLines(tmp_path)], chunk=2, evaluations=2,
                  checkpoints=checkpoints)  # fmt: skip
    checkpoints.close()
    assert reported[0].startswith("the checkpoint of iteration 6 is damaged (")
    assert "iteration 4 has lost its replay buffer: resuming is not bitwise identical" in reported[1]
    assert resumed.progress.iteration == 6
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in written if row["kind"] == "train"] == [2, 4, 6]
    assert Checkpoints(folder).latest_iteration == 6
    assert [path.name.partition("-")[0] for path in folder.glob("*.damaged*")] == ["6.damaged"]


@pytest.mark.program
def test_where_no_checkpoint_is_whole_it_says_so_and_touches_nothing(tmp_path):
    checkpointed(tmp_path, 2)
    damage(tmp_path / "checkpoints" / "2" / "state", flip)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    reported = []
    with pytest.raises(OptionError, match="all checkpoints are damaged"):
        fit(
            OFF_POLICY,
            3,
            Budget(iterations=4),
            checkpoints=Checkpoints(tmp_path / "checkpoints", report=reported.append),
        )
    assert len(reported) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.program
def test_what_does_not_fit_in_memory_is_refused_before_it_compiles(monkeypatch):
    monkeypatch.setattr(devices, "memory_limit", lambda: 3000)
    with pytest.raises(OptionError, match=r"need .* kB of memory, and 3 kB are available; its largest field is replay"):
        fit(OFF_POLICY, 0, Budget(iterations=1))


@pytest.mark.program
def test_counters_go_past_two_to_the_32(tmp_path):
    first = Checkpoints(tmp_path)
    begun = fit(OFF_POLICY, 3, Budget(iterations=2), chunk=2, evaluations=1, checkpoints=first)
    progress = vars(begun.progress) | {
        "totals": {"env_steps": [2**32 - 5], "episodes": [2**33]},
        "iteration": 2**31 + 3,
    }
    first.save(2**31 + 3, begun.state, begun.best, progress)
    first.close()
    checkpoints = Checkpoints(tmp_path)
    budget = Budget(iterations=2**31 + 7)
    resumed = fit(OFF_POLICY, 3, budget, chunk=2, evaluations=1, checkpoints=checkpoints)
    checkpoints.close()
    assert resumed.progress.iteration == 2**31 + 7
    assert resumed.progress.totals["env_steps"] == [2**32 - 5 + 4 * 8]
    assert resumed.rows[-1]["env_steps"] == 2**32 - 5 + 4 * 8


@program_fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train.main(["agent=td3", f"run_dir={tmp_path / 'run'}", "iterations=1", *TINY])
    return tmp_path / "run"


def test_a_saved_configuration_holds_no_path_user_or_environment_variable(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "swordfish")
    own = tmp_path / "configs" / "experiment"
    own.mkdir(parents=True)
    (own / "secret.yaml").write_text("# @package _global_\nagent:\n  note: ${oc.env:SECRET}\n")
    child = f"run_dir={tmp_path / 'child'}"
    train.main(["agent=td3", "experiment=secret", child, f"init_from={trained}", "iterations=1", *TINY])
    for run in (trained, tmp_path / "child"):
        saved = (run / "config.yaml").read_text()
        for word in ("swordfish", str(tmp_path), os.path.expanduser("~") + "/", "/tmp"):
            assert word not in saved
    child = yaml.safe_load((tmp_path / "child" / "config.yaml").read_text())
    assert (child["init_from"], child["agent"]["note"]) == ("run", "???")


@pytest.mark.program
def test_the_same_seed_gives_the_same_bits_whatever_watches(tmp_path, optimized):
    alone = fit(OFF_POLICY, 3, Budget(iterations=6), chunk=1, evaluations=6)
    watched = checkpointed(tmp_path, 6)  # in chunks of 2, with other evaluations, recorders and checkpoints
    assert leaves_equal(alone.state, watched.state)


@pytest.mark.program
@pytest.mark.parametrize("agent", ["td3", "cemrl"])
def test_a_dry_run_tells_sizes_and_writes_nothing(agent, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train.main([f"agent={agent}", "env=fast", "dry_run=true", "num_seeds=3"])
    said = capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    # actor 2 -> 256 -> 256 -> 1, layer norm in cemrl: 2 x 2 x 256 more
    parameters = (2 * 256 + 256) + (256 * 256 + 256) + (256 + 1) + (1024 if agent == "cemrl" else 0)
    assert f"{3 * parameters:,} parameters" in said
    assert "3 seeds together" in said
    assert "1,000,000 rows" in said
    assert ("gradient steps per iteration: 64" + " to 1,024" * (agent == "cemrl")) in said


@pytest.mark.program
def test_a_full_disk_stops_a_training_with_a_line_and_keeps_its_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written = JsonLines.__call__

    def full(self, row):
        if row["iteration"] > 2:
            raise OSError(28, "No space left on device")
        written(self, row)

    monkeypatch.setattr(JsonLines, "__call__", full)
    with pytest.raises(SystemExit) as ended:
        train.main(["agent=td3", "run_dir=run", "iterations=6", "chunk=1", "checkpoint.minutes=1e-9", *TINY])
    assert ended.value.code == 1
    said = capsys.readouterr().err.splitlines()
    assert "No space left on device" in said[-1]
    assert "resume=run" in said[-1]
    monkeypatch.setattr(JsonLines, "__call__", written)
    train.main(["resume=run"])
    assert [row["iteration"] for row in rows(tmp_path / "run") if row["kind"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_a_state_with_leaves_of_no_element_comes_back(tmp_path):
    state = {"weights": jnp.arange(3.0), "nothing": jnp.zeros((0, 4), jnp.int32), "none": ()}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, state, {"iteration": 1})
    checkpoints.close()
    shapes = jax.eval_shape(lambda: state)
    found, _ = Checkpoints(tmp_path).restore_policy(shapes, "last")
    assert leaves_equal(found, state)
    assert found["nothing"].dtype == jnp.int32


@pytest.mark.program
def test_a_save_that_fails_leaves_the_replay_before_it(tmp_path):
    state = {"weights": jnp.arange(1e5), "replay": RingBuffer.empty(1000, jnp.zeros(8))}
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(1, state, split_replays(state)[0], {"iteration": 1})
    checkpoints._manager.wait_until_finished()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="could not be written"):
            checkpoints.save(2, state, split_replays(state)[0], {"iteration": 2})
        checkpoints.is_due()
        checkpoints.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found, _, progress = Checkpoints(tmp_path).restore(jax.eval_shape(lambda: state))
    assert progress["iteration"] == 1
    assert leaves_equal(found, state)
    assert (tmp_path / "1" / "replay").is_dir()
