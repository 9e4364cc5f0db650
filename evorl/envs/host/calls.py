"""What a step and a start of an environment on the host are in a program: calls of its pool."""

from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from evorl import spaces, tree
from evorl.envs.host import pools
from evorl.envs.host.answers import Turn
from evorl.envs.host.leases import Fault
from evorl.envs.host.merged import merged
from evorl.envs.host.parallel import TERMINATED, TRUNCATED
from evorl.envs.host.places import Places
from evorl.envs.host.played import Layout
from evorl.types import Ends, HostParams, HostState, Key, TimeStep
from evorl.vector_env import hosts

ENDS = (((), "bool"),) * 2  # terminated, truncated
SMALL = 4096  # bytes of an observation that travels twice rather than in a call of its own


@runtime_checkable
class Hosted(Protocol):
    """An environment whose states hold leases; it is hashable, and known by that."""

    @property
    def observation_space(self) -> spaces.Space: ...
    @property
    def action_space(self) -> spaces.Space: ...
    @property
    def layout(self) -> Layout:
        """What observations and actions are made of."""
        ...

    @property
    def workers(self) -> int:
        """How many processes there are for it; 0 for none but this one."""
        ...

    @property
    def batch(self) -> int:
        """For how many of all slots a step waits; 0 for all."""
        ...

    @property
    def restart(self) -> bool:
        """Whether one that fails begins anew."""
        ...

    def places(self) -> Places:
        """Where there is to be one of it, or many."""
        ...


def begins_at_once(env: Hosted) -> bool:
    """Whether a step that ends an episode begins the next one, which saves a call; where it is large, only in a
    batch, of which the others would wait for it.
    """
    return env.batch > 0 or sum(leaf.nbytes for leaf in env.layout.obs) <= SMALL


def reset(env: Hosted, key: Key, params: HostParams) -> tuple[HostState, Any]:
    """A state with a lease, as the params say, and what is seen."""
    if isinstance(params.begun, HostState):
        return _state(env, jnp.abs(params.begun.lease), params.begun.steps), params.begun.first
    flags, lease = _flags(params.acts, params.leaves), jnp.asarray(params.lease, jnp.int32)
    call = merged(partial(_begin, env), _answer(env, 1), partial(_failed, env))
    lease, steps, *obs = call(*flags, lease, hosts.seeds(key))
    return _state(env, lease, steps), spaces.unflatten(env.observation_space, obs)


def step(env: Hosted, env_state: HostState, action: Any, params: HostParams) -> tuple[HostState, TimeStep]:
    """The next step of a lease."""
    parts = spaces.flatten(env.action_space, action)
    given = [jnp.asarray(part, leaf.dtype) for part, leaf in zip(parts, env.layout.action, strict=True)]
    acts, at_once = params.acts & (env_state.lease > 0), begins_at_once(env)
    flags = _flags(acts, params.goes_on if at_once else False)
    seed, n = jnp.asarray(params.seed, jnp.uint32), len(env.layout.obs)
    agents = env.layout.rewards
    outcome = (agents, "float32"), *ENDS, *([(agents, "uint8")] if agents else []), ((), "bool")
    asked = *flags, env_state.lease, env_state.steps, seed, *given
    if env.batch:
        call = merged(partial(_turn, env), _answer(env, 2, (*outcome, ((), "bool"))), partial(_failed, env))
        share = jnp.float32(1 if isinstance(params.share, tuple) else params.share)
        lease, steps, *answer, waits = call(*_flags(env_state.waits), share, *asked)
    else:
        call = merged(partial(_step, env), _answer(env, 1 + at_once, outcome), partial(_failed, env))
        (lease, steps, *answer), waits = call(*asked), ()
    rest = n * (1 + (at_once or env.batch > 0))
    seen, first = (spaces.unflatten(env.observation_space, x) if x else () for x in (answer[:n], answer[n:rest]))
    reward, terminated, truncated, *left, begun = answer[rest:]
    after = HostState(lease, steps, first, begun, waits) if at_once else HostState(lease, steps)
    ends = Ends(left[0] == TERMINATED, left[0] == TRUNCATED) if left else None
    return after, TimeStep(seen, reward, terminated, truncated, ends=ends)


def _state(env: Hosted, lease: Any, steps: Any) -> HostState:
    """That at the start of an episode."""
    if not begins_at_once(env):
        return HostState(lease, steps)
    first, no = tree.zeros(spaces.shapes(env.observation_space)), jnp.zeros_like(lease, bool)
    return HostState(lease, steps, first, no, no if env.batch else ())


def _answer(env: Hosted, times: int, outcome: Any = ()) -> list[jax.ShapeDtypeStruct]:
    """The shapes of what the host answers for one, with so many observations."""
    seen = [(leaf.shape, leaf.dtype) for leaf in env.layout.obs]
    found = [((), "int32"), ((), "uint32"), *seen * times, *outcome]
    return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in found]


def _failed(env: Hosted, error: BaseException) -> None:
    pools.of(env).fails(Fault(0, None, 0, first_line(error)))


def _begin(env: Hosted, acts: np.ndarray, leaves: np.ndarray, lease: np.ndarray, seed: np.ndarray) -> list[np.ndarray]:
    return pools.of(env).begin(acts, leaves, lease, _number(seed))


def _turn(env: Hosted, waits: np.ndarray, share: np.ndarray, *asked: np.ndarray) -> list[np.ndarray]:
    acts, goes_on, lease, steps, seed, *action = asked
    turn = Turn(waits, goes_on, _number(seed), float(share[acts].max(initial=0)))
    return pools.of(env).turn(turn, acts, lease, steps, *action)


def _step(env: Hosted, acts: np.ndarray, goes_on: np.ndarray, *rest: np.ndarray) -> list[np.ndarray]:
    lease, steps, seed, *action = rest
    pool = pools.of(env)
    lease, steps, *answer = pool.step(acts, lease, steps, *action)
    n = len(env.layout.obs)
    obs, outcome = answer[:n], answer[n:]
    again = goes_on & (outcome[1] | outcome[2])
    if not begins_at_once(env):
        return [lease, steps, *answer, again]
    first = [np.zeros_like(x) for x in obs]
    if again.any():
        found, counted, *first = pool.begin(again, np.zeros_like(again), lease, _number(seed))
        steps, again = np.where(again, counted, steps), again & (found > 0)
    return [lease, steps, *obs, *first, *outcome, again]


def _flags(*flags: Any) -> list[Any]:
    return [jnp.asarray(flag, bool) for flag in flags]


def _number(seed: np.ndarray) -> np.ndarray:
    """63 bits of each [n, 2]."""
    return (seed[:, 0].astype(np.uint64) << np.uint64(31)) ^ seed[:, 1].astype(np.uint64)


def first_line(error: BaseException) -> str:
    """What went wrong, in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
