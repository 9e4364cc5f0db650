import csv
import gc
import itertools
import json
import math
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from evorl import tree
from evorl.agents import PPO, MLPPolicy
from evorl.agents.base_agent import fill_spaces
from evorl.ec import GridArchive, IsoLineEmitter, MapElites
from evorl.envs.maze.point_maze import PointMaze
from evorl.errors import OptionError
from evorl.metrics import RETURN_DOF, reduce_rounds
from evorl.spaces import Box
from evorl.training import devices
from evorl.training.dry_run import find_unmet_limits
from evorl.training.fit import fit
from evorl.training.program import Program, fold_keys
from evorl.training.progress import Budget, BudgetUsage, Progress, StepBound
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.display import LinePrinter, SpeedMeter, format_returns
from evorl.training.records.recorders import Csv, JsonLines, TensorBoard
from evorl.training.records.rows import compute_return_interval, make_row
from evorl.training.training_log import TrainingLog
from evorl.types import TimeStep
from evorl.workflows import Evolution, OnPolicy
from tests.conftest import leaves_equal
from tests.tiers import program_fixture
from tests.tiny import OFF_POLICY

UNTIMED = ("return", "env_steps", "episodes", "gradient_steps", "critic_loss", "iteration", "kind")


def untimed(rows):
    return [{name: row[name] for name in UNTIMED if name in row} for row in rows]


@program_fixture(scope="module")
def whole():
    return fit(OFF_POLICY, 3, Budget(iterations=10), chunk=2, evaluations=2)


def test_rows_count_what_was_done(whole):
    train = [row for row in whole.rows if row["kind"] == "train"]
    assert [row["iteration"] for row in train] == [2, 4, 6, 8, 10]
    assert train[-1]["env_steps"] == 12 + 9 * 8  # 12 at random, then 9 iterations of 4 environments x 2
    assert train[-1]["gradient_steps"] == 10 * 4
    assert all(row["progress"] == pytest.approx(row["iteration"] / 10) for row in train)


def test_evaluations_come_before_training_then_on_schedule_and_at_the_end(whole):
    rows = [row for row in whole.rows if row["kind"] == "evaluation"]
    assert [row["iteration"] for row in rows][::2] == [0, 10]
    assert len(rows) == 3
    assert whole.rows[0] is rows[0]
    low, high = compute_return_interval(rows[0])
    assert whole.progress.initial_evaluation == {
        "env_steps": 0, "return": rows[0]["return"], "low": low, "high": high
    }  # fmt: skip


def test_a_t_quantile_is_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = {"return": 1.0, "return_error": 2.0}, {"seeds": {"return": [1.0, 2.0, 4.0, float("nan")]}}
    first = [compute_return_interval(row, episodes=9) for row in rows]
    np.testing.assert_allclose(first[0], [1 - 2 * 2.306004, 1 + 2 * 2.306004], rtol=1e-6)  # a table of Student's t
    monkeypatch.setattr("evorl.stats.compute_t_quantile", None)
    assert [compute_return_interval(row, episodes=9) for row in rows] == first


def test_an_interval_is_over_the_seeds_that_have_not_diverged():
    seeds = {"return": [500.0, 500.0, 500.0, 9.0], "diverged": [0, 0, 0, 1]}
    assert compute_return_interval({"seeds": seeds}) == (500, 500)
    everything = {"seeds": seeds | {"diverged": [1] * 4}}
    assert compute_return_interval(everything) == compute_return_interval({"seeds": {"return": seeds["return"]}})


def test_an_interval_has_the_degrees_of_freedom_of_its_error():
    """Three environments with 40 episodes each give two degrees of freedom: t = 4.3027, where 119 give 1.98."""
    row = {"return": 1.0, "return_error": 2.0}
    np.testing.assert_allclose(compute_return_interval(row, "", 120, 2), [1 - 8.6054, 1 + 8.6054], rtol=1e-4)
    rounds = [{"return": np.float32(i), "episodes": np.int32(120), RETURN_DOF: np.int32(2)} for i in range(2)]
    assert reduce_rounds(rounds)[RETURN_DOF] == 4


