"""Bad input to the Python API: each is refused in one line that names it, before anything compiles."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from evorl.agents import TD3
from evorl.agents.random import Random
from evorl.ec import ARS, CEM, CMAES, CSO, GA, OpenES, SeededES, VanillaES, search
from evorl.ec.map_elites import MapElites
from evorl.ec.variation import BoundedSBX, PolynomialMutation
from evorl.envs.actions import RescaleAction
from evorl.envs.check import check_env
from evorl.errors import OptionError
from evorl.parts import number
from evorl.priors import Choice, Integer, LogUniform, Uniform
from evorl.replay.ring import RingBuffer
from evorl.spaces import (
    Box,
    Dict,
    Discrete,
    Members,
    MultiBinary,
    MultiDiscrete,
    ObsWithActionMask,
    Tuple,
    random_action,
)
from evorl.training import devices, dry_run
from evorl.training.episodes import play_episodes
from evorl.training.fit import fit
from evorl.training.progress import Budget
from evorl.vector_env import EnvBatch, VectorEnv
from tests.tiny import AGENT, ENV, OFF_POLICY, Walk

NAN, INF = float("nan"), float("inf")
ONCE = Budget(iterations=1)


@pytest.fixture(autouse=True)
def unchecked():
    """Annotations are not checked, as where evorl is used."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


