"""Prioritized level replay: which levels are played, what is kept of them, and what is learned from."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy, OpenES, tree
from evorl.agents import PPO
from evorl.agents.base_agent import fill_spaces
from evorl.envs.maze import Maze, RandomWalls
from evorl.envs.maze.generators import place_start_and_goal
from evorl.envs.physics import Physics
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU
from evorl.parts import bind, resolve_numbers
from evorl.priors import Uniform
from evorl.ued import (
    Curation,
    Learnability,
    LevelBuffer,
    MaxMC,
    NegativeReturn,
    PositiveValueLoss,
    TrueRegret,
    ValueDisagreement,
)
from evorl.ued.generators import EvolvedLevels
from evorl.ued.plr import PLR
from evorl.workflows.minibatch_epochs import standardize
from tests import iterating
from tests.conftest import leaves_equal
from tests.tiers import program_fixture

ENV = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
AGENT = fill_spaces(PPO(hidden=(4,), core=GRU(3)), ENV)
SETTINGS = {"num_envs": 4, "num_steps": 15, "num_epochs": 1, "batch_size": 30, "eval_episodes": 6}
STUDENT = OnPolicy(ENV, AGENT, **SETTINGS, normalize_observations=False, normalize_values=False)
ALWAYS = {"replay_prob": 1.0}  # once half full


def played(workflow, count):
    """The states, what was dealt, what was played and the metrics of some iterations."""
    return [(before, *others) for before, _, *others in iterating.iterations(workflow, count)]


@program_fixture(scope="module")
def serial():
    return played(PLR(STUDENT, capacity=8, num_edits=2, **ALWAYS), 8)


@program_fixture(scope="module")
def at_once():
    return played(PLR(STUDENT, capacity=8, num_edits=2, parallel=True, repeats=2), 6)


def kinds(history):
    return ["new" if d.is_generated else "replays" if d.is_replay else "children" for _, d, *_ in history]


def same_agent(a, b):
    return leaves_equal(a.student.agent.actor.params, b.student.agent.actor.params)


def test_new_levels_fill_half_of_the_buffer_and_children_follow_replays(serial):
    assert kinds(serial) == ["new", "replays", "children"] + ["replays", "children"] * 2 + ["replays"]


def test_only_replays_are_learned_from(serial):
    for kind, (before, _, _, metrics, after) in zip(kinds(serial), serial, strict=True):
        assert same_agent(before, after) == (kind != "replays")
        assert int(metrics["gradient_steps"]) == (2 if kind == "replays" else 0)
        assert float(metrics["levels/replayed"]) == (kind == "replays")


@pytest.mark.program
def test_where_it_is_not_robust_all_is_learned_from():
    for before, _, _, metrics, after in played(PLR(STUDENT, capacity=8, robust=False), 2):
        assert not same_agent(before, after)
        assert int(metrics["gradient_steps"]) == 2


def test_each_env_plays_its_level_from_the_initial_memory(serial, at_once):
    for history, repeats in ((serial, 1), (at_once, 2)):
        for _, dealt, seen, *_ in history:
            levels = jax.tree.map(lambda x, n=repeats: np.repeat(x, n, axis=0), dealt.levels)
            assert leaves_equal(seen.envs.env_state.level, levels)
            first = tree.index(seen.stored, 0)
            assert not np.asarray(jax.tree.leaves(first.memory)[0]).any()
            begun = jax.vmap(ENV.reset_to_level, (None, 0))(jax.random.key(0), levels)[1]
            assert leaves_equal(first.obs, begun)
            begins = np.asarray(seen.stored.is_done)[:-1]  # whoever ended begins anew, there and without memory
            memory = np.asarray(jax.tree.leaves(seen.stored.memory)[0])[1:]
            assert not memory[begins].any()
            assert begins.any()


@pytest.mark.program
def test_replays_are_the_buffers_and_children_theirs(serial):
    parents = None
    for kind, (before, dealt, *_) in zip(kinds(serial), serial, strict=True):
        if kind == "replays":
            assert leaves_equal(dealt.levels, before.buffer.get_levels(dealt.buffer_indices))
            parents = dealt.levels
        if kind == "children":
            edited = np.asarray(dealt.levels.grid != parents.grid).sum((1, 2))
            moved = np.asarray((dealt.levels.goal != parents.goal).any(-1))
            assert (edited + moved <= 2).all()  # two edits each
            assert (edited + moved).any()


def test_what_is_kept_is_what_the_buffer_keeps_of_the_scores(serial):
    """Places, scores, ages and highest returns, by the buffer's own operations on scores that NumPy computes."""
    for kind, (before, dealt, seen, _, after) in zip(kinds(serial), serial, strict=True):
        student = PLR(STUDENT, capacity=8, num_edits=2).student_state(before)
        value = np.asarray(STUDENT.build_batch(student, seen.stored).value, np.float64)
        reward, ended = np.asarray(seen.stored.reward, np.float64), np.asarray(seen.stored.is_done)
        known = (
            np.asarray(before.buffer.score_table.best[dealt.buffer_indices])
            if kind == "replays"
            else np.full(4, -np.inf)
        )
        score, highest = np.full(4, np.nan), np.full(4, -np.inf)
        for index in range(4):
            ends = np.flatnonzero(ended[:, index])
            spans = list(zip([0, *(ends[:-1] + 1)], ends + 1, strict=True))
            if spans:
                highest[index] = max(reward[a:b, index].sum() for a, b in spans)
                best = max(highest[index], known[index])
                score[index] = np.mean([(best - value[a:b, index]).mean() for a, b in spans])
        h, n = Curation(), jnp.full(4, jnp.nan)
        score, highest = jnp.float32(score), jnp.float32(highest)
        _, buffer = before.buffer.sample_indices(jax.random.key(0), 4, h, False)
        if kind == "replays":
            buffer = replace(buffer, score_table=replace(buffer.score_table, age=dealt.ages)).update_scores(
                dealt.buffer_indices, score, highest
            )
        buffer = buffer.insert_levels(dealt.levels, n if kind == "replays" else score, highest, ENV.is_same_level, h)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.buffer, buffer)