def test_the_keys_of_another_round_are_folded():
    keys = Program(OFF_POLICY, [3, 4], 1, False).keys
    assert keys.shape == (2, 3)
    assert jnp.array_equal(keys[1, 2], jax.random.split(jax.random.key(4), 3)[2])
    assert jnp.array_equal(fold_keys(keys, 7)[1, 2], jax.random.fold_in(keys[1, 2], 7))


@struct.dataclass
class GuessState:
    numbers: Any
    env_params: Any
    steps: Any


@dataclass(frozen=True)
class Guess:
    """A training that learns nothing: an evaluation is chance, of mean 0 and variance 1."""

    def init(self, key, numbers=None, env_params=None):
        del key, env_params
        return GuessState(numbers, None, jnp.float32(0))

    def step(self, state, key):
        del key
        counts = {"env_steps": jnp.int32(1), "episodes": jnp.int32(1), "gradient_steps": jnp.int32(0)}
        return state.replace(steps=state.steps + 1), counts | {"return": jnp.float32(0)}

    def evaluate(self, state, key):
        error = {"return_error": jnp.float32(1), "episode_length": jnp.float32(1)}
        return error | {"return": jax.random.normal(key) + 0 * state.steps, "episodes": jnp.int32(128)}

    def inherit(self, state, parent):
        del parent
        return state


@pytest.mark.program
def test_the_best_policy_is_evaluated_anew_so_that_its_return_is_no_maximum():
    """Over 200 seeds of chance the highest of several evaluations is far above 0, its new evaluation 0 +- 0.07."""
    training = fit(Guess(), 0, Budget(iterations=8), evaluations=4, num_seeds=200, vectorized=True)
    *before, last = [row for row in training.rows if row["kind"] == "evaluation"]
    assert len(before) >= 3
    assert not any("best_return" in row for row in before)
    highest = np.max([row["seeds"]["return"] for row in [*before, last]], axis=0)
    np.testing.assert_allclose(highest, training.progress.best_returns, rtol=1e-6)
    first = np.argmax([row["seeds"]["return"] for row in [*before, last]], axis=0)
    np.testing.assert_array_equal(training.best.steps, np.array([row["iteration"] for row in [*before, last]])[first])
    several = np.random.default_rng(0).standard_normal((100_000, len(before) + 1)).max(1)
    assert highest.mean() == pytest.approx(several.mean(), abs=4 * several.std() / np.sqrt(200))
    assert last["best_return"] == pytest.approx(0, abs=4 / np.sqrt(200))
    assert training.progress.best_reevaluation["return"] == last["best_return"]
    assert training.progress.best_reevaluation["low"] < 0 < training.progress.best_reevaluation["high"]


