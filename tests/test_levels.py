"""The level buffer is that of its rules, one level after another; scores are those of their equations."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from evorl import tree
from evorl.errors import OptionError
from evorl.levels import CurationHyperparams, LevelBuffer
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


def hyperparams(temperature, staleness):
    return CurationHyperparams(jnp.float32(temperature), jnp.float32(staleness))


def on_copies(name, copies):
    """An operation of so many vmapped buffers, or of one alone if 0, compiled."""
    function = {
        "draw": lambda buffer, seed, h: buffer.draw(jax.random.key(seed), N, h),
        "update": lambda buffer, places, score, best: buffer.updated(places, score, best),
        "insert": lambda buffer, i, score, best, h: buffer.inserted(level(i), score, best, equal, h),
    }[name]
    return jax.jit(jax.vmap(function) if copies else function)


def compare(buffer, twin):
    """What differs between a buffer and its twin."""
    ledger, size = buffer.ledger, int(buffer.size)
    wanted = twin.numbers()
    if size != len(twin.places):
        return ["size"]
    held = jax.tree.map(lambda x: np.asarray(x)[wanted["level"].astype(int)], TABLE)
    same = {name: np.array_equal(np.asarray(buffer.levels[name])[:size], held[name]) for name in held}
    for name in ("score", "best", "age", "rank"):
        same[name] = np.array_equal(np.asarray(getattr(ledger, name))[:size], wanted[name])
    same["rest"] = sorted(np.asarray(ledger.rank)) == list(range(1, 1 + CAPACITY)) and not np.any(ledger.age[size:])
    return [name for name, good in same.items() if not good]


def play(prioritization, count, copies, seed=0):
    """Random operations on buffers with other hyperparameters each: the twins' histories as (name, args), and twins."""
    settings = [SETTINGS[i % len(SETTINGS)] for i in range(max(copies, 1))]
    do = {name: on_copies(name, copies) for name in ("draw", "update", "insert")}
    buffer, h = LevelBuffer.empty(CAPACITY, level(0), prioritization), hyperparams(*settings[0])
    if copies:
        buffer, h = tree.broadcast(buffer, copies), hyperparams(*np.array(settings).T)
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


@pytest.mark.parametrize("prioritization", ["rank", "proportional"])
@pytest.mark.parametrize("copies", [0, 5])
def test_the_buffer_is_its_twin_after_every_operation(prioritization, copies):
    twins, histories = play(prioritization, 250, copies)
    for twin, history in zip(twins, histories, strict=True):
        names = [name for name, _ in history]
        assert min(names.count(name) for name in ("insert", "draw", "update")) > 40
        assert len(twin.places) == CAPACITY


@pytest.mark.slow
@pytest.mark.parametrize("prioritization", ["rank", "proportional"])
@pytest.mark.parametrize("copies", [0, 5])
def test_the_buffer_is_its_twin_after_5000_operations(prioritization, copies):
    play(prioritization, 5000, copies, seed=1)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_twin_with_a_mistake_is_told_from_the_right_one(mistake):
    """So that a buffer with one would be; minimax keeps the age of the level that it evicts."""
    right, wrong = (Twin(CAPACITY, "rank", *SETTINGS[0], x) for x in ("", mistake))
    random = np.random.default_rng(0)
    for name, i, score, best, _ in operations(0, 250, N, LEVELS):
        name = name if right.places else "insert"
        places = i if name == "insert" else random.integers(0, len(right.places), N)
        for twin in (right, wrong):
            getattr(twin, name)(*((places,) if name == "draw" else (places, score, best)))
        if any(not np.array_equal(x, wrong.numbers()[name]) for name, x in right.numbers().items()):
            return
    pytest.fail("no operation tells them apart")
