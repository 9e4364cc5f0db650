"""GRU and LSTM against flax's cells, S5 against its recurrence in NumPy, and what every core promises."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl.errors import OptionError
from evorl.networks.network import Core, Feedforward
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5, hippo

STEPS, NUM_ENVS, INPUTS, WIDTH = 12, 3, 5, 8
SMALL_S5 = {"width": WIDTH, "layers": 2, "states": 8, "blocks": 2}
CORES = {
    "gru": GRU(WIDTH),
    "lstm": LSTM(WIDTH),
    "s5 post": S5(**SMALL_S5),
    "s5 pre": S5(**SMALL_S5, norm="pre"),
    "s5 at once": S5(**SMALL_S5, associative=True),
}
every_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


@pytest.fixture(scope="module")
def seen():
    """Inputs, where episodes ended (one environment twice in a row, and one at the last step), and a key."""
    x = jax.random.normal(jax.random.key(0), (STEPS, NUM_ENVS, INPUTS))
    ended = np.zeros((STEPS, NUM_ENVS), bool)
    ended[[3, 4, 9], 0] = ended[-1, 1] = ended[0, 2] = True
    return x, jnp.asarray(ended)


def begun(core, x):
    """Parameters, all away from where they begin, and memories that have seen something."""
    params = jax.jit(partial(core.init, method="step"))(jax.random.key(1), core.initial_memory(), x[0, 0])
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda p: p + np.float32(0.1 * rng.normal(size=p.shape)), params)
    drawn = lambda m: jnp.asarray(0.5 * rng.normal(size=(NUM_ENVS, *m.shape)), m.dtype)  # noqa: E731
    return params, jax.tree.map(drawn, core.initial_memory())


def one_by_one(core, params, memory, x, ended):
    """What the core's step gives environment by environment and step by step, resetting by hand."""
    memories, ys = [], []
    for now, over in zip(x, np.asarray(ended), strict=True):
        each = [
            core.apply(params, jax.tree.map(lambda m, i=i: m[i], memory), now[i], method="step")
            for i in range(NUM_ENVS)
        ]
        after, y = jax.tree.map(lambda *rows: jnp.stack(rows), *each)
        memories.append(after)
        ys.append(y)
        fresh = jax.tree.map(lambda m: jnp.broadcast_to(m, (NUM_ENVS, *m.shape)), core.initial_memory())
        memory = jax.tree.map(lambda a, b, over=over: jnp.where(over[:, None], b, a), after, fresh)
    return jax.tree.map(lambda *rows: jnp.stack(rows), *memories), jnp.stack(ys)


@pytest.mark.program
@every_core
def test_a_sequence_is_its_steps_with_resets(core, seen):
    x, ended = seen
    params, memory = begun(core, x)
    found = core.apply(params, memory, x, ended, method="sequence")
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, one_by_one(core, params, memory, x, ended)
    )


@pytest.mark.program
@every_core
def test_gradients_of_a_sequence_are_those_of_its_steps(core, seen):
    """By parameters, memory and inputs, of what is given and of what is remembered."""
    x, ended = seen
    params, memory = begun(core, x)
    weights = jax.random.normal(jax.random.key(4), (STEPS, NUM_ENVS, 1))

    def loss(play, *given):
        memories, ys = play(*given, ended)
        return sum((weights * leaf**2).sum() for leaf in jax.tree.leaves((memories, ys)))

    at_once = lambda *args: core.apply(*args, method="sequence")  # noqa: E731
    single = lambda *args: one_by_one(core, *args)  # noqa: E731
    of_sequence, of_steps = (
        jax.grad(lambda *given, play=play: loss(play, *given), (0, 1, 2))(params, memory, x)
        for play in (at_once, single)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), of_sequence, of_steps)


