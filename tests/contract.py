"""The contract that every workflow keeps. A case is compiled once, for all that is asked of it."""

import dataclasses
import json
import os
from functools import cached_property
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.parts import iterate_numbers, resolve_numbers
from evorl.schedules import Schedule
from evorl.training.program import Program, make_run_args
from evorl.types import Population
from evorl.workflows import Vmapped
from evorl.workflows.base import max_env_steps, step_or_evaluate
from tests.annotations import find_untrue
from tests.conftest import leaves_equal
from tests.keys import used_twice

RECORDED = Path(__file__).parent / "recorded"
OTHER_CPU = 1e-4  # of the norm; PSRO's gains, after training, differ by 4e-5 between two x86-64 CPUs
SAME_KEY = {  # functions that mean to use a key twice
    "Behaviour.act",  # of an action at random, an exploring and a greedy one, one is taken
    "BoundedSBX.__call__",  # the twins of a pair mirror each other
    "PAIRED._plan_all_students",  # all students are on the same levels
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A workflow, and the one program that all checks run."""

    name: str
    workflow: object
    eval_episodes: int = 6

    @property
    def numbers(self):
        """Return those of its parts, of a population those of each member."""
        if isinstance(self.workflow, Population):
            return tree.broadcast(resolve_numbers(self.workflow.inner), self.workflow.size)
        return resolve_numbers(self.workflow)

    @cached_property
    def program(self):
        return Program(self.workflow, [0], chunk=4, vectorized=True)

    @cached_property
    def init(self):
        return jax.jit(self.program.init)

    @cached_property
    def run(self):
        return jax.jit(self.program.run)

    def steps(self, numbers, count, chunk=4):
        """Return the state after count steps in calls of at most chunk."""
        state = self.init(self.program.keys, numbers)
        for first in range(0, count, chunk):
            state, _ = self.go_on(state, first, min(chunk, count - first))
        return state

    def go_on(self, state, first, count):
        """Return the state after count more steps, and the metrics of all of them."""
        state, metrics, _ = self.run(state, self.program.keys, *make_run_args(first, count, False))
        return state, metrics

    def evaluated(self, state, first):
        """Return the state after an evaluation at step first, and its metrics."""
        state, _, metrics = self.run(state, self.program.keys, *make_run_args(first, 1, True))
        return state, metrics


def types(state):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)


def check_types(case):
    """Three copies step, are evaluated and inherit, as by PBT.

    Types stay and are those that the fields are annotated with, metrics have names, no key serves twice.
    """
    numbers = tree.broadcast(case.numbers, 3)
    population = Vmapped(case.workflow, 3)

    def generation(key_init, key_advance):
        before = population.init(key_init, numbers)
        state, metrics, evaluation = step_or_evaluate(population, before, key_advance, jnp.bool_(False))
        source = jnp.full(3, evaluation["return"].reshape(3, -1).mean(1).argmax())
        state = population.copy_members(state, source)
        state = dataclasses.replace(state, numbers=tree.index(state, source).numbers)
        return before, state, metrics, evaluation

    trace = jax.make_jaxpr(generation, return_shape=True)
    program, (before, state, metrics, evaluation) = trace(jax.random.key(0), jax.random.key(1))
    reused = [str(reuse) for reuse in used_twice(program) if reuse.function not in SAME_KEY]
    assert reused == [], reused
    assert types(state) == types(before)
    assert list(find_untrue(before, copies=1)) == []
    assert {"env_steps", "episodes", "gradient_steps", "return"} <= set(metrics)
    assert {"return", "episodes"} <= set(evaluation)


def check_runs(case):
    """Evaluations, chunks, saving and loading change no bit. Return what was computed at the third step."""
    check_counts(case)
    whole, pieces = case.steps(case.numbers, 6, 4), case.steps(case.numbers, 6, 1)
    assert leaves_equal(whole, pieces)
    half, step = case.go_on(case.steps(case.numbers, 2), 2, 1)
    after, evaluation = case.evaluated(half, 3)
    assert leaves_equal(half, after)
    np.testing.assert_array_equal(evaluation["episodes"], case.eval_episodes)
    loaded = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), half)
    assert leaves_equal(whole, case.go_on(loaded, 3, 3)[0])
    return {"evaluation": evaluation, "state": half, "step": step}


def check_counts(case):
    """Iterations take env steps, but not more than the workflow says, by which budgets are kept, or more episodes."""
    first, later = max_env_steps(case.workflow)
    state = case.init(case.program.keys, case.numbers)
    metrics = case.go_on(state, 0, 4)[1]
    steps, episodes = (np.asarray(metrics[name]).reshape(4, -1).sum(1) for name in ("env_steps", "episodes"))
    assert steps[0] <= first
    assert (steps[1:] <= later).all()
    assert steps.sum() > 0 or later in (0, np.inf)
    assert (episodes <= np.maximum([first, later, later, later], 1)).all()


def check_numbers(case):
    """Every number changes what is learned, or is among those listed; one compilation serves all values."""
    if not jax.tree.leaves(case.numbers):
        return
    base, compiled, dead = weights(case.steps(case.numbers, 4)), case.run._cache_size(), []
    for name, *_ in iterate_numbers(case.workflow):
        others = [weights(case.steps(moved(case, name, up), 4)) for up in (False, True)]
        if not any(np.abs(other - base).max() > 1e-6 * np.abs(base).max() for other in others):
            dead.append(name)
    acts_greedily = case.name == "cem_rl"  # its population, by default
    expected = ["agent.exploration_noise"] if acts_greedily else []
    assert dead == expected
    assert case.run._cache_size() == compiled


def check_other_numbers(case):
    """Other numbers compute something else than themselves, in the program that is there."""
    if not jax.tree.leaves(case.numbers):
        return
    others, compiled = jax.tree.map(lambda x: 0.5 * x, case.numbers), case.run._cache_size()
    assert not leaves_equal(*(computed_leaves(case.steps(one, 4)) for one in (others, case.numbers)))
    assert case.run._cache_size() == compiled


def computed_leaves(state):
    """Return the leaves of a state by name, without the hyperparameters that it holds."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {name: x for path, x in leaves if "numbers" not in (name := jax.tree_util.keystr(path))}


def check_copies(case, twin):
    """Two copies with other numbers are two runs; a copied member keeps its replay and acts differently."""
    names = [n for n, *_ in iterate_numbers(case.workflow) if n.endswith(("actor_lr", "learning_rate"))]
    settings = [case.numbers, moved(case, names[0], up=False) if names else case.numbers]
    both = twin.init(twin.program.keys, tree.stack(settings))
    keys = [case.program.keys.at[0, 0].set(key) for key in jax.random.split(twin.program.keys[0, 0])]
    alone = [case.init(own, one) for own, one in zip(keys, settings, strict=True)]
    step = jax.jit(case.workflow.step)
    for i in range(3):
        both, _ = twin.go_on(both, i, 1)
        of_each = jax.random.split(jax.random.fold_in(twin.program.keys[0, 1], i))
        alone = [step(state, key)[0] for state, key in zip(alone, of_each, strict=True)]
    for i, one in enumerate(alone):
        of_copy = jax.tree.map(lambda x, i=i: x[i], learned(both))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), of_copy, learned(one))
    first, second = (weights(tree.index(both, i)) for i in range(2))
    assert np.abs(first - second).max() > 1e-3
    copied = jax.jit(twin.workflow.copy_members)(both, jnp.array([0, 0]))
    assert leaves_equal(tree.index(learned(copied), 0), tree.index(learned(copied), 1))
    kept = next((name for name in ("replay", "envs") if hasattr(both, name)), None)
    assert kept is None or leaves_equal(getattr(copied, kept), getattr(both, kept))
    after, _ = twin.go_on(copied, 3, 1)
    assert not leaves_equal(tree.index(learned(after), 0), tree.index(learned(after), 1))


