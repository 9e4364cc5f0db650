import json

import numpy as np
import pytest
import yaml

from evorl.cli import curve
from evorl.errors import OptionError
from evorl.reports import curves, tables
from evorl.reports.build import expand_folders

CFG = {"schema": 4, "agent": {"name": "td3", "workflow": {"lr": 0.1}}, "seed": 0, "num_seeds": 1}
CFG |= {"env": {"_target_": "evorl.envs.suites.gymnax.Gymnax", "name": "CartPole-v1"}, "wrappers": []}


def write(run, steps=(0, 10, 20), returns=((1.0,), (2.0,), (3.0,)), **changed):
    """Write a run of evaluations with returns [evaluations][seeds]."""
    run.mkdir(parents=True)
    seeds = len(returns[0])
    rows = []
    for i, (step, values) in enumerate(zip(steps, returns, strict=True)):
        row = {"kind": "evaluation", "iteration": i, "seconds": 60.0 * i, "env_steps": step}
        row |= {"return": sum(values) / seeds} | ({"seeds": {"return": list(values)}} if seeds > 1 else {})
        rows.append(json.dumps(row) + "\n")
    (run / "metrics.jsonl").write_text("".join(rows))
    (run / "config.yaml").write_text(yaml.dump(CFG | {"num_seeds": seeds} | changed))
    return str(run)


def drawn(*given):
    return curves.group_curves([curves.read_curve(one, []) for one in given])


def test_runs_that_differ_in_their_seeds_alone_are_one_line(tmp_path):
    runs = [write(tmp_path / f"seed-{i}", returns=((i,), (2 * i,), (3 * i,)), seed=i) for i in range(3)]
    other = write(tmp_path / "other", agent=CFG["agent"] | {"name": "sac"})
    one, alone = drawn(*runs, other)
    assert (one.label, alone.label) == ("seed-0 and 2 more", "other")
    np.testing.assert_array_equal(one.returns, [[0, 1, 2], [0, 2, 4], [0, 3, 6]])
    np.testing.assert_array_equal(one.minutes, [0, 3, 6])  # of one after the other


def test_seeds_that_diverged_are_left_out(tmp_path):
    run = write(tmp_path / "run", returns=((1.0, 2.0, 9.0), (3.0, 4.0, 9.0), (5.0, 7.0, 9.0)))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["seeds"] |= {"diverged": [0, 0, int(i == 2)], "env_steps": [10 * i, 10 * i, 5]}
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (one,) = drawn(run)
    np.testing.assert_array_equal(one.returns, [[1, 2], [3, 4], [5, 7]])
    np.testing.assert_array_equal(one.env_steps, [0, 10, 20])
    assert one.seeds == {0, 1}
    assert tables.make_final_table({"task": [one]})[1][1] == "2 (1 more diverged)"


def test_the_name_of_a_folder_may_contain_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i in range(2):
        write(tmp_path / "runs" / f"lr=0.{i}", seed=i)
    folders = ["runs/lr=0.0", "runs/lr=0.1"]
    assert curves.expand_runs("runs/lr=*") == [*expand_folders("runs")] == folders
    assert curves.expand_runs("PPO=runs/lr=*") == [*expand_folders("PPO=runs")] == [f"PPO={one}" for one in folders]
    assert [curves.read_curve(one, []).label for one in folders] == ["lr=0.0", "lr=0.1"]
    (one,) = drawn(*(f"PPO={folder}" for folder in folders))
    assert (one.label, one.returns.shape) == ("PPO", (3, 2))


def test_a_label_makes_one_line_of_runs(tmp_path):
    a, b = (
        f"TD3={write(tmp_path / name, returns=((1, 2), (3, 4), (5, 6)), seed=2 * i)}" for i, name in enumerate("ab")
    )
    (one,) = drawn(a, b)
    assert one.label == "TD3"
    assert one.returns.shape == (3, 4)


def test_folders_by_a_pattern_are_one_curve_and_no_run_is_taken_for_the_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for i in range(3):
        write(tmp_path / f"ppo.{i}", returns=((i,), (2 * i,), (3 * i,)), seed=i)
    (tmp_path / "ppo.txt").write_text("no run")
    assert curves.expand_runs("PPO=ppo.*") == ["PPO=ppo.0", "PPO=ppo.1", "PPO=ppo.2"]
    assert curves.expand_runs("ppo.1") == ["ppo.1"]
    with pytest.raises(OptionError, match=r"run=td3\*: matches no folder"):
        curves.expand_runs("TD3=td3*")
    for words in (["ppo.0", "ppo.1", "ppo.2"], ["PPO=ppo.*"]):
        curve.main(words)
        lines = capsys.readouterr().out.splitlines()
        assert (len(lines), lines[-1]) == (4, "curve.png")
        assert lines[2].split("|")[2].strip() == "3"  # seeds
        (tmp_path / "curve.png").unlink()
    curve.main(["out.svg", "PPO=ppo.*"])
    assert (tmp_path / "out.svg").exists()
    assert capsys.readouterr().out.count("\n") == 3


