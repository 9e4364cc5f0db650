"""Reset and step of host environments inside a jitted program, as calls of the environment's pool."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl import spaces, tree
from evorl.envs.host import pool_registry
from evorl.envs.host.backends import HostBackend
from evorl.envs.host.host_callback import batch_host_calls
from evorl.envs.host.leases import HostFault
from evorl.envs.host.messages import BatchRequest
from evorl.envs.host.parallel import TERMINATED, TRUNCATED
from evorl.envs.host.serial_envs import Layout
from evorl.types import HostParams, HostState, Key, MemberEnds, TimeStep
from evorl.vector_env import hosts

END_SHAPES = (((), "bool"),) * 2  # terminated, truncated
SMALL_OBS_BYTES = 4096  # up to this size, a step returns a second observation, which saves a call for the reset


@runtime_checkable
class HostedEnv(Protocol):
    """An environment whose states hold leases. It must be hashable: equal environments share a pool."""

    @property
    def observation_space(self) -> spaces.Space: ...
    @property
    def action_space(self) -> spaces.Space: ...
    @property
    def layout(self) -> Layout:
        """Return the buffer layout of observations, actions and rewards."""
        ...

    @property
    def workers(self) -> int:
        """Return the number of worker processes; 0 means that the environments run in this process."""
        ...

    @property
    def batch(self) -> int:
        """Return the number of environments that a step of all environments waits for; 0 means all."""
        ...

    @property
    def restart(self) -> bool:
        """Return whether an environment that fails starts a new episode."""
        ...

    def create_backend(self) -> HostBackend:
        """Create the backend that runs any number of copies of the environment."""
        ...


def has_autoreset(env: HostedEnv) -> bool:
    """Return whether a step that ends an episode also starts the next one, which saves a call of the host.

    A step then returns two observations. If observations are larger than SMALL_OBS_BYTES, this is done only
    with a batch, in which the other environments would wait for a separate reset.
    """
    return env.batch > 0 or sum(leaf.nbytes for leaf in env.layout.obs) <= SMALL_OBS_BYTES


def reset_host_env(env: HostedEnv, key: Key, params: HostParams) -> tuple[HostState, Any]:
    """Start an episode as the params request, and return the state, which holds a lease, and the observation.

    No call is made if `params.reset_state` holds an episode that a step has already started.
    """
    if isinstance(params.reset_state, HostState):
        return _init_host_state(
            env, jnp.abs(params.reset_state.lease), params.reset_state.steps
        ), params.reset_state.reset_obs
    flags, lease = _to_flags(params.active, params.releases), jnp.asarray(params.lease, jnp.int32)
    call = batch_host_calls(partial(_reset_on_host, env), _response_shapes(env, 1), partial(_record_fault, env))
    lease, steps, *obs = call(*flags, lease, hosts.seeds_from_keys(key))
    return _init_host_state(env, lease, steps), spaces.unflatten(env.observation_space, obs)


def step_host_env(env: HostedEnv, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
    """Take the next step of the lease in a state; an inactive environment or one without a lease returns zeros."""
    parts = spaces.flatten(env.action_space, action)
    given = [jnp.asarray(part, leaf.dtype) for part, leaf in zip(parts, env.layout.action, strict=True)]
    acts, at_once = params.active & (env_state.lease > 0), has_autoreset(env)
    flags = _to_flags(acts, params.autoreset if at_once else False)
    seed, n = jnp.asarray(params.seed, jnp.uint32), len(env.layout.obs)
    shape, is_game = env.layout.rewards, env.layout.is_game
    outcome = (shape, "float32"), *END_SHAPES, *([(shape, "uint8")] if is_game else []), ((), "bool")
    asked = *flags, env_state.lease, env_state.steps, seed, *given
    if env.batch:
        call = batch_host_calls(
            partial(_step_batch_on_host, env),
            _response_shapes(env, 2, (*outcome, ((), "bool"))),
            partial(_record_fault, env),
        )
        share = jnp.float32(1 if params.wait_fraction is None else params.wait_fraction)
        lease, steps, *answer, waits = call(*_to_flags(env_state.pending), share, *asked)
    else:
        call = batch_host_calls(
            partial(_step_on_host, env), _response_shapes(env, 1 + at_once, outcome), partial(_record_fault, env)
        )
        (lease, steps, *answer), waits = call(*asked), None
    rest = n * (1 + (at_once or env.batch > 0))
    seen, first = (spaces.unflatten(env.observation_space, x) if x else None for x in (answer[:n], answer[n:rest]))
    reward, terminated, truncated, *left, begun = answer[rest:]
    failed = (lease <= 0) & ~(terminated | truncated)  # before a wrapper ends the episode at the same step
    after = HostState(lease, steps, failed, *((first, begun, waits) if at_once else ()))
    ends = MemberEnds(left[0] == TERMINATED, left[0] == TRUNCATED) if left else None
    return after, TimeStep(seen, reward, terminated, truncated, member_ends=ends)


def _init_host_state(env: HostedEnv, lease: Any, steps: Any) -> HostState:
    """Return the state at the start of an episode."""
    no = jnp.zeros_like(lease, bool)
    if not has_autoreset(env):
        return HostState(lease, steps, no)
    first = tree.zeros_like(spaces.to_shape_structs(env.observation_space))
    return HostState(lease, steps, no, first, no, no if env.batch else None)


def _response_shapes(env: HostedEnv, times: int, outcome: Any = ()) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes of the host's answer for one row: lease, steps, `times` observations, then the outcome."""
    seen = [(leaf.shape, leaf.dtype) for leaf in env.layout.obs]
    found = [((), "int32"), ((), "uint32"), *seen * times, *outcome]
    return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in found]


