"""The host side of populations: what rows, displays, recorders, the sentinel, resuming and loading make of members."""

import csv
import io
import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console

import evorl
from evorl import MetaES, OpenES, SharedReplay, Vmapped, tree
from evorl.cli import lineage, train
from evorl.errors import DivergedError, OptionError
from evorl.metrics import reduce_steps
from evorl.population.lineage import member_history
from evorl.training.fit import fit
from evorl.training.nans import DivergenceMonitor
from evorl.training.program import Program, make_run_args
from evorl.training.progress import Budget, Progress
from evorl.training.records.display import LinePrinter, Panel
from evorl.training.records.recorders import JsonLines, select_metrics
from evorl.training.records.rows import make_row
from evorl.training.runs import RunCheckpoint, restore_run
from tests.conftest import leaves_equal
from tests.test_host import events
from tests.test_train import rows
from tests.tiers import program_fixture
from tests.tiny import OFF_POLICY

PRIORS = {"actor_lr": evorl.LogUniform(1e-5, 1e-1), "max_grad_norm": evorl.Uniform(1, 2)}
MEMBER = replace(OFF_POLICY, agent=replace(OFF_POLICY.agent, **PRIORS))
PBT = evorl.PBT(Vmapped(MEMBER, 4), evorl.Truncation(0.25), steps_per_generation=1, search=tuple(PRIORS))
META_ES = MetaES(Vmapped(MEMBER, 4), OpenES(4), lifetime=1, search=tuple(PRIORS))
TINY = [
    "agent=pbt",
    "agent/inner=td3",
    "env=fast",
    "env.max_episode_steps=10",
    "num_seeds=2",
    "seed=5",
    "chunk=2",
    "evaluations=2",
    "agent.workflow.population.size=4",
    "agent.workflow.selection.ratio=0.25",
    "agent.workflow.steps_per_generation=1",
    "agent.inner.workflow.random_steps=40",
    "agent.inner.workflow.capacity=200",
    "agent.inner.workflow.batch_size=8",
    "agent.inner.workflow.eval_episodes=2",
    "agent.inner.workflow.agent.hidden=[8,8]",
]


@program_fixture(scope="module")
def folder(tmp_path_factory):
    """One run of two seeds that was never disturbed, and one that was resumed."""
    folder = tmp_path_factory.mktemp("members")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train.main([*TINY, "run_dir=whole", "iterations=5"])
        train.main([*TINY, "run_dir=resumed", "iterations=2", "evaluations=1"])
        train.main(["resume=resumed", "iterations=5"])
    return folder


def test_members_pass_through_a_reduction_untouched():
    fitness = np.array([[1.0, np.nan], [3.0, 4.0]])
    found = reduce_steps({"env_steps": np.array([3, 4]), "loss": np.array([1.0, 2.0]), "members/fitness": fitness})
    assert (found["env_steps"], found["loss"]) == (7, 1.5)
    np.testing.assert_array_equal(found["members/fitness"], fitness)


def test_a_row_keeps_members_by_seed_and_generation_and_their_spread(tmp_path):
    nan = np.nan
    metrics = {
        "return": np.array([1.0, 2.0]),
        "members/fitness": np.array([[[1.0, 2, 3], [4, 5, 6]], [[7, nan, 3], [nan, nan, nan]]]),  # [generations, seeds]
        "members/source": np.array([[[0, 0, 2], [0, 1, 1]], [[0, 1, 2], [2, 2, 2]]]),
    }
    progress = Progress(divergence_iterations=[None, 4])
    row = make_row(progress, metrics, "train", 0.0)
    assert row["members"]["source"] == [[[0, 0, 2], [0, 1, 2]], [[0, 1, 1], [2, 2, 2]]]
    np.testing.assert_array_equal(row["members"]["fitness"], metrics["members/fitness"].swapaxes(0, 1))
    assert [row[f"fitness_{end}"] for end in ("min", "median", "max")] == [3, 5, 7]  # of the seed that is left
    assert row["seeds"]["fitness_median"][0] == 5
    assert np.isnan(row["seeds"]["fitness_median"][1])
    assert not any(name.startswith("source") for name in [*row, *row["seeds"]])
    counts = {"episodes": np.array([1, 0]), "episode/speed": np.array([10.0, 0.0])}
    assert make_row(Progress(divergence_iterations=[None] * 2), counts, "train", 0.0)["episode/speed"] == 10
    JsonLines(tmp_path)(row)
    written = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert written["members"]["fitness"][0][1] == [7, None, 3]
    assert written["seeds"]["fitness_max"] == [7, None]
    assert {"members", "seeds"}.isdisjoint(select_metrics(row))


