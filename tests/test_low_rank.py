"""Members of low rank: what they act like and what is told of them, against members whose kernels are made in NumPy."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import tree
from evorl.agents import TD3
from evorl.ec import CEM, LowRankES, Noise, OpenES, SeededES, search
from evorl.ec.low_rank_es import Factors
from evorl.errors import OptionError
from evorl.networks.encoders import CNN
from evorl.networks.low_rank import LowRankKernel, cast_to_dtype, quantize
from evorl.networks.mlp import MLP
from evorl.networks.network import FEEDFORWARD, FLAT, Network
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.spaces import Box
from evorl.workflows import CEMRL, ERL
from tests.tiny import ENV, SMALL

STD = 0.3
VECTOR, IMAGE = Box(-1, 1, (5,)), Box(0, 1, (6, 6, 2))
DEEP = CNN((3, 8), (2, 3), (1, 2), dense=(4,))  # squares of 8 numbers, then a convolution of 27 of them
WIDE = CNN((9, 2), (2, 3), (1, 1))  # whose second layer sees 81 numbers: a convolution on a CPU too
NETWORKS = {
    "mlp": (VECTOR, FLAT, FEEDFORWARD),
    "cnn": (IMAGE, DEEP, FEEDFORWARD),
    "convolution": (IMAGE, WIDE, FEEDFORWARD),
    "gru": (VECTOR, FLAT, GRU(4)),
    "lstm": (VECTOR, FLAT, LSTM(4)),
    "s5": (VECTOR, FLAT, S5(6, 1, 4, 1)),
}


def network(name):
    space, encoder, core = NETWORKS[name]
    return Network(space, MLP((7,), 3, layer_norm=True), encoder, core)


def started(evolver, mean, seed=0):
    """The state of a search around a mean whose zeros have become numbers, and the seeds of a population."""
    leaves, structure = jax.tree.flatten(mean)
    mean = jax.tree.unflatten(structure, [x + 0.1 for x in leaves])
    state = evolver.init(jax.random.key(seed), mean)
    genomes, state = evolver.ask(jax.random.key(seed + 1), state)
    return state, genomes


def numbers(part):
    """A part of a kernel of low rank, as its numbers are."""
    if hasattr(part, "exponent"):
        return np.ldexp(np.asarray(part.numbers, np.float32), np.asarray(part.exponent)[..., None, None])
    return np.asarray(part, np.float32)


def materialized(state, held):
    """Members [n, ...] whose kernels are made."""

    def leaf(mean, own):
        if not isinstance(own, Factors):
            return own
        return np.asarray(mean) + np.einsum("nri,nro->nio", numbers(own.left), numbers(own.right))

    return jax.tree.map(leaf, state.mean, held)


def memory_of(net):
    return jax.tree.map(lambda x: x + 0.3, net.core.initial_memory())


@pytest.mark.program
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_members_act_as_their_kernels_would(name, rank, key):
    net, evolver = network(name), LowRankES(4, rank, std=STD)
    state, genomes = started(evolver, net.init_params(key))
    held = evolver.materialize(state, genomes)
    obs = jax.random.uniform(key, (3, 4, *net.space.shape))

    def act(express, own, obs):
        params = express(own)
        memory, y = net.apply(params, memory_of(net), obs[0], method="step")
        return memory, y, net.apply(params, memory_of(net), obs, jnp.array([False, True, False]), method="sequence")

    whole = jax.jit(jax.vmap(partial(act, lambda own: own), (0, 1)))(materialized(state, held), obs)
    express = lambda own: evolver.to_params(state, own)  # noqa: E731
    for own in (held, genomes):  # what is held, and what is drawn at each call
        found = jax.jit(jax.vmap(partial(act, express), (0, 1)))(own, obs)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, whole)
    low, shared = rank * sum(sum(x.shape) for x in kernels(state.mean)), sum(x.size for x in kernels(state.mean))
    assert sum(x.size for x in jax.tree.leaves(held)) == 4 * (low + count(state.mean) - shared)


def kernels(params):
    return [x for path, x in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "kernel"]


def count(params):
    return sum(x.size for x in jax.tree.leaves(params))


def test_members_are_mirrored_pairs_of_unit_noise_and_the_center_is_the_mean(key):
    evolver, mean = LowRankES(2000, 4, std=STD), {"kernel": jnp.zeros((3, 2)), "bias": jnp.zeros(5)}
    state, genomes = started(evolver, mean)
    members = materialized(state, evolver.materialize(state, genomes))
    for name in mean:
        noise = members[name] - np.asarray(state.mean[name])
        np.testing.assert_allclose(noise[1::2], -noise[::2], atol=1e-6)
        assert noise.std() == pytest.approx(0.3, rel=0.05)
    center = tree.broadcast(evolver.center_genome(state), 2)
    for x, y in zip(
        jax.tree.leaves(materialized(state, evolver.materialize(state, center))),
        jax.tree.leaves(state.mean),
        strict=True,
    ):
        np.testing.assert_array_equal(x, np.broadcast_to(y, x.shape))


@pytest.mark.program
@pytest.mark.parametrize("factors", ["held", "drawn"])
def test_what_is_told_is_the_gradient_of_members_whose_kernels_are_made(factors, key):
    net, evolver = network("mlp"), LowRankES(12, 2, factors, noise=Noise("hash"), std=STD)
    state, genomes = started(evolver, net.init_params(key))
    members = materialized(state, replace(evolver, factors="held").materialize(state, genomes))
    fitness = jax.random.normal(key, (12,)).at[3].set(jnp.nan)
    told, metrics = evolver.tell(key, genomes, fitness, state)
    gradient = OpenES(12, std=STD).estimate_gradient(state, members, fitness)
    expected, norm = evolver.apply_gradient(state, gradient)
    np.testing.assert_allclose(metrics["gradient_norm"], norm["gradient_norm"], rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), told, expected)


def whole(x, axes):
    """Numbers of 8 bits and a power of two, by NumPy."""
    x = np.asarray(x, np.float32)
    exponent = np.frexp(np.abs(x).max(axes, keepdims=True))[1] - 7
    return np.clip(np.round(np.ldexp(x, -exponent)), -127, 127).astype(np.int8), exponent


def in_whole_numbers(x, kernel):
    """x @ kernel of one member in NumPy: int32 sums times powers of two."""

    def product(x, numbers, exponent):
        x, of_x = whole(x, -1)
        sums = x.astype(np.int32) @ np.asarray(numbers, np.int32)
        return np.ldexp(sums.astype(np.float32), of_x + int(exponent))

    low = product(x, np.asarray(kernel.left.numbers).T, kernel.left.exponent)
    shared = product(x, kernel.shared.numbers, kernel.shared.exponent)
    return shared + product(low, kernel.right.numbers, kernel.right.exponent)


@pytest.mark.program
def test_whole_numbers_are_those_of_numpy(key):
    evolver = LowRankES(4, 2, dtype="int8", std=STD)
    mean = {"kernel": jax.random.normal(key, (40, 9)), "bias": jnp.zeros(9)}
    state, genomes = started(evolver, mean)
    held = evolver.materialize(state, genomes)
    x = 3 * jax.random.normal(key, (4, 40))
    express = lambda own: evolver.to_params(state, own)  # noqa: E731
    found = jax.jit(jax.vmap(lambda own, x: x @ express(own)["kernel"]))(held, x)
    floats = LowRankES(4, 2, std=STD).materialize(state, genomes)["kernel"]
    expected, exponent = whole(state.mean["kernel"], None)
    for i in range(4):
        kernel = express(tree.index(held, i))["kernel"]
        np.testing.assert_array_equal(kernel.shared.numbers, expected)
        assert int(kernel.shared.exponent) == exponent.item()
        for own, given in ((kernel.left, floats.left[i]), (kernel.right, floats.right[i])):
            ints, power = whole(given, None)
            np.testing.assert_array_equal(own.numbers, ints)
            assert int(own.exponent) == power.item()
        np.testing.assert_array_equal(found[i], in_whole_numbers(np.asarray(x[i]), kernel))
    made = materialized(state, LowRankES(4, 2, std=STD).materialize(state, genomes))["kernel"]
    exact = np.einsum("ni,nio->no", x, made)
    assert np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_whole_numbers_round_to_a_power_of_two():
    x = quantize(jnp.array([0.5, -1.0, 127.6, 0.0]))
    np.testing.assert_array_equal(x.numbers, [0, -1, 127, 0])  # ties to even, and no more than 127
    assert int(x.exponent) == 0
    assert int(quantize(jnp.array([1.0])).exponent) == -6
    none = quantize(jnp.zeros(3))
    np.testing.assert_array_equal(none.numbers, 0)


@pytest.mark.program
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", ["cnn", "convolution", "gru", "s5"])
def test_other_numbers_stay_near(name, dtype, key):
    net, evolver = network(name), LowRankES(4, dtype=dtype, std=STD)
    state, genomes = started(evolver, net.init_params(key))
    obs = jax.random.uniform(key, (4, *net.space.shape))

    def act(evolver, own, obs):
        return net.apply(evolver.to_params(state, own), memory_of(net), obs, method="step")[1]

    exact, rounded = (
        jax.jit(jax.vmap(partial(act, e)))(e.materialize(state, genomes), obs) for e in (LowRankES(4, std=STD), evolver)
    )
    assert rounded.dtype == jnp.float32
    assert 0 < np.abs(rounded - exact).max() < 0.2 * np.abs(exact).max() + 0.1


def test_a_kernel_answers_batches_as_each_row():
    x, shared = np.arange(6.0, dtype=np.float32).reshape(2, 3), jnp.ones((3, 2))
    kernel = LowRankKernel(*(cast_to_dtype(part, "int8") for part in (shared, jnp.ones((1, 3)), jnp.ones((1, 2)))))
    np.testing.assert_array_equal(jnp.asarray(x) @ kernel, [[6, 6], [24, 24]])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rank": 0}, "rank=0: must be at least 1"),
        ({"dtype": "float16"}, "unknown dtype float16; did you mean bfloat16"),
        ({"factors": "hold"}, "unknown factors hold; did you mean held"),
        ({"population_size": 3}, "population_size=3: must be even"),
        ({"shaping": "ranks"}, "unknown shaping ranks"),
    ],
)
def test_mistakes_are_told(given, said):
    with pytest.raises(OptionError, match=said):
        LowRankES(**given)


@pytest.mark.parametrize("evolver", [LowRankES(4), SeededES(OpenES(4))], ids=["low_rank", "seeds"])
def test_what_takes_no_parameters_is_refused_where_agents_are_injected(evolver):
    agent = TD3(hidden=(8, 8))
    name = type(evolver).__name__
    for workflow in (CEMRL, ERL):
        with pytest.raises(OptionError, match=f"evolver={name}: has no from_params"):
            workflow(ENV, agent, evolver, **SMALL)
    search.require_takes_params(CEM(4), "evolver", "anything")
