"""Parts: numbers are declared, checked, read, bound to a state, and never a reason to compile."""

from dataclasses import FrozenInstanceError, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evosax.algorithms import SNES

from evorl import ERL, TD3, CartPole, ERLHyperparams, Evolution, EvolutionHyperparams, MLPPolicy, PointMaze, fit
from evorl.ec import CMAES, GA, ERLMutation, Evosax, OpenES, Restarts
from evorl.errors import OptionError
from evorl.hyperparameters import check_given_once
from evorl.parts import bind, is_part, number, numbers_class, part, read_numbers, require_given_once
from evorl.priors import Uniform

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
        (lambda: number(2.0, 0, 1), "default=2: must be between 0 and 1"),
        (lambda: number(0.5, 1, 0), "high=0: must be above low, 1"),
        (lambda: number(0.5, 0, 1, prior=Uniform(0, 2)), "prior="),
        (lambda: bind(Noise(), {"std": 0.1, "sdt": 0.2}), "numbers=dict: must be NoiseHyperparams, of Noise, with std"),
        (lambda: bind(Noise(), 3), "numbers=int: must be NoiseHyperparams, of Noise, with std"),
        (lambda: bind(GA(), read_numbers(OpenES())), "numbers=OpenESHyperparams: must be GAHyperparams, of GA, with "),
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
    assert jax.tree.leaves(numbers) == [0.75, 0.3, 4, 2.0]
    assert (type(numbers), type(numbers.noise)) == (numbers_class(Faster), numbers_class(Noise))
    assert bind(Faster(2), numbers) == Faster(2, Noise(std=0.75), rate=0.3)
    by_name = {"noise": {"std": 0.2}, "rate": 0.4, "most": 5, "boost": 1.5}
    assert bind(Faster(), by_name) == Faster(3, Noise(std=0.2), rate=0.4, most=5, boost=1.5)
    assert numbers_class(Faster)() == read_numbers(Faster())
    assert not is_part(3)
    assert bind("no part", {}) == "no part"
    assert read_numbers("no part") == {}


def test_numbers_of_parts_within_parts():
    ga = GA(8, 2, mutation=ERLMutation(bound=3.0), crossover_rate=0.25)
    assert read_numbers(ga).mutation.bound == 3.0
    assert bind(GA(8, 2, mutation=ERLMutation()), read_numbers(ga)) == ga
    ipop = Restarts(CMAES(6, initial_std=0.3), spread=2.0)
    assert bind(Restarts(CMAES(6)), read_numbers(ipop)) == ipop
    snes = Evosax(SNES, 8, numbers={"std_init": 0.2})
    assert read_numbers(snes) == {"std_init": 0.2}
    assert bind(Evosax(SNES, 8), {"std_init": 0.2}) == snes


def test_a_bound_part_has_no_hash():
    numbers = jax.tree.map(jnp.float32, read_numbers(Search()))
    for bound in (bind(Search(), numbers), replace(Search(), rate=np.float32(1))):
        with pytest.raises(TypeError, match=r"is bound to numbers of a state \(rate.*skeleton, the part before bind"):
            hash(bound)
    with pytest.raises(TypeError, match="Noise is bound"):
        hash(Search(noise=Noise(std=jnp.float32(0.1))))
    with pytest.raises(TypeError, match=r"Evosax is bound to numbers of a state \(numbers\)"):
        hash(Evosax(SNES, 8, numbers={"std_init": jnp.float32(0.1)}))
    with pytest.raises(ValueError, match="bound to numbers of a state"):
        jax.jit(lambda search, x: search.score(x), static_argnums=0)(bind(Search(), numbers), 1.0)


def test_one_program_serves_all_numbers():
    @partial(jax.jit, static_argnums=0)
    def score(skeleton, numbers, x):
        return bind(skeleton, numbers).score(x)

    for rate, std in ((0.1, 0.5), (0.7, 0.25)):
        numbers = jax.tree.map(jnp.asarray, read_numbers(Search(noise=Noise(std=std), rate=rate)))
        assert float(score(Search(), numbers, 2.0)) == pytest.approx(2 * rate + std)
    assert score._cache_size() == 1


def test_a_nested_part_needs_a_default_of_its_class():
    @part
    class Holder:
        inner: Noise

    with pytest.raises(OptionError, match="inner: Holder must have a part as the default of this field"):
        read_numbers(Holder(Noise()))


def test_numbers_are_given_once():
    policy = MLPPolicy(ENV.observation_space, ENV.action_space, hidden=(4,))
    workflow = Evolution(ENV, policy, OpenES(8, std=0.3))
    assert workflow.hyperparams().evolver.std == 0.3
    with pytest.raises(OptionError, match=r"^evolver\.std=0\.3: is given twice, once as 0\.02$"):
        fit(workflow, EvolutionHyperparams())
    maze = PointMaze()
    erl = ERL(maze, TD3(maze.observation_space, maze.action_space))
    rarely = read_numbers(GA(mutation=ERLMutation(), mutation_rate=0.1))
    check_given_once(erl, ERLHyperparams(evolver=rarely))  # its default evolver has 0.9
    require_given_once(OpenES(8), read_numbers(OpenES(8, std=0.3)))
    require_given_once(OpenES(8, std=0.3), read_numbers(GA()))  # which bind refuses
    bounded = GA(8, 2, mutation=ERLMutation(bound=2.0))
    require_given_once(bounded, read_numbers(bounded))
    with pytest.raises(OptionError, match=r"mutation\.bound=2\.0: is given twice"):
        require_given_once(bounded, read_numbers(GA(8, 2, mutation=ERLMutation())))
    weights = {"params": {"a": jnp.ones(3)}}
    require_given_once(Evosax(SNES, 8, numbers=weights), {"params": {"a": np.ones(3)}})
    with pytest.raises(OptionError, match=r"numbers=.*is given twice"):
        require_given_once(Evosax(SNES, 8, numbers={"std_init": 0.2}), {})