@pytest.mark.program
def test_side_by_side_all_three_are_played_and_replays_learned_from(at_once):
    for i, (before, dealt, _, metrics, after) in enumerate(at_once):
        ready = int(before.buffer.size) >= 4
        assert bool(dealt.is_replay) == ready
        assert int(metrics["env_steps"]) == 3 * 60
        assert same_agent(before, after) != ready
        new, again, children = np.asarray(dealt.is_new).reshape(3, 2)
        assert new.all()
        assert not again.any()
        assert children.all() == bool(before.children_due)
        assert bool(after.children_due) == ready
        assert i > 0 or not ready


def test_side_by_side_nothing_is_learned_from_new_levels(at_once):
    """Other rewards on new levels and on children leave the agent as it is, on replays not."""
    workflow = PLR(STUDENT, capacity=8, num_edits=2, parallel=True, repeats=2)
    before, dealt, seen, *_ = at_once[-1]
    absorb = jax.jit(
        lambda stored: workflow.bound(before).learn_from(
            before, dealt, replace(seen, stored=stored), jax.random.key(5)
        )[0]
    )

    def rewarded(envs):
        return absorb(replace(seen.stored, reward=seen.stored.reward.at[:, envs].add(1.0)))

    after = absorb(seen.stored)
    assert not same_agent(before, after)
    assert same_agent(after, rewarded(jnp.r_[0:4, 8:12]))
    assert not same_agent(after, rewarded(jnp.r_[4:8]))


@pytest.mark.program
def test_an_evolver_is_told_of_its_own_levels_alone():
    evolver = OpenES(4)
    generator = EvolvedLevels(
        evolver, lambda genome: place_start_and_goal(jax.random.key(0), genome.reshape(4, 4) > 0), 16
    )
    history = played(PLR(STUDENT, generator, NegativeReturn(), capacity=8), 6)
    assert {"new", "replays"} == set(kinds(history))
    for kind, (before, *_, after) in zip(kinds(history), history, strict=True):
        assert leaves_equal(before.generator, after.generator) == (kind == "replays")
    with pytest.raises(OptionError, match="population_size=6: must be the number of levels per iteration, 4"):
        played(PLR(STUDENT, EvolvedLevels(OpenES(6), generator.decode, 16), capacity=8), 0)


def test_evaluations_are_of_fresh_levels(serial):
    workflow = PLR(STUDENT, capacity=8, num_edits=2)
    plan = workflow.plan_evaluation(serial[-1][-1], jax.random.key(3))
    levels = tree.merge_axes(plan.starts.levels)
    assert len({bytes(np.asarray(x)) for x in levels.walls}) > 4
    evaluation = jax.jit(workflow.evaluate)(serial[-1][-1], jax.random.key(3))
    assert int(evaluation["episodes"]) == 6


CARTPOLE = Gymnax("CartPole-v1", max_episode_steps=5)
FRAMES = FrameStack(ENV, 2)


def on(env):
    """The student on another environment."""
    return replace(STUDENT, env=env, agent=PPO(hidden=(4,)))