def _record_fault(env: HostedEnv, error: BaseException) -> None:
    pool_registry.get_pool(env).record_fault(HostFault(0, None, 0, summarize_error(error)))


def _reset_on_host(
    env: HostedEnv, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, seed: np.ndarray
) -> list[np.ndarray]:
    return pool_registry.get_pool(env).reset(acts, leaves, lease, _pack_seed(seed))


def _step_batch_on_host(env: HostedEnv, waits: np.ndarray, share: np.ndarray, *asked: np.ndarray) -> list[np.ndarray]:
    acts, goes_on, lease, steps, seed, *action = asked
    turn = BatchRequest(waits, goes_on, _pack_seed(seed), float(share[acts].max(initial=0)))
    return pool_registry.get_pool(env).step_batch(turn, acts, lease, steps, *action)


def _step_on_host(env: HostedEnv, acts: np.ndarray, goes_on: np.ndarray, *rest: np.ndarray) -> list[np.ndarray]:
    lease, steps, seed, *action = rest
    pool = pool_registry.get_pool(env)
    lease, steps, *answer = pool.step(acts, lease, steps, *action)
    n = len(env.layout.obs)
    obs, outcome = answer[:n], answer[n:]
    again = goes_on & (outcome[1] | outcome[2])
    if not has_autoreset(env):
        return [lease, steps, *answer, again]
    first = [np.zeros_like(x) for x in obs]
    if again.any():
        found, counted, *first = pool.reset(again, np.zeros_like(again), lease, _pack_seed(seed))
        steps, again = np.where(again, counted, steps), again & (found > 0)
    return [lease, steps, *obs, *first, *outcome, again]


def _to_flags(*flags: Any) -> list[Any]:
    return [jnp.asarray(flag, bool) for flag in flags]


def _pack_seed(seed: np.ndarray) -> np.ndarray:
    """Combine the two 32-bit words of each seed, shape [n, 2], into a 63-bit seed, uint64 [n]."""
    return (seed[:, 0].astype(np.uint64) << np.uint64(31)) ^ seed[:, 1].astype(np.uint64)


def summarize_error(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
