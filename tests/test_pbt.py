"""PBT and MetaES on tiny environments."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import struct

from evorl import tree
from evorl.agents import PPO, SAC
from evorl.ec import CEM, NSGA2, MapElites
from evorl.ec.objectives import WORST_FITNESS
from evorl.envs.sanity.probe import ObsActionReward
from evorl.errors import OptionError
from evorl.metrics import count_evaluation_steps, join_measures
from evorl.parts import Number, number, part, read_numbers, resolve_numbers
from evorl.population import EvolverVariation, NoSelection, Pairs, Perturb, PriorSpace, Swarm, Truncation
from evorl.priors import LogUniform, OneMinus, Uniform
from evorl.replay.state_replays import split_replays
from evorl.training.changed_numbers import replace_numbers
from evorl.workflows import PBT, MetaES, OffPolicy, Vmapped
from evorl.workflows.base import step_or_evaluate
from evorl.workflows.members import PopulationMetrics, init_members, train_and_evaluate
from evorl.workflows.pbt import replace_lost_parents
from tests.contract_cases import META
from tests.tiny import on_policy

KEY = jax.random.key(0)
RETURNS = [500.0, 480.0, 20.0, float("nan"), 510.0]


@struct.dataclass
class ClimbState:
    numbers: object
    env_params: object
    height: object
    noise: object


@part
class Climb:
    """A workflow whose return is a sum of rates, NaN above the limit: what PBT does with it can be computed by hand."""

    rate: Number = number(1.0, -9, 9)
    limit: Number = number(100.0, 0)

    def init(self, key, numbers=None, env_params=None):
        return ClimbState(resolve_numbers(self, numbers), env_params, jnp.float32(0), jnp.float32(0))

    def step(self, state, key):
        height = state.height + state.numbers["rate"]
        height = jnp.where(height > state.numbers["limit"], jnp.nan, height)
        state = state.replace(height=height, noise=jax.random.normal(key))
        return state, self.metrics(state) | {"env_steps": jnp.int32(10), "gradient_steps": jnp.int32(1)}

    def evaluate(self, state, key):
        return self.metrics(state) | {"luck": jax.random.normal(key)}

    def metrics(self, state):
        return {"return": state.height, "episodes": jnp.int32(2), "episode_length": jnp.float32(5)}

    def inherit(self, state, parent):
        return state.replace(height=parent.height, numbers=parent.numbers)


def mirrored(x, low, high):
    """Numbers reflected at the ends of an interval, from less than its width outside."""
    x = np.where(x < low, 2 * low - x, x)
    return np.where(x > high, 2 * high - x, x)


def climbing(size=10, limit=100.0, selection=None, variation=None, **options):
    population = Vmapped(Climb(rate=Uniform(-1.0, 3.0), limit=limit), size)
    return PBT(population, selection or Truncation(0.2), variation or Perturb(), warmup_steps=3, **options)


def run(pbt, generations):
    """The states before and after each generation, and their metrics."""
    state = jax.jit(pbt.init)(KEY)
    step = jax.jit(pbt.step)
    states, rows = [state], []
    for i in range(generations):
        state, metrics = step(states[-1], jax.random.fold_in(KEY, i))
        states.append(state)
        rows.append(metrics)
    return states, rows


@pytest.mark.program
def test_generations_by_hand():
    pbt = climbing()
    states, rows = run(pbt, 3)
    height = np.zeros(10)
    for generation, (before, after, row) in enumerate(zip(states, states[1:], rows, strict=False)):
        steps = 7 if generation == 0 else 4
        rates = np.asarray(before.members.numbers["rate"])
        trained = height + steps * rates
        np.testing.assert_allclose(row["members/fitness"], trained, rtol=1e-5)
        np.testing.assert_allclose(row["members/rate"], rates)
        assert (int(row["env_steps"]), int(row["gradient_steps"])) == (10 * steps * 10, 10 * steps)
        assert int(row["episodes"]) == 10 * steps * 2
        np.testing.assert_allclose(row["return_best"], trained.max(), rtol=1e-5)
        climbed = height + rates * (steps + 1) / 2  # on the average of the steps
        np.testing.assert_allclose(row["return"], climbed.mean(), rtol=1e-5)
        source, ordered = np.asarray(row["members/source"]), np.sort(trained)
        replaced = source != np.arange(10)
        assert replaced.sum() == 2
        np.testing.assert_allclose(np.sort(trained[replaced]), ordered[:2], rtol=1e-5)
        assert trained[source[replaced]].min() > ordered[-2] - 1e-4
        height = trained[source]
        np.testing.assert_allclose(after.members.height, height, rtol=1e-5)
        np.testing.assert_allclose(after.fitness, np.where(replaced, WORST_FITNESS, height), rtol=1e-5)
        np.testing.assert_array_equal(after.members.numbers["rate"][~replaced], rates[~replaced])
        expected = mirrored(rates[source][replaced][:, None] + 4 * np.array([-0.2, 0.2]), -1, 3)  # of a range of 4
        found = np.asarray(after.members.numbers["rate"])[replaced]
        assert np.abs(found[:, None] - expected).min(1).max() < 1e-4
        assert int(after.generation) == generation + 1


@part
class Cut(Climb):
    """A Climb whose evaluation cuts an episode above the height 5."""

    def evaluate(self, state, key):
        return super().evaluate(state, key) | {"restarts": (state.height > 5).astype(jnp.int32)}


@pytest.mark.program
def test_no_member_gains_from_an_episode_that_is_cut():
    population = Vmapped(Cut(rate=Uniform(-1.0, 3.0)), 4)
    members = init_members(
        population, KEY, {"rate": jnp.array([0.0, 1.0, 2.0, 3.0]), "limit": jnp.full(4, 100.0)}, None
    )
    evaluation = train_and_evaluate(population, members, KEY, 3, 1)[2]
    np.testing.assert_allclose(evaluation["return"], [0, 3, np.nan, np.nan])


@pytest.mark.program
def test_a_lost_member_always_takes_over_from_the_fittest_one():
    """However many are lost, and where selection would replace nobody."""
    for selection in (NoSelection(), Truncation(0.1)):
        states, rows = run(climbing(limit=9.0, selection=selection), 2)
        fitness = np.asarray(rows[0]["members/fitness"])
        lost = np.isnan(fitness)
        assert 2 < lost.sum() < 10
        np.testing.assert_array_equal(np.asarray(rows[0]["members/source"])[lost], np.nanargmax(fitness))
        assert np.isfinite(states[1].members.height).all()
        assert np.isfinite(states[1].fitness).all()
        assert all(np.isfinite(x).all() for x in jax.tree.leaves({k: v for k, v in rows[0].items() if "/" not in k}))


def test_if_all_are_lost_each_stays_and_of_equal_ones_the_parent_is_the_fittest():
    source, none = jnp.array([2, 1, 2, 2]), jnp.full(4, jnp.nan)
    assert replace_lost_parents(source, none).tolist() == [0, 1, 2, 3]
    assert replace_lost_parents(source, none.at[3].set(-1.0)).tolist() == [3, 3, 3, 3]
    assert replace_lost_parents(source, jnp.array([0.0, jnp.nan, 2.0, 1.0])).tolist() == [2, 2, 2, 2]


@pytest.mark.program
def test_the_fittest_member_is_a_parent_not_its_copy_with_other_hyperparameters():
    workflow = climbing(selection=Truncation(0.4))
    states, rows = run(workflow, 6)
    for state, row in zip(states[1:], rows, strict=False):
        best = int(workflow.fittest_index(state))
        assert int(row["members/source"][best]) == best
        assert float(row["members/fitness"][best]) == row["members/fitness"].max()


@pytest.mark.program
def test_children_and_parents_draw_different_numbers():
    states, rows = run(climbing(), 2)
    source = np.asarray(rows[0]["members/source"])
    child = np.flatnonzero(source != np.arange(10))[0]
    noise = np.asarray(states[2].members.noise)
    assert noise[child] != noise[source[child]]
    assert len(set(noise)) == 10


@pytest.mark.program
def test_an_evaluation_is_of_all_members_on_the_same_keys_and_leaves_the_state_alone():
    pbt = climbing(eval_rounds=3)
    state = run(pbt, 1)[0][-1]
    after, _, evaluation = jax.jit(lambda s, k: step_or_evaluate(pbt, s, k, True))(state, KEY)
    jax.tree.map(np.testing.assert_array_equal, state, after)
    np.testing.assert_allclose(evaluation["return"], state.members.height.max(), rtol=1e-6)
    np.testing.assert_allclose(evaluation["return_mean"], state.members.height.mean(), rtol=1e-6)
    assert int(evaluation["episodes"]) == 3 * 2
    luck = jax.vmap(Vmapped(Climb(), 3).inner.evaluate, (0, None))(tree.index(state.members, slice(3)), KEY)["luck"]
    assert len(set(np.asarray(luck))) == 1


@pytest.mark.program
def test_pbt_cso_moves_the_losers_as_the_paper_has_it():
    pbt = climbing(selection=Pairs(), variation=Swarm())
    states, rows = run(pbt, 3)
    for before, after, row in zip(states, states[1:], rows, strict=False):
        source = np.asarray(row["members/source"])
        losers = np.flatnonzero(source != np.arange(10))
        assert len(losers) == 5
        fitness = np.asarray(row["members/fitness"])
        assert np.all(fitness[source[losers]] >= fitness[losers])
        way = np.asarray(before.points[source] - before.points)[losers]
        velocity, old = np.asarray(after.variation_state)[losers], np.asarray(before.variation_state)[losers]
        low, high = np.minimum(way, 0) + np.minimum(old, 0), np.maximum(way, 0) + np.maximum(old, 0)
        assert np.all((low - 1e-6 <= velocity) & (velocity <= high + 1e-6))
        moved = mirrored(np.asarray(before.points)[losers] + velocity, 0, 1)
        np.testing.assert_allclose(np.asarray(after.points)[losers], moved, rtol=1e-5, atol=1e-6)


@pytest.mark.program
def test_the_best_settings_spread():
    """Selection alone, without a new setting, ends with the best of the first; variation goes beyond."""
    states, _ = run(climbing(variation=Perturb(factor=0.0)), 12)
    best = float(states[0].members.numbers["rate"].max())
    assert float(states[-1].members.numbers["rate"].mean()) == pytest.approx(best, abs=1e-4)
    states, _ = run(climbing(limit=1e6, variation=Perturb(factor=0.05)), 12)
    assert float(states[-1].members.numbers["rate"].max()) > best


@pytest.mark.program
def test_pbt_of_pbt():
    inner = climbing(5, variation=Perturb(factor=LogUniform(0.05, 0.5)))
    outer = PBT(Vmapped(inner, 5), steps_per_generation=2)
    states, rows = run(outer, 2)
    row = rows[-1]
    assert int(row["env_steps"]) == 5 * 2 * 5 * 4 * 10
    assert row["members/fitness"].shape == (5,)
    source = np.asarray(row["members/source"])
    child = np.flatnonzero(source != np.arange(5))[0]
    members = states[-1].members
    np.testing.assert_array_equal(members.members.height[child], members.members.height[source[child]])
    np.testing.assert_array_equal(members.points[child], members.points[source[child]])
    factors = np.asarray(members.numbers["variation"]["factor"])
    assert factors[child] != factors[source[child]]


@pytest.mark.program
def test_meta_es_finds_the_rate_that_climbs_most():
    """Fitness is the height after a life, NaN above the limit: the best rate is just below limit / lifetime."""
    population = Vmapped(Climb(rate=Uniform(-1.0, 3.0), limit=10.0), 16)
    meta = MetaES(population, CEM(16, initial_variance=0.05, noise_decay=0.7), lifetime=5)
    state = jax.jit(meta.init)(KEY)
    step = jax.jit(meta.step)
    for i in range(25):
        state, metrics = step(state, jax.random.fold_in(KEY, i))
    assert int(metrics["env_steps"]) == 16 * 5 * 10
    evaluation = jax.jit(meta.evaluate)(state, KEY)
    assert 9 < float(evaluation["return"]) <= 10
    np.testing.assert_allclose(evaluation["members/return"], evaluation["return"], rtol=1e-5)


@pytest.mark.program
def test_meta_es_with_a_multi_objective_evolver_has_one_objective():
    meta = MetaES(Vmapped(Climb(rate=Uniform(0.0, 1.0)), 8), NSGA2(8), lifetime=2)
    state, _ = jax.jit(meta.step)(jax.jit(meta.init)(KEY), KEY)
    fitness = np.asarray(jax.jit(meta.step)(state, KEY)[1]["members/fitness"])
    assert np.isfinite(fitness).all()
    assert state.evolver.fitness.shape[-1] == 1
    varied = climbing(8, variation=EvolverVariation(NSGA2(8)))
    states, _ = run(varied, 2)
    assert np.isfinite(states[-1].points).all()


class Silent(Climb):
    def evaluate(self, state, key):
        return {"episodes": jnp.int32(1)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: climbing(1), "population.size=1: must be at least 2"),
        (lambda: climbing(7, selection=Pairs()), "population.size=7: must be even"),
        (lambda: climbing(eval_rounds=0), "eval_rounds=0: must be at least 1"),
        (lambda: PBT(Vmapped(Climb(), 8)), "Climb: has nothing to search, because no hyperparameter has a prior"),
        (
            lambda: jax.eval_shape(climbing().init, KEY, {"variation": read_numbers(Swarm())}),
            "unknown hyperparameter numbers.variation.inertia; allowed: numbers.variation.factor",
        ),
        (
            lambda: run(PBT(Vmapped(Silent(rate=Uniform(0, 1)), 8)), 1),
            'Silent: its evaluation must report "return"',
        ),
        (
            lambda: MetaES(Vmapped(Climb(rate=Uniform(0, 1)), 8), CEM(4)),
            "evolver.population_size=4: must be the size of the population, 8",
        ),
        (
            lambda: MetaES(Vmapped(Climb(rate=Uniform(0, 1)), 8), MapElites()),
            "evolver=MapElites: needs descriptors of behavior",
        ),
        (
            lambda: climbing(4, variation=EvolverVariation(MapElites())),
            "variation.evolver=MapElites: needs descriptors of behavior",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def temporaries(step, *arguments):
    """Bytes of memory, by XLA's own analysis, beside the state, which is donated."""
    compiled = jax.jit(step, donate_argnums=0).lower(*arguments).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.program
