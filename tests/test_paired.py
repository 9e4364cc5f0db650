"""A teacher that makes levels: what it makes is what is played, and it is rewarded by what the students do there."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import OnPolicy, tree
from evorl.agents import PPO
from evorl.envs.maze import Maze, MazeEditor, RandomWalls
from evorl.envs.suites.gymnax import Gymnax
from evorl.errors import OptionError
from evorl.networks.recurrent import GRU
from evorl.ued import Learnability, MaxMC, NegativeReturn, PopulationRegret, TrueRegret, ValueDisagreement
from evorl.ued.paired import PAIRED
from tests import iterating
from tests.conftest import leaves_equal
from tests.tiers import program_fixture

ENV = Maze(RandomWalls(4, 4, fewest=3, most=3), view_size=3, max_episode_steps=6, num_actions=3)
AGENT = PPO(hidden=(4,), core=GRU(3))
STUDENT = OnPolicy(ENV, AGENT, 4, 15, 1, 30, normalize_observations=False, eval_episodes=6)
EDITOR = ENV.make_editor()
MAKER = PPO(hidden=(4,))
TEACHER = OnPolicy(EDITOR, MAKER, num_envs=2, num_steps=0, num_epochs=2, batch_size=0)


def iterations(workflow, count):
    """Of some iterations the state before, what was made, what was played, the metrics and the state after."""
    return [(before, *others) for before, _, *others in iterating.iterations(workflow, count)]


@program_fixture(scope="module")
def paired():
    return iterations(PAIRED(STUDENT, TEACHER), 4)


def returns(seen, student, index):
    """Of the ended episodes of a student in an environment, in NumPy."""
    reward, ended = (np.asarray(x[student, :, index]) for x in (seen.stored.reward, seen.stored.is_done))
    ends = np.flatnonzero(ended) + 1
    return [reward[a:b].sum() for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def test_what_the_actions_of_the_teacher_draw_is_what_every_student_plays(paired):
    for _, made, seen, *_ in paired:
        assert made.teacher_transitions.action.shape == (5, 2)  # three walls, the goal, the start
        for index in range(4):  # two of each level
            actions = np.asarray(made.teacher_transitions.action[:, index // 2])
            for student in range(2):
                level = tree.index(tree.index(seen.envs.env_state.level, student), index)
                grid = np.zeros(16, bool)
                grid[actions[:3]] = True
                start = int(level.agent[1] * 4 + level.agent[0])
                grid[[actions[3], start]] = False
                np.testing.assert_array_equal(np.asarray(level.grid).ravel(), grid)
                assert int(level.goal[1] * 4 + level.goal[0]) == actions[3]
                assert start == actions[4] or actions[4] == actions[3]


def test_every_student_begins_each_level_without_memory(paired):
    for _, _, seen, *_ in paired:
        memory = np.asarray(jax.tree.leaves(seen.stored.memory)[0])
        assert not memory[:, 0].any()
        assert not memory[:, 1:][np.asarray(seen.stored.is_done)[:, :-1]].any()


def test_the_last_reward_of_the_teacher_is_the_regret_of_its_level(paired):
    """By NumPy, highest return of student 1 less mean return of student 0, in both environments of a level."""
    seen_scores, learn = [], jax.jit(TEACHER.learn)
    for before, made, seen, metrics, after in paired:
        score = np.zeros(2, np.float32)
        for level in range(2):
            own = [x for index in (2 * level, 2 * level + 1) for x in returns(seen, 0, index)]
            other = [x for index in (2 * level, 2 * level + 1) for x in returns(seen, 1, index)]
            score[level] = max(max(other) - np.mean(own), 0)
        np.testing.assert_allclose(metrics["levels/score"], score.mean(), rtol=1e-5)
        assert not np.asarray(made.teacher_transitions.reward).any()
        reward = jnp.zeros((5, 2)).at[4].set(score)
        key = jax.random.split(jax.random.key(len(seen_scores)))[1]
        alone, _ = learn(made.teacher, replace(made.teacher_transitions, reward=reward), key)
        learned = after.teacher.agent.actor.params
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), learned, alone.agent.actor.params)
        assert not leaves_equal(before.teacher.agent.actor.params, learned)
        seen_scores.append(score)
    assert np.concatenate(seen_scores).any()


def test_each_student_learns_as_it_would_alone(paired):
    before, _, seen, _, after = paired[-1]
    workflow = PAIRED(STUDENT, TEACHER)
    keys = jax.random.split(jax.random.split(jax.random.key(3))[0], 2)
    for i in range(2):
        alone = replace(
            tree.index(before.students, i),
            numbers=before.numbers["student"],
            env_params=before.env_params,
            envs=tree.index(seen.envs, i),
        )
        alone, _ = jax.jit(STUDENT.learn)(alone, tree.index(seen.stored, i), keys[i])
        learned = tree.index(after.students, i).agent.actor.params
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), learned, alone.agent.actor.params)
    assert workflow.iteration_cost == {"env_steps": (120, 120), "gradient_steps": (4, 4)}
    assert int(paired[-1][3]["env_steps"]) == 120
    assert int(paired[-1][3]["gradient_steps"]) == 4


def test_student_0_is_evaluated_and_acts(paired):
    workflow, state = PAIRED(STUDENT, TEACHER), paired[-1][-1]
    evaluate = jax.jit(workflow.evaluate)

    def strange(student):
        return replace(state, students=jax.tree.map(lambda x: x.at[student].set(0 * x[student]), state.students))

    for found, same in ((strange(1), True), (strange(0), False)):
        params = [workflow.main_student_state(x).agent.actor.params for x in (state, found)]
        assert leaves_equal(*params) == same
    evaluations = [dict(evaluate(x, jax.random.key(5))) for x in (state, strange(1))]
    measured = [int(found.pop("measured_steps")) for found in evaluations]  # those of student 1
    assert min(measured) > 0
    assert leaves_equal(*evaluations)
    assert int(evaluations[0]["episodes"]) == 6


def test_rows_have_the_episodes_of_student_0_and_the_steps_of_all(paired):
    for *_, seen, metrics, _ in paired:
        ended = [x for index in range(4) for x in returns(seen, 0, index)]
        assert int(metrics["episodes"]) == len(ended)
        np.testing.assert_allclose(metrics["return"], np.mean(ended), rtol=1e-5)
        assert int(metrics["env_steps"]) == 2 * 4 * 15


@pytest.mark.program
def test_a_minimax_teacher_is_rewarded_by_what_its_only_student_does_not_get():
    for *_, seen, metrics, _ in iterations(PAIRED(STUDENT, TEACHER, 1, NegativeReturn()), 2):
        means = [np.mean([x for index in (0, 1) for x in returns(seen, 0, 2 * level + index)]) for level in range(2)]
        np.testing.assert_allclose(metrics["levels/score"], -np.mean(means), rtol=1e-5, atol=1e-7)


OTHER_SCORES = [(3, PopulationRegret()), (1, TrueRegret()), (1, Learnability()), (2, MaxMC())]


@pytest.mark.program
@pytest.mark.parametrize(("students", "score"), OTHER_SCORES)
def test_other_scores_fit(students, score):
    workflow = PAIRED(STUDENT, TEACHER, students, score)

    def metrics(key):
        return workflow.step(workflow.init(key), key)[1]

    assert jax.eval_shape(metrics, jax.random.key(0))["levels/score"].shape == ()


CARTPOLE = Gymnax("CartPole-v1")
OF_CARTPOLE = PPO()
LARGER = replace(ENV, levels=RandomWalls(5, 5, fewest=3, most=3))


@pytest.mark.parametrize(("options", "message"), [
    ({"num_students": 1}, "num_students=1: RelativeRegret needs at least 2"),
    ({"num_students": 0}, "num_students=0: must be at least 1"),
    ({"student": replace(STUDENT, env=CARTPOLE)}, "env=Gymnax: has no levels"),
    ({"student": replace(STUDENT, num_steps=5, batch_size=20)}, "num_steps=5: must be at least max_episode_steps"),
    ({"teacher": replace(TEACHER, num_envs=3, batch_size=0)}, "teacher.num_envs=3: must divide num_envs of the"),
    ({"teacher": replace(TEACHER, num_steps=4, batch_size=0)}, "num_steps=4: must be the number of steps that build"),
    ({"teacher": OnPolicy(CARTPOLE, OF_CARTPOLE, 2, batch_size=0)}, "teacher.env=Gymnax: must implement evorl.types"),
    ({"teacher": replace(TEACHER, env=LARGER.make_editor())}, "teacher.env=MazeEditor: its levels must have the"),
    ({"score": ValueDisagreement()}, "score=ValueDisagreement: needs a student with several value functions"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        PAIRED(**{"student": STUDENT, "teacher": TEACHER} | options)


def test_a_teacher_of_another_number_of_walls_fits():
    editor = MazeEditor(ENV.levels, num_walls=6)
    assert PAIRED(STUDENT, replace(TEACHER, env=editor, num_steps=0, batch_size=0)).teacher.num_steps == 8
