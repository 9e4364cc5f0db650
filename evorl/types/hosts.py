"""States and parameters of environments that run on the host."""

import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32


@struct.dataclass
class HostState:
    """State of an environment that runs on the host: a handle to the environment (a lease), and a step count.

    A positive lease is within an episode. A negative lease, of which the absolute value is the handle, has to
    be reset because its episode ended or failed; until then, a step does nothing. A lease of 0 stands for no
    environment.
    """

    lease: Int[Array, ""]
    steps: UInt32[Array, ""]  # resets and steps of the lease so far; the next request must continue from here
    failed: Bool[Array, ""]  # the last step of the episode failed; the episode did not end
    reset_obs: PyTree = None  # first observation of the next episode, if the last step has started it (has_reset)
    has_reset: Bool[Array, ""] | None = None  # None if steps never start episodes
    pending: Bool[Array, ""] | None = None  # the last step has no answer yet; None if steps wait for all


@struct.dataclass
class HostParams:
    """Request that reset or step makes to an environment on the host. The defaults suit a single environment."""

    active: Bool[Array, ""] | bool = True  # if False, nothing is done and zeros are returned
    lease: Int[Array, ""] | int = 0  # environment that reset starts again; 0 for a new one
    releases: Bool[Array, ""] | bool = False  # reset releases the environment of the lease instead
    autoreset: Bool[Array, ""] | bool = False  # a step that ends an episode starts the next one
    seed: UInt32[Array, " 2"] | np.ndarray | tuple[int, int] = (0, 0)  # of the next episode
    reset_state: HostState | None = None  # returned by reset, if a step has started the episode
    wait_fraction: Float[Array, ""] | None = None  # fraction of the active rows that a step waits for; None: all
    workers: int = struct.field(pytree_node=False, default=0)  # number of worker processes
    batch: int = struct.field(pytree_node=False, default=0)  # number of environments that a step waits for; 0: all