@pytest.mark.parametrize(("core", "cell", "gates"), [
    (GRU(WIDTH), nn.GRUCell(WIDTH), "rzn"),
    (LSTM(WIDTH), nn.OptimizedLSTMCell(WIDTH), "ifgo"),
], ids=["gru", "lstm"])  # fmt: skip
def test_cells_equal_those_of_flax(core, cell, gates, seen):
    x, _ = seen
    params, memory = begun(core, x)
    own, parts = params["params"], {}
    inputs, hidden = (np.split(np.asarray(p), len(gates), -1) for p in (own["input"]["kernel"], own["kernel"]))
    input_bias, bias = (np.split(np.asarray(p), len(gates)) for p in (own["input"]["bias"], own["bias"]))
    for i, gate in enumerate(gates):
        if gate == "n":  # the only one whose hidden bias lies within a product
            parts |= {"in": {"kernel": inputs[i], "bias": input_bias[i]}, "hn": {"kernel": hidden[i], "bias": bias[i]}}
        elif core.parts == 1:
            parts |= {
                f"i{gate}": {"kernel": inputs[i], "bias": input_bias[i] + bias[i]},
                f"h{gate}": {"kernel": hidden[i]},
            }
        else:
            parts |= {
                f"i{gate}": {"kernel": inputs[i]},
                f"h{gate}": {"kernel": hidden[i], "bias": input_bias[i] + bias[i]},
            }
    carry = memory[0] if core.parts == 1 else (memory[1], memory[0])
    found = jax.jit(partial(core.apply, method="step"))(params, memory, x[0])
    after, y = jax.jit(cell.apply)({"params": parts}, carry, x[0])
    np.testing.assert_allclose(found[1], y, atol=1e-6)
    wanted = (after,) if core.parts == 1 else (after[1], after[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found[0], wanted)


def normalized(x, params):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * params["scale"] + params["bias"]


def recurrence(core, params, memory, x, ended):
    """S5 in float64, state by state: zero-order hold, output, gelu, gate, residual, norm, reset."""
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), params["params"])
    halves = lambda p, axis=-1: (lambda a, b: a + 1j * b)(*np.split(p, 2, axis))  # noqa: E731
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    gelu = lambda v: 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))  # noqa: E731
    states = [halves(np.asarray(m, np.float64)) for m in memory]
    ys, remembered = [], []
    for now, over in zip(np.asarray(x, np.float64), np.asarray(ended), strict=True):
        u = now @ params["encode"]["kernel"] + params["encode"]["bias"]
        for i, state in enumerate(states):
            layer = params[f"stack_{i}"]
            space = layer["space"]
            before = normalized(u, layer["LayerNorm_0"]) if core.norm == "pre" else u
            poles, b, c = halves(space["poles"]), halves(space["inputs"]), halves(space["outputs"], 0)
            decay = np.exp(poles * np.exp(space["log_step"]))
            states[i] = decay * state + (before @ b) * (decay - 1) / poles
            y = gelu(2 * (states[i] @ c).real + space["skip"] * before)
            u = u + y * sigmoid(y @ layer["Dense_0"]["kernel"] + layer["Dense_0"]["bias"])
            u = normalized(u, layer["LayerNorm_0"]) if core.norm == "post" else u
        ys.append(u)
        remembered.append([np.concatenate([s.real, s.imag], -1) for s in states])
        states = [np.where(over[:, None], 0, s) for s in states]
    return [np.stack(layer) for layer in zip(*remembered, strict=True)], np.stack(ys)


def test_kernels_of_a_batch_are_factorized_one_at_a_time():
    def draw(key):
        return LSTM(8).init(key, LSTM(8).initial_memory(), jnp.zeros(3), method="step")["params"]["kernel"]

    draw_many = jax.jit(jax.vmap(draw))
    keys = jax.random.split(jax.random.key(0), 5)
    calls = [line for line in draw_many.lower(keys).as_text().splitlines() if "@lapack_sgeqrf" in line]
    assert calls
    assert all('num_batch_dims = "0"' in call for call in calls)  # with a batch, two such calls may wait forever
    kernels = draw_many(keys).reshape(5, 8, 4, 8)
    np.testing.assert_allclose(
        jnp.einsum("nigj,nkgj->ngik", kernels, kernels), np.tile(np.eye(8), (5, 4, 1, 1)), atol=1e-5
    )


@pytest.mark.parametrize("core", [core for core in CORES.values() if isinstance(core, S5)], ids=lambda core: core.norm)
def test_s5_is_its_recurrence(core, seen):
    x, ended = seen
    params, memory = begun(core, x)
    memories, ys = jax.jit(partial(core.apply, method="sequence"))(params, memory, x, ended)
    wanted = recurrence(core, params, memory, x, ended)
    np.testing.assert_allclose(ys, wanted[1], atol=1e-5)
    for found, right in zip(memories, wanted[0], strict=True):
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_s5_begins_as_a_system_of_hippo():
    """Its poles and the kernels around them are those of the real system x' = Sx + Bu, y = Cx in another basis."""
    size = 8
    i, j = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    legs = np.where(i > j, -np.sqrt((2 * i + 1) * (2 * j + 1)), np.where(i == j, -(i + 1.0), 0))
    p = np.sqrt(np.arange(size) + 0.5)
    normal = legs + np.outer(p, p)
    poles, vectors = hippo(size)
    np.testing.assert_allclose(normal @ vectors, vectors * poles, atol=1e-12)
    np.testing.assert_allclose(2 * (vectors @ vectors.conj().T).real, np.eye(size), atol=1e-12)
    core = S5(width=64, layers=1, states=32, blocks=2)
    space = core.init(jax.random.key(0), core.initial_memory(), jnp.zeros(3), method="step")["params"]["stack_0"][
        "space"
    ]
    np.testing.assert_allclose(
        space["poles"],
        np.tile(np.concatenate([hippo(16)[0].real] * 2), 1).tolist() + np.tile(hippo(16)[0].imag, 2).tolist(),
        rtol=1e-5,
    )
    assert (np.log(1e-3) <= space["log_step"]).all()
    assert (space["log_step"] <= np.log(1e-1)).all()
    # of lecun's variance 1 / fan-in, which half of the complex numbers carry in the mean
    assert float((np.asarray(space["inputs"]) ** 2).sum()) == pytest.approx(32 / 2, rel=0.2)
    assert float((np.asarray(space["outputs"]) ** 2).sum()) == pytest.approx(64 / 2, rel=0.2)


@every_core
def test_cores_follow_their_protocol(core, seen):
    assert isinstance(core, Core)
    assert isinstance(Feedforward(), Core)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(core.initial_memory()))


@pytest.mark.parametrize(("core", "options", "message"), [
    (GRU, {"width": 0}, "width=0: must be at least 1"),
    (S5, {"states": 6}, r"states=6: must be a multiple of 2 \* blocks, 4"),
    (S5, {"norm": "past"}, "unknown norm past; did you mean post?"),
])  # fmt: skip
def test_cores_that_cannot_be_are_refused(core, options, message):
    with pytest.raises(OptionError, match=message):
        core(**options)