@pytest.mark.program
def test_one_compilation_serves_a_run():
    compiled = []
    listen = lambda event, _, **of: compiled.append(of["fun_name"]) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:  # with a seed that no other test of this process has, whose program is not in jax's caches
        fit(OFF_POLICY, 11, Budget(iterations=5), chunk=2, evaluations=2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled.count("jit(run)") == 1
    assert compiled.count("jit(init_sharded)") == 1


@pytest.mark.program
def test_a_training_keeps_no_arrays_and_no_programs_in_memory(tmp_path):
    """Nothing waits for the garbage collector, which knows nothing of how large a replay buffer is."""
    count = lambda: (len(jax.live_arrays()), len(jax.devices()[0].client.live_executables()))  # noqa: E731

    def train(seed):
        checkpoints = Checkpoints(tmp_path / str(seed))
        fit(OFF_POLICY, seed, Budget(iterations=4), chunk=2, evaluations=2, checkpoints=checkpoints)
        checkpoints.close()

    train(21)  # so that jax's caches hold what all trainings share
    gc.collect()
    gc.disable()
    try:
        before = count()
        train(22)
        assert count() == before
    finally:
        gc.enable()


@pytest.mark.program
def test_a_training_holds_one_copy_beside_its_state(tmp_path):
    """The best policies: neither an evaluation nor the last one copies the state."""
    evolver = MapElites(GridArchive(shape=(64, 64)), IsoLineEmitter(4), ("position",))
    agent = MLPPolicy(hidden=(32,))
    env = PointMaze(max_episode_steps=3)
    workflow = Evolution(env, agent, evolver, normalization="none", eval_episodes=4)
    size = tree.nbytes(jax.eval_shape(workflow.init, jax.random.key(0)))
    assert size > 2e6
    gc.collect()
    before, held = sum(x.nbytes for x in jax.live_arrays()), []
    measure = lambda row: held.append(sum(x.nbytes for x in jax.live_arrays()) - before)  # noqa: E731
    checkpoints = Checkpoints(tmp_path)
    result = fit(workflow, 0, Budget(iterations=4), evaluations=2, callbacks=[measure], checkpoints=checkpoints)
    checkpoints.close()
    assert len(held) >= 6
    assert max(held) < 2.1 * size
    shapes = jax.eval_shape(workflow.init, jax.random.key(0))
    state, best, _ = Checkpoints(tmp_path).restore(shapes)
    assert leaves_equal(state, result.state)
    assert leaves_equal(best, result.best)


def test_a_resumed_run_is_the_undisturbed_run_bitwise(whole, tmp_path):
    first = Checkpoints(tmp_path)
    fit(OFF_POLICY, 3, Budget(iterations=4), chunk=2, evaluations=2, checkpoints=first)
    first.close()
    again = Checkpoints(tmp_path)
    assert again.latest_iteration == 4
    resumed = fit(OFF_POLICY, 3, Budget(iterations=10), chunk=2, evaluations=2, checkpoints=again)
    again.close()
    assert leaves_equal(resumed.state, whole.state)
    train = [row for row in untimed(whole.rows) if row["kind"] == "train"]
    assert [row for row in untimed(resumed.rows) if row["kind"] == "train"] == train[2:]
    assert resumed.progress.totals == whole.progress.totals
    evaluated = [[row["iteration"] for row in run.rows if row["kind"] == "evaluation"] for run in (whole, resumed)]
    assert evaluated[1] == [iteration for iteration in evaluated[0] if iteration > 4]  # as the larger budget has it


def test_a_run_stopped_in_its_last_evaluation_makes_the_whole_of_it_when_resumed(whole, tmp_path):
    asked = itertools.count()

    def train(stop):
        checkpoints = Checkpoints(tmp_path)
        budget = Budget(iterations=10)
        result = fit(OFF_POLICY, 3, budget, chunk=2, evaluations=2, checkpoints=checkpoints, stop=stop)
        checkpoints.close()
        return result

    first = train(lambda: next(asked) > 8)  # five chunks, and three rounds of the evaluation
    assert (first.stopped, untimed(first.rows)) == (True, untimed(whole.rows[:-1]))
    resumed = train(lambda: False)
    assert (resumed.stopped, untimed(resumed.rows)) == (False, untimed(whole.rows[-1:]))
    assert leaves_equal(resumed.state, whole.state)
    assert leaves_equal(resumed.best, whole.best)
    assert train(lambda: False).rows == []
    assert [path.name for path in tmp_path.iterdir()] == ["10"]
    _, best, progress = Checkpoints(tmp_path).restore(jax.eval_shape(lambda: whole.state))
    assert leaves_equal(best, whole.best)
    assert progress["row_counts"] == whole.progress.row_counts


@pytest.mark.program
def test_a_checkpoint_whose_replacement_was_not_written_is_put_back(tmp_path):
    state = {"x": jnp.arange(3.0)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, state, {"row_counts": {"train": 1}})
    checkpoints.close()
    (tmp_path / "1").rename(tmp_path / "1.replaced")
    again = Checkpoints(tmp_path)
    assert again.latest_iteration == 1
    assert leaves_equal(again.restore(jax.eval_shape(lambda: state))[0], state)
    again.save(1, state, state, {"row_counts": {"train": 2}})
    again.close()
    assert Checkpoints(tmp_path).restore(jax.eval_shape(lambda: state))[2]["row_counts"] == {"train": 2}


def test_more_steps_than_can_be_counted_are_refused():
    workflow = replace(OFF_POLICY, num_envs=2**20, num_steps=2**11)
    with pytest.raises(OptionError, match="env steps=up to 2,147,483,648: must be at most 2,147,483,647"):
        fit(workflow, 3, Budget(iterations=1))


@pytest.mark.program
def test_a_checkpoint_of_another_configuration_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    fit(OFF_POLICY, 3, Budget(iterations=1), checkpoints=checkpoints)
    with pytest.raises(OptionError, match="does not fit"):
        fit(OFF_POLICY, 3, Budget(iterations=2), num_seeds=2, checkpoints=checkpoints)
    checkpoints.close()


@pytest.mark.program
def test_a_checkpoint_whose_state_had_other_parts_without_numbers_is_of_another_version(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = fit(OFF_POLICY, 3, Budget(iterations=1), checkpoints=checkpoints).state
    shapes = jax.eval_shape(lambda: state)
    checkpoints.restore_policy(shapes, "last")
    with pytest.raises(OptionError, match="was written by another version of evorl"):
        checkpoints.restore_policy(shapes.replace(env_params={"more": ()}), "last")
    checkpoints.close()


@pytest.mark.program
def test_seed_k_of_many_one_by_one_is_bit_for_bit_the_run_of_seed_k(monkeypatch):
    emitters = "xla_cpu_use_fusion_emitters"
    as_users_compile = devices.CPU_OPTIONS | ({emitters: True} if emitters in os.environ["XLA_FLAGS"] else {})
    monkeypatch.setattr("evorl.training.driver.compiler_options", lambda: as_users_compile)
    alone = fit(OFF_POLICY, 3, Budget(iterations=4), chunk=2)
    many = fit(OFF_POLICY, 2, Budget(iterations=4), chunk=2, num_seeds=3, vectorized=False)
    assert leaves_equal(tree.index(many.state, 1), alone.state)


@pytest.mark.parametrize("vectorized", [False, True])
def test_seed_k_of_many_is_the_run_of_seed_k(whole, vectorized):
    budget = Budget(iterations=10)
    many = fit(OFF_POLICY, 2, budget, chunk=2, evaluations=2, num_seeds=3, vectorized=vectorized)
    alone = [row for row in whole.rows if row["kind"] == "train"]
    together = [row for row in many.rows if row["kind"] == "train"]
    for a, b in zip(alone, together, strict=True):
        assert b["seeds"]["env_steps"][1] == a["env_steps"]
        np.testing.assert_allclose(b["seeds"]["return"][1], a["return"], rtol=1e-3, atol=1e-3)
        assert b["return"] == pytest.approx(math.fsum(b["seeds"]["return"]) / 3)
    assert len(set(together[-1]["seeds"]["critic_loss"])) == 3


def test_a_budget_ends_at_the_first_limit():
    counts = {"env_steps": [100, 80], "episodes": [7, 9]}
    done = Progress(iteration=5, seconds=60, totals=counts, divergence_iterations=[None, None]).usage
    assert Budget(iterations=10).compute_used_share(done) == 0.5
    assert Budget(iterations=10, env_steps=100).compute_used_share(done) == 0.8  # every run must have reached it
    assert Budget(episodes=14, minutes=1.25).compute_used_share(done) == 0.8
    assert Budget(env_steps=10).compute_used_share(done) == 1.0
    counts = {"env_steps": [100, 80, 90], "episodes": [7, 1, 9]}
    lost = Progress(iteration=5, divergence_iterations=[None, 2, None], totals=counts).usage
    assert (lost.env_steps, lost.episodes) == (90, 7)  # a seed that has diverged keeps no training from its end
    started = Progress(seconds=60, compile_seconds=45).usage
    assert Budget(minutes=1).compute_used_share(started) == 0.25  # compiling is apart


def test_the_last_evaluation_has_as_many_rounds_as_128_episodes_take(whole):
    last = whole.rows[-1]
    assert last["episodes"] - whole.rows[-2]["episodes"] == 0  # which do not count as training
    evaluations = whole.progress.evaluation_steps
    again = fit(OFF_POLICY, 3, Budget(iterations=10), chunk=2, evaluations=1)
    assert [row["kind"] for row in again.rows].count("evaluation") == 2
    one, rounds = OFF_POLICY.eval_episodes, math.ceil(128 / OFF_POLICY.eval_episodes)
    assert whole.progress.evaluation_steps == evaluations
    lengths = [row["episode_length"] for row in whole.rows if row["kind"] == "evaluation"]
    of_best = rounds * lengths[2]  # the episodes of the best policy, which are as long
    assert evaluations == pytest.approx(one * (lengths[0] + lengths[1] + rounds * lengths[2] + of_best), abs=2)


@pytest.mark.program
def test_evaluations_wait_while_they_take_more_than_their_share():
    """Of 12 env steps at random and 8 in each further iteration; all are evaluated where they may be."""
    budget = Budget(iterations=20)
    runs = [fit(OFF_POLICY, 3, budget, evaluations=20, evaluation_share=0.2) for _ in range(2)]
    rows = [row for row in runs[0].rows if row["kind"] == "evaluation"]
    assert [row["iteration"] for row in rows] == [
        row["iteration"] for row in runs[1].rows if row["kind"] == "evaluation"
    ]
    taken = 0.0
    for row in rows[1:-1]:
        taken += OFF_POLICY.eval_episodes * rows[0]["episode_length"] / 2
        assert taken < 0.3 * (row["env_steps"] + taken)
    assert 2 <= len(rows) < 12


@pytest.mark.program
def test_minutes_end_in_time_and_leave_nothing_to_do():
    training = fit(OFF_POLICY, 3, Budget(minutes=0.04), chunk=64, evaluations=2)
    evaluation = [row for row in training.rows if row["kind"] == "evaluation"][-1]["duration"]
    done = training.progress
    assert training.rows[0]["kind"] == "evaluation"
    assert not training.stopped
    assert training.rows[-1]["progress"] == 1
    assert done.seconds - done.compile_seconds - evaluation < 0.04 * 60 + 1


@pytest.mark.program
@pytest.mark.parametrize(("limit", "end"), [(5, 12), (12, 12), (13, 20), (12 + 5 * 8, 12 + 5 * 8), (60, 60), (61, 68)])
def test_a_budget_ends_with_the_iteration_that_reaches_it_whatever_the_chunk(limit, end):
    training = fit(OFF_POLICY, 0, Budget(env_steps=limit), evaluations=1, chunk=4)
    assert training.rows[-1]["env_steps"] == end  # 12 at random, then 8 an iteration
    assert not training.stopped


def test_of_equal_returns_the_last_is_the_best():
    """In a zero-sum game, the mean return over all agents is 0 at every evaluation."""
    log = TrainingLog([0], Budget(iterations=9), (), True)
    log.start(np.float32(0))
    for state, value in enumerate([0.0, 0.0, -1.0, np.nan, 0.0, -0.5], 1):
        log.keep_best(np.float32(state), np.asarray(value))
    assert log.best == 5


def test_usage_has_names_after_a_resume():
    saved = json.loads(json.dumps(asdict(Progress(recent_usage=[BudgetUsage(1.5, 8, 2, 1)] * 3, totals={}))))
    assert Progress.from_dict(saved, 1).recent_usage[1].env_steps == 8


@pytest.mark.parametrize("least", [0.05, 1.0])
@pytest.mark.parametrize("most", [StepBound(9, 2), StepBound(40, 40), StepBound(10, 64), StepBound(1000, 1)])
@pytest.mark.parametrize("name", ["env_steps", "episodes"])
def test_no_iteration_begins_after_the_budget_is_used(name, most, least):
    """Of random iterations, one chunk of which is always in flight, whatever it takes."""
    rng = np.random.default_rng(0)
    for limit in (1, 2, 3, 16, 39, 41, 100, 1003):
        taken = lambda i: int(np.ceil(rng.uniform(least, 1) * (most.subsequent if i else most.initial)))  # noqa: E731
        budget, marks, chunk = Budget(**{name: limit}), [BudgetUsage()] * 3, 4
        for _ in range(5000):
            before, done = marks[-3:-1]
            known = marks[-1] if budget.may_end(before, done, marks[-1].iterations, most) else done
            if budget.compute_used_share(known) >= 1:
                break
            spent, count = (
                marks[-1],
                int(min(chunk, budget.count_remaining_iterations(known, marks[-1].iterations, most))),
            )
            assert count >= 1
            for _ in range(count):
                assert getattr(spent, name) < limit
                total = getattr(spent, name) + taken(spent.iterations)
                spent = spent._replace(iterations=spent.iterations + 1, **{name: total})
            marks.append(spent)
        assert budget.compute_used_share(marks[-1]) == 1


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (5, "env_steps=5: the only iteration of OffPolicy takes 12 env steps with random actions"),
        (13, "env_steps=13: an iteration of OffPolicy takes 8 env steps; training ends after 20"),
        (12 + 5 * 8, None),
        (1_000, None),
    ],
)
def test_what_a_budget_cannot_keep_is_told(limit, told):
    assert list(find_unmet_limits(OFF_POLICY, Budget(env_steps=limit), 4)) == [told] * (told is not None)


