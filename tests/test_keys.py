"""The search for keys that a program uses twice, on programs of a few lines."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from evorl import tree
from evorl.agents import PPO
from evorl.cli import sanity
from evorl.envs.sanity import Bandit
from evorl.spaces import random_action
from evorl.training.configuration import parts, targets
from evorl.training.configuration.discovery import find_choices
from evorl.types import Env
from tests.keys import used_twice
from tests.tiny import on_policy

split, draw, fold_in = jax.random.split, jax.random.uniform, jax.random.fold_in


def twice(key):
    return draw(key) + draw(key, (3,)).sum()


def split_and_drawn(key):
    return draw(split(key)[0]) + draw(key)


def derived_twice(key):
    return draw(split(key)[1]) + draw(split(key)[1])


def split_in_two_ways(key):
    return draw(split(key)[0]) + draw(split(key, 3)[0])


def folded_and_drawn(key):
    return draw(fold_in(key, 0)) + draw(key)


def in_a_loop(key):
    return jax.lax.fori_loop(0, 3, lambda i, x: x + draw(key), 0.0)


def split_in_a_loop(key):
    return jax.lax.scan(lambda x, i: (x + draw(split(key)[0]), None), 0.0, jnp.arange(3))[0]


def carried_unchanged(key):
    return jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0], c[1] + draw(c[0])), (key, 0.0))[1]


def scanned_twice(key):
    add = lambda x, key: (x + draw(key), None)  # noqa: E731
    return jax.lax.scan(add, jax.lax.scan(add, 0.0, split(key, 3))[0], split(key, 3))[0]


def after_a_branch(key):
    return jax.lax.cond(draw(split(key)[0]) > 0.5, lambda: draw(split(key)[1]), lambda: 0.0) + draw(split(key)[1])


def of_copies(key):
    return jax.vmap(lambda key: draw(key) + draw(key))(split(key, 3)).sum()


REUSES = [
    twice, split_and_drawn, derived_twice, split_in_two_ways, folded_and_drawn, in_a_loop, split_in_a_loop,
    carried_unchanged, scanned_twice, after_a_branch, of_copies,
]  # fmt: skip


@pytest.mark.parametrize("program", REUSES)
def test_a_key_that_serves_twice_is_found(program):
    found = used_twice(jax.make_jaxpr(program)(jax.random.key(0)))
    assert {reuse.later.calls[-1][1].split(":")[0] for reuse in found} == {"test_keys.py"}
    assert all(program.__name__ in str(reuse) for reuse in found)


def halves(key):
    first, second = split(key)
    return draw(first) + draw(second)


def folded_in_a_loop(key):
    return jax.lax.fori_loop(0, 3, lambda i, x: x + draw(fold_in(key, i)), 0.0)


def carried_on(key):
    def turn(carry):
        first, second = split(carry[0])
        return first, carry[1] + draw(second)

    return jax.lax.while_loop(lambda c: c[1] < 2, turn, (key, 0.0))[1]


def one_branch_or_the_other(key):
    return jax.lax.cond(draw(split(key)[0]) > 0.5, lambda: draw(split(key)[1]), lambda: 2 * draw(split(key)[1]))


def at_most_once(key):
    first, second = split(key)
    return tree.masked_fori_loop((draw(first) > 0.5).astype(jnp.int32), lambda i, x: x + draw(second), jnp.float32(0))


def in_two_groups(key):
    return draw(split(key)[0]) + draw(split(key)[1])


@pytest.mark.parametrize(
    "program", [halves, folded_in_a_loop, carried_on, one_branch_or_the_other, at_most_once, in_two_groups]
)
def test_keys_that_serve_once_are_not(program):
    assert used_twice(jax.make_jaxpr(program)(jax.random.key(0))) == []


def natives():
    """Yield what the files say of environments that need no other library and no physics."""
    for name, choice in find_choices("env").items():
        settings = choice.read()
        _, _, family, *_ = targets.expand_target(settings["_target_"]).split(".")
        if family in {"arcade", "games", "gymnax", "maze", "mpe", "sanity"} and "???" not in settings.values():
            yield pytest.param(settings, id=name)


@pytest.mark.parametrize("settings", list(natives()))
def test_an_environment_uses_each_key_once(settings):
    env = parts.instantiate(settings, "env", Env)

    def one_step(key_reset, key_step):
        state, obs = env.reset(key_reset, env.default_params)
        action = random_action(env.action_space, env.observation_space, obs, jax.random.key(0))
        return env.step(key_step, state, action, env.default_params)

    assert [str(reuse) for reuse in used_twice(jax.make_jaxpr(one_step)(*split(jax.random.key(1))))] == []


def test_a_sanity_check_uses_each_key_once():
    workflow = on_policy(PPO(), env=Bandit(), batch_size=16)
    seed = partial(sanity.train_and_score, workflow, 64, (False,))
    assert [str(reuse) for reuse in used_twice(jax.make_jaxpr(seed)(jax.random.key(0)))] == []