def test_copying_needs_no_second_population():
    """A generation of PBT over PPO holds, beside its state, less than half a population more than training alone."""
    agent = PPO(learning_rate=LogUniform(1e-4, 1e-1), discount=OneMinus(LogUniform(1e-3, 1e-1)))
    workflow = on_policy(agent, num_epochs=1, batch_size=16)
    large = replace(workflow, agent=replace(workflow.agent, hidden=(32, 32)))  # so that agents are most of the state
    population = Vmapped(large, 32)
    pbt = PBT(population, steps_per_generation=1, search=("learning_rate", "discount"))
    state = jax.eval_shape(pbt.init, KEY)

    alone = temporaries(population.step, state.members, KEY)
    agents = tree.nbytes(state.members.agent)
    assert temporaries(pbt.step, state, KEY) - alone < agents / 2


@pytest.mark.program
def test_members_are_trained_in_place():
    """At 32 SAC members a generation of PBT holds no more than a step of the population, replays left out."""
    agent = SAC(critic_lr=LogUniform(1e-4, 1e-2))
    population = Vmapped(OffPolicy(ObsActionReward(), agent, capacity=2_000), 32)
    pbt = PBT(population, search=("critic_lr",))
    state = jax.eval_shape(pbt.init, KEY)
    alone = temporaries(population.step, state.members, KEY)
    generation = temporaries(partial(step_or_evaluate, pbt), state, KEY, jnp.bool_(False))
    assert generation - alone < 0.2 * tree.nbytes(split_replays(state.members)[0])


