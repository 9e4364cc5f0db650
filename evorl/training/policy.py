"""Trained policies: selection of a member of a run, and its actions for observations as NumPy arrays."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from evorl import tree
from evorl.errors import OptionError, require
from evorl.spaces import (
    Box,
    Members,
    Simple,
    Space,
    Tuple,
    fill_privileged_state,
    get_policy_obs,
    get_policy_space,
    has_privileged_state,
    is_simple,
    leaf_spaces,
    subspaces,
    unflatten,
)
from evorl.tree import as_arrays
from evorl.types import Env, EvolvingWorkflow, Key, PolicyFn, PolicyWorkflow, Population, State, Workflow

Member: TypeAlias = int | Sequence[int | None] | None


class Policy:
    """A trained policy that takes and returns NumPy arrays, for notebooks, robots and other libraries.

    `action = policy(obs)` is the greedy action; `policy(obs, key)` explores. A recurrent policy also takes
    and returns its recurrent state: `action, memory = policy(obs, memory)`, starting from
    `policy.initial_memory()`. The policy is compiled once per batch size.

    Args:
        workflow: Workflow that trained the policy.
        state: State of the workflow.
        env: Environment in which the policy plays, with the same observation and action spaces as that of the
            training. None for the latter.

    Raises:
        OptionError: The spaces of `env` differ from those of the training.
    """

    def __init__(self, workflow: PolicyWorkflow, state: State, env: Env | None = None) -> None:
        self.env, self.env_params, self.memory = workflow.env, state.env_params, workflow.agent.initial_memory()
        if env is not None:
            require_same_spaces(self.env, env)
            self.env, self.env_params = env, as_arrays(env.default_params)
        self._modes = {explores: workflow.policy(state, explores) for explores in (False, True)}
        self._act = jax.jit(self._act_on_rows, static_argnames="explores")

    @property
    def is_recurrent(self) -> bool:
        """Return whether the policy has a recurrent state."""
        return bool(jax.tree.leaves(self.memory))

    def initial_memory(self, *batch: int) -> Any:
        """Return the recurrent state at the start of an episode, leaves [*batch, ...].

        Start from it again after an episode has ended.

        Args:
            *batch: Batch axes; none for one environment.
        """
        return tree.broadcast(self.memory, *batch)

    def __call__(self, obs: Any, *given: Any, key: Key | int | np.integer | None = None) -> Any:
        """Return the greedy action, or with a key or a seed, a sampled action.

        Args:
            obs: Observation, [*batch, *shape]: a number, a list, an array, or a dict or tuple of these as in
                the observation space. It may have any number of batch axes. A privileged state may be absent,
                since no policy sees it.
            *given: The recurrent state, leaves [*batch, ...], for a recurrent policy; then, optionally, the
                key.
            key: Key of jax.random, or a seed below 2^32. None for the greedy action.

        Returns:
            The action, [*batch, *shape]. For a recurrent policy, the action and the next recurrent state.

        Raises:
            OptionError: The observation is not in the observation space or contains NaN, or another argument
                is invalid.
        """
        most, memory = (2 if self.is_recurrent else 1), self.memory
        if self.is_recurrent:
            wanted = "a recurrent policy needs it: action, memory = policy(obs, memory); start with initial_memory()"
            require(bool(given), "memory", "nothing", wanted)
            memory, given = given[0], given[1:]
        require(len(given) < 2, "policy(...)", f"{most + len(given)} arguments", "takes at most obs, memory and key")
        key = given[0] if given else key
        space = get_policy_space(self.env.observation_space)
        if has_privileged_state(self.env.observation_space) and isinstance(obs, Mapping):
            obs = get_policy_obs(self.env.observation_space, obs)
        parts = [
            _to_array(leaf, *given)
            for leaf, given in zip(leaf_spaces(space), _split_observation(space, obs), strict=True)
        ]
        batch = _get_batch_shape(leaf_spaces(space), parts)
        rows = [
            part.reshape(math.prod(batch), *leaf.shape) for leaf, part in zip(leaf_spaces(space), parts, strict=True)
        ]
        if self.is_recurrent:
            memory = self._flatten_memory(memory, batch)
        found = self._act(unflatten(space, rows), memory, _to_key(key), explores=key is not None)
        actions, memory = jax.tree.map(lambda x: np.array(x).reshape((*batch, *x.shape[1:]))[()], found)
        return (actions, memory) if self.is_recurrent else actions

    def as_policy_fn(self, explores: bool = False) -> PolicyFn:
        """Return the policy as a function for rollouts in one environment.

        The function can be traced by jit, vmap and scan. It does not check its arguments. Start an episode
        with the recurrent state `policy.initial_memory()`, which is None for a policy without one.

        Args:
            explores: Whether actions are sampled instead of greedy; a greedy policy ignores the key.

        Returns:
            A function (obs, memory, key) -> (action, memory, extras), where extras are outputs of the agent
            for learning, such as log-probabilities.
        """
        return self._modes[explores]

    def _flatten_memory(self, memory: Any, batch: tuple[int, ...]) -> Any:
        """Flatten the batch axes of a recurrent state, leaves [*batch, ...].

        Raises:
            OptionError: The shapes do not match the batch.
        """
        wanted = jax.tree.map(lambda x: (*batch, *x.shape), self.memory)
        given = jax.tree.map(np.shape, memory)
        require(
            given == wanted,
            "memory",
            given,
            f"must have the shapes {wanted} of policy.initial_memory({', '.join(map(str, batch))})",
        )
        return jax.tree.map(lambda x, one: np.reshape(x, (math.prod(batch), *one.shape)), memory, self.memory)

    def _act_on_rows(self, rows: Any, memory: Any, key: Key, explores: bool) -> Any:
        keys = jax.random.split(key, jax.tree.leaves(rows)[0].shape[0])
        fill = partial(fill_privileged_state, self.env.observation_space)
        act = lambda obs, *given: self._modes[explores](fill(obs), *given)[:2]  # noqa: E731
        return jax.vmap(act)(rows, memory, keys)


def _split_observation(space: Space, obs: Any, name: str = "obs") -> list[tuple[str, Any]]:
    """Return the parts of an observation in the order of the leaves of the space, each with its name."""
    if isinstance(space, Members):
        return _split_observation(space.joint_space, obs, name)
    if is_simple(space):
        return [(name, obs)]
    parts = dict(subspaces(space))
    if isinstance(space, Tuple):
        fits = isinstance(obs, (tuple, list)) and len(obs) == len(parts)
        require(fits, name, type(obs).__name__, f"must be a tuple of {len(parts)}")
    else:
        wanted = f"must be a dict of {', '.join(parts)}"
        require(isinstance(obs, Mapping), name, type(obs).__name__, wanted)
        require(set(obs) == set(parts), name, f"a dict of {', '.join(map(str, obs)) or 'nothing'}", wanted)
    return [part for key, of in parts.items() for part in _split_observation(of, obs[key], f"{name}[{key!r}]")]


def _to_array(space: Simple, name: str, part: Any) -> np.ndarray:
    """Convert a part of an observation to an array of the dtype of its space.

    Raises:
        OptionError: It is not numeric, not integer in a discrete space, contains NaN, or is a traced array.
    """
    if isinstance(part, Tracer):
        raise OptionError(
            f"{name}=a traced array: within jit, vmap or scan use policy.as_policy_fn(), which is traceable"
        )
    real = isinstance(space, Box)
    allowed = f"must be {'numbers' if real else 'whole numbers'} of shape {list(space.shape)}, or a batch"
    try:
        array = np.asarray(part)
        right = array.dtype.kind not in "USOMmc" and (real or bool((array == np.rint(array)).all()))
    except (TypeError, ValueError) as error:  # lists of different lengths, or objects
        raise OptionError(f"{name}={type(part).__name__}: {allowed}") from error
    require(right, name, part if array.ndim == 0 else f"{type(part).__name__} of {array.dtype}", allowed)
    require(not (real and np.isnan(array).any()), name, "NaN", "must not contain NaN")
    return array.astype(space.dtype)


def _get_batch_shape(spaces: Sequence[Simple], parts: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the leading batch axes, which must be the same in all parts."""
    batch = parts[0].shape[: parts[0].ndim - len(spaces[0].shape)]
    for space, part in zip(spaces, parts, strict=True):
        require(
            part.shape == (*batch, *space.shape),
            "obs",
            list(part.shape),
            f"must have the shape {list(space.shape)}, or be a batch",
        )
    return batch


