"""Evolution on functions: the problems, against numbers by hand and pymoo's, the workflow, and its configuration."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import evorl
from evorl import tree
from evorl.agents import MLPPolicy
from evorl.agents.base_agent import fill_spaces
from evorl.bounds import BoundTransform
from evorl.cli import play, train
from evorl.ec import CMAES, NSGA2, RVEA, LowRankES
from evorl.ec.variation import BoundedSBX, PolynomialMutation
from evorl.envs.sanity.continuous import Continuous
from evorl.errors import OptionError
from evorl.parts import bind, part, read_numbers
from evorl.plots.fronts import plot_front
from evorl.problems import BBOB, DTLZ, ZDT, Arm, Sphere
from evorl.training import runs
from evorl.training.configuration import config, discovery
from evorl.training.pareto_front import Front, with_solution
from evorl.types import Evolver, Problem, QDEvaluation
from evorl.workflows import Evolution, Search
from tests.conftest import leaves_equal
from tests.tiny import Walk

KEY = jax.random.key(0)
PROBLEMS = [
    *(ZDT(number, 6) for number in (1, 2, 3, 4, 6)),
    *(DTLZ(number, m, 4) for number in (1, 2) for m in (2, 3, 5)),
    *(Sphere(4), Arm(4), BBOB("rastrigin", 4)),
]


def values(problem, rows):
    return np.asarray(jax.vmap(lambda x: problem.evaluate(KEY, x))(jnp.asarray(rows, jnp.float32)))


@pytest.mark.program
@pytest.mark.parametrize("problem", PROBLEMS, ids=repr)
def test_a_problem_draws_within_its_bounds_and_has_finite_fitness(problem):
    assert isinstance(problem, Problem)
    rows = jax.vmap(problem.init)(jax.random.split(KEY, 64))
    low, high = (np.asarray(bound, np.float32) for bound in problem.bounds)
    assert (rows >= low).all()
    assert (rows <= high).all()
    assert (np.asarray(rows) < (low + high) / 2).any(0).all()
    fitness = jax.vmap(problem.evaluate, (None, 0))(KEY, rows)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fitness))


@pytest.mark.parametrize("problem", [one for one in PROBLEMS if isinstance(one, (ZDT, DTLZ))], ids=repr)
def test_zdt_and_dtlz_are_pymoos(problem):
    get_problem = pytest.importorskip("pymoo.problems").get_problem
    rows = np.asarray(jax.vmap(problem.init)(jax.random.split(KEY, 64)), float)
    name = f"{type(problem).__name__.lower()}{problem.number}"
    several = {"n_obj": problem.num_objectives} if isinstance(problem, DTLZ) else {}
    theirs = get_problem(name, n_var=rows.shape[1], **several)
    np.testing.assert_allclose(-values(problem, rows), theirs.evaluate(rows), rtol=2e-5, atol=2e-5)


def test_zdt_by_hand():
    """Zitzler et al. 2000, eq. 9 to 12, at one point: g is 6.1, 34.2302 and 8.80869."""
    x = [[0.3, 0.2, 0.6, 0.9]]
    np.testing.assert_allclose(values(ZDT(3, 4), x)[0], [-0.3, -4.7472251], rtol=1e-5)
    np.testing.assert_allclose(values(ZDT(4, 4), [[0.3, -2.0, 0.5, 3.3]])[0], [-0.3, -31.0256339], rtol=1e-5)
    np.testing.assert_allclose(values(ZDT(6, 4), x)[0], [-0.9875789, -8.6979000], rtol=1e-5)


def test_fronts_by_hand():
    """Where g = 1: f2 = 1 - sqrt(f1), 1 - f1^2; DTLZ1's sum is 1/2, DTLZ2's radius 1; at x = 1/2, g of ZDT1 is 5.5."""
    x = np.array([[0.25, 0, 0, 0], [0.25, 0.5, 0.5, 0.5]])
    np.testing.assert_allclose(values(ZDT(1), x)[0], [-0.25, -0.5], rtol=1e-6)
    np.testing.assert_allclose(values(ZDT(2), x)[0], [-0.25, -15 / 16], rtol=1e-6)
    np.testing.assert_allclose(values(ZDT(1), x)[1], [-0.25, -(5.5 - np.sqrt(5.5 * 0.25))], rtol=1e-6)
    half = np.array([[0.3, 0.6, 0.5, 0.5]])
    np.testing.assert_allclose(values(DTLZ(1, 3, 2), half).sum(), -0.5, rtol=1e-5)
    np.testing.assert_allclose((values(DTLZ(2, 3, 2), half) ** 2).sum(), 1, rtol=1e-6)


@pytest.mark.parametrize(("names", "descriptors", "labels"), [
    (("f", "g", "h"), 0, [("f", "g"), ("f", "h")]),
    (("return",), 2, [("descriptor/0", "descriptor/1")]),
])  # fmt: skip
def test_each_objective_is_drawn_beside_the_first(names, descriptors, labels):
    values = np.arange(2.0 * len(names)).reshape(2, -1)
    charts = plot_front(Front(names, values, (), np.ones((2, descriptors)), 2))
    axes = [chart.spec["encoding"] for chart in charts]
    assert [(axis["x"]["title"], axis["y"]["title"]) for axis in axes] == labels
    drawn = [chart.tables["rows"].columns for chart in charts]
    if len(names) > 1:
        assert [np.stack([table["x"], table["y"]], 1).tolist() for table in drawn] == [
            values[:, [0, i]].tolist() for i in range(1, len(names))
        ]
    else:
        np.testing.assert_array_equal(drawn[0]["value"], values[:, 0])


def test_sphere_arm_and_bbob_by_hand():
    """An arm bent by a quarter twice ends at (0 - 1 + ..): links along +y and -x."""
    assert values(Sphere(3), [[1, -2, 3]]) == -14
    quality = Arm(2).evaluate(KEY, jnp.array([np.pi / 2, np.pi / 2]))
    assert isinstance(quality, QDEvaluation)
    np.testing.assert_allclose(quality.fitness, 0, atol=1e-6)
    np.testing.assert_allclose(quality.descriptor, [-0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(Arm(2).evaluate(KEY, jnp.array([0.0, 1.0])).fitness, -0.25)
    problem = BBOB("sphere", 3)
    optimum = np.asarray(problem.problem.x_opt)
    np.testing.assert_allclose(values(problem, [optimum, optimum + np.array([1, 0, -2])]), [0, -5], atol=1e-4)


def searched(workflow, steps, key=KEY):
    def run(key):
        state = workflow.init(key)
        return jax.lax.scan(workflow.step, state, jax.random.split(key, steps))

    return jax.jit(run)(key)


@dataclass(frozen=True)
class Noisy(Sphere):
    def evaluate(self, key, params):
        return super().evaluate(key, params) + jax.random.normal(key)


def test_a_problem_is_random_if_its_value_depends_on_the_key():
    problems = Sphere(2), Arm(4), BBOB("rastrigin", 2), Noisy(2)
    assert [Search(problem, CMAES(4)).is_random for problem in problems] == [False, False, False, True]


@pytest.mark.program
def test_a_search_of_one_objective_finds_it_with_any_evolver():
    workflow = Search(Sphere(3), CMAES(12))
    state, metrics = searched(workflow, 60)
    evaluation = workflow.evaluate(state, KEY)
    assert -1e-4 < float(evaluation["return"]) <= 0
    assert (
        float(workflow.count_env_steps(state))
        == 60 * 12
        == int(metrics["env_steps"].sum())
        == int(metrics["episodes"].sum())
    )
    solution = workflow.evolver_with_bounds.solution(state.evolver)
    np.testing.assert_allclose(evaluation["return"], values(workflow.problem, solution[None])[0], rtol=1e-5)
    np.testing.assert_array_equal(metrics["return_best"][0] >= metrics["return"][0], True)


@part
class Best(Evolver):
    """Keeps who has the highest of what it asks for."""

    population_size: int = 4
    by: str = "descriptor"

    def init(self, key, mean):
        return mean

    def ask(self, key, state):
        return 100 * jax.random.normal(key, (self.population_size, *state.shape)), state

    def compute_fitness(self, means):
        return QDEvaluation(means["return"], means[self.by])

    def tell(self, key, genomes, fitness, state):
        return genomes[0], {"end": fitness.descriptor[0], "worth": fitness.fitness[0]}

    def solution(self, state):
        return state


@pytest.mark.program
def test_an_evolver_that_asks_for_it_is_told_of_descriptors_and_members_are_mapped_into_the_bounds():
    workflow = Search(Arm(3), Best())
    state, metrics = searched(workflow, 1)
    inside = BoundTransform(-np.pi, np.pi).fold(state.evolver)
    assert np.abs(inside).max() <= np.float32(np.pi)
    expected = Arm(3).evaluate(KEY, inside)
    np.testing.assert_allclose(metrics["end"][0], expected.descriptor, atol=1e-6)
    np.testing.assert_allclose(metrics["worth"][0], expected.fitness, rtol=1e-6)
    assert np.abs(np.asarray(state.evolver)).max() > np.pi


@pytest.mark.program
def test_a_front_stays_within_the_bounds_of_its_problem():
    workflow = Search(ZDT(4, 5), NSGA2(16))
    state, _ = searched(workflow, 20)
    low, high = workflow.problem.bounds
    assert (state.evolver.children >= np.array(low)).all()
    assert (state.evolver.children <= np.array(high)).all()
    assert workflow.evolver_with_bounds.objectives == {"return/0": 1.0, "return/1": 1.0}


@dataclass(frozen=True)
class Table(Sphere):
    """Whose fitness is none."""

    def evaluate(self, key, params):
        return jnp.zeros((2, 2))


def test_what_cannot_be_searched_is_refused_in_a_line():
    with pytest.raises(OptionError, match="evolver=LowRankES: generates policies from seeds while they act"):
        Search(Sphere(3), LowRankES(8))
    with pytest.raises(OptionError, match="evolver=CMAES: needs a single objective, and ZDT has 2; use nsga2"):
        Search(ZDT(), CMAES(8))
    with pytest.raises(OptionError, match=r"problem=Table: must return a fitness of shape \[\] or \[objectives\]"):
        Search(Table(), CMAES(8))
    workflow = Search(ZDT(), NSGA2(8, {"return/0": 1, "return/2": 1}))
    with pytest.raises(OptionError, match=r"unknown objective return/2; did you mean return/0 or return/1\?"):
        jax.eval_shape(lambda: searched(workflow, 1))


WRONG = {
    "agent=search": "agent.workflow=Search: needs a problem, such as problem=zdt1",
    "agent=td3 problem=zdt1": "agent.workflow=OffPolicy: needs an environment, such as env=hopper",
    "agent=search problem=zdt1 env=hopper": "problem=zdt1: cannot be combined with env=hopper; give one of the two",
    "agent=search problem=zdt9": "unknown problem zdt9; did you mean zdt",
    "agent=search problem=zdt1 agent/evolver=cem": "agent.workflow.evolver=CEM: needs a single objective, and ZDT has",
    "agent=search problem=zdt1 problem.number=5": "problem.number=5: must be 1, 2, 3, 4 or 6",
    "agent=search problem=bbob problem.name=rastrign": "unknown BBOB function rastrign; did you mean rastrigin",
    "agent=search problem=sphere problem.sizes=3": "unknown option problem.sizes; did you mean problem.size or",
}


@pytest.mark.parametrize("command", WRONG)
def test_mistakes_are_one_line_that_teaches(command):
    with pytest.raises(OptionError) as caught:
        runs.build(config.compose_config(command.split()))
    assert WRONG[command] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.program
def test_every_problem_composes():
    for name, choice in discovery.find_choices("problem").items():
        assert choice.summary
        workflow, _ = runs.build(config.compose_config(["agent=search", f"problem={name}"]))
        assert isinstance(workflow, Search)


def test_configured_evolvers_are_those_of_the_dataclasses():
    for name, expected in (("nsga2", NSGA2(10)), ("rvea", RVEA(10))):
        workflow, _ = runs.build(config.compose_config(["agent=search", "problem=zdt1", f"agent/evolver={name}"]))
        assert workflow == Search(ZDT(), expected)
        assert read_numbers(workflow) == {"evolver": read_numbers(expected)}
    workflow, _ = runs.build(config.compose_config(["experiment=brax/nsga2_hopper"]))
    bounds = {"low": -2.0, "high": 2.0}
    of_both = {"x_velocity": 1, "reward_ctrl": 1}
    assert workflow.evolver == NSGA2(128, of_both, BoundedSBX(**bounds), PolynomialMutation(**bounds))
    assert workflow.env.episode_info == {"x_velocity": "mean", "reward_ctrl": "mean"}


def trained(folder, *overrides):
    small = ["agent.workflow.evolver.population_size=8", "iterations=3", "evaluations=1", "tensorboard=false"]
    train.main([*overrides, *small, f"run_dir={folder}"])
    return folder


@pytest.mark.program
def test_a_search_is_trained_resumed_and_shown_by_its_front(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = trained(tmp_path / "run", "agent=search", "problem=zdt1", "problem.size=3")
    shown = capsys.readouterr().out
    assert "search on ZDT" not in shown  # of a terminal alone
    assert "after 24 function evaluations" in shown
    assert "random solutions: -0.5" in shown
    train.main([f"resume={run}", "iterations=4"])
    found = play.play_run(play.parse_play_options([str(run)]))
    assert {path.name for path in found["files"]} == {"front.csv", "front.png"}
    header, *lines = (run / "play" / "front.csv").read_text().splitlines()
    assert header == "solution,-f1,-f2,x0,x1,x2"
    rows = np.array([line.split(",") for line in lines], float)
    np.testing.assert_array_equal(rows[:, 0], np.arange(len(rows)))
    assert (np.diff(rows[:, 1]) < 0).all()
    assert (np.diff(rows[:, 2]) > 0).all()
    np.testing.assert_allclose(values(ZDT(1, 3), rows[:, 3:]), rows[:, 1:3], rtol=1e-5)
    with pytest.raises(OptionError, match="solution=0: Search has no policy to evaluate"):
        play.play_run(play.parse_play_options([str(run), "solution=0"]))


@pytest.mark.program
def test_a_search_of_one_objective_shows_its_solution(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = trained(tmp_path / "run", "agent=search", "problem=sphere", "problem.size=2", "agent/evolver=cem")
    assert [path.name for path in play.play_run(play.parse_play_options([str(run)]))["files"]] == ["front.csv"]
    header, line = (run / "play" / "front.csv").read_text().splitlines()
    _, value, *x = map(float, line.split(","))
    assert header == "solution,return,x0,x1"
    assert value == pytest.approx(-(x[0] ** 2 + x[1] ** 2), rel=1e-5)


@pytest.mark.program
def test_members_of_a_front_can_be_played(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiny = ["agent.workflow.agent.hidden=[4]", "agent.workflow.eval_episodes=2", "agent.workflow.normalization=none"]
    run = trained(tmp_path / "run", "agent=nsga2", "env=sanity_continuous", *tiny)
    found = play.play_run(play.parse_play_options([str(run), "episodes=3", "solution=0"]))
    assert len(found["returns"]) == 3
    policy, obs = fill_spaces(MLPPolicy(hidden=(4,)), Continuous()), jnp.ones(6)
    action = policy.mode(evorl.load_front(run).solution(), obs, None, KEY)[0]
    np.testing.assert_allclose(evorl.load(run, solution=0)(obs), action, rtol=1e-5)
    assert (run / "play" / "front.csv").read_text().startswith("solution,return\n0,")
    with pytest.raises(OptionError, match=r"solution=9: must be from 0 to \d, a row of front.csv"):
        play.play_run(play.parse_play_options([str(run), "solution=9"]))


@pytest.mark.program
def test_the_solution_of_a_number_acts(tmp_path):
    policy = MLPPolicy(hidden=(3,))
    workflow = Evolution(Walk(), policy, NSGA2(6, {"return": 2, "length": -1}), normalization="none", eval_episodes=2)
    state = workflow.init(KEY)
    fitness = jnp.array([[2.0, 9.0], [4.0, 8.0], [8.0, 1.0], [0.0, 0.0], [6.0, 8.0], [jnp.nan, 1.0]])
    asked = state.evolver.children
    told, _ = bind(workflow.evolver, read_numbers(workflow)["evolver"]).tell(KEY, asked, fitness, state.evolver)
    state = state.replace(evolver=told)
    front = Front.from_state(workflow, state)
    assert front is not None
    assert front.names == ("return", "length")
    np.testing.assert_array_equal(front.values, [[4, -1], [3, -8], [1, -9]])
    acts = with_solution(front, workflow, state, 1)
    assert leaves_equal(acts.agent.actor.params, tree.index(asked, 4))
    assert str(front) == "Pareto front of 3: return 1 to 4; length -9 to -1"
