"""N-step transitions for a replay buffer."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from evorl import tree
from evorl.returns import n_step_return
from evorl.types import Transition


@struct.dataclass
class NStepWindow:
    """Last transitions of n environments, leaves [length, n, ...], whose n-step successors are not known yet."""

    rows: Transition
    num_filled: Int[Array, "*n"]  # number of valid (last) rows: [], or [n] if environments step unevenly
    lost_mask: Bool[Array, "length n"] | None = None  # transitions without a known outcome; None if none can be lost

    @classmethod
    def empty(
        cls, length: int, num_envs: int, row: Transition, loses: bool = False, per_env: bool = False
    ) -> "NStepWindow":
        """Create an empty window for transitions like `row`, arrays or their shapes.

        Args:
            length: Number of transitions of each environment in the window.
            num_envs: Number of environments, n.
            row: Transition of one environment.
            loses: True if transitions may be lost.
            per_env: True if environments may take different numbers of steps.
        """
        lost = jnp.zeros((length, num_envs), bool) if loses else None
        filled = jnp.zeros((num_envs,) if per_env else (), jnp.int32)
        return cls(tree.broadcast(tree.zeros_like(row), length, num_envs), filled, lost)

    def widen_row(self, row: Transition) -> Transition:
        """Return the shape of an n-step transition: `row` with length + 1 rewards and a number of steps."""
        length = tree.leading_size(self.rows) + 1
        reward = jax.tree.map(lambda x: jnp.zeros((*x.shape, length)), row.reward)
        return jax.eval_shape(lambda: replace(row, reward=reward, extras=row.extras | {"steps": jnp.int32(0)}))

    def truncate(self, where: Bool[Array, " n"]) -> "NStepWindow":
        """Truncate the last transition of the environments in `where`, whose next step belongs to another episode.

        Their n-step transitions then end with the steps in the window.
        """
        rows = self.rows
        truncated = rows.truncated.at[-1].set(rows.truncated[-1] | (where & ~rows.terminated[-1]))
        return replace(self, rows=replace(rows, truncated=truncated))

    def push(
        self, transitions: Transition, steps: Int[Array, "*n"], lost: Bool[Array, "chunk n"] | None = None
    ) -> tuple["NStepWindow", Transition, Bool[Array, "..."]]:
        """Add transitions to the window, and return the n-step transitions that become complete.

        An n-step transition ends early at the end of its episode, if a member of a game is truncated, or
        before a lost step. Its rewards, length + 1 of them, are 0 from there on.

        Args:
            transitions: Transitions, leaves [chunk, n, ...].
            steps: Number of leading transitions to add, [], or of each environment, [n].
            lost: Mask of the transitions that were lost, [chunk, n]; None if none can be lost.

        Returns:
            The new window; the n-step transitions, leaves [chunk, n, ...]; and the mask of those that are
            complete, [chunk], or [chunk, n] if transitions may be lost or the environments take different
            numbers of steps.
        """
        before, chunk = tree.leading_size(self.rows), tree.leading_size(transitions)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self.rows, transitions)
        if lost is not None and self.lost_mask is not None:
            lost = jnp.concatenate([self.lost_mask, lost])
            parted = jnp.concatenate([lost[1:], jnp.zeros_like(lost[:1])])
            both = replace(both, truncated=both.truncated | (parted & ~both.terminated))
        start = jnp.arange(chunk)
        reach = start[:, None] + jnp.arange(before + 1)  # [chunk, length + 1]
        ended = both.is_trace_end[reach]
        taken = jnp.cumsum(ended, axis=1) - ended == 0  # up to the first end, [chunk, length + 1, n]
        count = taken.sum(1)
        last = start[:, None] + count - 1
        env_index = jnp.arange(last.shape[1])
        longer = replace(
            tree.index(both, slice(0, chunk)),
            reward=jax.tree.map(
                lambda x: jnp.moveaxis(tree.select(taken, x[reach], jnp.zeros(())), 1, -1), both.reward
            ),
            next_obs=tree.index(both.next_obs, (last, env_index)),
            terminated=both.terminated[last, env_index],
            truncated=both.truncated[last, env_index],
            member_ends=tree.index(both.member_ends, (last, env_index)),
            extras=tree.index(both.extras, slice(0, chunk)) | {"steps": count},
        )
        if self.num_filled.ndim:
            start = start[:, None]
        there = (start < steps) & (start >= before - self.num_filled)

        def keep_newest(x: Array) -> Array:
            if not self.num_filled.ndim:
                return jax.lax.dynamic_slice_in_dim(x, steps, before)
            return x[steps + jnp.arange(before)[:, None], env_index]

        after = jax.tree.map(keep_newest, both), jnp.minimum(self.num_filled + steps, before).astype(jnp.int32)
        if lost is None:
            return NStepWindow(*after), longer, there
        return (
            NStepWindow(*after, keep_newest(lost)),
            longer,
            (there if there.ndim == 2 else there[:, None]) & ~lost[:chunk],
        )


def to_single_step(batch: Transition, discount: Array | float) -> Transition:
    """Convert n-step transitions [batch] to one-step transitions that carry the discount of their bootstrap."""
    reward, worth = jax.vmap(n_step_return, (0, 0, None))(batch.reward, batch.extras["steps"], discount)
    return replace(batch, reward=reward, discount=worth)