def test_a_workflow_that_does_not_bound_its_steps_keeps_to_the_chunk():
    class Own:
        """Has no `iteration_cost`."""

    own = "env_steps=30 and episodes=4: Own has no limit of env steps per iteration; training ends after a whole chunk "
    assert list(find_unmet_limits(Own(), Budget(env_steps=30, episodes=4), 8)) == [f"{own}of 8 iterations"]
    assert list(find_unmet_limits(Own(), Budget(iterations=7), 8)) == []
    assert Budget(iterations=7).count_remaining_iterations(BudgetUsage(iterations=3), 5, StepBound()) == 2
    assert Budget(env_steps=30).may_end(BudgetUsage(), BudgetUsage(), 8, StepBound())  # the first chunk is waited for
    assert not Budget(env_steps=30).may_end(BudgetUsage(), BudgetUsage(env_steps=8, iterations=8), 16, StepBound())


@pytest.mark.program
def test_a_resume_forgets_the_rows_that_it_will_write_again(tmp_path, whole):
    recorders = [JsonLines(tmp_path), Csv(tmp_path, 3)]
    for row in whole.rows:
        for record in recorders:
            record(row)
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"kind": "tr')  # killed while writing
    counted = Counter(row["kind"] for row in whole.rows[:4])
    for record in recorders:
        record.resume(Progress(row_counts=dict(counted)))
    assert [json.loads(line) for line in path.read_text().splitlines()] == whole.rows[:4]
    kept = [row for row in whole.rows[:4] if row["kind"] == "train"]
    with (tmp_path / "train.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [float(line["critic_loss"]) for line in lines] == [row["critic_loss"] for row in kept]
    assert {line["seed"] for line in lines} == {"3"}
    with pytest.raises(OptionError, match="has lost rows: 4 of 5 lines are left"):
        recorders[0].resume(Progress(row_counts={"train": 5}))


def test_tensorboard_shows_an_evaluation_at_once(tmp_path):
    record = TensorBoard(tmp_path)
    record({"kind": "evaluation", "iteration": 2, "env_steps": 8, "return": 1.5})
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert b"evaluation/return" in file.read_bytes()
    record.close()


def test_lines_tell_how_far_it_is(whole, capsys):
    lines = LinePrinter(every=0.0)
    for row in whole.rows:
        lines(row)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == len(whole.rows)
    assert out[0].startswith("  0%")
    assert "compiled in" in out[1]
    assert "evaluation" in out[-1]
    assert out[-1].startswith("100%")


def test_a_speed_is_shown_of_counts_that_rose():
    lines = LinePrinter(every=0.0)
    cloning = {"kind": "train", "progress": 0.5, "iteration": 1, "seconds": 1.0, "compile_seconds": 1.0, "return": 0.0}
    lines.format_row(cloning | {"gradient_steps": 100})
    later = lines.format_row(cloning | {"seconds": 2.0, "gradient_steps": 300})
    assert later.endswith("  200 gradient steps/s"), "such as behavior cloning, which takes no env steps"
    meter = SpeedMeter("env steps")
    rows = ({"seconds": i, "env_steps": 8, "gradient_steps": 100 * i} for i in (1.0, 3.0))
    assert [meter(row) for row in rows] == [{}, {"gradient_steps": "100 gradient steps/s"}]


def test_a_stage_that_takes_long_says_so_until_something_else_is_said(capsys):
    lines = LinePrinter(patience=0.05)
    lines.start_stage("compiling")
    time.sleep(0.3)
    lines.start_stage("training")
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "compiling"
    assert len(told) >= 3
    assert all(line.startswith("compiling for ") for line in told[1:])
    time.sleep(0.3)
    told = capsys.readouterr().out.splitlines()
    assert told
    assert all(line.startswith("training for ") for line in told)
    lines.close()
    time.sleep(0.1)
    capsys.readouterr()
    time.sleep(0.15)
    assert capsys.readouterr().out == ""


@pytest.mark.program
def test_progress_is_shown_where_somebody_looks(capsys, monkeypatch):
    def shown(**given):
        fit(Guess(), 0, Budget(iterations=2), evaluations=1, **given)
        return "100%" in capsys.readouterr().out

    assert not shown()  # no terminal
    assert shown(progress=True)
    assert shown(progress=True, callbacks=[lambda row: None])
    monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)  # as in a notebook
    assert shown()
    assert not shown(progress=False)
    assert not shown(callbacks=[lambda row: None])


