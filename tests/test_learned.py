"""Learned strategies: what weights are worth by evosax's own loop, that they are learned, kept and taken again."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import SNES, LearnedES

import evorl
from evorl import tree
from evorl.cli import play, train
from evorl.ec import OpenES
from evorl.ec.evosax import Evosax
from evorl.errors import OptionError
from evorl.problems import LearnedStrategy
from evorl.training import runs
from evorl.training.configuration import config
from evorl.types import Problem
from evorl.workflows import Search
from tests.conftest import leaves_equal

KEY = jax.random.key(0)
SMALL = LearnedStrategy(Evosax(LearnedES, 4), {"std_init": 0.5}, ("sphere", "sphere"), 3, 5)


def by_hand(key, weights):
    """The lowest squared distance from the optimum in five generations of evosax's own LearnedES."""
    key_task, key_start, key_init, key = jax.random.split(key, 4)
    optimum = np.asarray(SMALL.tasks.sample_params(key_task).x_opt)
    les = LearnedES(4, jnp.zeros(3))
    params = les.default_params.replace(std_init=0.5, params=weights)
    state = les.init(key_init, jax.random.uniform(key_start, (3,), minval=-5.0, maxval=5.0), params)
    lowest = np.inf
    for key in jax.random.split(key, 5):  # noqa: B020
        key_ask, _, key_tell = jax.random.split(key, 3)
        members, state = les.ask(key_ask, state, params)
        loss = ((np.clip(np.asarray(members), -5, 5) - optimum) ** 2).sum(1)
        lowest = min(lowest, loss.min())
        state, _ = les.tell(key_tell, members, jnp.asarray(loss), state, params)
    return lowest


@pytest.mark.program
def test_weights_are_worth_the_digits_that_evosaxs_own_loop_reaches():
    assert isinstance(SMALL, Problem)
    weights = SMALL.init(jax.random.key(1))
    expected = [-np.log10(by_hand(key, weights)) for key in jax.random.split(KEY, 2)]
    digits = jax.jit(SMALL.compute_digits)(KEY, {"numbers": {"std_init": 0.5, "params": weights}})
    np.testing.assert_allclose(digits, expected, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(SMALL.evaluate)(KEY, weights), np.mean(expected), rtol=1e-4)


def test_weights_that_have_learned_nothing_are_as_the_layers_of_flax():
    drawn = jax.jit(jax.vmap(SMALL.init))(jax.random.split(KEY, 200))
    own = SMALL.evolver.weights(jnp.zeros(3))
    assert jax.tree.map(jnp.shape, own) == jax.tree.map(lambda x: x.shape[1:], drawn)
    first = drawn["lrate_modulation"]["params"]["Dense_0"]
    assert first["kernel"].std() == pytest.approx(19**-0.5, rel=0.03)
    assert not first["bias"].any()


@pytest.mark.program
def test_members_of_a_generation_have_the_same_tasks():
    search = Search(SMALL, OpenES(4))
    plan, state = tree.broadcast(SMALL.init(KEY), 4), search.init(KEY)
    alike = search.rollout(state, plan, KEY)[1].means["return"]
    apart = Search(SMALL, OpenES(4), same_episodes=False).rollout(state, plan, KEY)[1].means["return"]
    assert len(set(np.asarray(alike).tolist())) == 1
    assert len(set(np.asarray(apart).tolist())) == 4
    np.testing.assert_allclose(alike[0], SMALL.evaluate(KEY, SMALL.init(KEY)), rtol=1e-5)


@pytest.mark.program
def test_a_strategy_is_learned():
    """Untrained weights hardly move; 60 generations of 16 add half a digit on functions of the same kind."""
    problem = LearnedStrategy(Evosax(LearnedES, 8), {"std_init": 1.0}, ("sphere", "ellipsoidal"), 4, 20)
    workflow = Search(problem, OpenES(16, learning_rate=0.05, std=0.1, weight_decay=0))
    worth = jax.jit(lambda weights: jax.vmap(problem.evaluate, (0, None))(jax.random.split(KEY, 32), weights).mean())
    state = workflow.init(KEY)
    before = worth(state.evolver.mean)
    state, _ = jax.jit(lambda state: jax.lax.scan(workflow.step, state, jax.random.split(KEY, 60)))(state)
    assert worth(state.evolver.mean) > before + 0.5


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(OptionError, match="algorithm=SNES: has no learned weights; use LearnedES"):
        Evosax(SNES, 4).weights(jnp.zeros(3))
    with pytest.raises(OptionError, match="unknown BBOB function spher; did you mean sphere"):
        LearnedStrategy(Evosax(LearnedES, 4), functions=["spher"])
    for name, value in (("functions", ()), ("size", 1), ("generations", 0)):
        with pytest.raises(OptionError, match=f"{name}=.*: must"):
            replace(SMALL, **{name: value})


@pytest.mark.program
def test_what_was_learned_is_kept_as_data_and_taken_by_name(tmp_path, monkeypatch):
    """A run's weights from Python and from its play, as the configuration of another run takes them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run, small = tmp_path / "run", ["problem.size=2", "problem.generations=2", "problem.functions=[sphere]"]
    search = ["agent=search", "problem=learned_es", "agent/evolver=openes", "agent.workflow.evolver.population_size=2"]
    train.main([*search, *small, "iterations=1", "evaluations=1", "tensorboard=false", f"run_dir={run}"])
    weights = evorl.load_front(run).solution()
    files = play.play_run(play.parse_play_options([str(run)]))["files"]
    assert [path.name for path in files] == ["front.csv", "solution.yaml"]

    given = (run / "play" / "solution.yaml").read_text().strip()
    les = "agent=evosax agent.workflow.evolver.algorithm.path=evosax.algorithms.LearnedES env=sanity_continuous"
    workflow, _ = runs.build(config.compose_config([*les.split(), f"+agent.workflow.evolver.options.params={given}"]))
    taken = workflow.evolver.weights(jnp.zeros(3))
    assert jax.tree.structure(taken) == jax.tree.structure(weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7), taken, weights)
    assert not leaves_equal(taken, SMALL.evolver.weights(jnp.zeros(3)))
    with pytest.raises(
        OptionError, match=r"options\.params=other weights: must have the names and shapes of the weights of LearnedES"
    ):
        Evosax(LearnedES, 4, {"params": {"recomb_weights": [1.0]}})
    for wrong in ("[null]", "[[0.0], [0.0, 1.0]]", "word", "{a: 1}"):
        broken = re.sub(r"(bias: )\[.*?\]", rf"\1{wrong}", given, count=1)
        with pytest.raises(OptionError, match=r"options\.params=other weights: must have"):
            runs.build(config.compose_config([*les.split(), f"+agent.workflow.evolver.options.params={broken}"]))
    with pytest.raises(OptionError, match=r"options\.params=other weights: must have"):
        Evosax(LearnedES, 4, {"params": 3})
