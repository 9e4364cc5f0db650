"""The replay of frames: what it draws is what a plain replay draws, bit by bit, and it keeps each frame once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evorl import DQN, OffPolicy, tree
from evorl.envs.suites.gymnax import Gymnax
from evorl.envs.wrappers import FrameStack
from evorl.errors import OptionError
from evorl.replay import FrameReplay, PrioritizedReplay, SequenceReplay
from evorl.replay.ring import UNIFORM
from evorl.types import Transition
from tests.conftest import leaves_equal

N, STEPS = 3, 5
ADD = jax.jit(lambda replay, chunk, mask: replay.add(chunk, mask))


def stream(rng, count, chunks, length, n_step=1, lost=0.1):
    """Chunks of transitions [STEPS, N, ...] of N environments, some of them masked, some with a number that is none.

    Frames are few, so that equal ones come up in other places; 0 and -0 are two. An episode ends after about `length`
    steps, and now and then an environment goes on elsewhere, with a stack of which nothing was seen.
    """

    def frame():
        return rng.integers(0, 3, 4).astype(np.uint8), rng.choice(np.float32([0.0, -0.0, 1.0]), 2)

    def fresh():
        return [frame()] * count if rng.random() < 0.7 else [frame() for _ in range(count)]

    ahead = [[fresh()] for _ in range(N)]  # of each environment the stacks up to n_step from now, within the episode
    for _ in range(chunks):
        rows = {name: [] for name in ("obs", "next_obs", "ended", "reward")}
        for _ in range(STEPS):
            each = {name: [] for name in rows}
            for i in range(N):
                ended = rng.random() < 1 / length
                while len(ahead[i]) <= n_step:
                    ahead[i].append([*ahead[i][-1][1:], frame()])
                each["obs"].append(ahead[i][0])
                each["next_obs"].append(ahead[i][-1])
                each["ended"].append(ended)
                each["reward"].append(rng.choice([0.5, np.nan], p=[0.97, 0.03]))
                ahead[i] = [fresh()] if ended or rng.random() < 0.02 else ahead[i][1:]
            for name, values in each.items():
                rows[name].append(values)

        def stacks(seen):
            def leaf(part, shape):
                x = np.array([[[f[part] for f in stack] for stack in envs] for envs in seen])
                return jnp.asarray(x.reshape(STEPS, N, *shape))

            return {"image": leaf(0, (count, 2, 2)), "numbers": leaf(1, (count * 2,))}

        reward = np.float32(rows["reward"])
        reward = np.repeat(reward[..., None], n_step, -1) if n_step > 1 else reward
        ended = jnp.asarray(rows["ended"])
        action = jnp.asarray(rng.integers(0, 9, (STEPS, N)), jnp.int32)
        yield (
            Transition(stacks(rows["obs"]), action, jnp.asarray(reward), stacks(rows["next_obs"]), ended, ~ended),
            jnp.asarray(rng.random((STEPS, N)) >= lost),
        )


def like(rows):
    return jax.eval_shape(lambda: tree.index(tree.index(rows, 0), 0))


@pytest.mark.parametrize(
    ("count", "n_step", "rows"),
    [
        pytest.param(1, 1, UNIFORM, marks=pytest.mark.program),
        (4, 1, UNIFORM),
        pytest.param(2, 3, UNIFORM, marks=pytest.mark.program),
        pytest.param(1, 3, PrioritizedReplay(), marks=pytest.mark.program),
        (3, 1, PrioritizedReplay()),
    ],
)
def test_draws_are_those_of_a_plain_replay(count, n_step, rows):
    """With a capacity that is filled several times over, and room for all frames."""
    rng = np.random.default_rng(count)
    draw = jax.jit(lambda replay, key: replay.sample(key, (2, 32)))
    plain = framed = None
    for i, (chunk, mask) in enumerate(stream(rng, count, 40, 1000, n_step, 0.0 if count == 4 else 0.1)):
        if framed is None:
            plain, framed = rows.empty(97, like(chunk)), FrameReplay(count, rows).empty(97, like(chunk), N)
        plain, framed = ADD(plain, chunk, mask), ADD(framed, chunk, mask)
        assert int(framed.size) <= int(plain.size)
        if int(framed.size) == int(plain.size):
            key = jax.random.key(i)
            wanted, drawn = draw(plain, key), draw(framed, key)
            assert leaves_equal(bits(wanted), bits(drawn))
            if rows is not UNIFORM:
                error = jnp.abs(drawn.rows.action / 9.0)
                plain, framed = (
                    plain.update_priorities(wanted.index, error),
                    framed.update_priorities(drawn.index, error),
                )
    kept = framed if rows is UNIFORM else framed.buffer
    assert int(plain.size) == 97
    assert int(framed.size) > 60  # a stack of which nothing was seen takes as many frames
    stored, whole = int(kept.frames_added - kept.share_window - 1), 2 * count * int(kept.rows_added)
    assert stored < 1.5 * whole / (2 * count)


def test_action_masks_and_privileged_states_take_no_frames():
    rng, sizes, kept = np.random.default_rng(0), [], []
    plain = framed = None
    for i, (chunk, mask) in enumerate(stream(rng, 4, 20, 1000, lost=0.0)):

        def extend(obs):
            legal, state = rng.random((STEPS, N, 3)) < 0.5, rng.random((STEPS, N, 5), np.float32)
            return {"legal": jnp.asarray(legal), "obs": {"obs": obs, "state": jnp.asarray(state)}}

        more = replace(chunk, obs=extend(chunk.obs), next_obs=extend(chunk.next_obs))
        if plain is None:
            plain, framed = UNIFORM.empty(97, like(more)), FrameReplay(4).empty(97, like(more), N)
            alone = FrameReplay(4).empty(97, like(chunk), N)
        plain, framed, alone = ADD(plain, more, mask), ADD(framed, more, mask), ADD(alone, chunk, mask)
        sizes.append(int(alone.size))
        kept.append(int(framed.size))
        if kept[-1] == int(plain.size):
            wanted, drawn = (replay.sample(jax.random.key(i), (64,)) for replay in (plain, framed))
            assert leaves_equal(bits(wanted), bits(drawn))
    assert kept == sizes  # as many rows as without them
    assert int(framed.frames_added) == int(alone.frames_added)


def bits(sample):
    return jax.tree.map(lambda x: x.view(np.uint32) if x.dtype == np.float32 else x, jax.tree.map(np.asarray, sample))


def numbered(chunks, replay):
    """A replay with chunks, the newest of which is the last, and by its reward each row that was added."""
    added = []
    for chunk, mask in chunks:
        chunk = replace(chunk, reward=jnp.float32(len(added) + np.arange(STEPS * N).reshape(STEPS, N)))
        replay = ADD(replay, chunk, mask)
        rows = tree.merge_axes(jax.tree.map(np.asarray, chunk))
        added += [tree.index(rows, i) if there else None for i, there in enumerate(np.asarray(mask).ravel())]
    return replay, added


def assert_holds_the_newest(replay, added):
    size = int(replay.size)
    there = [i for i, row in enumerate(added) if row is not None][-size:]
    sample = jax.jit(lambda key: replay.sample(key, (40 * size,)))(jax.random.key(0))
    rows = bits(sample.rows)
    drawn = np.asarray(sample.rows.reward).astype(int)
    assert set(drawn) == set(there)
    for j, i in enumerate(drawn):
        assert leaves_equal(tree.index(rows, j), bits(added[i]))


@pytest.mark.parametrize("rows", [UNIFORM, PrioritizedReplay()])
def test_where_frames_run_out_the_oldest_rows_are_lost(rows):
    """Every row that is drawn is one of the newest `size` that were added, and each of them is drawn."""
    chunks = list(stream(np.random.default_rng(0), 2, 30, 3, lost=0.3))
    replay, added = numbered(chunks, FrameReplay(2, rows).empty(60, like(chunks[0][0]), N))
    assert 20 < int(replay.size) < 60
    assert_holds_the_newest(replay, added)


@pytest.mark.parametrize("chunks_between", [3, 5])
def test_an_env_that_has_rested_shares_no_frame_that_is_to_go(chunks_between):
    (first, everywhere), *others = stream(np.random.default_rng(0), 2, 12, 9, lost=0)
    rests = everywhere.at[:, 0].set(False)
    again = jax.tree.map(lambda x: jnp.repeat(x[-1:], STEPS, 0), first)  # what environment 0 has seen last
    chunks = [(chunk, rests) for chunk, _ in others]
    chunks = [(first, everywhere), *chunks[:chunks_between], (again, ~rests), *chunks[chunks_between:][:4]]
    assert_holds_the_newest(*numbered(chunks, FrameReplay(2).empty(60, like(first), N)))


@pytest.mark.program
def test_copies_under_vmap_are_as_alone():
    chunks = [list(stream(np.random.default_rng(seed), 2, 6, 8)) for seed in (0, 1)]
    empty = FrameReplay(2).empty(40, like(chunks[0][0][0]), N)
    alone, add = [empty, empty], jax.jit(jax.vmap(ADD))
    both = tree.stack(alone)
    for one, two in zip(*chunks, strict=True):
        alone = [ADD(alone[0], *one), ADD(alone[1], *two)]
        both = add(both, *tree.stack([one, two]))
    assert leaves_equal(both, tree.stack(alone))


@pytest.mark.parametrize(("shape", "count", "capacity", "most"), [((4, 84, 84), 4, 1_000_000, 7.4e9),
                                                                  ((10, 10, 4), 1, 1_000_000, 0.45e9)])  # fmt: skip
@pytest.mark.parametrize("num_envs", [1, 64])
def test_a_million_rows_take_their_bytes(shape, count, capacity, most, num_envs):
    obs, number = jax.ShapeDtypeStruct(shape, jnp.uint8), jax.ShapeDtypeStruct((), jnp.float32)
    flag = jax.ShapeDtypeStruct((), bool)
    row = Transition(obs, jax.ShapeDtypeStruct((), jnp.int32), number, obs, flag, flag)
    assert tree.nbytes(jax.eval_shape(lambda: FrameReplay(count).empty(capacity, row, num_envs))) <= most


@pytest.mark.program
def test_an_agent_learns_the_same_from_frames():
    """DQN on stacked frames of Breakout, over one and three steps: the state after three iterations is the same."""
    env = FrameStack(Gymnax("Breakout-MinAtar", bits=True, max_episode_steps=30), 3)
    agent = DQN(hidden=(4,))
    for n_step in (1, 3):
        states = []
        for replay in (UNIFORM, FrameReplay(3)):
            workflow = OffPolicy(
                env, agent, 2, 4, 2, 1, 8, 200, replay, random_steps=40, n_step=n_step, eval_episodes=2
            )
            step = jax.jit(workflow.step)
            state = workflow.init(jax.random.key(0))
            for i in range(3):
                state, _ = step(state, jax.random.key(i))
            states.append(replace(state, replay=None))
        assert leaves_equal(*states)


@pytest.mark.parametrize(("options", "message"), [
    ({"count": 0}, "count=0: must be at least 1"),
    ({"count": 1, "rows": SequenceReplay()}, "rows=SequenceReplay: must be a replay buffer of single transitions"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        FrameReplay(**options)


def test_a_stack_of_another_height_is_refused():
    row = like(next(iter(stream(np.random.default_rng(0), 2, 1, 9)))[0])
    with pytest.raises(OptionError, match=r"count=3: must divide the first axis of \[2, 2, 2\]"):
        FrameReplay(3).empty(100, row)


def test_groups_of_agents_are_refused():
    row = like(next(iter(stream(np.random.default_rng(0), 2, 1, 9)))[0])
    with pytest.raises(OptionError, match="replay=FrameReplay: does not support groups of agents"):
        FrameReplay(1).empty(100, replace(row, reward={"team": row.reward}))
