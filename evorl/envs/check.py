"""Check of an environment against the protocol evorl.types.Env, in stages that each yield the faults they find."""

import sys
import typing
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.envs.trial import EnvTrial, call_checked, check_behavior, describe_error, find_differences
from evorl.errors import EnvError
from evorl.keys import key_from_seed, require_key
from evorl.spaces import Box, Members, Space, groups, subspaces, to_shape_structs
from evorl.tree import find_mismatches, join_path, leaves_by_name

SPACE_NAMES = [kind.__name__ for kind in typing.get_args(Space)]


def check_env(env: Any, env_params: Any = None, key: jax.Array | None = None, episodes: int = 8) -> None:
    """Check that an environment follows the protocol `evorl.types.Env`.

    The check runs whole episodes of random actions. It stops after the first stage that finds faults.
    Behavior that may or may not be a mistake, depending on the task, is only noted on stderr.

    Args:
        env: Environment to check.
        env_params: Environment parameters; None for its `default_params`.
        key: Random key of the episodes; None for the key of seed 0.
        episodes: Number of episodes.

    Raises:
        EnvError: If there are faults; its message has a line for each, which names the place.
    """
    from evorl.envs.host import pool_registry  # not at the top: it imports this package

    key = key_from_seed(0) if key is None else key
    require_key(key)
    faults: list[str] = []
    oldest = pool_registry.newest_lease()
    try:
        faults += find_missing_members(env)
        if not faults:
            keys = jax.random.split(key, episodes)
            trial = EnvTrial(env, env.default_params if env_params is None else env_params, keys)
            for stage in (check_declarations, check_shapes, check_behavior):
                faults += stage(trial)
                if faults:
                    break
            else:
                for note in find_suspicious_behavior(trial):
                    print(f"note on {type(env).__name__}: {note}", file=sys.stderr)
    except EnvError as error:  # earlier faults are in the list already
        faults.append(str(error))
    if pool_registry.find_fault() is not None:  # all other faults follow from it
        faults = [f"on the host: {pool_registry.find_fault()}"]
    pool_registry.release_leases(oldest)
    if faults:
        raise EnvError(
            "\n  ".join([f"{type(env).__name__} does not follow the environment interface, evorl.types.Env:", *faults])
        )


def find_missing_members(env: Any) -> Iterator[str]:
    """Yield a fault for each member of the protocol that cannot be read from env."""
    from evorl.types import Env  # not at the top: evorl.types imports the spaces

    members = [name for name in vars(Env) if not name.startswith("_")]
    for name in members:
        try:
            getattr(env, name)
        except Exception as error:
            yield f"{name}: cannot be read, {describe_error(error)}; an environment needs {', '.join(members)}"


def check_declarations(trial: EnvTrial) -> Iterator[str]:
    """Yield the faults in the spaces, the step limit, the flags and the params of the environment."""
    env, limit = trial.env, trial.env.max_episode_steps
    yield from check_space("observation_space", env.observation_space)
    yield from check_space("action_space", env.action_space)
    yield from check_groups(env.observation_space, env.action_space)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        yield f"max_episode_steps is {limit!r}, must be a whole number, at least 1"
    if not isinstance(env.fresh_reset, bool):
        yield f"fresh_reset is {env.fresh_reset!r}, must be True or False"
    for path, leaf in leaves_by_name(trial.params).items():
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
            yield f"{join_path('params', path)} is {leaf!r}, must be a number or an array"


def check_space(name: str, space: Any) -> Iterator[str]:
    """Yield the faults in a space."""
    if not isinstance(space, Space):
        yield f"{name} is {type(space).__name__}, must be one of evorl.spaces: {', '.join(SPACE_NAMES)}"
        return
    if isinstance(space, Members):
        yield from check_space(f"{name} of an agent", space.space)
        return
    for part, within in subspaces(space):
        yield from check_space(f"{name}.{part}", within)
    if isinstance(space, Box) and name.startswith("action_space"):
        low, high = space.bounds
        if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            allowed = "bounds of actions must be finite, with low below high"
            yield f"{name}: its bounds are {space.low} and {space.high}, {allowed}"


def check_groups(observation_space: Any, action_space: Any) -> Iterator[str]:
    """Yield the differences between the groups of agents in the observation space and in the action space."""
    if not isinstance(action_space, Space) or not isinstance(observation_space, Space):
        return
    acting, seeing = groups(action_space), groups(observation_space)
    if not acting and not seeing:
        return
    if others := [name for name, part in subspaces(action_space) if not isinstance(part, Members)]:
        yield f"action_space.{others[0]} has no group; in a multi-agent space, each part must be Members(space, n)"
    for name in {**acting, **seeing}:
        sizes = [space[name].n if name in space else 0 for space in (acting, seeing)]
        if sizes[0] != sizes[1]:
            yield f"group {name!r} has {sizes[0]} agents in action_space and {sizes[1]} in observation_space"