@pytest.mark.program
def test_a_changed_hyperparameter_that_is_not_searched_lasts():
    """On resume, and in a new run that inherits, where the parent's points are searched further."""
    workflow = climbing(limit=100.0)
    state = jax.jit(workflow.init)(KEY)
    changed = replace_numbers(workflow, state, {"population.inner.limit": 50.0})
    after, _ = jax.jit(workflow.step)(changed, KEY)
    np.testing.assert_array_equal(after.members.numbers["limit"], np.full(10, 50.0))
    assert len(np.unique(after.members.numbers["rate"])) > 5
    begun = jax.jit(workflow.inherit)(state, after)
    np.testing.assert_array_equal(begun.members.numbers["limit"], np.full(10, 100.0))
    np.testing.assert_array_equal(begun.members.numbers["rate"], after.members.numbers["rate"])


def test_the_error_of_a_meta_evaluation_is_that_between_members():
    """Members are independent trainings; the errors of their own episodes are small beside their differences."""
    meta = MetaES(Vmapped(Climb(rate=Uniform(0, 1)), 5), CEM(5), lifetime=1)
    of_members = {"return": jnp.array(RETURNS), "return_error": jnp.ones(5), "episodes": jnp.full(5, 16)}
    state = jax.jit(meta.init)(KEY)
    found = meta.evaluation_metrics(state, PopulationMetrics({}, jnp.ones(5, bool), {}, of_members))
    finite = np.array(RETURNS)[np.isfinite(RETURNS)]
    np.testing.assert_allclose(found["return"], np.mean(finite), rtol=1e-6)
    np.testing.assert_allclose(found["return_error"], scipy.stats.sem(finite), rtol=1e-6)
    assert found["return_dof"] == 3
    none = of_members | {"return": jnp.full(5, jnp.nan), "episode_length": jnp.ones(5)}
    lost = meta.evaluation_metrics(state, PopulationMetrics({}, jnp.ones(5, bool), {}, none))
    assert np.isnan([lost["return"], lost["episode_length"]]).all()
    assert lost["episodes"] == 80


