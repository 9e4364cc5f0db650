"""Distributed populations: the training of one process, whoever computes a part, also on host environments."""

import json
import os
import random
import signal
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from evorl.agents import PPO, MLPPolicy
from evorl.cli import distribute
from evorl.distributed import coordinate_evolution, coordinate_population
from evorl.ec import GA, OpenES, SeededES
from evorl.envs.host import HostEnv, pool_registry
from evorl.envs.sanity.probe import ObsActionReward
from evorl.errors import OptionError
from evorl.keys import key_from_seed
from evorl.training import run_recorder
from evorl.workflows import PBT, Evolution, OnPolicy, Vmapped
from tests.clusters import find_actors, require_ray
from tests.conftest import leaves_equal
from tests.distributing import Reordered

POLICY = MLPPolicy(hidden=(4,))


def make(evolver, **more):
    env = ObsActionReward()
    return Evolution(env, POLICY, evolver, eval_episodes=8, **{"normalization": "none"} | more)


def trained(workflow, iterations=3, **options):
    return list(coordinate_evolution(workflow, iterations=iterations, **options))


def train_in_blocks(workflow, parts, iterations=3):
    workflow = replace(workflow, members_at_once=workflow.evolver.population_size // parts)
    key_init, steps, _ = jax.random.split(key_from_seed(0), 3)
    state, step, metrics = jax.jit(workflow.init)(key_init), jax.jit(workflow.step), {}
    for i in range(iterations):
        state, metrics = step(state, jax.random.fold_in(steps, i))
    return state, metrics


@pytest.mark.program
@pytest.mark.parametrize(
    "workflow",
    [
        make(OpenES(8)),
        make(SeededES(OpenES(8))),
        make(GA(6, num_elites=2), same_episodes=True, fitness_episodes=2),
        make(OpenES(8), normalization="vbn", vbn_steps=40),
        make(OpenES(8), normalization="running"),
    ],
    ids=["openes", "seeded_es", "ga", "vbn", "running"],
)
def test_it_is_the_training_of_one_process_in_blocks(workflow):
    one = trained(workflow, parts=2)[-1]
    state, metrics = train_in_blocks(workflow, 2)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)  # noqa: E731
    jax.tree.map(close, one.state.agent.actor.params, state.agent.actor.params)
    if workflow.normalization != "none":
        jax.tree.map(close, one.state.obs_statistics, state.obs_statistics)
        assert float(one.state.obs_statistics.count) > 0
    np.testing.assert_allclose(one.metrics["return"], metrics["return"], rtol=1e-5)
    assert int(one.metrics["env_steps"]) == int(metrics["env_steps"])


@pytest.mark.program
def test_neither_the_order_nor_an_interruption_matters():
    workflow, draw = make(OpenES(8)), random.Random(0)
    whole = trained(workflow, 4, parts=4)
    shuffled = trained(workflow, 4, parts=4, executor=Reordered(lambda tasks: draw.randrange(len(tasks))))
    assert leaves_equal(whole[-1].state, shuffled[-1].state)
    resumed = trained(workflow, 4, parts=4, begin=whole[1].state)
    assert [one.number for one in resumed] == [3, 4]
    assert leaves_equal(whole[-1].state, resumed[-1].state)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"parts": 3}, "parts=3: must divide population_size, 8"), ({"iterations": 0}, "iterations=0: must be")],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        trained(make(OpenES(8)), **options)


def host_evolution():
    env = HostEnv("CartPole-v1", max_episode_steps=20)
    return Evolution(env, POLICY, OpenES(4), normalization="none", eval_episodes=4)


@pytest.mark.program
def test_environments_on_the_host_are_given_back_after_each_task():
    """Two parts, one after the other, use the same two environments of one process."""
    try:
        found = trained(host_evolution(), 2, parts=2)
        (pool,) = pool_registry._POOLS.values()
        assert pool.active_leases == ()
        assert leaves_equal(found[-1].state, trained(host_evolution(), 2, parts=2)[-1].state)
    finally:
        pool_registry.close_all()