def check_shapes(trial: EnvTrial) -> Iterator[str]:
    """Yield a fault if reset or step has results of a wrong structure, shape or dtype.

    A function that cannot be traced, alone or under vmap, raises EnvError.
    """
    from evorl.types import MemberEnds, TimeStep

    env, key = trial.env, trial.keys[0]
    start = call_checked("reset", jax.eval_shape, env.reset, key, trial.params)
    if not (isinstance(start, tuple) and len(start) == 2):
        yield f"reset returns {type(start).__name__}, must return (state, obs)"
        return
    action = jax.eval_shape(env.action_space.sample, key)
    answer = call_checked("step", jax.eval_shape, env.step, key, start[0], action, trial.params)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], TimeStep)):
        yield f"step returns {type(answer).__name__}, must return (state, TimeStep)"
        return
    (state, obs), (after, timestep) = start, answer
    flag, reward = jax.ShapeDtypeStruct((), bool), to_strong_shapes(timestep.reward)
    yield from find_mismatches("reset: obs", to_strong_shapes(obs), to_shape_structs(env.observation_space))
    yield from find_mismatches("step: obs", to_strong_shapes(timestep.obs), to_shape_structs(env.observation_space))
    yield from find_mismatches("step: state", after, state, "as from reset")
    wanted = jax.tree.map(lambda x: x.update(dtype=jnp.result_type(float)), reward)
    if teams := groups(env.action_space):
        wanted = {name: jax.ShapeDtypeStruct((of.n,), jnp.result_type(float)) for name, of in teams.items()}
    yield from find_mismatches("step: reward", reward, wanted)
    yield from find_mismatches("step: terminated", to_strong_shapes(timestep.terminated), flag)
    yield from find_mismatches("step: truncated", to_strong_shapes(timestep.truncated), flag)
    if timestep.member_ends is not None:
        flags = {name: jax.ShapeDtypeStruct((of.n,), bool) for name, of in teams.items()}
        if not teams:
            yield "step: member_ends must be None in a single-agent environment"
        elif not isinstance(timestep.member_ends, MemberEnds):
            given = type(timestep.member_ends).__name__
            yield f"step: member_ends is {given}, must be None or evorl.types.MemberEnds(terminated, truncated)"
        else:
            ends = to_strong_shapes(timestep.member_ends)
            yield from find_mismatches("step: member_ends.terminated", ends.terminated, flags)
            yield from find_mismatches("step: member_ends.truncated", ends.truncated, flags)
    yield from check_episode_info(env, timestep.info)
    yield from check_vmap(trial)


def check_episode_info(env: Any, info: Any) -> Iterator[str]:
    """Yield a fault for each entry of episode_info with an unknown summary or without an array in info."""
    from evorl.vector_env.episodes import SUMMARIES

    for name, how in getattr(env, "episode_info", {}).items():
        if how not in SUMMARIES:
            yield f"episode_info: {name} is {how!r}, must be one of {', '.join(SUMMARIES)}"
        if not hasattr(info.get(name), "dtype"):
            yield f"step: info has no array {name!r}, which episode_info declares; it has {sorted(info)}"


def check_vmap(trial: EnvTrial) -> Iterator[str]:
    """Raise EnvError if reset or step cannot be vmapped over states, or over states and params; yield nothing."""
    env, keys = trial.env, trial.keys
    actions = jax.eval_shape(jax.vmap(env.action_space.sample), keys)
    for what, axis, params in (("", None, trial.params), (" and params", 0, trial.params_batch)):
        how = f"vmapped over states{what}"
        states, _ = call_checked(f"reset, {how}", jax.eval_shape, jax.vmap(env.reset, (0, axis)), keys, params)
        call_checked(f"step, {how}", jax.eval_shape, jax.vmap(env.step, (0, 0, 0, axis)), keys, states, actions, params)
    yield from ()


def find_suspicious_behavior(trial: EnvTrial) -> Iterator[str]:
    """Yield notes on behavior that is right in some tasks and a mistake in others."""
    env, limit = trial.env, trial.env.max_episode_steps
    starts = trial.rollouts["begun"]["reset"]
    if len(trial.keys) > 1 and not find_differences(
        tree.index(starts, slice(1, None)), tree.index(starts, slice(0, -1))
    ):
        yield f"{len(trial.keys)} keys gave the same initial state; this is right only if the task has a single one"
    if limit > 1 and (trial.episode_lengths == limit).all() and np.asarray(trial.rollouts["terminated"])[:, -1].all():
        every = f"all {len(trial.keys)} episodes were terminated at step {limit}, which is max_episode_steps"
        yield f"{every}; this is right if the task itself has this length, but a time limit must truncate"
    numbers = sum(x[0, 0].size for x in jax.tree.leaves(trial.rollouts["reward"]))
    if numbers != 1 and not groups(env.action_space):
        yield f"step: reward has {numbers} values; use LinearReward(env, weights) if the workflow needs a scalar"
    for path, leaf in leaves_by_name(starts["state"]).items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            why = "copies of the state repeat its noise; use the key that step receives"
            yield f"{join_path('state', path)} is a random key; {why}"


def to_strong_shapes(shapes: Any) -> Any:
    """Return the shapes and dtypes without weak types."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
