"""Parts: numbers are declared, checked, read, bound to a state, and never a reason to compile."""

import math
from dataclasses import FrozenInstanceError, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import SNES
from flax import struct

from evorl import ERL, TD3, CartPole, Evolution, MLPPolicy, PointMaze
from evorl.agents import DQN, PPO, fill_spaces
from evorl.ec import CMAES, GA, ERLMutation, Evosax, OpenES, Restarts
from evorl.errors import OptionError
from evorl.parts import (
    abstract_numbers,
    bind,
    get_skeleton,
    is_part,
    iterate_numbers,
    number,
    part,
    read_numbers,
    resolve_numbers,
)
from evorl.population.search import PriorSpace
from evorl.priors import Fixed, LogUniform, Uniform
from evorl.schedules import Cosine, Linear, Schedule
from evorl.spaces import Box, Discrete
from evorl.training.configuration.targets import import_target, list_public_classes
from evorl.workflows import OnPolicy

ENV = CartPole()


@part
class Noise:
    size: int = 2
    std: float = number(0.5, 0, 1, about="of the noise", prior=Uniform(0.1, 0.9))


@part
class Search:
    steps: int = 3
    noise: Noise = field(default_factory=Noise)
    rate: float = number(0.1, 0)
    most: int = number(4, 1)

    def __post_init__(self):
        if self.steps < 1:
            raise OptionError(f"steps={self.steps}: must be at least 1")

    def score(self, x):
        return self.rate * x + self.noise.std


@part
class Faster(Search):
    boost: float = number(2.0, 1, 3)


