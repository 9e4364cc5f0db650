"""Trial runs of an environment (reset, steps, and whole episodes of random actions), and checks of their results."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import tree
from evorl.errors import EnvError
from evorl.spaces import Space, flatten, leaf_spaces, random_action, unflatten
from evorl.tree import join_path, leaves_by_name
from evorl.types import Env, Key, Params
from evorl.vector_env import hosts

TOLERANCE = 1e-3  # allowed difference of floats between two compilations of one function
JAX = str(Path(jax.__file__).parent)


@dataclass(frozen=True)
class EnvTrial:
    """Trial runs of an environment that is being checked; results are computed once, when first used."""

    env: Env
    params: Params
    keys: Key  # [episodes]

    @cached_property
    def params_batch(self) -> Any:
        """Return copies of the params, one for each key."""
        return tree.broadcast(self.params, len(self.keys))

    @cached_property
    def rollouts(self) -> dict[str, Any]:
        """Run an episode of max_episode_steps steps for each key, vmapped over keys and params."""
        return call_checked("episodes", jax.jit(jax.vmap(self.run_episode)), self.keys, self.params_batch)

    @cached_property
    def episode_lengths(self) -> np.ndarray:
        """Return the number of steps of each episode; max_episode_steps if it does not end."""
        ended = np.asarray(self.rollouts["terminated"] | self.rollouts["truncated"])
        return np.where(ended.any(1), ended.argmax(1) + 1, ended.shape[1])

    def take_random_step(self, key: jax.Array, state: Any, obs: Any, params: Any, i: Any) -> tuple[Any, Any]:
        """Take step i, counted from 1, with a random action, which is valid if the observation has an action mask."""
        key_action, key_step = jax.random.split(jax.random.fold_in(key, i))
        action = random_action(self.env.action_space, self.env.observation_space, obs, key_action)
        return self.env.step(key_step, state, action, params)

    def reset_and_step(self, key: jax.Array, params: Any) -> dict[str, Any]:
        """Return the results of reset and of the first step by name, with cleared leases of host environments."""
        state, obs = self.env.reset(jax.random.fold_in(key, 0), params)
        start = copy_containers({"state": hosts.clear_leases(state), "obs": obs})
        after, timestep = self.take_random_step(key, state, obs, params, 1)
        return {"reset": start, "step": {"state": hosts.clear_leases(after), "timestep": timestep}}

    def run_episode(self, key: jax.Array, params: Any) -> dict[str, Any]:
        """Run an episode; return the results of `reset_and_step`, and for each step the values to check."""
        space, (state, obs) = self.env.observation_space, self.env.reset(jax.random.fold_in(key, 0), params)

        def step(carry: Any, i: jax.Array) -> Any:
            state, obs, first = carry
            after, timestep = self.take_random_step(key, state, obs, params, i)
            seen = {name: vars(timestep)[name] for name in ("reward", "terminated", "truncated", "member_ends")}
            seen |= {"strays": find_out_of_bounds(space, timestep.obs), "counts": collect_scalars(after)}
            first = tree.select(i == 1, {"state": hosts.clear_leases(after), "timestep": timestep}, first)
            return (after, timestep.obs, first), seen

        first = tree.zeros_like(jax.eval_shape(self.reset_and_step, key, params)["step"])
        (_, _, first), seen = jax.lax.scan(step, (state, obs, first), jnp.arange(1, self.env.max_episode_steps + 1))
        begun = {"reset": {"state": hosts.clear_leases(state), "obs": obs}, "step": first}
        return {
            "begun": begun,
            "start": {"strays": find_out_of_bounds(space, obs), "counts": collect_scalars(state)},
        } | seen


def check_behavior(trial: EnvTrial) -> Iterator[str]:
    """Yield the faults in the values of single steps and of whole episodes."""
    before = snapshot_attributes(trial.env)
    yield from check_purity(trial)
    yield from check_rollouts(trial)
    yield from check_member_ends(trial)
    yield from check_no_autoreset(trial)
    for name in sorted(name for name, value in snapshot_attributes(trial.env).items() if value != before.get(name)):
        yield f"reset or step changes self.{name}, must not modify self: values that change belong in the state"


def check_purity(trial: EnvTrial) -> Iterator[str]:
    """Yield a fault if reset and step are not pure functions.

    Only the first difference between calls is reported, since others follow from it.
    """
    key, params = trial.keys[0], copy_containers(trial.params)
    jitted = jax.jit(trial.reset_and_step)
    alone = [call_checked("reset and step", jitted, key, trial.params) for key in trial.keys]
    comparisons = (
        (jitted(key, trial.params), alone[0], 0.0, "with the same key; all noise must come from the key"),
        (
            call_checked("without jit", trial.reset_and_step, key, trial.params),
            alone[0],
            TOLERANCE,
            "with and without jit; all values must come from the arguments, not from NumPy, a global or self",
        ),
        (trial.rollouts["begun"], tree.stack(alone), TOLERANCE, "with and without vmap"),
    )
    for found, wanted, tolerance, when in comparisons:
        different = find_differences(found, wanted, tolerance)
        if different:
            yield f"{different[0]} differs between calls {when}"
            break
    state, obs = trial.env.reset(key, params)
    given = {"state": state, "params": params}
    kept = copy_containers(given)
    trial.take_random_step(key, given["state"], obs, given["params"], 1)
    for path in find_differences(given, kept):
        yield f"step changes {path} of its arguments in place, must return a new one"
    for path in find_differences(params, trial.params):
        yield f"reset or step changes {join_path('params', path)} in place"


def check_rollouts(trial: EnvTrial) -> Iterator[str]:
    """Yield the faults in the observations, rewards and ends of whole episodes, only the first of each kind."""
    limit, lengths = trial.env.max_episode_steps, trial.episode_lengths
    played = jax.tree.map(np.asarray, {name: seen for name, seen in trial.rollouts.items() if name != "begun"})
    rewards = [x.reshape(*x.shape[:2], -1) for x in jax.tree.leaves(played["reward"])]
    reward = np.concatenate(rewards, axis=2)
    steps = np.arange(1, limit + 1)
    space = trial.env.observation_space
    names = leaves_by_name(unflatten(space, leaf_spaces(space)))
    for (name, space), start, later in zip(names.items(), played["start"]["strays"], played["strays"], strict=True):
        outside, index, value = (np.column_stack(pair) for pair in zip(start, later, strict=True))
        at = find_earliest(outside & (np.arange(limit + 1) <= lengths[:, None]))
        if at:
            element = tuple(map(int, np.unravel_index(index[at], space.shape)))
            low, high = (bound[element] for bound in space.bounds)
            where = f"{'step' if at[1] else 'reset'}: {join_path('obs', name)}{list(element) or ''} at step {at[1]}"
            yield f"{where} is {value[at]}, must be finite and from {low} to {high}"
    alive = steps <= lengths[:, None]
    terminated, truncated = played["terminated"], played["truncated"]
    if at := find_earliest(alive & ~np.isfinite(reward).all(2)):
        yield f"step: reward at step {steps[at[1]]} is {reward[at].squeeze()}, must be finite"
    if at := find_earliest(alive & terminated & truncated):
        yield f"step: terminated and truncated are both true at step {steps[at[1]]}; truncated must be false then"
    if not (terminated | truncated)[alive & (steps == lengths[:, None])].all():
        yield f"step: neither terminated nor truncated at step {limit}, which is max_episode_steps, must be truncated"


def check_member_ends(trial: EnvTrial) -> Iterator[str]:
    """Yield the faults in the member_ends of a multi-agent environment, only the first of each kind per group."""
    ends, reward, lengths = jax.tree.map(
        np.asarray, (trial.rollouts["member_ends"], trial.rollouts["reward"], trial.episode_lengths)
    )
    if ends is None:
        return
    alive = (np.arange(trial.env.max_episode_steps) < lengths[:, None])[:, :, None]
    for name in ends.terminated:
        out = ends.terminated[name] | ends.truncated[name]
        before = np.pad(out, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        faults = {
            "is both terminated and truncated, must be one of them": ends.terminated[name] & ends.truncated[name],
            "had ended and is active again; an agent that has ended must stay ended until reset": before & ~out,
            "has a reward after its end; an agent that can still get rewards must not have ended": before
            & (reward[name] != 0),
        }
        for what, where in faults.items():
            if at := find_earliest((alive & where).any(2)):
                member = int((alive & where)[at].argmax())
                yield f"step: member_ends: {name}/{member} {what}, at step {at[1] + 1}"
    everyone = np.concatenate([ends.is_done[name] for name in ends.terminated], axis=2).all(2)
    over = np.asarray(trial.rollouts["terminated"] | trial.rollouts["truncated"])
    if at := find_earliest(alive[:, :, 0] & everyone & ~over):
        yield f"step: all agents have ended at step {at[1] + 1}; the episode must be terminated or truncated"


def check_no_autoreset(trial: EnvTrial) -> Iterator[str]:
    """Yield a fault if the step counters in the state are back at their initial values when an episode ends."""
    grown = np.asarray(trial.rollouts["counts"]) - np.asarray(trial.rollouts["start"]["counts"])[:, None]
    for n, length in zip(grown, trial.episode_lengths, strict=True):
        counters = (n[: length - 1] == np.arange(1, length)[:, None]).all(0)
        if length > 2 and counters.any() and (n[length - 1, counters] == 0).all():
            what = "the step counter in the state is back at its initial value"
            yield f"step: {what} at the end of the episode, step {length}; step must not reset, the caller does"
            return


def find_out_of_bounds(space: Space, obs: Any) -> list[tuple[Any, Any, Any]]:
    """Return, for each leaf of a space, whether obs is out of bounds, and the first such element and its value.

    The element is an index of the flattened leaf, in C order.
    """
    found = []
    for leaf, part in zip(leaf_spaces(space), flatten(space, obs), strict=True):
        low, high = leaf.bounds
        outside = jnp.ravel(~((part >= low) & (part <= high) & jnp.isfinite(part)))
        found.append((outside.any(), outside.argmax(), jnp.ravel(part)[outside.argmax()]))
    return found


def find_earliest(mask: np.ndarray) -> tuple[int, int] | None:
    """Return (episode, step) of the earliest step at which the mask [episodes, steps] is set, or None."""
    if not mask.any():
        return None
    step = int(mask.any(0).argmax())
    return int(mask[:, step].argmax()), step


def collect_scalars(state: Any) -> jax.Array:
    """Return the numbers in the leaves of a state with at most 64 elements, concatenated as float32."""
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.size(leaf) <= 64]
    real = [leaf for leaf in leaves if jnp.issubdtype(jnp.result_type(leaf), np.number)]
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf).astype(jnp.float32) for leaf in real)])


def snapshot_attributes(env: Any) -> dict[str, Any]:
    """Return a snapshot of the attributes of env that can be compared with another, with the contents of containers."""
    held = env.__dict__ if hasattr(env, "__dict__") else {}
    containers = (list, dict, set, np.ndarray)
    return {name: (id(x), repr(x) if isinstance(x, containers) else "") for name, x in held.items()}


def find_differences(found: Any, wanted: Any, tolerance: float = 0.0) -> list[str]:
    """Return the names of the leaves in which two trees differ."""
    found, wanted = leaves_by_name(found), leaves_by_name(wanted)
    shared = {path: (to_numpy(x), to_numpy(wanted[path])) for path, x in found.items() if path in wanted}
    close = {path: np.allclose(a, b, tolerance, tolerance, equal_nan=True) for path, (a, b) in shared.items()}
    return [path for path in {**found, **wanted} if not close.get(path)]


def to_numpy(leaf: Any) -> np.ndarray:
    """Convert a leaf to an array; a random key is converted to its key data."""
    is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def copy_containers(values: Any) -> Any:
    """Return a tree of new containers with the same leaves."""
    return jax.tree.map(lambda x: x, values)


def call_checked(where: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return function(*args); if it raises an exception, raise an EnvError that names the place."""
    try:
        return function(*args)
    except Exception as error:
        raise EnvError(f"{where}: {describe_error(error)}") from None


def describe_error(error: Exception) -> str:
    """Return the first line of an error, an explanation, and the innermost code line outside of JAX."""
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, jax.errors.UnexpectedTracerError):
        said += " (an array of one call was kept in self or a global)"
    elif isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError)):
        said += " (Python or NumPy wants the value of a traced array: use jnp, jnp.where or jax.lax.cond)"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(JAX)]
    frames = [frame for frame in frames if frame.filename != __file__]
    place = [f" in {frame.name} ({'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno})" for frame in frames[-1:]]
    return said + "".join(place)