def test_returns_between_evaluations_are_interpolated(tmp_path):
    a = write(tmp_path / "a", (0, 10, 20), ((0.0,), (10.0,), (20.0,)))
    b = write(tmp_path / "b", (5, 15, 25, 35), ((0.0,), (10.0,), (20.0,), (30.0,)), seed=1)
    (one,) = drawn(a, b)
    np.testing.assert_array_equal(one.env_steps, [10, 20])
    np.testing.assert_array_equal(one.returns, [[10, 5], [20, 15]])


def test_a_label_of_other_settings_or_of_a_seed_twice_is_refused(tmp_path):
    a, b = write(tmp_path / "a"), write(tmp_path / "b", seed=1, agent=CFG["agent"] | {"workflow": {"lr": 0.2}})
    with pytest.raises(OptionError, match=r"b: has the label of .*a and differs from it in agent.workflow.lr, 0"):
        drawn(f"A={a}", f"A={b}")
    with pytest.raises(OptionError, match=r"run=.*a: has the label of .*a and also seed 0; use another label"):
        drawn(f"A={a}", f"A={a}")
    apart = write(tmp_path / "c", (50, 60, 70), seed=1)
    with pytest.raises(OptionError, match=r"run=.*c: has no evaluation at the env steps of .*a"):
        drawn(a, apart)


def test_the_same_training_twice_is_two_lines(tmp_path):
    assert [one.label for one in drawn(write(tmp_path / "a"), write(tmp_path / "b"))] == ["a", "b"]


def test_folders_of_one_name_are_told_from_each_other(tmp_path):
    agents = [{"agent": CFG["agent"] | {"name": name}} for name in "xyz"]
    runs = [write(tmp_path / place, **agent) for place, agent in zip(("x/run", "y/run", "other"), agents, strict=True)]
    assert [one.label for one in drawn(*runs)] == ["x/run", "y/run", "other"]
    assert [one.label for one in drawn(f"other={runs[0]}", *runs[1:])] == ["other", "run", f"{tmp_path.name}/other"]


def test_each_environment_has_a_panel(tmp_path, capsys):
    short = CFG["env"] | {"max_episode_steps": 5}
    runs = [write(tmp_path / "a"), write(tmp_path / "b", env=CFG["env"] | {"name": "Acrobot-v1"})]
    runs += [write(tmp_path / "c", env=short), write(tmp_path / "d", agent=CFG["agent"] | {"name": "sac"})]
    found = curves.group_by_task(drawn(*runs))
    titles = ["CartPole-v1", "Acrobot-v1", "CartPole-v1 env.max_episode_steps=5"]
    assert {title: [one.label for one in lines] for title, lines in found.items()} == dict(
        zip(titles, (["a", "d"], ["b"], ["c"]), strict=True)
    )
    assert [chart.title for chart in curve.draw_curves(found, None)[::2]] == titles
    curve.main([str(tmp_path / "curve.png"), *runs])
    said = capsys.readouterr().out
    assert said.startswith("3 environments with different returns: one row of charts for each\n")
    assert "| a | CartPole-v1 | 1 | 20 | 2.0 | 3.00 | 3.00 | 3.00 |" in said


def test_a_panel_is_of_what_is_evaluated_whatever_is_learned_from(tmp_path):
    """Returns are the task's own, with rewards that are scaled and in another environment than that of the training."""
    scaled = {"_target_": "evorl.envs.wrappers.RewardTransform", "scale": 0.1}
    frames = {"_target_": "evorl.envs.wrappers.FrameStack", "count": 2}
    other = CFG["env"] | {"name": "Acrobot-v1"}
    runs = [
        write(tmp_path / "elsewhere", env=other, eval_env=CFG["env"]),
        write(tmp_path / "plain"),
        write(tmp_path / "wrapped", wrappers=[scaled]),
        write(tmp_path / "inside", env=scaled | {"inner": CFG["env"]}),
        write(tmp_path / "frames", wrappers=[scaled, frames]),
        write(tmp_path / "other", env=other),
    ]
    found = {title: [one.label for one in lines] for title, lines in curves.group_by_task(drawn(*runs)).items()}
    alike, seen, apart = found.items()
    assert alike[1] == ["elsewhere", "plain", "wrapped", "inside"]
    assert alike[0].startswith("CartPole-v1")
    assert (seen[1], apart[1]) == (["frames"], ["other"])


def test_a_folder_without_a_configuration_is_a_line_of_its_own(tmp_path):
    for name in "ab":
        write(tmp_path / name)
        (tmp_path / name / "config.yaml").unlink()
    assert [one.label for one in drawn(str(tmp_path / "a"), str(tmp_path / "b"))] == ["a", "b"]
    with pytest.raises(OptionError, match=r"run=.*b: has the label of .*a and no config.yaml that gives its seeds"):
        drawn(f"A={tmp_path / 'a'}", f"A={tmp_path / 'b'}")
