"""Policy search: what is evaluated, told, normalized and counted, against NumPy."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.flatten_util import ravel_pytree

from evorl import tree, vector_env
from evorl.agents import PPO, TD3, MLPPolicy
from evorl.ec import (
    ARS,
    CSO,
    LowRankES,
    Noise,
    OpenES,
    SeededES,
)
from evorl.errors import OptionError
from evorl.networks.low_rank import LowRankKernel
from evorl.parts import part
from evorl.spaces import Discrete
from evorl.types import Evolver, TimeStep
from evorl.vector_env import RolloutPlan, TransitionStore
from evorl.workflows import CEMRL, ERL, Evolution, Vmapped, blocks
from evorl.workflows.base import step_or_evaluate
from tests.conftest import leaves_equal
from tests.counting import Counting
from tests.tiny import CHOICES, Walk

ES = {"learning_rate": 0.1, "std": 0.3}


def evolution(env, evolver, normalization="none", hidden=(4,), **options):
    policy = MLPPolicy(hidden=hidden)
    return Evolution(
        env, policy, evolver, normalization=normalization, **{"eval_episodes": 6, "scan_length": 3} | options
    )


def started(workflow, seed=0):
    key = jax.random.key(seed) if isinstance(seed, int) else seed
    return jax.jit(workflow.init)(key)


def steps(workflow, state, count):
    step, rows = jax.jit(workflow.step), []
    for i in range(count):
        state, row = step(state, jax.random.key(i))
        rows.append(row)
    return state, rows


def walk_return(params, normalize=lambda obs: obs):
    """Three steps of Walk under a policy with one hidden layer, in NumPy."""
    layers = [jax.tree.map(np.asarray, params["params"][name]) for name in ("Dense_0", "Dense_1")]
    total, obs = 0.0, 0.0
    for _ in range(3):
        hidden = np.maximum(normalize(np.array([obs])) @ layers[0]["kernel"] + layers[0]["bias"], 0)
        action = np.tanh(hidden @ layers[1]["kernel"] + layers[1]["bias"])[0]
        total += obs - (action - 0.4 * obs) ** 2
        obs += 0.3
    return total


@pytest.mark.program
def test_the_fitness_of_a_member_is_its_return():
    workflow = evolution(Walk(), CSO(6), fitness_episodes=2)
    state = started(workflow)
    after, (row,) = steps(workflow, state, 1)
    returns = [walk_return(tree.index(state.evolver.swarm, i)) for i in range(6)]
    np.testing.assert_allclose(row["return"], np.mean(returns), rtol=1e-5)
    np.testing.assert_allclose(row["return_best"], np.max(returns), rtol=1e-5)
    assert leaves_equal(after.agent.actor.params, tree.index(state.evolver.swarm, int(np.argmax(returns))))
    assert (int(row["env_steps"]), int(row["episodes"]), int(row["gradient_steps"])) == (36, 12, 0)
    evaluation = jax.jit(workflow.evaluate)(after, jax.random.key(5))
    np.testing.assert_allclose(evaluation["return"], np.max(returns), rtol=1e-5)
    assert int(evaluation["episodes"]) == 6


@pytest.mark.program
def test_virtual_batch_normalization_is_that_of_random_steps_and_stays():
    workflow = evolution(Counting(), OpenES(4, **ES), "vbn", vbn_steps=250)
    state, _ = steps(workflow, started(workflow), 1)
    # 63 steps of each of 4 environments, played again without the workflow, to add up in NumPy
    assert float(state.obs_statistics.count) == 252
    rows = []

    def seen_rows(_, transitions, mask):
        keep = lambda obs, mask: rows.append(np.asarray(obs)[np.asarray(mask)])  # noqa: E731
        jax.debug.callback(keep, transitions.obs, mask)
        return None

    vector_env.rollout(
        workflow.vector_env.make_env_batch(state.env_params),
        lambda obs, memory, keys: (jnp.zeros((4, 1)), memory, {}),
        RolloutPlan(workflow.vector_env.make_starts(every=True), steps=63),
        None,
        jax.random.split(jax.random.split(jax.random.key(0), 3)[1], 1)[0],
        TransitionStore(workflow.scan_length, None, seen_rows),
    )
    seen = np.concatenate(rows)
    np.testing.assert_allclose(state.obs_statistics.mean, seen.mean(0), rtol=1e-4)
    np.testing.assert_allclose(state.obs_statistics.sum_of_squares / 252, seen.var(0), rtol=1e-4)
    later, rows = steps(workflow, state, 2)
    assert leaves_equal(later.obs_statistics, state.obs_statistics)
    assert not leaves_equal(later.evolver.mean, state.evolver.mean)
    assert int(rows[-1]["episodes"]) == 4


@pytest.mark.program
def test_the_first_iteration_with_vbn_searches_nothing():
    workflow = evolution(Counting(), OpenES(4, **ES), "vbn", vbn_steps=10)
    state = started(workflow)
    after, (row,) = steps(workflow, state, 1)
    assert leaves_equal(after.evolver, state.evolver)
    assert int(row["env_steps"]) == 12  # three for each environment


@pytest.mark.program
def test_running_statistics_are_those_of_all_observations():
    workflow = evolution(Walk(), ARS(4, 2), "running", fitness_episodes=2)
    state, _ = steps(workflow, started(workflow), 3)
    seen = np.tile([0.0, 0.3, 0.6], 3 * 8)
    assert float(state.obs_statistics.count) == len(seen)
    np.testing.assert_allclose(state.obs_statistics.mean, [seen.mean()], rtol=1e-5)
    np.testing.assert_allclose(state.obs_statistics.sum_of_squares / len(seen), [seen.var()], rtol=1e-4)
    evaluation = jax.jit(workflow.evaluate)(state, jax.random.key(5))
    expected = walk_return(state.agent.actor.params, lambda obs: (obs - seen.mean()) / np.sqrt(seen.var() + 1e-8))
    np.testing.assert_allclose(evaluation["return"], expected, rtol=1e-4)


@pytest.mark.program
def test_the_policy_of_a_run_normalizes_as_its_evaluation_does():
    workflow = evolution(Walk(), ARS(4, 2), "running")
    state, _ = steps(workflow, started(workflow), 2)
    action, _, _ = workflow.policy(state)(jnp.array([0.6]), None, jax.random.key(0))
    normalized = (0.6 - 0.3) / np.sqrt(np.var([0.0, 0.3, 0.6]) + 1e-8)
    expected, _, _ = workflow.agent.mode(state.agent.actor.params, jnp.array([normalized]), None, jax.random.key(0))
    np.testing.assert_allclose(action, expected, rtol=1e-5)


@pytest.mark.program
@pytest.mark.parametrize("normalization", ["none", "running"])
def test_members_in_parts_are_the_same_search(normalization):
    """In an environment without chance, how many members are side by side changes nothing."""
    whole = evolution(Walk(), OpenES(6, **ES), normalization)
    parts = replace(whole, members_at_once=2)
    (a, rows_a), (b, rows_b) = (steps(w, started(w), 3) for w in (whole, parts))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a.evolver, b.evolver)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), a.obs_statistics, b.obs_statistics
    )
    assert [int(row["env_steps"]) for row in rows_a] == [int(row["env_steps"]) for row in rows_b]
    evaluations = [jax.jit(w.evaluate)(s, jax.random.key(1)) for w, s in ((whole, a), (parts, b))]
    assert [int(e["episodes"]) for e in evaluations] == [6, 6]


@pytest.mark.program
@pytest.mark.parametrize("same_episodes", [False, True])
def test_episodes_do_not_depend_on_blocks(same_episodes):
    """Neither their starts nor their rewards, which are drawn, in a generation and in an evaluation."""
    whole = evolution(Dice(), OpenES(6, **ES), fitness_episodes=2, same_episodes=same_episodes, members_at_once=6)
    state = started(whole)
    returns = []
    for workflow in (whole, replace(whole, members_at_once=2)):
        plan = workflow.plan(state, jax.random.key(1))[0], workflow.plan_evaluation(state, jax.random.key(1))
        returns.append([workflow.rollout(state, one, jax.random.key(2))[1].stats.mean_return for one in plan])
    jax.tree.map(np.testing.assert_array_equal, *returns)
    assert len(np.unique(returns[0][0])) == (2 if same_episodes else 12)


def test_a_cpu_evaluates_as_many_members_at_once_as_its_caches_hold(monkeypatch):
    """A policy of Walk with 8 hidden units has 25 weights of 4 bytes."""

    def count(size=256, shards=1, **options):
        workflow, found = evolution(Walk(), OpenES(size, **ES), hidden=(8,), **options), []

        def trace(key):
            state = workflow.init(key)
            plan, _ = workflow.plan(state, key)
            with monkeypatch.context() as patch:
                patch.setattr(blocks.mesh, "count_shards", lambda axis: shards)
                found.append(blocks.choose_num_blocks(workflow, state, plan))

        jax.eval_shape(trace, jax.random.key(0))
        return found[0]

    assert count() == 1
    monkeypatch.setattr(blocks, "CACHE_BYTES", 64 * 25 * 4)
    assert count() == 4
    assert count(258) == 6  # of 43
    assert count(254) == 2  # 127 is a prime
    assert count(shards=2) == 2
    assert count(shards=3) == 1
    assert count(members_at_once=32) == 8
    monkeypatch.setattr(blocks, "CACHE_BYTES", 1)
    assert count() == 32  # of LEAST_MEMBERS
    monkeypatch.setattr(blocks, "MOST_OPERATIONS", 0)
    assert count() == 1
    monkeypatch.undo()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert count() == 1


def test_operations_of_a_step_are_counted_with_all_iterations():
    class Counted:
        default_params, action_space = None, Discrete(2)

        def reset(self, key, params):
            return jnp.float32(0), jnp.float32(0)

        def step(self, key, state, action, params):
            state = jax.lax.fori_loop(0, 5, lambda i, x: x * x + i, state)  # 5 x (product, sum, conversion, next i)
            return jax.lax.cond(state > 0, jnp.sin, jnp.cos, state), -state  # 1, two branches and a conversion, 1

    assert blocks.count_operations(Counted()) == 5 * 4 + 5


@pytest.mark.program
@pytest.mark.parametrize("normalization", ["none", "vbn"])
@pytest.mark.parametrize("source", ["exact", "hash", "table"])
def test_members_that_are_drawn_where_they_play_are_the_same_search(source, normalization):
    """Of OpenES, which has them all in memory; where some play after the others too."""
    openes = OpenES(12, noise=Noise(source, 4096), **ES)
    whole = evolution(Walk(), openes, normalization, vbn_steps=12, fitness_episodes=2, same_episodes=True)
    seeds = replace(whole, evolver=SeededES(openes), members_at_once=4)
    (a, rows_a), (b, rows_b) = (steps(w, started(w), 3) for w in (whole, seeds))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a.evolver, b.evolver)
    for row_a, row_b in zip(rows_a[1:], rows_b[1:], strict=True):
        np.testing.assert_allclose(row_a["return"], row_b["return"], rtol=1e-5)


@pytest.mark.program
@pytest.mark.parametrize(
    "evolver", [SeededES(OpenES(4, **ES)), LowRankES(4, **ES), LowRankES(4, 2, "drawn", "int8", **ES)], ids=str
)
def test_runs_side_by_side_draw_their_own_members(evolver):
    workflow = evolution(Walk(), evolver, members_at_once=2)
    two, (key, key_step) = Vmapped(workflow, 2), jax.random.split(jax.random.key(0))
    state = jax.jit(two.init)(key)
    state, _ = jax.jit(two.step)(state, key_step)
    for i in range(2):
        alone = started(workflow, seed=jax.random.split(key)[i])
        alone, _ = jax.jit(workflow.step)(alone, jax.random.split(key_step)[i])
        np.testing.assert_allclose(
            *(ravel_pytree(x.mean)[0] for x in (tree.index(state, i).evolver, alone.evolver)), rtol=1e-5, atol=1e-5
        )
    assert not leaves_equal(*(tree.index(state.evolver.mean, i) for i in range(2)))


@pytest.mark.program
@pytest.mark.parametrize("factors", ["held", "drawn"])
def test_the_fitness_of_a_member_of_low_rank_is_that_of_its_kernels(factors):
    evolver = LowRankES(6, 2, factors, **ES)
    workflow = evolution(Walk(), evolver, members_at_once=2, fitness_episodes=2)
    state = started(workflow)
    _, (row,) = steps(workflow, state, 1)
    plan, _ = jax.jit(workflow.plan)(state, jax.random.split(jax.random.key(0), 3)[0])
    returns = []
    for i in range(6):
        params = evolver.to_params(state.evolver, tree.index(plan.params, i))
        whole = lambda x: x.shared + x.left.T @ x.right if isinstance(x, LowRankKernel) else x  # noqa: E731
        returns.append(walk_return(jax.tree.map(whole, params, is_leaf=lambda x: isinstance(x, LowRankKernel))))
    np.testing.assert_allclose(row["return"], np.mean(returns), rtol=1e-4)
    np.testing.assert_allclose(row["return_best"], np.max(returns), rtol=1e-4)
    evaluation = jax.jit(workflow.evaluate)(state, jax.random.key(5))
    np.testing.assert_allclose(evaluation["return"], walk_return(state.agent.actor.params), rtol=1e-5)


class Dice(Counting):
    """Counting whose rewards are drawn."""

    def step(self, key, env_state, action, params):
        state, t = super().step(key, env_state, action, params)
        return state, TimeStep(t.obs, jax.random.uniform(key), t.terminated, t.truncated)


@pytest.mark.program
@pytest.mark.parametrize("fresh_reset", [False, True])
@pytest.mark.parametrize("members_at_once", [0, 2])
def test_members_play_the_same_episodes(fresh_reset, members_at_once):
    """Equal members then get equal returns, of episodes that differ; in an evaluation all differ."""
    options = {"fitness_episodes": 3, "eval_episodes": 18, "members_at_once": members_at_once}
    workflow = evolution(Dice(fresh_reset=fresh_reset), OpenES(6, **ES), same_episodes=True, **options)
    state = started(workflow)
    exam, center = workflow.plan_evaluation(state, jax.random.key(1)), tree.broadcast(state.agent.actor.params, 6)

    def play(workflow, plan):
        _, played = workflow.rollout(state, plan, jax.random.key(0))
        return np.asarray(played.stats.mean_return).reshape(6, 3)

    def of_equals(workflow):
        plan, _ = workflow.plan(state.replace(iteration=jnp.int32(1)), jax.random.key(1))
        return play(workflow, plan.replace(params=center))

    returns = of_equals(workflow)
    np.testing.assert_array_equal(returns, np.tile(returns[0], (6, 1)))
    assert len(np.unique(returns)) == 3
    assert len(np.unique(play(workflow, exam))) == 18
    assert len(np.unique(of_equals(replace(workflow, same_episodes=False)))) == 18


@dataclass(frozen=True)
class Fragile(Walk):
    """Walk whose physics breaks where the action is above 0.2."""

    def step(self, key, env_state, action, params):
        state, t = super().step(key, env_state, action, params)
        broken = jnp.where(action[0] > 0.2, jnp.nan, 0.0)
        return state.replace(obs=state.obs + broken), TimeStep(
            t.obs + broken, t.reward + broken, t.terminated, t.truncated
        )


@pytest.mark.program
def test_a_member_that_breaks_loses_and_poisons_nothing():
    workflow = evolution(Fragile(), CSO(16, initial_std=1.0), "running")
    state, rows = steps(workflow, started(workflow), 6)
    assert np.isfinite([row["return"] for row in rows]).all()  # of the episodes that ended
    assert rows[0]["episodes"] + rows[0]["restarts"] == 16
    assert rows[0]["restarts"] == rows[0]["bad_rewards"]
    assert rows[0]["restarts"] > 4 > rows[-1]["restarts"]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.evolver, state.obs_statistics, state.agent)))
    assert float(state.obs_statistics.mean[0]) == pytest.approx(0.3, abs=0.1)


def test_exploring_draws_choices_and_greed_does_not():
    policy = MLPPolicy(hidden=(), observation_space=Walk().observation_space, action_space=Discrete(3))
    params = policy.init(jax.random.key(0)).actor.params
    params = jax.tree.map(jnp.zeros_like, params)
    params["params"]["Dense_0"]["bias"] = jnp.log(jnp.array([0.2, 0.5, 0.3]))
    keys = jax.random.split(jax.random.key(1), 5000)
    drawn = jax.vmap(lambda key: policy.act(params, jnp.zeros(1), None, key)[0])(keys)
    np.testing.assert_allclose(np.bincount(drawn) / 5000, [0.2, 0.5, 0.3], atol=0.03)
    greedy = jax.vmap(lambda key: policy.mode(params, jnp.zeros(1), None, key)[0])(keys)
    assert set(np.asarray(greedy)) == {1}


@pytest.mark.program
def test_a_program_holds_its_physics_once():
    workflow = evolution(Counting(), OpenES(4, **ES), "vbn", members_at_once=2)
    shapes = jax.eval_shape(workflow.init, jax.random.key(0))
    text = jax.jit(partial(step_or_evaluate, workflow)).lower(shapes, jax.random.key(0), jnp.bool_(False)).as_text()
    assert text.count("chlo.lgamma") == text.count("chlo.digamma") == 1


@pytest.mark.program
def test_it_learns_to_follow():
    """The best policy of Walk gets 0.9: the sum of its observations, without a miss."""
    workflow = evolution(Walk(), OpenES(16, **ES), hidden=(8,))
    run = jax.jit(jax.vmap(lambda key: jax.lax.scan(workflow.step, workflow.init(key), jax.random.split(key, 60))))
    _, rows = run(jax.random.split(jax.random.key(0), 4))
    assert np.all(np.asarray(rows["return"][:, 0]) < 0.75)
    evaluations = np.asarray(rows["return_best"][:, -1])
    assert np.all(evaluations > 0.85)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalization": "vnb"}, "unknown normalization vnb; did you mean vbn"),
        ({"members_at_once": 4}, "members_at_once=4: must divide population_size, 6"),
        ({"members_at_once": -6}, "members_at_once=-6"),
        ({"fitness_episodes": 0}, "fitness_episodes=0: must be at least 1"),
    ],
)
def test_mistakes_are_told(options, message):
    with pytest.raises(OptionError, match=message):
        evolution(Walk(), OpenES(6), **options)


@struct.dataclass
class SeedsState:
    mean: Any
    std: Any


@part
class Seeds(Evolver):
    """An evolver whose genomes are seeds of noise, from which there is no way back."""

    population_size: int = 6

    def init(self, key, mean):
        return SeedsState(mean, jnp.float32(0.3))

    def ask(self, key, state):
        return jax.random.bits(key, (self.population_size,)), state

    def to_params(self, state, genome):
        numbers, unravel = ravel_pytree(state.mean)
        return unravel(numbers + state.std * jax.random.normal(jax.random.key(genome), numbers.shape))

    def tell(self, key, genomes, fitness, state):
        mean = self.to_params(state, genomes[fitness.argmax()])
        return SeedsState(mean, state.std), {}

    def solution(self, state):
        return state.mean


@pytest.mark.program
def test_an_evolver_is_told_the_genomes_that_it_asked_for():
    workflow = evolution(Walk(), Seeds())
    state = started(workflow)
    after, (row,) = steps(workflow, state, 1)
    assert walk_return(after.agent.actor.params) == pytest.approx(float(row["return_best"]), rel=1e-5)
    assert float(row["return_best"]) > walk_return(state.agent.actor.params)


@dataclass(frozen=True)
class Two(Walk):
    """Walk, whose reward is also to be kept apart from where it ends."""

    episode_info: ClassVar = {"place": "last"}

    def step(self, key, env_state, action, params):
        state, timestep = super().step(key, env_state, action, params)
        return state, timestep.replace(info={"place": action})


class Ends(Seeds):
    """Told of returns and of where episodes end, it keeps who ends the furthest."""

    def compute_fitness(self, means):
        return {"objectives": jnp.stack([means["return"], means["place"][:, 0]], 1), "place": means["place"]}

    def tell(self, key, genomes, fitness, state):
        best = fitness["objectives"][:, 1].argmax()
        told = {"furthest": fitness["place"][best, 0], "return_of_it": fitness["objectives"][best, 0]}
        return SeedsState(self.to_params(state, genomes[best]), state.std), told


@pytest.mark.program
def test_an_evolver_may_be_told_more_than_returns():
    workflow = evolution(Two(), Ends(), fitness_episodes=2)
    state = started(workflow)
    after, (row,) = steps(workflow, state, 1)
    evaluation = jax.jit(workflow.evaluate)(after, jax.random.key(0))
    np.testing.assert_allclose(evaluation["episode/place/0"], row["furthest"], rtol=1e-5)
    np.testing.assert_allclose(walk_return(after.agent.actor.params), row["return_of_it"], rtol=1e-5)
    assert float(row["furthest"]) >= float(row["episode/place/0"])


@pytest.mark.parametrize("workflow", [CEMRL, ERL])
def test_who_has_learned_is_told_only_to_an_evolver_with_a_way_back(workflow):
    agent = TD3(hidden=(8,))
    with pytest.raises(OptionError, match=r"evolver=Seeds: has no from_params"):
        workflow(Walk(), agent, Seeds())


@pytest.mark.program
def test_a_population_is_in_memory_once():
    """At 128 members of 71,942 parameters; a fifth of a population is what is drawn at once, and activations."""
    env = Walk()
    workflow = evolution(env, OpenES(128, **ES), hidden=(256, 256))
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    step = jax.jit(partial(step_or_evaluate, workflow), donate_argnums=0)
    compiled = step.lower(state, jax.random.key(0), jnp.bool_(False)).compile()
    population = 128 * tree.nbytes(state.agent.actor.params)
    assert compiled.memory_analysis().temp_size_in_bytes < 1.2 * population


def test_a_policy_with_empty_parameters_is_evolved():
    """PPO with discrete actions has a head without standard deviations, an array of size 0."""
    workflow = Evolution(CHOICES, PPO(hidden=(4,)), OpenES(8), eval_episodes=2)
    state = jax.eval_shape(workflow.init, jax.random.key(0))
    assert jax.eval_shape(workflow.step, state, jax.random.key(0))[1]["return"].shape == ()
