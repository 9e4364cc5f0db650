"""Environments that live on the host: what a state holds of one, and what it is asked for."""

import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32


@struct.dataclass
class HostState:
    """What a state holds of an environment on the host: whose it is and how far it is, nothing of itself.

    A lease above 0 is in the middle of an episode. One below 0 is its owner's, -lease, and is to begin anew: its
    episode has ended, or has failed; a step does nothing then. 0 is none.
    """

    lease: Int[Array, ""]
    steps: UInt32[Array, ""]  # what the lease was asked for so far, starts and steps; the next one continues from there
    reset_obs: PyTree = None  # what the next episode has begun with, where a step has ended one and begins others
    has_reset: Bool[Array, ""] | None = None  # whether it has
    pending: Bool[Array, ""] | None = None  # whether its last step has no answer yet; None where all are waited for


@struct.dataclass
class HostParams:
    """What of an environment on the host is asked for by reset and step; the default for one that is played alone."""

    active: Bool[Array, ""] | bool = True  # whether it does anything; else nothing is touched, and zeros are the answer
    lease: Int[Array, ""] | int = 0  # whose environment reset begins anew; 0 for a new one
    releases: Bool[Array, ""] | bool = False  # reset gives the environment of that lease back instead
    autoreset: Bool[Array, ""] | bool = False  # where a step ends an episode, the next one begins at once
    seed: UInt32[Array, " 2"] | np.ndarray | tuple[int, int] = (0, 0)  # of that one
    reset_state: HostState | None = None  # what reset gives, where a step has begun the episode already
    wait_fraction: Float[Array, ""] | None = None  # the share of active rows that a step waits for; None for all
    workers: int = struct.field(pytree_node=False, default=0)  # how many processes there are for it
    batch: int = struct.field(pytree_node=False, default=0)  # of all environments, for how many a step waits; 0 for all