SPACES = [
    (lambda: Box(1.0, 0.0, (2,)), "low=1.0: must not be above high, 0.0"),
    (lambda: Box(0.0, NAN, (2,)), "low=0.0: must not be above high, nan"),
    (lambda: Box((0.0, 3.0), 2.0, (2,)), r"low=\(0.0, 3.0\): must not be above high, 2.0"),
    (lambda: Box(0.0, 1.0, (3, 0)), r"shape=\(3, 0\): must have lengths of at least 1"),
    (lambda: Box(0.0, 1.0, 3), "shape=3: must be a tuple of whole numbers"),
    (lambda: Box((0.0, 1.0, 2.0), 4.0, (2,)), "its bounds do not fit its shape and dtype"),
    (lambda: Box("a", 1.0, (2,)), "its bounds do not fit its shape"),
    (lambda: Box(None, 1.0, (2,)), "its bounds do not fit its shape"),
    (lambda: Box(-1, 1, (2,), "uint8"), "its bounds do not fit its shape and dtype"),
    (lambda: Box(0, 1, (2,), "floot"), "its bounds do not fit its shape and dtype"),
    (lambda: Discrete(0), "n=0: must be at least 1"),
    (lambda: Discrete(2.5), "n=2.5: must be a whole number, at least 1"),
    (lambda: Discrete(True), "n=True: must be a whole number, at least 1"),
    (lambda: Discrete(2**31 - 1, 5), "start=5: must be at most 1"),
    (lambda: MultiDiscrete(()), r"choices=\(\): must have at least one number"),
    (lambda: MultiDiscrete((2, 0)), "choices=0: must be at least 1"),
    (lambda: MultiDiscrete((2, 3), (1,)), r"starts=\(1,\): must have as many numbers as choices, 2"),
    (lambda: MultiDiscrete((2, 3), shape=(3,)), r"shape=\(3,\): must have as many entries as choices, 2"),
    (lambda: MultiBinary((0,)), r"shape=\(0,\): must have lengths of at least 1"),
    (lambda: Dict({}), "parts={}: must be a mapping from names to spaces"),
    (lambda: Dict({"a": 3}), "a=3: must be a space"),
    (lambda: Tuple(()), r"parts=\(\): must be a sequence of spaces"),
    (lambda: ObsWithActionMask(Discrete(2), (0,)), "choices=0: must be at least 1"),
    (lambda: Members(Discrete(2), 0), "n=0: must be at least 1"),
]
BOUNDS = [
    (lambda: RescaleAction(ENV, 1.0, 1.0), "low=1.0: must be below high, 1.0"),
    (lambda: Uniform(1.0, 1.0), "high=1.0: must be above low, 1.0"),
    (lambda: LogUniform(1.0, 0.1), "high=0.1: must be above low, 1.0"),
    (lambda: Integer(3, 3), "high=3: must be above low, 3"),
    (lambda: BoundedSBX(low=1.0, high=1.0), "bounds=1.0, 1.0: low must be below high"),
    (lambda: PolynomialMutation(low=NAN), "bounds=nan, inf: low must be below high"),
    (lambda: MapElites(low=(0.0, 1.0), high=1.0), r"bounds=\[0.0, 1.0\], 1.0: low must be below high"),
    (lambda: number(0.5, 1.0, 0.0), "high=0: must be above low, 1"),
    (lambda: number(2.0, 0.0, 1.0), "default=2.0: must be between 0 and 1"),
]
NUMBERS = [
    (lambda: Budget(iterations="9"), "iterations=9: must be above 0"),
    (lambda: Budget(minutes=NAN), "minutes=nan: must be above 0"),
    (lambda: Budget(iterations=2.5), "iterations=2.5: must be a whole number"),
    (lambda: Uniform("0", 1.0), "low=0: must be a finite number"),
    (lambda: Integer(1, 2.5), "high=2.5: must be a whole number"),
    (lambda: Choice((1.0, NAN)), r"values=\(1.0, nan\): must be finite numbers"),
    (
        lambda: replace(OFF_POLICY, env=Walk),
        "env=the class Walk: must be an object with the members of Env",
    ),
    (lambda: replace(OFF_POLICY, agent=None), "agent=NoneType: must be an object with the members of Actor"),
    (lambda: fit(OFF_POLICY, budget=9), "budget=9: must be a Budget"),
    (lambda: OFF_POLICY.init(jax.random.key(0), 3), "numbers=3: must be a mapping from field names to values"),
    (lambda: fit(OFF_POLICY, budget=ONCE, devices=0), "devices=0: must be at least 1"),
    (lambda: fit(OFF_POLICY, budget=ONCE, evaluation_share="1"), "evaluation_share=1: must be above 0 and at most 1"),
    (lambda: fit(OFF_POLICY, budget=ONCE, num_seeds=10**9), "num_seeds=1000000000: must be at most 1048576"),
    (lambda: replace(OFF_POLICY, num_envs=0), "num_envs=0: must be at least 1"),
    (lambda: replace(OFF_POLICY, num_envs=2.5), "num_envs=2.5: must be a whole number, at least 1"),
    (lambda: replace(OFF_POLICY, num_envs="4"), "num_envs=4: must be a whole number, at least 1"),
    (lambda: replace(OFF_POLICY, capacity=7), "capacity=7: must be at least batch_size, 8"),
    (lambda: replace(OFF_POLICY, random_steps=65), "random_steps=65: must be from 0 to capacity, 64"),
    (lambda: replace(AGENT, num_critics=1.5), "num_critics=1.5: must be a whole number"),
    (lambda: replace(AGENT, hidden=(0,)), r"hidden=\[0\]: widths must be whole numbers, at least 1"),
    (lambda: OpenES(0), "population_size=0: must be at least 2"),
    (lambda: ARS("4"), "population_size=4: must be a whole number, at least 2"),
    (lambda: CSO(3), "population_size=3: must be even"),
    (lambda: CMAES(NAN), "population_size=nan: must be a whole number"),
    (lambda: CEM(4, num_elites=5), "num_elites=5: must be between 1 and 4, or 0 for half"),
    (lambda: GA(4, num_elites=4), "num_elites=4: must be from 0 to population_size - 1, 3"),
    (lambda: VanillaES(4, num_elites=1.5), "num_elites=1.5: must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("make", "message"), SPACES + BOUNDS + NUMBERS)
def test_what_cannot_be_is_refused_where_it_is_made(make, message):
    with pytest.raises(OptionError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_bounds_may_be_arrays_and_a_space_is_hashable():
    given = Box(np.array([0.0, -1.0]), np.ones(2), (np.int64(2),), jnp.float32)
    assert given == Box((0.0, -1.0), 1.0, (2,))
    assert hash(given) == hash(Box((0.0, -1.0), 1.0, (2,)))
    assert MultiDiscrete(np.array([2, 3])) == MultiDiscrete((2, 3))
    assert Box(0.0, 0.0, (2,)).size == 2  # a constant observation


class Endless(Walk):
    max_episode_steps = 0


class Stuck(Walk):
    action_space = Box(1.0, 1.0, (1,))


@pytest.mark.parametrize(
    ("env", "agent", "message"),
    [
        (ENV, replace(AGENT, action_space=Box(-2.0, 2.0, (1,))), r"agent=TD3 for Box\(low=-2.0.*: must have the act"),
        (
            ENV,
            Random(observation_space=Box(-1.0, 1.0, (3,)), action_space=ENV.action_space),
            r"agent=Random for .*: must have the observation_space",
        ),
        (Endless(), AGENT, "max_episode_steps=0: must be at least 1"),
        (Stuck(), replace(AGENT, action_space=Stuck.action_space), r"action_space=Box\(.*\): must have low below high"),
    ],
)
def test_an_agent_must_fit_its_environment(env, agent, message):
    with pytest.raises(OptionError, match=message):
        VectorEnv(env, agent, num_envs=4, eval_episodes=6, scan_length=3)


class Whole(Walk):
    def sample_initial_obs(self, key):
        return jnp.zeros(1, jnp.int32)


class Grows(Walk):
    def step(self, key, env_state, action, params):
        after, timestep = super().step(key, env_state, action, params)
        return after, timestep.replace(obs=jnp.zeros(2))


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Whole(), r"env=Whole: reset: obs is int32 \[1\], must be float32 \[1\], as its observation_space declares"),
        (Grows(), r"env=Grows: step: obs is float32 \[2\], must be float32 \[1\], as its observation_space declares"),
    ],
)
def test_observations_must_be_as_declared(env, message):
    world = EnvBatch(env, None, None, 2)
    with pytest.raises(OptionError, match=message):
        jax.eval_shape(lambda keys: world.init_envs(world.reset(keys)), jax.random.split(jax.random.key(0), 2))