def _to_key(key: Any) -> Key:
    """Return a random key, given a key or a seed."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    seed = 0 if key is None else int(key) if isinstance(key, (int, np.integer)) and not isinstance(key, bool) else -1
    require(0 <= seed < 2**32, "key", key, "must be a whole number from 0 to 2^32 - 1, or a key of jax.random")
    return jax.random.key(seed)


def require_same_spaces(env: Env, other: Env) -> None:
    """Raise OptionError if two environments have different observation or action spaces."""
    for name in ("observation_space", "action_space"):
        own, given = getattr(env, name), getattr(other, name)
        allowed = f"its {name} is {given}, must be {own} as in training"
        require(own == given, "eval_env", type(other).__name__, allowed)


def select_member(workflow: Workflow, state: State, returns: np.ndarray, member: Member) -> tuple[Workflow, State]:
    """Return the innermost workflow and the state of one member of nested populations.

    `member` is an index, or one index per population, outermost first. If an index is missing or None, the
    best member is taken. `returns` are the best returns, shape [size, ...] for the members of a population,
    and a single one for PBT.

    Raises:
        OptionError: There is no such member.
    """
    path: list[Any] = list(member) if isinstance(member, (list, tuple)) else [member]
    numbers = all(i is None or (isinstance(i, int) and not isinstance(i, bool)) for i in path)
    require(
        numbers,
        "member",
        member,
        "must be an index, or a list of one index per nested population, outermost first: [2, 0]",
    )
    depth = 0
    while isinstance(workflow, (Population, EvolvingWorkflow)):
        population = workflow.population if isinstance(workflow, EvolvingWorkflow) else workflow
        index = path[depth] if depth < len(path) else None
        which = f"index {depth + 1} " if len(path) > 1 else ""
        inside = index is None or 0 <= index < population.size
        require(inside, "member", member, f"{which}must be from 0 to {population.size - 1}")
        if isinstance(workflow, EvolvingWorkflow):  # its only return is that of its fittest member
            index = int(workflow.fittest_index(state)) if index is None else index
        else:
            index = find_highest_return(returns) if index is None else index
            returns = returns[index]
        (workflow, state), depth = workflow.get_member(state, index), depth + 1
    if isinstance(workflow, PolicyWorkflow):
        allowed = f"must have at most {depth} indices, one per nested population"
        fits = len(path) <= depth or path in ([None], [0])
        require(fits, "member", member, allowed if depth else "must be 0, because this run has no population")
    return workflow, state


def find_highest_return(returns: np.ndarray) -> int:
    """Return the index on the leading axis with the highest return."""
    return int(returns.reshape(len(returns), -1).max(1).argmax())