POLES = Physics(CARTPOLE, {"length": Uniform(0.5, 1)})


@pytest.mark.parametrize(("options", "message"), [
    ({"student": on(CARTPOLE)}, "env=Gymnax: has no levels"),
    ({"student": on(FRAMES)}, "env=FrameStack: has no levels"),
    ({"student": on(POLES), "score": Learnability()}, "score=Learnability: no return solves a level of Physics"),
    ({"capacity": 3}, "capacity=3: must be at least 4"),
    ({"student": replace(STUDENT, num_steps=5, batch_size=20)}, "num_steps=5: must be at least max_episode_steps"),
    ({"repeats": 3}, "repeats=3: must divide num_envs, 4"),
    ({"student": replace(STUDENT, num_steps=6, batch_size=24), "score": Learnability()},
     "score=Learnability: needs at least 2 complete episodes"),
    ({"num_edits": -1}, "num_edits=-1: must not be negative"),
    ({"prioritization": "ranks"}, "unknown prioritization ranks; did you mean rank"),
    ({"prioritization": "proportional"}, "prioritization=proportional: must be rank, because MaxMC"),
    ({"score": ValueDisagreement()}, "score=ValueDisagreement: needs a student with several value functions"),
    ({"robust": False, "parallel": True}, "robust=False: must be true with parallel=true"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        PLR(**{"student": STUDENT, "capacity": 8} | options)


def test_physics_that_says_what_solves_it_has_learnability():
    env = replace(POLES, solved_return=3.0)
    assert PLR(on(env), score=Learnability(), capacity=8, repeats=2).env is env


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"staleness": 1.5}, "curation.staleness=1.5: must be between 0 and 1"),
        ({"staleness": -0.1}, "curation.staleness=-0.1: must be between 0 and 1"),
        ({"temperature": 0.0}, "curation.temperature=0.0: must be between 0.001 and inf"),
        ({"temperature": -1.0}, "curation.temperature=-1.0: must be between 0.001 and inf"),
        ({"temperature": float("nan")}, "curation.temperature=nan: must be between"),
    ],
)
def test_hyperparameters_out_of_range_are_refused(given, message):
    with pytest.raises(OptionError, match=message):
        resolve_numbers(PLR(STUDENT, capacity=8), {"curation": given})


@pytest.mark.parametrize("score", [MaxMC(), PositiveValueLoss(), TrueRegret()])
def test_scores_of_one_student_fit(score):
    state = jax.eval_shape(lambda key: PLR(STUDENT, score=score, capacity=8).init(key), jax.random.key(0))
    assert isinstance(state.buffer, LevelBuffer)


@pytest.mark.program
def test_values_that_disagree_score_levels_and_each_learns_as_it_would_alone():
    """The score by NumPy; with one value more, the loss is the mean of those that each has by itself."""
    several = replace(AGENT, num_values=3)
    student = replace(STUDENT, agent=several)
    workflow = PLR(student, score=ValueDisagreement(), capacity=8)
    (state, _, seen, metrics, _), *_ = played(workflow, 1)
    learner = workflow.student_state(state)
    batch = jax.jit(student.build_batch)(learner, seen.stored)
    assert batch.ensemble_values.shape == (15, 4, 3)
    np.testing.assert_allclose(batch.value, batch.ensemble_values.mean(-1), rtol=1e-6)
    spread, ended, scores = np.asarray(batch.ensemble_values).std(-1), np.asarray(seen.stored.is_done), []
    for index in range(4):
        ends = np.flatnonzero(ended[:, index]) + 1
        means = [spread[a:b, index].mean() for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        scores.append(np.mean(means))
    np.testing.assert_allclose(metrics["levels/score"], np.mean(scores), rtol=1e-5)

    h, params = learner.numbers["agent"], learner.agent.actor.params
    segments = student.split_batch(replace(batch, advantage=standardize(batch.advantage)))
    loss, found = bind(several, h).loss(params, segments)
    alone = []
    for i in range(3):
        weights = params["params"]
        own = {name: x for name, x in weights.items() if not name.startswith("value_")}
        own = {"params": own | {"value": weights[f"value_{i}"]}}
        alone.append(
            bind(AGENT, h).loss(own, replace(segments, value=segments.ensemble_values[..., i], ensemble_values=None))
        )
    np.testing.assert_allclose(loss, np.mean([float(x) for x, _ in alone]), rtol=1e-5)
    for name in ("actor_loss", "entropy"):
        np.testing.assert_allclose(found[name], alone[0][1][name], rtol=1e-5, atol=1e-7)
