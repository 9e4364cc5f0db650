"""The level buffer is that of its rules, one level after another; scores are those of their equations."""

import inspect
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl import tree
from evorl.errors import OptionError
from evorl.parts import bind, read_numbers
from evorl.ued import Curation, LevelBuffer, score_table
from tests.conftest import leaves_equal
from tests.level_twin import MISTAKES, Twin, operations

CAPACITY, N, LEVELS = 12, 5, 40
RANDOM = np.random.default_rng(0)
TABLE = {  # some differ by one number alone
    "cells": np.repeat(RANDOM.integers(0, 256, (LEVELS // 2, 5)), 2, 0).astype(np.uint8),
    "goal": np.repeat(RANDOM.normal(size=(LEVELS // 2, 2)), 2, 0).astype(np.float32),
    "color": np.arange(LEVELS) % 2 == 0,
}
SETTINGS = ((0.3, 0.5), (1.0, 0.1), (0.1, 0.9), (0.5, 0.0), (0.5, 1.0))  # temperature, staleness


def equal(a, b):
    return jnp.stack([(x == y).all() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]).all()


def level(i):
    return jax.tree.map(lambda x: jnp.asarray(x)[i], TABLE)


def curation(temperature, staleness):
    return Curation(temperature=jnp.float32(temperature), staleness=jnp.float32(staleness))


def on_copies(name, copies):
    """An operation of so many vmapped buffers, or of one alone if 0, compiled."""
    function = {
        "draw": lambda buffer, seed, h: buffer.sample_indices(jax.random.key(seed), N, bind(Curation(), h)),
        "update": lambda buffer, places, score, best: buffer.update_scores(places, score, best),
        "insert": lambda buffer, i, score, best, h: buffer.insert_levels(
            level(i), score, best, equal, bind(Curation(), h)
        ),
    }[name]
    return jax.jit(jax.vmap(function) if copies else function)


def compare(buffer, twin):
    """What differs between a buffer and its twin."""
    score_table, size = buffer.score_table, int(buffer.size)
    wanted = twin.numbers()
    if size != len(twin.places):
        return ["size"]
    held = jax.tree.map(lambda x: np.asarray(x)[wanted["level"].astype(int)], TABLE)
    same = {name: np.array_equal(np.asarray(buffer.levels[name])[:size], held[name]) for name in held}
    for name in ("score", "best", "age", "rank"):
        same[name] = np.array_equal(np.asarray(getattr(score_table, name))[:size], wanted[name])
    same["rest"] = sorted(np.asarray(score_table.rank)) == list(range(1, 1 + CAPACITY)) and not np.any(
        score_table.age[size:]
    )
    return [name for name, good in same.items() if not good]


def play(prioritization, count, copies, seed=0):
    """Random operations on buffers with other hyperparameters each: the twins' histories as (name, args), and twins."""
    settings = [SETTINGS[i % len(SETTINGS)] for i in range(max(copies, 1))]
    do = {name: on_copies(name, copies) for name in ("draw", "update", "insert")}
    buffer, h = LevelBuffer.empty(CAPACITY, level(0), prioritization), read_numbers(curation(*settings[0]))
    if copies:
        buffer, h = tree.broadcast(buffer, copies), read_numbers(curation(*np.array(settings).T))
    twins = [Twin(CAPACITY, prioritization, *setting) for setting in settings]
    histories = [[] for _ in twins]
    streams = [operations(seed, count, N, LEVELS) for _ in twins]
    places = jnp.zeros((len(twins), N), jnp.int32)
    for one, *others in zip(*streams, strict=True):
        name = one[0] if all(twin.places for twin in twins) else "insert"
        i, score, best, seeds = (np.stack([x[k] for x in (one, *others)]) for k in range(1, 5))
        score, i = score + 0 * i, (i + 7 * np.arange(len(twins))[:, None]) % LEVELS
        pick = (lambda x: x) if copies else (lambda x: x[0])
        if name == "draw":
            found, buffer = do["draw"](buffer, pick(jnp.asarray(seeds)), h)
            places = found if copies else found[None]
            args = [(np.asarray(x),) for x in places]
        elif name == "update":
            buffer = do["update"](buffer, pick(places), pick(score), pick(best))
            args = list(zip(np.asarray(places), score, best, strict=True))
        else:
            buffer = do["insert"](buffer, pick(i), pick(score), pick(best), h)
            args = list(zip(i, score, best, strict=True))
        for k, twin in enumerate(twins):
            getattr(twin, name)(*args[k])
            histories[k].append((name, args[k]))
            assert compare(tree.index(buffer, k) if copies else buffer, twin) == []
    return twins, histories


@pytest.mark.program
@pytest.mark.parametrize("prioritization", ["rank", "proportional"])
@pytest.mark.parametrize("copies", [0, 5])
def test_the_buffer_is_its_twin_after_every_operation(prioritization, copies):
    twins, histories = play(prioritization, 250, copies)
    for twin, history in zip(twins, histories, strict=True):
        names = [name for name, _ in history]
        assert min(names.count(name) for name in ("insert", "draw", "update")) > 40
        assert len(twin.places) == CAPACITY


@pytest.mark.program
@pytest.mark.parametrize("prioritization", ["rank", "proportional"])
@pytest.mark.parametrize("copies", [0, 5])
def test_the_buffer_is_its_twin_after_1500_operations(prioritization, copies):
    play(prioritization, 1500, copies, seed=1)


def test_of_equal_scores_the_earlier_place_has_the_higher_rank():
    scores, ranks = jnp.array([1.0, 2.0, 1.0, 0.0]), jnp.array([2, 1, 3, 4], jnp.int32)
    held = replace(score_table.ScoreTable.empty(4, "rank"), score=scores, rank=ranks, size=jnp.int32(4))
    rescored = jax.jit(score_table.ScoreTable.set_score)
    for place, score, wanted in ((3, 1.0, [2, 1, 3, 4]), (0, 1.0, [2, 1, 3, 4]), (2, 2.0, [3, 1, 2, 4])):
        np.testing.assert_array_equal(rescored(held, jnp.int32(place), jnp.float32(score)).rank, wanted)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_twin_with_a_mistake_is_told_from_the_right_one(mistake):
    """So that a buffer with one would be; minimax keeps the age of the level that it evicts."""
    setting = ("proportional", *SETTINGS[3]) if mistake == "first of equals" else ("rank", *SETTINGS[0])
    right, wrong = (Twin(CAPACITY, *setting, x) for x in ("", mistake))
    random = np.random.default_rng(0)
    for name, i, score, best, _ in operations(0, 250, N, LEVELS):
        name = name if right.places else "insert"
        places = i if name == "insert" else random.integers(0, len(right.places), N)
        for twin in (right, wrong):
            getattr(twin, name)(*((places,) if name == "draw" else (places, score, best)))
        if any(not np.array_equal(x, wrong.numbers()[name]) for name, x in right.numbers().items()):
            return
    pytest.fail("no operation tells them apart")


@pytest.mark.program
@pytest.mark.parametrize(("right", "wrong"), [
    ('age=table.age.at[to].set(0, mode="drop")', "age=table.age"),  # minimax
    ("(score >= table.score[place])", "(score > table.score[place])"),  # jaxued
    ("self.best.at[places].max(best", "self.best.at[places].set(best"),
    ("(self.score == score) & (self.indices < place)", "(self.score == score) & (self.indices > place)"),
    ("jnp.where(chances == chances.min(), self.rank, 0).max()", "self.rank[chances.argmin()]"),
    ("table.fingerprint.at[known].get(mode=\"clip\") == level_hash).all() & ", "level_hash == level_hash).all() & "),
    ("self.age + n, 0)", "self.age + 1, 0)"),
    ("highest > 0, positive", "highest < 0, positive"),
])  # fmt: skip
def test_a_mistake_in_the_buffer_is_told_from_its_twin(monkeypatch, right, wrong):
    source = inspect.getsource(score_table)
    assert source.count(right) == 1
    mutant = types.ModuleType("mutant")
    exec(source.replace(right, wrong), mutant.__dict__)
    for name in (
        "score_probabilities",
        "increment_ages",
        "set_score",
        "update_scores",
        "find_lowest_priority",
        "insert_scores",
    ):
        monkeypatch.setattr(score_table.ScoreTable, name, mutant.ScoreTable.__dict__[name])
    with pytest.raises(AssertionError):
        play("proportional" if "highest" in right or "chances" in right else "rank", 250, 5)


@pytest.mark.program
def test_of_many_places_the_least_probable_is_replaced():
    """Where a float holds no difference between those of one age the last rank decides, as the exact number does."""
    capacity, n, setting = 512, 32, (0.3, 0.5)
    held, twin = LevelBuffer.empty(capacity, jnp.int32(0)), Twin(capacity, "rank", *setting)
    enter = jax.jit(lambda b, i, s: b.insert_levels(i, s, s, lambda x, y: x == y, curation(*setting)))
    random = np.random.default_rng(0)
    for _ in range(2 * capacity // n):
        levels, score = random.integers(0, 10_000, n), random.normal(size=n).astype(np.float32)
        held = enter(held, jnp.asarray(levels), jnp.asarray(score))
        twin.insert(levels, score, score)
        wanted, size = twin.numbers(), int(held.size)
        np.testing.assert_array_equal(held.levels[:size], wanted["level"])
        np.testing.assert_array_equal(held.score_table.age[:size], wanted["age"])
    float32 = np.asarray(held.replay_probabilities(curation(*setting)))
    assert len(np.unique(float32)) < len(np.unique(twin.chances())) == capacity


def filled(scores, prioritization="rank", best=None):
    """A buffer of as many places with levels of these scores."""
    n = len(scores)
    empty = LevelBuffer.empty(n, level(0), prioritization)
    scores, best = jnp.asarray(scores, jnp.float32), jnp.zeros(n) if best is None else jnp.asarray(best, jnp.float32)
    return empty.insert_levels(level(jnp.arange(n)), scores, best, equal, curation(0.3, 0.5))


@pytest.mark.program
def test_probabilities_by_hand():
    held = filled([3.0, -1.0, 3.0, 5.0])
    by_rank = np.array([1 / 2, 1 / 4, 1 / 3, 1]) ** 2  # of equals the earlier place ranks first
    np.testing.assert_allclose(
        held.replay_probabilities(curation(0.5, 0.3)), by_rank / by_rank.sum(), rtol=1e-6
    )  # all ages 0
    held = held.replace(score_table=held.score_table.replace(age=jnp.array([0, 2, 6, 0])))
    wanted = 0.7 * by_rank / by_rank.sum() + 0.3 * np.array([0, 2, 6, 0]) / 8
    np.testing.assert_allclose(held.replay_probabilities(curation(0.5, 0.3)), wanted, rtol=1e-6)
    by_size = np.array([3, 0, 3, 5]) ** 10
    held = filled([3e4, -1e4, 3e4, 5e4], "proportional")  # to the power of 10 above what a float holds
    np.testing.assert_allclose(held.replay_probabilities(curation(0.1, 0.3)), by_size / by_size.sum(), rtol=1e-5)
    held = filled([-3.0, -1.0, 0.0, -5.0], "proportional")
    np.testing.assert_allclose(held.replay_probabilities(curation(0.1, 0.3)), np.full(4, 1 / 4), rtol=1e-6)


@pytest.mark.program
def test_draws_follow_the_probabilities_that_the_draws_before_them_left():
    setting, n = (1.0, 0.6), 3
    held = filled([1.0, 0.5, 2.0, -1.0])
    held = held.replace(score_table=held.score_table.replace(age=jnp.array([1, 5, 0, 2])))
    keys = jax.random.split(jax.random.key(0), 40_000)
    places = np.asarray(jax.jit(jax.vmap(lambda key: held.sample_indices(key, n, curation(*setting))[0]))(keys))
    counts = np.bincount(places @ [16, 4, 1], minlength=64)
    expected = []
    for first in range(4):
        for second in range(4):
            for third in range(4):
                twin, chance = Twin(4, "rank", *setting), 1.0
                twin.places = [{"score": s, "age": a} for s, a in zip((1, 0.5, 2, -1), (1, 5, 0, 2), strict=True)]
                for place in (first, second, third):
                    chance *= twin.chances()[place]
                    twin.draw([place])
                expected.append(chance * len(keys))
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    stale = Twin(4, "rank", *setting)  # draws that all follow the first probabilities are told from these
    stale.places = twin.places = [{"score": s, "age": a} for s, a in zip((1, 0.5, 2, -1), (1, 5, 0, 2), strict=True)]
    alike = np.einsum("i,j,k", *[stale.chances()] * 3).ravel() * len(keys)
    assert stats.chisquare(counts, alike).pvalue < 1e-9


@pytest.mark.program
def test_draws_of_thousands_of_places_follow_their_probabilities():
    capacity = 4000
    scores = np.random.default_rng(0).normal(size=capacity)
    held = LevelBuffer.empty(capacity, jnp.zeros((), jnp.int32))
    enter = jax.jit(lambda b, i, s: b.insert_levels(i, s, s, lambda x, y: x == y, curation(1.0, 0.5)))
    for i in range(0, capacity - 500, 500):  # so that the last 500 places are free
        held = enter(held, jnp.arange(i, i + 500), jnp.asarray(scores[i : i + 500], jnp.float32))
    chances = np.asarray(held.replay_probabilities(curation(1.0, 0.5)), np.float64)
    draw = jax.jit(jax.vmap(lambda key: held.sample_indices(key, 1, curation(1.0, 0.5))[0][0]))
    counts = np.bincount(np.asarray(draw(jax.random.split(jax.random.key(1), 20_000))), minlength=capacity)
    assert counts[chances == 0].sum() == 0
    assert (chances == 0).sum() == 500
    groups = np.minimum(np.argsort(np.argsort(-chances)) // 20, 149)
    seen, wanted = (np.bincount(groups, x) for x in (counts, chances * 20_000))
    assert stats.chisquare(seen, wanted * seen.sum() / wanted.sum()).pvalue > 1e-3


def test_a_fresh_buffer_may_be_donated():
    update = jax.jit(lambda held, x: held.update_scores(jnp.array([0]), x, x), donate_argnums=0)
    update(LevelBuffer.empty(3, level(0)), jnp.ones(1))


@pytest.mark.program
def test_ages_change_only_where_it_replays():
    held = filled([1.0, 2.0, 3.0])
    places, drawn = held.sample_indices(jax.random.key(0), 2, curation(0.3, 0.5), jnp.bool_(True))
    twin = Twin(3, "rank", 0.3, 0.5)
    twin.places = [{"age": 0} for _ in range(3)]
    twin.draw(np.asarray(places))
    np.testing.assert_array_equal(drawn.score_table.age, [place["age"] for place in twin.places])
    _, still = held.sample_indices(jax.random.key(0), 2, curation(0.3, 0.5), jnp.bool_(False))
    assert leaves_equal(still, held)


@pytest.mark.program
def test_a_level_without_a_score_changes_nothing():
    held = filled([1.0, 2.0, 3.0], best=[-5, -6, -7])
    none, high = jnp.full(2, jnp.nan), jnp.full(2, 100.0)
    assert leaves_equal(held.update_scores(jnp.array([0, 1]), none, high), held)
    assert leaves_equal(held.insert_levels(level(jnp.array([0, 9])), none, high, equal, curation(0.3, 0.5)), held)
    known = held.insert_levels(level(jnp.array([9, 9])), jnp.array([jnp.nan, 8.0]), -high, equal, curation(0.3, 0.5))
    assert sorted(known.score_table.score.tolist()) == [2, 3, 8]  # the one that it equals was none


def test_the_highest_return_is_known_of_the_levels_that_it_holds():
    held = filled([1.0, 2.0, 3.0], best=[-5, -6, -7])
    best = jax.jit(lambda buffer, levels: buffer.get_best_returns(levels, equal))
    np.testing.assert_array_equal(best(held, level(jnp.array([2, 9, 0, 2]))), [-7, -np.inf, -5, -7])
    np.testing.assert_array_equal(best(LevelBuffer.empty(4, level(0)), level(jnp.array([0]))), [-np.inf])


def test_nothing_is_drawn_of_an_empty_buffer_and_nothing_is_nan():
    empty = LevelBuffer.empty(4, level(0))
    places, after = empty.sample_indices(jax.random.key(0), 3, curation(0.3, 0.5))
    np.testing.assert_array_equal(places, [0, 0, 0])
    np.testing.assert_array_equal(after.replay_probabilities(curation(0.3, 0.5)), np.zeros(4))
    assert leaves_equal(after, empty.update_scores(places, jnp.ones(3), jnp.ones(3)))
    assert int(after.size) == 0
    assert after.score_table.age.tolist() == [0, 0, 0, 0]


@pytest.mark.program
def test_levels_are_the_same_as_equal_says():
    """Where bits say more than equal, fingerprint says what it says; where fingerprints are the same, equal decides."""
    h, score = curation(0.3, 0.5), jnp.array([1.0, 2.0])
    but_color = lambda x: {name: leaf for name, leaf in x.items() if name != "color"}  # noqa: E731
    batch, empty = level(jnp.array([4, 5])), LevelBuffer.empty(4, level(0))
    same = lambda a, b: equal(but_color(a), but_color(b))  # noqa: E731
    held = empty.insert_levels(batch, score, score, same, h, lambda x: tree.hash_tree(but_color(x)))
    assert int(held.size) == 1
    constant = lambda x: jnp.zeros(2, jnp.uint32)  # noqa: E731
    held = empty.insert_levels(batch, score, score, equal, h, constant)
    assert int(held.size) == 2
    assert (
        int(held.insert_levels(batch, score, score, equal, h, constant).size) == 3
    )  # the second is told from the first


@pytest.mark.program
def test_a_single_place_holds_what_is_best_so_far():
    held = filled([1.0])
    h = curation(0.3, 0.5)
    for i, score, kept in ((1, 0.5, 0), (2, 1.0, 2), (3, 7.0, 3)):
        held = held.insert_levels(level(jnp.array([i])), jnp.array([score]), jnp.array([score]), equal, h)
        assert leaves_equal(held.get_levels(jnp.int32(0)), level(kept))


@pytest.mark.parametrize("copies", [0, 3])
def test_levels_are_written_where_they_lie(copies):
    """Of big levels in a donated state no copy is made, neither by a batch nor by each level of it."""
    capacity, n, words = 64, 8, 4096
    big, h = jax.ShapeDtypeStruct((words,), jnp.uint32), curation(0.3, 0.5)

    def step(held, key):
        places, held = held.sample_indices(key, n, h)
        score = jax.random.normal(key, (n,))
        held = held.update_scores(places, score, score)
        levels = held.get_levels(places) + jnp.arange(n, dtype=jnp.uint32)[:, None] // 2
        return held.insert_levels(levels, score, score, lambda a, b: (a == b).all(), h), places

    run = lambda held, keys: jax.lax.scan(step, held, keys)  # noqa: E731
    shape = jax.eval_shape(lambda: LevelBuffer.empty(capacity, big))
    keys = jax.random.split(jax.random.key(0), max(copies, 1) * 3).reshape(-1, 3)
    if copies:
        shape = jax.eval_shape(lambda: tree.broadcast(LevelBuffer.empty(capacity, big), copies))
    run, keys = (jax.vmap(run), keys) if copies else (run, keys[0])
    memory = jax.jit(run, donate_argnums=0).lower(shape, keys).compile().memory_analysis()
    levels = max(copies, 1) * capacity * words * 4
    assert memory.alias_size_in_bytes > levels
    assert memory.temp_size_in_bytes < levels


@pytest.mark.parametrize(("arguments", "message"), [
    ((0, {"x": jnp.zeros(2)}), "capacity=0: must be at least 1"),
    ((4, {"x": jnp.zeros(2)}, "ranks"), "unknown prioritization ranks; did you mean rank?"),
])  # fmt: skip
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(OptionError) as error:
        LevelBuffer.empty(*arguments)
    assert str(error.value) == message