def test_numbers_are_given_by_name_and_kept():
    found = Search(5, Noise(std=0.25), rate=2)
    assert (found.steps, found.noise.std, found.rate, found.most) == (5, 0.25, 2, 4)
    with pytest.raises(TypeError, match="positional"):
        Search(5, Noise(), 0.2)
    with pytest.raises(FrozenInstanceError):
        found.rate = 3
    assert isinstance(found.rate, float)  # as its default is
    assert found == Search(5, Noise(std=0.25), rate=2)
    assert hash(found) == hash(Search(5, Noise(std=0.25), rate=2))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Noise(std=1.5), "std=1.5: must be between 0 and 1"),
        (lambda: Noise(std=Uniform(0.5, 2.0)), "std=Uniform"),
        (lambda: Noise(std="0.1"), "std=0.1: must be a number"),
        (lambda: Noise(std=True), "std=True: must be a number"),
        (lambda: Noise(std=None), "std=None: must be a number"),
        (lambda: Noise(std=[0.1, 0.2]), "must be a number"),
        (lambda: Noise(std=float("nan")), "std=nan: must be between 0 and 1"),
        (lambda: replace(Noise(), std=-1), "std=-1: must be between 0 and 1"),
        (lambda: Faster(boost=5), "boost=5: must be between 1 and 3"),
        (lambda: Faster(rate=-1), "rate=-1: must be between 0 and inf"),
        (lambda: Faster(0), "steps=0: must be at least 1"),
        (lambda: Search(most=2.5), "most=2.5: must be a whole number"),
        (lambda: number(2.0, 0, 1), "default=2.0: must be between 0 and 1"),
        (lambda: number(0.5, 1, 0), "high=0: must be above low, 1"),
        (lambda: number(0.5, 0, 1, prior=Uniform(0, 2)), "prior="),
        (
            lambda: bind(Noise(), {"std": 0.1, "sdt": 0.2}),
            "numbers=std, sdt: must be the hyperparameters of Noise: std",
        ),
        (
            lambda: bind(GA(), read_numbers(OpenES())),
            "must be the hyperparameters of GA: crossover_rate, initial_std, ",
        ),
        (
            lambda: resolve_numbers(Search(), {"nois": {}}),
            "unknown hyperparameter numbers.nois; did you mean numbers.noise?",
        ),
        (lambda: resolve_numbers(Search(), {"noise": {"std": 2}}), "numbers.noise.std=2: must be between 0 and 1"),
        (
            lambda: resolve_numbers(Search(), {"noise": 2}),
            "numbers.noise=2: must be a mapping from field names to values",
        ),
        (lambda: resolve_numbers(Search(rate=Uniform(0, 1))), "a prior needs a meta-workflow that searches"),
        (lambda: Noise(std=Fixed(2)), "std=Fixed(value=2): must be between 0 and 1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(make, told):
    with pytest.raises(OptionError) as found:
        make()
    assert str(found.value).startswith(told) or told in str(found.value)
    assert "\n" not in str(found.value)


def test_priors_and_arrays_stand_where_a_number_stands():
    assert Noise(std=Uniform(0.2, 0.4)).std == Uniform(0.2, 0.4)
    assert Noise(std=jnp.array([0.1, 7.0])).std.shape == (2,)  # as it comes from a state


def test_numbers_are_read_and_bound_by_name():
    numbers = read_numbers(Faster(2, Noise(std=0.75), rate=0.3))
    assert numbers == {"noise": {"std": 0.75}, "rate": 0.3, "most": 4, "boost": 2.0}
    assert [name for name, *_ in iterate_numbers(Faster())] == ["noise.std", "rate", "most", "boost"]
    assert bind(Faster(2), numbers) == Faster(2, Noise(std=0.75), rate=0.3)
    by_name = {"noise": {"std": 0.2}, "rate": 0.4, "most": 5, "boost": 1.5}
    assert bind(Faster(), by_name) == Faster(3, Noise(std=0.2), rate=0.4, most=5, boost=1.5)
    assert not is_part(3)
    assert bind("no part", {}) == "no part"
    assert read_numbers("no part") == {}


def test_numbers_of_parts_within_parts():
    ga = GA(8, 2, mutation=ERLMutation(bound=3.0), crossover_rate=0.25)
    assert read_numbers(ga)["mutation"]["bound"] == 3.0
    assert bind(GA(8, 2, mutation=ERLMutation()), read_numbers(ga)) == ga
    ipop = Restarts(CMAES(6, initial_std=0.3), spread=2.0)
    assert bind(Restarts(CMAES(6)), read_numbers(ipop)) == ipop
    snes = Evosax(SNES, 8, numbers={"std_init": 0.2})
    assert read_numbers(snes) == {"numbers": {"std_init": 0.2}}
    assert bind(Evosax(SNES, 8), {"numbers": {"std_init": 0.2}}) == snes
    assert bind(Evosax(SNES, 8), {}) == Evosax(SNES, 8)


def test_a_bound_part_has_no_hash():
    numbers = jax.tree.map(jnp.float32, read_numbers(Search()))
    for bound in (bind(Search(), numbers), replace(Search(), rate=np.float32(1))):
        with pytest.raises(
            TypeError, match=r"is bound to hyperparameters of a state \(rate.*skeleton, the component before bind"
        ):
            hash(bound)
    with pytest.raises(TypeError, match="Noise is bound"):
        hash(Search(noise=Noise(std=jnp.float32(0.1))))
    with pytest.raises(TypeError, match=r"Evosax is bound to hyperparameters of a state \(numbers\)"):
        hash(Evosax(SNES, 8, numbers={"std_init": jnp.float32(0.1)}))
    with pytest.raises(ValueError, match="bound to hyperparameters of a state"):
        jax.jit(lambda search, x: search.score(x), static_argnums=0)(bind(Search(), numbers), 1.0)


def test_no_public_part_that_is_bound_may_be_what_a_program_is_compiled_for():
    """Where a tracer is expected a concrete float would compile anew for every value, in silence."""
    seen = set()
    for name, path in list_public_classes().items():
        cls = import_target(path)
        try:
            one = cls() if is_part(cls) else None
        except (TypeError, OptionError):  # it needs other parts
            continue
        if numbers := read_numbers(one):
            bound = bind(one, jax.tree.map(jnp.float32, numbers))
            with pytest.raises(ValueError, match=r"is bound to hyperparameters of a state .* its skeleton"):
                jax.jit(lambda part: 0, static_argnums=0)(bound)
            assert hash(get_skeleton(bound)) == hash(one)
            seen.add(name)
    assert {"PPO", "SAC", "CMAES", "GA", "Perturb", "Matchmaking", "PrioritizedSegments"} <= seen
    assert len(seen) > 30


def test_one_program_serves_all_numbers():
    @partial(jax.jit, static_argnums=0)
    def score(skeleton, numbers, x):
        return bind(skeleton, numbers).score(x)

    for rate, std in ((0.1, 0.5), (0.7, 0.25)):
        numbers = jax.tree.map(jnp.asarray, read_numbers(Search(noise=Noise(std=std), rate=rate)))
        assert float(score(Search(), numbers, 2.0)) == pytest.approx(2 * rate + std)
    assert score._cache_size() == 1


def test_those_that_differ_are_given_and_all_become_arrays_as_declared():
    found = resolve_numbers(Search(noise=Noise(std=Fixed(0.25))), {"rate": jnp.array([1, 2]), "most": 7.0})
    assert (found["rate"].dtype, found["most"].dtype, found["noise"]["std"].dtype) == ("float32", "int32", "float32")
    assert (found["rate"].shape, int(found["most"]), float(found["noise"]["std"])) == ((2,), 7, 0.25)
    assert resolve_numbers("no part") == {}
    own = resolve_numbers(Evosax(SNES, 8), {"numbers": {"std_init": 0.5}})
    assert float(own["numbers"]["std_init"]) == 0.5


def test_numbers_are_those_that_a_part_was_made_with():
    workflow = Evolution(ENV, MLPPolicy(hidden=(4,)), OpenES(8, std=0.3))
    assert read_numbers(workflow)["evolver"]["std"] == 0.3
    assert read_numbers(ERL(PointMaze(), TD3()))["evolver"]["mutation_rate"] == 0.9


class Plays:
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(3)


def test_spaces_are_filled_in_where_they_lack_and_only_then_checked():
    with pytest.raises(OptionError, match="hidden"):
        DQN(hidden=(0,))
    agent = fill_spaces(DQN(hidden=(4,)), Plays)
    assert (agent.observation_space, agent.action_space) == (Plays.observation_space, Plays.action_space)
    own = DQN(observation_space=Box(0.0, 1.0, (5,)), action_space=Discrete(2))
    assert fill_spaces(own, Plays) == own
    with pytest.raises(OptionError, match="TD3 needs continuous actions, a Box with one axis, not Discrete"):
        fill_spaces(TD3(), Plays)
    for alone in (PPO(hidden=(4,)), MLPPolicy(hidden=(4,))):
        with pytest.raises(OptionError, match="_space=None: is set by a workflow; without one, give the agent"):
            alone.init(jax.random.key(0))
    workflow = OnPolicy(ENV, PPO(hidden=(4,)))
    assert workflow.agent.observation_space == ENV.observation_space
    assert workflow == replace(workflow)
    assert hash(workflow) == hash(OnPolicy(ENV, PPO(hidden=(4,))))


def test_parts_by_name_and_in_a_row_have_numbers_by_name():
    @part
    class Several:
        parts: object

    many, row = Several({"b": Noise(std=0.3), "a": Noise(), "c": 3}), Several((3, Noise(std=0.3), Noise()))
    assert read_numbers(many) == {"parts": {"b": {"std": 0.3}, "a": {"std": 0.5}}}
    bound = bind(many, {"parts": {"a": {"std": 0.7}, "b": {"std": 0.8}}})
    assert (bound.parts["a"].std, bound.parts["b"].std, bound.parts["c"]) == (0.7, 0.8, 3)
    assert read_numbers(row) == {"parts": {"1": {"std": 0.3}, "2": {"std": 0.5}}}
    assert bind(row, {"parts": {"1": {"std": 0.7}, "2": {"std": 0.8}}}).parts == (3, Noise(std=0.7), Noise(std=0.8))


def test_a_bound_part_knows_its_skeleton_and_a_schedule_goes_by_env_steps():
    agent = PPO(learning_rate=Linear(0.1, 0, over=100.0))
    numbers = resolve_numbers(agent)
    bound = bind(agent, numbers, jnp.float32(25))
    assert float(bound.learning_rate) == pytest.approx(0.075)
    assert float(bind(agent, numbers).learning_rate) == pytest.approx(0.1)
    assert float(bind(agent, numbers, None).learning_rate.over) == 100
    assert get_skeleton(bound) is agent
    assert get_skeleton(bind(bound, numbers)) is agent
    assert float(bind(bound, numbers, jnp.float32(50)).learning_rate) == pytest.approx(0.05)  # from where it begins
    with pytest.raises(TypeError, match="PPO is bound to hyperparameters of a state"):
        hash(OnPolicy(ENV, bound))


@part
class Scheduled:
    rate: float = number(0.5, 0, 1, prior=Uniform(0.1, 0.9))
    count: int = number(4, 1, 8)
    noise: Noise = field(default_factory=Noise)


def test_a_schedule_stands_for_any_number_and_its_own_are_numbers():
    """At 30 of 120 steps a quarter of the way is done; half a cosine has then done (1 - cos(pi / 4)) / 2 of it."""
    read = lambda part: (part.rate, part.count, part.noise.std)  # noqa: E731
    one = Scheduled(rate=Linear(0.5, 0.1, over=120), count=Cosine(2, 8, over=120), noise=Noise(std=Linear(1, 0, 1e9)))
    assert [name for name, *_ in iterate_numbers(one)] == [
        *(f"rate.{name}" for name in ("start", "end", "over")),
        *(f"count.{name}" for name in ("start", "end", "over")),
        *(f"noise.std.{name}" for name in ("start", "end", "over")),
    ]
    numbers = resolve_numbers(one, {"rate": {"end": jnp.float32(0.3)}, "noise": {"std": 0.25}})
    rate, count, std = jax.jit(lambda n: read(bind(one, numbers, n)))(30)
    assert float(rate) == pytest.approx(0.45)
    assert int(count) == round(2 + 6 * (1 - math.cos(math.pi / 4)) / 2)
    assert count.dtype == jnp.int32
    assert float(std) == 0.25
    given = {"rate": Linear(jnp.array([0.5, 0.7]), jnp.zeros(2), jnp.array([60.0, jnp.inf]))}
    several = resolve_numbers(one, given)["rate"]
    rates = jax.vmap(lambda rate: bind(one, numbers | {"rate": rate}, 30).rate)(several)
    np.testing.assert_allclose(rates, [0.25, 0.7], rtol=1e-6)
    assert hash(one) == hash(replace(one))
    assert abstract_numbers(one)["rate"].start.shape == ()


def test_a_space_holds_the_start_of_a_schedule_as_it_would_the_number():
    assert set(PriorSpace(Scheduled(rate=Linear(0.5, 0, over=10))).priors) == {"rate.start", "noise.std"}
    space = PriorSpace(Scheduled(rate=Linear(0.4, Uniform(0, 0.1), over=LogUniform(10, 1000))))
    assert list(space.priors) == ["rate.end", "rate.over", "noise.std"]
    numbers = space.decode(jnp.array([[0.5, 0.0, 0.5], [1.0, 1.0, 0.5]]))
    np.testing.assert_allclose(numbers["rate"].over, [10, 1000], rtol=1e-5)
    rates = jax.vmap(lambda numbers: bind(Scheduled(), numbers, 10).rate)(numbers)
    np.testing.assert_allclose(rates, [0.05, 0.4 - 0.3 * 0.01], rtol=1e-5)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: Scheduled(rate=Linear(0.5, 1.5, over=10)), r"rate=Linear\(.*: must be between 0 and 1"),
    (lambda: Scheduled(rate=Linear(0.5, "x", over=10)), "rate=.*: must be a number"),
    (lambda: Scheduled(rate=Linear(Uniform(0.5, 2), 0.1, over=10)), "rate=.*: must be between 0 and 1"),
    (lambda: Scheduled(count=Linear(1.5, 2, over=10)), "count=.*: must be a whole number"),
    (lambda: Schedule(), "schedule=Schedule: must be a subclass that implements value"),
    (lambda: Linear(1, 0, over=0), "over=0: must be above 0, in env steps"),
    (lambda: Linear(1, 0, over=math.nan), "over=nan: must be above 0, in env steps"),
    (lambda: resolve_numbers(Scheduled(rate=Linear(0.5, 0, 10)), {"rate": {"ende": 1}}), "unknown hyper.*rate.ende"),
    (lambda: resolve_numbers(Scheduled(rate=Linear(0.5, 0, 10)), {"rate": {"end": 2.0}}), r"rate.end=2.0: must be bet"),
    (lambda: resolve_numbers(Scheduled(rate=Linear(0.5, Uniform(0, 1), 10))), "rate.end=.*a prior needs a meta"),
    (lambda: resolve_numbers(Scheduled(), {"rate": {"end": 0.5}}), "rate=.*: must be a number"),
])  # fmt: skip
def test_a_wrong_schedule_is_refused_in_a_line(build, message):
    with pytest.raises(OptionError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


@struct.dataclass
class Halving(Schedule):
    start: Any
    every: Any
    ends = ("start",)

    def value(self, env_steps):
        return self.start * 0.5 ** (env_steps / self.every)


def test_a_schedule_of_ones_own_needs_its_value_alone():
    one = Scheduled(rate=Halving(0.8, 10.0))
    assert float(bind(one, resolve_numbers(one), 20).rate) == pytest.approx(0.2)
    with pytest.raises(OptionError, match="every=-1"):
        Halving(0.8, -1)
    with pytest.raises(OptionError, match="rate=Halving"):
        Scheduled(rate=Halving(2, 10))


def test_binding_checks_nothing_that_a_trace_could_not():
    @part
    class Odd:
        rate: float = number(0.5, 0, 1)

        def __post_init__(self):
            if self.rate > 0.9:
                raise OptionError("rate: above 0.9")

    with pytest.raises(OptionError, match=r"above 0\.9"):
        Odd(rate=0.95)
    assert jax.jit(lambda rate: bind(Odd(), {"rate": rate}).rate + 1)(0.95) == pytest.approx(1.95)


def test_numbers_as_shapes_stand_for_priors_too():
    shapes = abstract_numbers(Search(rate=Uniform(0.1, 0.2)))
    assert (shapes["rate"].dtype, shapes["most"].dtype, shapes["noise"]["std"].shape) == (jnp.float32, jnp.int32, ())


@pytest.mark.program
def test_a_workflow_has_the_numbers_of_its_state():
    """Not those that it was made with."""
    workflow = OnPolicy(ENV, PPO(hidden=(4,), learning_rate=0.1), num_envs=2, num_steps=4, batch_size=8)
    key = jax.random.key(0)
    still, moved = workflow.init(key, {"agent": {"learning_rate": 0.0}}), workflow.init(key)
    assert float(workflow.bound(moved).agent.learning_rate) == pytest.approx(0.1)
    assert float(workflow.bound(still).agent.learning_rate) == 0
    step = jax.jit(workflow.step)

    @jax.jit
    def by_stages(state, key):
        (plan, carry), (_, key_play, key_absorb) = workflow.plan(state, key), jax.random.split(key, 3)
        state, played = workflow.rollout(state, plan, key_play)
        return workflow.learn_from(state, carry, played, key_absorb)

    @jax.jit
    def by_rollouts(state, key):
        state, rollout, _ = workflow.collect(state, key)
        return workflow.learn(state, rollout, key)

    for advance in (step, by_stages, by_rollouts):
        for state, same in ((still, True), (moved, False)):
            after = advance(state, key)[0].agent.actor.params
            equal = jax.tree.map(lambda a, b: bool((a == b).all()), after, state.agent.actor.params)
            assert all(jax.tree.leaves(equal)) == same
        assert advance._cache_size() == 1


def test_a_child_takes_what_its_workflow_says_it_inherits():
    workflow = Evolution(ENV, MLPPolicy(hidden=(4,)), OpenES(4))
    state, parent = (workflow.init(jax.random.key(i), {"evolver": {"std": 0.1 * (i + 1)}}) for i in range(2))
    child = workflow.inherit(state, parent)
    assert float(child.numbers["evolver"]["std"]) == pytest.approx(0.2)
    for name in ("agent", "evolver", "obs_statistics"):
        assert getattr(child, name) is getattr(parent, name)
    assert child.env_params is state.env_params
    assert workflow.parallel_axes == workflow.vector_env.parallel_axes
