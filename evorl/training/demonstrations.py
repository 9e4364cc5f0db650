"""Demonstrations: transitions of complete episodes in a file, for replay buffers and behavior cloning."""

import io
import os
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.envs.wrappers import unwrap
from evorl.errors import OptionError, require, to_printable
from evorl.keys import key_from_seed
from evorl.spaces import to_shape_structs
from evorl.training.devices import memory_limit
from evorl.training.episodes import scan_until
from evorl.training.host_envs import find_host_envs
from evorl.training.policy import Policy
from evorl.training.records import files
from evorl.training.records.checkpoint import format_bytes
from evorl.types import Env, Key, State, Transition
from evorl.vector_env import EnvBatch

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")  # fields of transitions in a file
EPISODES_AT_ONCE = 16
READ_ERRORS = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)


def record_episodes(policy: Policy, episodes: int, seed: int = 0, explores: bool = False) -> Transition:
    """Play complete episodes and return their transitions.

    Args:
        policy: Policy that acts.
        episodes: Number of episodes.
        seed: Seed of the episodes.
        explores: Whether the policy explores.

    Returns:
        Transitions as NumPy arrays, leaves [n, ...], with consecutive episodes.

    Raises:
        OptionError: The environment runs on the host, or agents of a multi-agent environment may end one by
            one.
    """
    env, act = policy.env, jax.vmap(policy.as_policy_fn(explores))
    name = type(unwrap(env)).__name__
    if find_host_envs(env):
        raise OptionError(f"record: {name} runs on the host; only environments on the device can be recorded")
    width = min(episodes, EPISODES_AT_ONCE)

    world = EnvBatch(env, policy.env_params, policy.memory, width)

    @jax.jit
    def begin(key: Key) -> Any:
        return world.init_envs(world.reset(jax.random.split(key, width)))

    def step(carry: Any, key: Key) -> tuple[Any, tuple[Transition, jax.Array, jax.Array]]:
        envs, ended = carry
        after, transition = world.interact(act, envs, jax.random.split(key, width))
        end = ended | transition.is_done
        return (after, end), (transition, ~ended, end)

    scan = jax.jit(partial(jax.lax.scan, step))

    def play(key: Key) -> tuple[Transition, np.ndarray, np.ndarray]:
        key_start, key_play = jax.random.split(key)
        keys, start = jax.random.split(key_play, env.max_episode_steps), (begin(key_start), jnp.zeros(width, bool))
        return scan_until(scan, start, keys, lambda outputs: outputs[2][-1].all())

    found = []
    for i in range(-(-episodes // width)):
        transitions, mask, _ = play(jax.random.fold_in(key_from_seed(seed), i))
        if transitions.member_ends is not None:
            raise OptionError(
                f"record: agents of {name} end at different times; only episodes that end for all can be recorded"
            )
        kept = Transition(*(getattr(transitions, name) for name in FIELDS))
        count = min(width, episodes - i * width)
        found += [jax.tree.map(lambda x, j=j: x[mask[:, j], j], kept) for j in range(count)]  # noqa: B023
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)


def write_demonstrations(path: Path, transitions: Transition) -> None:
    """Write transitions, leaves [n, ...], to an .npz file of plain arrays.

    An array has the name of its field, such as `obs`, or with a Dict space `obs.speed`.
    """
    data, new = io.BytesIO(), path.with_name(f".{path.name}.new")
    np.savez_compressed(data, allow_pickle=False, **_name_leaves({name: getattr(transitions, name) for name in FIELDS}))
    try:
        new.write_bytes(data.getbuffer())
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OptionError(f"record={path}: cannot be written: {error.strerror}") from error


def read_demonstrations(path: Path, env: Env, option: str = "preload") -> Transition:
    """Read transitions of an environment from an .npz file, without executing anything in it.

    Args:
        path: File written by `write_demonstrations`.
        env: Environment, whose spaces the transitions must match.
        option: Name of the option that gave the path, for error messages.

    Returns:
        Transitions as NumPy arrays, leaves [n, ...].

    Raises:
        OptionError: The file has another format, or is from another environment.
    """
    fields = _describe_fields(env)
    wanted = _name_leaves(fields)
    arrays = _read_arrays(path, wanted, option)
    count = arrays["terminated"].size
    require(count > 0, option, path, "has no transitions")
    for name, like in wanted.items():
        given = arrays[name]
        fits = given.shape == (count, *like.shape) and np.can_cast(given.dtype, like.dtype, "same_kind")
        shown = f"{name} is {given.dtype} {list(given.shape)}"
        require(fits, option, path, f"{shown}, must be {like.dtype} {[count, *like.shape]} for this environment")
        arrays[name] = given.astype(like.dtype)
        require(bool(np.isfinite(arrays[name]).all()), option, path, f"{name} contains NaN or infinity")
    return Transition(**{name: _restore_leaves(like, name, arrays) for name, like in fields.items()})


def _read_arrays(path: Path, names: Collection[str], option: str) -> dict[str, np.ndarray]:
    """Read an .npz file with exactly the given arrays, which must take less than the memory of the machine."""
    try:
        with files.open_for_reading(path) as file, zipfile.ZipFile(file) as members:
            has = [member.filename.removesuffix(".npy") for member in members.infolist()]
            if set(has) != set(names):
                needs, holds = (", ".join(sorted(some)) for some in (names, has))
                raise OptionError(f"{option}={path}: must contain {needs}; it contains {to_printable(holds, 200)}")
            size, there = sum(member.file_size for member in members.infolist()), memory_limit()
            allowed = f"must be smaller than the memory, {format_bytes(there)}"
            require(size < there, option, path, f"{format_bytes(size)}: {allowed}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
    except OptionError:
        raise
    except READ_ERRORS as error:
        raise OptionError(f"{option}={path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def preload_replay(workflow: Any, state: State, transitions: Transition) -> State:
    """Return a state whose replay buffer contains the transitions; this function can be traced.

    Args:
        workflow: Workflow with one replay buffer of single transitions.
        state: State of one run.
        transitions: Transitions, leaves [n, ...].

    Raises:
        OptionError: There is no such replay buffer, or it is too small.
    """
    replay, factory, n = getattr(state, "replay", None), getattr(workflow, "replay", None), len(transitions.terminated)
    if replay is None or factory is None:
        raise OptionError(f"preload: {type(workflow).__name__} has no replay buffer")
    kind = type(factory).__name__
    require(not factory.has_sequences, "preload", kind, "must be a replay buffer of single transitions")
    require(n <= workflow.capacity, "preload", f"{n:,} transitions", f"capacity={workflow.capacity:,} is too small")
    n_step = getattr(workflow, "n_step", 1)
    require(
        n_step == 1, "preload", f"n_step={n_step}", "must be n_step=1, because demonstrations are single transitions"
    )
    like = jax.eval_shape(lambda key: replay.sample(key, (n,)), jax.random.key(0)).rows
    given = {name: getattr(transitions, name) for name in FIELDS}
    cast = jax.tree.map(lambda x, to: jnp.asarray(x, to.dtype), given, {name: getattr(like, name) for name in FIELDS})
    rows = replace(tree.zeros_like(like), **cast)
    rows = rows if like.weight is None else replace(rows, weight=jax.tree.map(jnp.ones_like, rows.weight))
    envs = workflow.vector_env.num_envs
    steps = -(-n // envs)

    def lay_out(x: jax.Array) -> jax.Array:  # consecutive transitions in the column of each environment
        padded = jnp.pad(x, [(0, steps * envs - n), *[(0, 0)] * (x.ndim - 1)])
        return padded.reshape(envs, steps, *x.shape[1:]).swapaxes(0, 1)

    mask = lay_out(jnp.ones(n, bool))
    state = replace(state, replay=replay.add(jax.tree.map(lay_out, rows), mask))
    if getattr(state, "obs_statistics", None) is not None:
        state = replace(state, obs_statistics=state.obs_statistics.update(rows.obs))
    return state


def _describe_fields(env: Env) -> dict[str, Any]:
    """Return the shape and dtype of each leaf of a transition, by field."""
    obs, action = to_shape_structs(env.observation_space), to_shape_structs(env.action_space)
    _, after = jax.eval_shape(lambda key: _take_step(env, key, action), jax.random.key(0))
    flag = jax.ShapeDtypeStruct((), bool)
    return dict(zip(FIELDS, (obs, action, after.reward, obs, flag, flag), strict=True))


def _take_step(env: Env, key: Key, action: Any) -> Any:
    state, _ = env.reset(key, env.default_params)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), action)
    return env.step(key, state, zeros, env.default_params)


def _name_leaves(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of the fields by dotted name."""
    return {
        tree.join_path(name, path): leaf
        for name, of in fields.items()
        for path, leaf in tree.leaves_by_name(of).items()
    }


def _restore_leaves(like: Any, name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return a pytree with the structure of `like`, made of arrays by dotted name."""
    leaves = [arrays[tree.join_path(name, path)] for path in tree.leaves_by_name(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def require_demonstrations(workflow: Any, state: State) -> None:
    """Raise OptionError if a workflow takes no env steps and the replay buffer in its state is empty."""
    alone = getattr(workflow, "num_steps", None) == 0 and hasattr(workflow, "replay")
    if alone and not bool((state.replay.size > 0).all()):
        raise OptionError("num_steps=0: needs demonstrations; use preload=FILE (docs/howto/demonstrations.md)")