def test_the_best_return_of_a_generation_is_unknown_if_no_member_has_one():
    def best(*returns):
        metrics = PopulationMetrics({}, jnp.ones(2, bool), {}, {"return": jnp.array(returns)}).metrics()
        return metrics["return_best"]

    assert best(-3.0, float("nan")) == -3
    assert np.isnan(best(float("nan"), float("nan")))


@pytest.mark.program
def test_an_evaluation_counts_the_steps_of_all_members():
    """Four members play 6 episodes of the same length; the metrics describe those of the fittest."""
    workflow = META["pbt_ppo"]
    found = jax.jit(workflow.evaluate)(jax.jit(workflow.init)(KEY), KEY)
    assert float(found["measured_steps"]) == 3 * float(found["episodes"] * found["episode_length"])
    assert float(count_evaluation_steps(found)) == 4 * float(found["episodes"] * found["episode_length"])
    assert join_measures({"measured_steps": 5}, {"measured_steps": 7, "solved": 1}) == {
        "measured_steps": 12,
        "solved": 1,
    }
    assert join_measures({"return": 1}, {}) == {"return": 1}


@part
class Counted:
    """A stand-in with an integer hyperparameter."""

    size: Number = number(2, 1, 8, "a whole number")


def test_integer_hyperparameters_are_rounded_where_they_are_used_and_where_they_are_shown():
    space = PriorSpace(Counted(size=Uniform(1.0, 4.0)))
    u = (jnp.arange(3000.0)[:, None] + 0.5) / 3000
    shown, used = space.decode_by_name(u)["size"], space.decode(u)["size"]
    np.testing.assert_array_equal(shown, used)
    np.testing.assert_allclose(np.bincount(used)[1:] / 3000, [1 / 6, 1 / 3, 1 / 3, 1 / 6], atol=1e-3)
    with pytest.raises(OptionError, match=r"size=2.5: must be a whole number"):
        resolve_numbers(Counted(), {"size": 2.5})
