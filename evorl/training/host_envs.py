"""Host environments of a training: their leases in the state, and their failures."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Int

from evorl.envs.host import pool_registry
from evorl.envs.host.calls import HostedEnv
from evorl.errors import require
from evorl.types import State, Workflow
from evorl.vector_env import hosts


class HostStatus(NamedTuple):
    """Status of the host environments after a piece of dispatched work."""

    newest_lease: int  # newest lease before the work
    leases: Int[Array | np.ndarray, " leases"]  # leases in the state after the work
    has_failed: Bool[Array | np.ndarray, ""]  # whether an environment has failed so far


class HostEnvs:
    """The host environments of a training; there may be none."""

    def __init__(self, workflow: Workflow, shapes: State, evaluator: Any = None) -> None:
        """Collect the host environments of a workflow and of a separate evaluator.

        The state has no leases of environments that only the evaluator uses.

        Raises:
            OptionError: There are more workers, or a larger batch, than environments in the state.
        """
        self.envs = find_host_envs(workflow)
        num_envs = sum(int(np.prod(lease.shape)) for lease in hosts.collect_leases(shapes))
        for env in self.envs:
            fits = f"must be at most the number of environments, {num_envs}"
            require(not num_envs or env.workers <= num_envs, "env.workers", env.workers, fits)
            of_one = min((lease.shape[-1] for lease in hosts.collect_leases(shapes)), default=env.batch)
            require(
                env.batch <= of_one, "env.batch", env.batch, f"must be at most the number of environments, {of_one}"
            )
        self.envs += [env for env in find_host_envs(evaluator) if env not in self.envs]
        self._oldest = pool_registry.newest_lease()
        self._ask = jax.jit(_query_leases)

    def query_status(self, newest: int, state: State) -> HostStatus | None:
        """Start to query the status after dispatched work, without waiting for it.

        `state` is the result of that work or a pytree that contains it.
        """
        return HostStatus(newest, *self._ask(state)) if self.envs else None

    def release_unused_leases(self, look: HostStatus | None) -> bool:
        """Release the leases that no state holds, and return whether all environments are working."""
        if look is not None and not look.has_failed:
            pool_registry.release_unused(look.leases.tolist(), look.newest_lease, self._oldest)
        return look is None or not look.has_failed

    def close(self) -> None:
        """Release all leases of the training."""
        if self.envs:
            pool_registry.release_leases(self._oldest)


def find_host_envs(part: Any) -> list[HostedEnv]:
    """Return the host environments in a component and its inner components."""
    if isinstance(part, HostedEnv):
        return [part]
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return []
    values = (getattr(part, field.name) for field in dataclasses.fields(part))
    return list(dict.fromkeys(env for value in values for env in find_host_envs(value)))


def _query_leases(state: State) -> tuple[Any, Any]:
    leases = [jnp.ravel(lease) for lease in hosts.collect_leases(state)]
    number = next(x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.number) and x.size)
    after = (number == 0).any()  # a dependency, so that the query waits for the state
    failed = io_callback(
        lambda _: np.bool_(pool_registry.find_fault() is not None), jax.ShapeDtypeStruct((), bool), after
    )
    return jnp.concatenate([jnp.zeros(0, jnp.int32), *leases]), failed