def learned(state):
    """Return the agents of a state, or of the members that it holds."""
    return state.agent if hasattr(state, "agent") else state.members.agent


def weights(state):
    """Return all numbers that are learned, but the optimizers' moments, as one vector."""
    leaves = jax.tree_util.tree_leaves_with_path(learned(state))
    return np.concatenate([np.ravel(x) for path, x in leaves if "opt_state" not in jax.tree_util.keystr(path)])


def moved(case, name, up=True):
    """Return the numbers of a case with the one of this dotted name at another value of its range."""
    value, declared = next(of for one, *of in iterate_numbers(case.workflow) if one == name)
    high = declared.get("high", np.inf)
    other = 1e-4 if value == np.inf else (value + high) / 2 if up and high < np.inf else value / 2
    return with_number(case.numbers, name.split("."), other)


def with_number(numbers, path, value):
    """Return nested numbers with another one at a path."""
    first, *rest = path
    if isinstance(numbers, Schedule):
        return numbers.replace(**{first: jnp.asarray(value, getattr(numbers, first).dtype)})
    old = numbers[first]
    return numbers | {first: with_number(old, rest, value) if rest else jnp.asarray(value, old.dtype)}


def check_recorded(name, results):
    """Compare with what was computed when it was recorded, to within the CPU; EVORL_RECORD=1 records anew."""
    path, found = RECORDED / f"{name}.json", described(results)
    if os.environ.get("EVORL_RECORD"):
        values = {"jax": jax.__version__} | found
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())
        path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    before = json.loads(path.read_text(encoding="utf-8"))
    version = before.pop("jax")
    assert version == jax.__version__, f"recorded with jax {version}, which may draw and round otherwise; record anew"
    same_numbers(found, before, rtol=OTHER_CPU)


def same_numbers(found, before, rtol=1e-5, least=1e-7):
    """Compare what `described` gave; numbers may differ by least, or by rtol of the norm."""
    assert found.keys() == before.keys()
    for name in found:
        (shape, *numbers), (shape_before, *numbers_before) = found[name], before[name]
        assert shape == shape_before, name
        atol = rtol * numbers_before[1] + least
        np.testing.assert_allclose(numbers, numbers_before, rtol=0, atol=atol, err_msg=name)


def described(results):
    """Return by name the shape, mean and norm of every leaf.

    If not all numbers are finite, the counts of NaN, inf and -inf follow the shape, and the others are described.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(results):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        x = np.asarray(jax.random.key_data(leaf) if is_key else leaf).astype(np.float64)
        finite = x[np.isfinite(x)]
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        numbers = (float(f"{v:.7g}") for v in (finite.mean() if finite.size else 0, np.linalg.norm(finite)))
        others = [int(count(x).sum()) for count in (np.isnan, np.isposinf, np.isneginf)]
        found[name] = [[*leaf.shape, *(others if any(others) else ())], *numbers]
    return found