def test_populations_of_populations_keep_their_axes():
    metrics = {"return": np.zeros(2), "members/fitness": np.arange(12.0).reshape(3, 2, 2)}
    row = make_row(Progress(), metrics, "train", 0.0)
    np.testing.assert_array_equal(row["members"]["fitness"], [metrics["members/fitness"]])
    assert (row["fitness_min"], row["fitness_median"], row["fitness_max"]) == (8, 9.5, 11)
    row = make_row(Progress(), {"members/return": np.array([[1.0, 2], [3, 4]])}, "evaluation", 0.0)
    assert row["members"]["return"] == [[[[1, 2], [3, 4]]]]
    assert row["return_median"] == 2.5


@pytest.mark.parametrize("workflow", [
    pytest.param(Vmapped(PBT, 2), id="vmapped_pbt", marks=pytest.mark.program),
    pytest.param(META_ES, id="meta_es"),
])  # fmt: skip
def test_other_populations_have_rows_too(workflow):
    program = Program(workflow, [0], 2, False)
    state = jax.eval_shape(program.init, program.keys, {})
    shapes = jax.eval_shape(program.run, state, program.keys, *make_run_args(0, 0, False))[1:]
    metrics, evaluation = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    each = (4,) if workflow is META_ES else (2, 4)
    row = make_row(Progress(), {name: np.asarray(x) for name, x in reduce_steps(metrics).items()}, "train", 0.0)
    assert np.shape(row["members"]["fitness"]) == (1, 2, *each)
    assert member_history([row, row])["agent.actor_lr"].shape == (4, 4)
    row = make_row(Progress(), evaluation, "evaluation", 0.0)
    assert np.shape(row["members"]["return"]) == (1, 1, *each)


def test_rows_of_a_run_hold_every_generation(folder):
    written = [row for row in rows(folder / "whole") if row["kind"] == "train"]
    priors = restore_run(folder / "whole", "run", "last").workflow.search_space.priors
    assert [np.shape(row["members"]["agent.actor_lr"]) for row in written] == [(2, 2, 4), (2, 2, 4), (2, 1, 4)]
    for seed in range(2):
        found = member_history(written, seed)
        lives_on = found["source"] == np.arange(4)
        assert lives_on.sum(1).tolist() == [3] * 5  # one of four takes over from another
        rate = found["agent.actor_lr"]
        before, after = np.take_along_axis(rate, found["source"], 1)[:-1], rate[1:]
        np.testing.assert_array_equal(after[lives_on[:-1]], before[lives_on[:-1]])
        moved, (low, high) = before * np.array([1.2, 1 / 1.2])[:, None, None], priors["agent.actor_lr"].bounds
        moved = np.where(moved > high, high**2 / moved, np.where(moved < low, low**2 / moved, moved))  # mirrored
        np.testing.assert_allclose(np.abs(after / moved - 1).min(0)[~lives_on[:-1]], 0, atol=1e-5)
        last = [row["seeds"]["agent.actor_lr_median"][seed] for row in written]
        np.testing.assert_allclose(last, np.median(rate[[1, 3, 4]], 1), rtol=1e-6)
    evaluated = [row for row in rows(folder / "whole") if row["kind"] == "evaluation"][-1]
    assert np.shape(evaluated["members"]["return"]) == (2, 1, 4)