@pytest.mark.program
def test_a_training_on_ray_whose_workers_are_killed_loses_no_fitness():
    require_ray()
    from evorl.distributed import RayExecutor

    alone = trained(host_evolution(), 12, parts=4)
    pool_registry.close_all()
    executor, draw, killed, found = RayExecutor(3, 0.5), random.Random(1), 0, []
    with executor.connect_to_ray():
        for one in coordinate_evolution(host_evolution(), executor, 12, parts=4):
            found.append(one)
            if killed < 3 and one.number > 1:
                workers = find_actors()
                os.kill(draw.choice(workers), signal.SIGKILL)
                killed += 1
                time.sleep(draw.uniform(0, 0.3))
    assert killed == 3
    for a, b in zip(alone, found, strict=True):
        assert leaves_equal(a.state, b.state)
        np.testing.assert_array_equal(a.metrics["return"], b.metrics["return"])


@pytest.mark.program
def test_the_command_resumes_a_training_bitwise(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["agent=openes", "env=cartpole", "env.max_episode_steps=20", "agent.workflow.evolver.population_size=8"]
    words += ["agent.workflow.agent.hidden=[4]", "agent.workflow.eval_episodes=8", "agent.workflow.vbn_steps=40"]
    words += ["parts=2", "tensorboard=false", "executor=serial", "evaluations=2", "chunk=1"]
    counts = []
    count = run_recorder.count_episodes
    monkeypatch.setattr(run_recorder, "count_episodes", lambda *given: counts.append(count(*given)) or counts[-1])
    distribute.main([*words, "iterations=4", "run_dir=whole"])
    distribute.main([*words, "iterations=2", "run_dir=twice"])
    distribute.main(["resume=twice", "executor=serial", "iterations=4"])
    whole, twice = (
        {row["iteration"]: row["return"] for row in read_rows(tmp_path / name) if row["kind"] == "train"}
        for name in ("whole", "twice")
    )
    assert sorted(whole) == [1, 2, 3, 4]
    assert whole == twice
    assert max(counts) == counts[-1] == 128, "episodes of the final evaluation, of 8 in each round"


def make_pbt(env=None, **more):
    inner = OnPolicy(env or ObsActionReward(), PPO(hidden=(4,)), 4, 8, 1, 16, eval_episodes=4)
    return PBT(Vmapped(inner, 4), steps_per_generation=2, warmup_steps=1, search=("learning_rate",), **more)


@pytest.mark.program
def test_pbt_is_that_of_one_process():
    """Selection and hyperparameters are equal; parameters differ by rounding, since another program computes them."""
    workflow, close = make_pbt(), lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    found = list(coordinate_population(workflow, iterations=3, parts=2))
    key_init, steps, _ = jax.random.split(key_from_seed(0), 3)
    state, step = jax.jit(workflow.init)(key_init), jax.jit(workflow.step)
    for i in range(3):
        state, metrics = step(state, jax.random.fold_in(steps, i))
        np.testing.assert_array_equal(found[i].metrics["members/source"], metrics["members/source"])
        close(found[i].metrics["members/fitness"], metrics["members/fitness"])
        assert int(found[i].metrics["env_steps"]) == int(metrics["env_steps"])
        close(found[i].state.points, state.points)
    jax.tree.map(close, found[-1].state.members.agent.actor.params, state.members.agent.actor.params)
    assert int(found[0].metrics["env_steps"]) == 4 * 32 * 3  # one more step in the first generation
    assert int(found[1].metrics["env_steps"]) == 4 * 32 * 2
    resumed = list(coordinate_population(workflow, iterations=3, parts=2, begin=found[0].state))
    assert leaves_equal(resumed[-1].state, found[-1].state)
    draw = random.Random(0)
    shuffled = Reordered(lambda tasks: draw.randrange(len(tasks)))
    again = list(coordinate_population(workflow, shuffled, 3, parts=2))
    assert leaves_equal(again[-1].state, found[-1].state)


@pytest.mark.program
def test_members_train_on_environments_of_the_host_that_are_given_back():
    env = HostEnv("CartPole-v1", max_episode_steps=20)
    try:
        one, two = coordinate_population(make_pbt(env), iterations=2, parts=2)
        (pool,) = pool_registry._POOLS.values()
        assert pool.active_leases == ()
        assert np.isfinite(two.metrics["members/fitness"]).all()
        assert float(two.state.env_steps) == 4 * 32 * 5
        before, after = (x.state.members.agent.actor.params for x in (one, two))
        assert not leaves_equal(before, after)
    finally:
        pool_registry.close_all()


def test_parts_of_unequal_size_are_refused():
    with pytest.raises(OptionError, match=r"parts=3: must divide population.size, 4"):
        list(coordinate_population(make_pbt(), iterations=1, parts=3))


def read_rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