@struct.dataclass
class DiceState:
    key: Any
    steps: Any


@dataclass(frozen=True)
class Dice:
    """A state that holds a key, as other libraries' do."""

    default_params = None
    fresh_reset = True
    max_episode_steps = 3
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key, params):
        del params
        return DiceState(key, jnp.int32(0)), jax.random.uniform(key, (1,))

    def step(self, key, env_state, action, params):
        del key, params
        own, following = jax.random.split(env_state.key)
        after = DiceState(following, env_state.steps + 1)
        return after, TimeStep(jax.random.uniform(own, (1,)), action[0], jnp.bool_(False), after.steps >= 3)


@pytest.mark.program
def test_a_state_may_hold_keys(tmp_path):
    env = Dice()
    agent = fill_spaces(PPO(hidden=(4,)), env)
    workflow = OnPolicy(env, agent, num_envs=2, num_steps=4, num_epochs=1, batch_size=8, eval_episodes=2)
    options = {"num_seeds": 2, "chunk": 1, "evaluations": 2}
    whole = fit(workflow, 0, Budget(iterations=3), **options)
    for iterations in (2, 3):
        checkpoints = Checkpoints(tmp_path)
        last = fit(workflow, 0, Budget(iterations=iterations), checkpoints=checkpoints, **options)
        checkpoints.close()
    assert whole.state.envs.env_state.key.dtype == jax.random.key(0).dtype
    assert all(map(np.array_equal, *(map(number, jax.tree.leaves(run.state)) for run in (whole, last))))


def number(leaf):
    """A leaf as an array, of a key its data."""
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def test_a_line_is_over_the_seeds_that_have_not_diverged():
    row = {"return": 490.0, "seeds": {"return": [480.0, 9.0, 500.0], "episode_length": [480, 9, 500]}}
    assert format_returns(row | {"seeds": row["seeds"] | {"diverged": [0, 1, 0]}}).endswith(" over 2 seeds")
    assert format_returns(row | {"seeds": row["seeds"] | {"diverged": [1, 1, 0]}}) == "490.0 (1 of 3 seeds)"
    alone = {"return": 500.0, "seeds": {"return": [np.nan, 500.0, np.nan], "diverged": [0, 0, 0]}}
    assert format_returns(alone) == "500.0 (1 of 3 seeds)"
    assert format_returns({"return": 5.0}) == "5.0"


def test_metrics_that_are_infinite_in_both_directions_have_no_mean():
    metrics = {"loss": np.array([np.inf, -np.inf]), "env_steps": np.array([1, 1])}
    progress = Progress(divergence_iterations=[1, 1], totals={"env_steps": [1, 1]})
    assert np.isnan(make_row(progress, metrics, "train", 1.0)["loss"])
