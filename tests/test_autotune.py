"""How a training is fastest: what is tried, what is kept, and the command."""

import os
import random
import shlex
import threading

import pytest
import yaml
from jax._src.lru_cache import LRUCache

from evorl.cli import autotune
from evorl.errors import OptionError
from evorl.training.configuration import config
from evorl.training.devices import trim_folder
from evorl.training.records import json_cache

PPO = ["agent=ppo", "env=cartpole"]
TINY = ["agent.workflow.num_envs=2", "agent.workflow.num_steps=4", "agent.workflow.batch_size=8"]


def test_what_is_tried_keeps_the_rows_of_a_rollout(monkeypatch):
    monkeypatch.setattr("evorl.machine.count_cores", lambda: 2)
    monkeypatch.setattr(autotune, "list_gpus", list)
    places, layouts, chunks = autotune.list_candidate_groups(config.to_plain_data(config.compose_config(PPO)))
    assert places == [{"devices": 1}, {"devices": 1, autotune.THREADS_VARIABLE: 1}, {"devices": 2}]
    sizes = [(choice[autotune.NUM_ENVS_OPTION], choice[autotune.NUM_STEPS_OPTION]) for choice in layouts]
    assert sizes == [(16, 128), (32, 64), (128, 16), (256, 8)]
    assert chunks == [{"chunk": 1}, {"chunk": 16}, {"chunk": 64}]
    monkeypatch.setattr(autotune, "list_gpus", lambda: ["a", "a"])
    assert autotune.list_candidate_groups(
        config.to_plain_data(config.compose_config(["agent=openes", "env=cartpole"]))
    )[:2] == [
        [{"devices": 1}, {"devices": 2}],
        [],
    ]


def test_each_group_is_tried_with_what_was_clearly_best_before(capsys):
    groups = [[{"devices": 1}, {"devices": 2}], [{"n": 4}, {"n": 8}], [{"chunk": 1}, {"chunk": 9}], []]
    factors = {("devices", 2): 2.0, ("n", 4): 0.0, ("n", 8): 1.5, ("chunk", 9): 1.01}
    asked = []

    def measure(choice):
        asked.append(choice)
        rate = 100.0
        for pair in choice.items():
            rate *= factors.get(pair, 1.0)
        return rate

    assert autotune.search(groups, measure) == {"devices": 2, "n": 8}
    assert asked[3:5] == [{"devices": 2, "n": 4}, {"devices": 2, "n": 8}]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["trial 1 of 7: default settings", "  100 env steps/s"]
    assert lines[6:8] == ["trial 4 of 7: devices=2, n=4", "  cannot run"]


def test_the_command_writes_what_was_fastest_and_remembers_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    best = {"devices": 1, autotune.THREADS_VARIABLE: 1, autotune.NUM_ENVS_OPTION: 32, autotune.NUM_STEPS_OPTION: 64}
    monkeypatch.setattr(autotune, "measure_speed", lambda chosen, choice, seconds: 2.0 if choice == best else 1.0)
    tried = [[{name: best[name] for name in names} for names in [pair]] for pair in (list(best)[:2], list(best)[2:])]
    monkeypatch.setattr(autotune, "list_candidate_groups", lambda data: [[tried[0][0] | tried[1][0]]])
    autotune.main([*PPO, "write=fast"])
    out = capsys.readouterr().out
    assert out.endswith("train with it: PJRT_NPROC=1 python -m evorl.train experiment=fast\n")
    written = yaml.safe_load((tmp_path / "configs/experiment/fast.yaml").read_text(encoding="utf-8"))
    assert written["devices"] == 1
    given = [*PPO, "learning_rate=${linear:1e-3,0}", "wrappers=[{frames: {count: 2}}]", "again=true"]
    autotune.main(given)
    (command,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("train with it: "))
    options = [f"{name}={value}" for name, value in best.items() if name != "PJRT_NPROC"]
    words = ["PJRT_NPROC=1", "python", "-m", "evorl.train", *config.compose_expanded(given[:-1])[1], *options]
    assert shlex.split(command.removeprefix("train with it: ")) == words
    assert written["agent"]["workflow"] == {"num_envs": 32, "num_steps": 64}
    assert config.to_plain_data(config.compose_config(["experiment=fast"]))["agent"]["workflow"]["num_envs"] == 32
    autotune.main([*PPO, "num_epochs=2", "write=short"])
    capsys.readouterr()
    written = yaml.safe_load((tmp_path / "configs/experiment/short.yaml").read_text(encoding="utf-8"))
    assert written["agent"]["workflow"] == {"num_epochs": 2, "num_envs": 32, "num_steps": 64}
    monkeypatch.setattr(autotune, "search", None)
    autotune.main(PPO)
    assert capsys.readouterr().out.startswith(
        "cached result for this machine (again=true measures again): devices=1, PJRT_NPROC=1,"
    )
    assert json_cache.JsonCache(autotune.CACHE_FILE)._read_all()


def test_the_cache_folder_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(json_cache, "MAX_VALUES", 3)
    kept = json_cache.JsonCache("few.json")
    for i in (0, 1, 2, 0, 3):
        kept.put(str(i), i)
    assert kept._read_all() == {"2": 2, "0": 0, "3": 3}
    for i in range(5):
        path = tmp_path / "programs" / f"threads-{i % 2}" / str(i)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - i, 1000 - i))  # the first is the newest
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(bytes(1000))
    (tmp_path / "programs" / "link").symlink_to(elsewhere)
    trim_folder(tmp_path / "programs", 299)
    assert sorted(path.name for path in (tmp_path / "programs").rglob("?")) == ["0", "1"]
    assert elsewhere.is_file()


def test_the_compilation_cache_never_holds_half_a_program(tmp_path, monkeypatch):
    cache, program = LRUCache(str(tmp_path), max_size=-1), random.Random(0).randbytes(2**24)

    def stop(*paths):
        del paths
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            cache.put("step", program)
    assert cache.get("step") is None
    assert not list(tmp_path.iterdir())
    writer = threading.Thread(target=cache.put, args=("step", program))
    writer.start()
    read = [cache.get("step") for _ in iter(writer.is_alive, False)] + [cache.get("step")]
    assert set(read) <= {None, program}
    assert read[-1] == program


@pytest.mark.program
def test_a_trial_is_a_training_of_its_own_and_one_that_is_refused_has_no_speed():
    chosen = [*PPO, *TINY, "agent.workflow.eval_episodes=1", "env_steps=1"]
    assert autotune.measure_speed(chosen, {"chunk": 2}, 0.2) > 0
    assert autotune.measure_speed(chosen, {autotune.NUM_ENVS_OPTION: 3}, 0.2) == 0
    with pytest.raises(OptionError, match="batch_size=7: must divide"):
        autotune.measure_speed([*PPO, "agent.workflow.batch_size=7"], {}, 0.2)


@pytest.mark.parametrize(("options", "message"), [
    (["seconds=0"], "seconds=0: must be a number above 0"),
    (["again=2"], "again=2: must be true or false"),
    (["chunk=3"], "chunk=3: is not supported in autotune trials"),
    (["write=a/b"], "write=a/b: must be a name"),
    (["agent.workflow.num_env=3"], "num_envs"),
])  # fmt: skip
def test_mistakes_are_one_line(options, message, capsys):
    with pytest.raises(SystemExit) as end:
        autotune.main([*PPO, *options])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert message in err
    assert err.count("\n") == 1
