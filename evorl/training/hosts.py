"""What a training has on the host: which environments, what the state holds of them, and whether one has failed."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from evorl.envs.host import pools
from evorl.envs.host.calls import Hosted
from evorl.errors import require
from evorl.types import State, Workflow
from evorl.vector_env import hosts


class Look(NamedTuple):
    """What is asked after each thing that the device was handed."""

    newest: int  # the lease that was the newest before
    held: Any  # the leases in the state afterwards
    failed: Any  # [] bool, whether an environment has failed by then


class Hosts:
    """The environments on the host of a training, where it has any."""

    def __init__(self, workflow: Workflow, shapes: State, exam: Any = None) -> None:
        """Raises OptionError where there are more workers, or a larger batch, than slots in a state of these shapes.

        Those of an exam alone are in no state.
        """
        self.there = environments(workflow)
        slots = sum(int(np.prod(lease.shape)) for lease in hosts.held(shapes))
        for env in self.there:
            fits = f"must be at most the slots, {slots}"
            require(not slots or env.workers <= slots, "env.workers", env.workers, fits)
            of_one = min((lease.shape[-1] for lease in hosts.held(shapes)), default=env.batch)
            require(env.batch <= of_one, "env.batch", env.batch, f"must be at most the slots, {of_one}")
        self.there += [env for env in environments(exam) if env not in self.there]
        self._oldest = pools.newest()
        self._ask = jax.jit(_held_and_failed)

    def look(self, newest: int, state: State) -> Look | None:
        """After what was handed to the device, whose results the state is or holds: what there is to know, without
        waiting.
        """
        return Look(newest, *self._ask(state)) if self.there else None

    def settled(self, look: Look | None) -> bool:
        """Gives back the leases that no state holds; returns whether no environment has failed."""
        if look is not None and not look.failed:
            pools.sweep(look.held.tolist(), look.newest, self._oldest)
        return look is None or not look.failed

    def close(self) -> None:
        """Gives back all leases of the training."""
        if self.there:
            pools.give_back(self._oldest)


def environments(part: Any) -> list[Hosted]:
    """Those on the host in a part and in its own parts."""
    if isinstance(part, Hosted):
        return [part]
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return []
    values = (getattr(part, field.name) for field in dataclasses.fields(part))
    return list(dict.fromkeys(env for value in values for env in environments(value)))


def _held_and_failed(state: State) -> tuple[Any, Any]:
    leases = [jnp.ravel(lease) for lease in hosts.held(state)]
    number = next(x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.number) and x.size)
    after = (number == 0).any()  # so that it is asked when the state is there
    failed = io_callback(lambda _: np.bool_(pools.fault() is not None), jax.ShapeDtypeStruct((), bool), after)
    return jnp.concatenate([jnp.zeros(0, jnp.int32), *leases]), failed