def test_tables_and_tensorboard_hold_the_spread(folder):
    written = [row for row in rows(folder / "whole") if row["kind"] == "train"]
    with (folder / "whole" / "train.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert "members" not in lines[0]
    expected = [x for row in written for x in row["seeds"]["fitness_max"]]
    assert [float(line["fitness_max"]) for line in lines] == expected
    scalars = {(tag, step): value for tag, step, value in events(folder / "whole" / "tensorboard")}
    for row in written:
        assert scalars["train/fitness_min", row["env_steps"]] == pytest.approx(row["fitness_min"])
        by_seed = [scalars[f"train_by_seed/agent.actor_lr_max/{seed}", row["env_steps"]] for seed in (5, 6)]
        assert by_seed == pytest.approx(row["seeds"]["agent.actor_lr_max"])


def test_displays_show_the_spread(folder, capsys):
    shown, lines = io.StringIO(), LinePrinter(every=0.0)
    panel = Panel("pbt on fast", every=0.0, console=Console(file=shown, force_terminal=True, width=110))
    for row in rows(folder / "whole"):
        panel(row)
    panel.close()
    for row in rows(folder / "whole"):
        lines(row)
    trained, evaluated = rows(folder / "whole")[-2:]
    spread = " / ".join(f"{trained[f'fitness_{end}']:.1f}" for end in ("min", "median", "max"))
    *_, line, last = capsys.readouterr().out.splitlines()
    assert f"fitness {spread}" in line
    assert f"members {evaluated['return_min']:.1f} / " in last
    for fact in ("fitness", spread, "actor_lr", f"{trained['agent.actor_lr_min']:.3g} / ", "min / median / max"):
        assert fact in shown.getvalue().rpartition("pbt on fast")[2]


@pytest.mark.program
def test_a_resumed_run_is_the_undisturbed_one(folder):
    trained = [[row for row in rows(folder / name) if row["kind"] == "train"] for name in ("whole", "resumed")]
    for a, b in zip(*trained, strict=True):
        assert a["members"] == b["members"]
        assert (a["iteration"], a["seeds"]) == (b["iteration"], b["seeds"])
    states = [restore_run(folder / name, "run", "last").state for name in ("whole", "resumed")]
    assert leaves_equal(*states)


def test_members_of_a_run_are_loaded(folder):
    found = restore_run(folder / "whole", "run", "last")
    for seed in (5, 6):
        state = tree.index(found.state, seed - 5)
        best = int(np.nanargmax(state.fitness))
        chosen = [found.select_policy(seed, member)[1] for member in (None, best, 0)]
        assert leaves_equal(chosen[0], tree.index(state.members, best))
        assert leaves_equal(chosen[1], chosen[0])
        assert leaves_equal(chosen[2], tree.index(state.members, 0))
    obs = np.zeros(evorl.load(folder / "whole").env.observation_space.shape)
    actions = [evorl.load(folder / "whole", member=i, seed=5)(obs) for i in range(4)]
    assert len(np.unique(np.stack(actions))) > 1
    for wrong in (4, -1):
        with pytest.raises(OptionError, match=f"^member={wrong}: must be from 0 to 3$"):
            evorl.load(folder / "whole", member=wrong)


def made(workflow):
    """What a run of the workflow would hold before its first step, its last member the fittest."""
    state = jax.jit(workflow.init)(jax.random.key(0))
    if hasattr(state, "fitness"):
        state = state.replace(fitness=jnp.broadcast_to(jnp.arange(4.0), state.fitness.shape))
    cfg = OmegaConf.create({"num_seeds": 1, "seed": 0, "agent": {"name": "mine"}})
    returns = np.array([3.0, 5.0, 4.0]) if isinstance(workflow, Vmapped) else np.array(5.0)
    return RunCheckpoint(cfg, workflow, state, returns)


@pytest.mark.program
def test_members_of_nested_populations_are_found():
    found = made(Vmapped(PBT, 3))
    for member, outer in ((None, 1), (0, 0), (2, 2)):
        workflow, state = found.select_policy(None, member)
        assert workflow is MEMBER
        assert leaves_equal(state, tree.index(tree.index(found.state.members, outer), 3))
    for member, outer, inner in (([2, 0], 2, 0), ([2], 2, 3), ([None, 1], 1, 1), ((0, 2), 0, 2)):
        _, state = found.select_policy(None, member)
        assert leaves_equal(state, tree.index(tree.index(found.state.members, outer), inner))
    for member, message in (
        (3, "must be from 0 to 2"),
        ([3, 0], "index 1 must be from 0 to 2"),
        ([2, 4], "index 2 must be from 0 to 3"),
        ([2, 0, 1], "must have at most 2 indices, one per nested population"),
        ([True], "must be an index, or a list of one index per nested population, outermost first: [2, 0]"),
    ):
        with pytest.raises(OptionError, match=f"^{re.escape(f'member={member}: {message}')}$"):
            found.select_policy(None, member)
    shared = made(replace(PBT, population=SharedReplay(MEMBER, 4)))
    for member in (None, 3):
        assert leaves_equal(shared.select_policy(None, member)[1].agent, tree.index(shared.state.members.agent, 3))


@pytest.mark.parametrize("member", [None, 2])
def test_what_trains_no_policy_that_lasts_says_so(member):
    with pytest.raises(OptionError, match=r"^agent=mine: MetaES has no policy; train an agent with its results$"):
        made(META_ES).select_policy(None, member)


def test_pbt_has_diverged_where_all_of_its_members_have():
    program = Program(PBT, [0], 1, False)
    state = jax.jit(program.init)(program.keys, {})
    sentinel = DivergenceMonitor(program, state)
    members, fitness = state.members, state.fitness
    for member in range(4):
        assert sentinel.find_diverged(np.asarray(sentinel.find_nonfinite(state))) == [None]
        members = jax.tree_util.tree_map_with_path(
            lambda path, x, i=member: x.at[i].set(jnp.nan) if "mu" in str(path) else x, members
        )
        fitness = fitness.at[member].set(jnp.nan)
        state = state.replace(members=members, fitness=fitness)
    assert sentinel.find_diverged(np.asarray(sentinel.find_nonfinite(state))) == [
        "agent.actor.opt_state.mu.params.MLP_0.Dense_0.bias"
    ]


@pytest.mark.program
def test_lost_members_are_replaced_and_a_run_goes_on(monkeypatch):
    """A member with NaN weights takes over from another; only where none is left the run has diverged."""
    for lost, ends in ((3, False), (4, True)):
        init = evorl.PBT.init

        def broken(self, *arguments, lost=lost, init=init):
            state = init(self, *arguments)
            weights = jax.tree.map(lambda x: x.at[:lost].set(jnp.nan), state.members.agent.actor.params)
            agent = state.members.agent
            agent = agent.replace(actor=agent.actor.replace(params=weights))
            return state.replace(members=state.members.replace(agent=agent))

        with monkeypatch.context() as patch:
            patch.setattr(evorl.PBT, "init", broken)
            run = lambda: fit(PBT, 0, Budget(iterations=2), evaluations=1)  # noqa: E731
            if ends:
                with pytest.raises(DivergedError, match=r"diverged: .* is not finite after iteration 1"):
                    run()
            else:
                first = next(row for row in run().rows if row["kind"] == "train")
                assert first["members"]["source"] == [[[3, 3, 3, 3]]]
                assert np.isnan(first["members"]["fitness"][0][0][:3]).all()
                assert np.isfinite(first["fitness_median"])


def test_the_lineage_of_a_run_is_drawn(folder, capsys):
    pytest.importorskip("matplotlib")
    lineage.main([str(folder / "whole"), "seed=6"])
    assert (folder / "whole" / "lineage.png").stat().st_size > 5000
    with pytest.raises(SystemExit):
        lineage.main([str(folder / "whole"), "seed=7"])
    assert "seed=7: must be from 5 to 6" in capsys.readouterr().err