@pytest.mark.parametrize("seed", [-1, 0.5, "1", None, True, 2**31])
def test_seeds_must_be_whole(seed):
    with pytest.raises(OptionError, match=r"^seed=.*: must (be a whole number, at least 0|not be negative|be at most)"):
        fit(OFF_POLICY, seed=seed, budget=ONCE)
    if seed != 2**31:
        with pytest.raises(OptionError, match=r"^seed="):
            play_episodes(ENV, None, None, None, 1, seed)


def asked(evolver, key):
    return evolver.ask(key, evolver.init(key, jnp.zeros(2)))


LEGACY = r"^key=uint32 \[(2|2, 2)\]: must be a typed key, jax.random.key\(seed\), not a PRNGKey"
TAKE_A_KEY = {
    "workflow.init": lambda key: OFF_POLICY.init(key),
    "workflow.step": lambda key: OFF_POLICY.step(None, key),
    "workflow.evaluate": lambda key: OFF_POLICY.evaluate(None, key),
    "agent.init": lambda key: AGENT.init(key),
    "search.begin": lambda key: search.init_evolver_state(CEM(4), key, jnp.zeros(2), jnp.zeros),
    "evolver.ask": lambda key: asked(CEM(4), key),
    "seeds": lambda key: asked(SeededES(OpenES(4)), key),
    "world.reset": lambda key: EnvBatch(ENV, None, None, 2).reset(jax.random.split(key)),
    "Box.sample": Box(0.0, 1.0, (2,)).sample,
    "Dict.sample": Dict({"a": Discrete(2)}).sample,
    "Members.sample": Members(MultiDiscrete((2,)), 2).sample,
    "random_action": lambda key: random_action(Discrete(2), Discrete(2), 0, key),
    "check": lambda key: check_env(ENV, key=key),
}


@pytest.mark.parametrize("name", TAKE_A_KEY)
def test_legacy_keys_are_refused(name):
    with pytest.raises(OptionError, match=LEGACY):
        jax.eval_shape(TAKE_A_KEY[name], jax.random.PRNGKey(0))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NAN, "numbers.agent.discount=nan: must be between 0 and 1"),
        (-0.1, "numbers.agent.discount=-0.1: must be between 0 and 1"),
        ("0.9", "numbers.agent.discount=0.9: must be a number"),
        (True, "numbers.agent.discount=True: must be a number"),
        (np.array([0.9, 1.5]), "numbers.agent.discount=.*: must be between 0 and 1"),
    ],
)
def test_numbers_must_be_in_their_range(value, message):
    with pytest.raises(OptionError, match=message):
        OFF_POLICY.init(jax.random.key(0), {"agent": {"discount": value}})
    with pytest.raises(OptionError, match=message.removeprefix("numbers.agent.")):
        fit(replace(OFF_POLICY, agent=TD3(discount=value)), budget=ONCE)


def test_64_bits_are_refused_by_name():
    with jax.enable_x64(True), pytest.raises(OptionError, match=r"^jax_enable_x64=True: must be False: evorl computes"):
        OFF_POLICY.init(jax.random.key(0))


def test_memory_is_told_by_the_seeds_that_fit(monkeypatch):
    monkeypatch.setattr(devices, "memory_limit", lambda: 7000)
    states = {name: jax.ShapeDtypeStruct((5, n), jnp.float32) for name, n in {"critic": 200, "agent": 50}.items()}
    why = "the state and the best state need 10 kB of memory, and 7 kB are available; its largest field is critic, 4 kB"
    for seeds, fits in ((5, "num_seeds=5: at most 3 fit; "), (1, "")):
        with pytest.raises(OptionError, match=f"^{fits}{why}$"):
            dry_run.require_memory(states, seeds)
    replay = jax.eval_shape(lambda: RingBuffer.empty(1000, jnp.zeros(1)))  # 4 kB, of which there is one copy
    dry_run.require_memory({"replay": replay, "agent": states["agent"]})


def test_a_device_that_runs_out_of_memory_says_so_in_a_line():
    with (
        pytest.raises(OptionError, match=r"^out of memory: allocating 9 GB; use a smaller num_seeds"),
        dry_run.explain_out_of_memory(),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: allocating 9 GB\nand a long report")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), dry_run.explain_out_of_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: another")
