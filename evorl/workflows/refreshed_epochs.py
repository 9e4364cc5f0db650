"""Epochs with sampled minibatches, or with advantages that are estimated again while the policy changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import mesh, tree
from evorl.agents.losses import RATIO, ROW_METRICS, VALUE
from evorl.replay.row_layout import RowLayout
from evorl.types import Batch, Key, Metrics, OnPolicyAgent
from evorl.workflows.base import loop_with_metrics
from evorl.workflows.minibatch_epochs import standardize, standardize_advantages
from evorl.workflows.sampling import Sampling

NEVER, EPOCH, MINIBATCH = REFRESH = "never", "epoch", "minibatch"


@struct.dataclass
class Estimates:
    """Estimates of the segments that change during learning, leaves [segments, steps]."""

    value: Float[Array, "segments steps"]  # under the network that last learned from the segment
    ratio: Float[Array, "segments steps"]  # action probability under that network / under the acting policy
    advantage: Float[Array, "segments steps"]
    target: Float[Array, "segments steps"]


def compute_advantage_magnitude(advantage: Any) -> Float[Array, "segments steps"]:
    """Return advantages as one array [segments, steps]; with groups, the absolute values summed over all members.

    Without groups, the advantages are returned unchanged, with their sign.
    """
    if not isinstance(advantage, Mapping):
        return advantage
    return sum((jnp.abs(x).sum(-1) for x in advantage.values()), start=jnp.float32(0))


@dataclass(frozen=True)
class RefreshedEpochs:
    """Epochs as in Puffer; `minibatch_epochs.run_epochs` runs plain epochs.

    Attributes:
        agent: Agent that defines the loss.
        sampling: Sampling that draws the segments of a minibatch and their weights.
        minibatch_size: Number of segments in a minibatch.
        normalize_advantages: Whether to standardize advantages: among all segments, or among a minibatch if
            segments have different weights.
        refresh: When advantages are estimated again: "never", or before each "epoch" or "minibatch".
        estimate_advantages: Function from values and ratios, both [segments, steps], to advantages and
            targets.
    """

    agent: OnPolicyAgent
    sampling: Sampling
    minibatch_size: int
    normalize_advantages: bool
    refresh: str
    estimate_advantages: Callable[[Array, Array], tuple[Array, Array]]

    def run(
        self,
        state: Any,
        batch: Batch,
        key: Key,
        num_epochs: Int[Array, ""],
        valid_segments: Int[Array, " segments"] | None = None,
    ) -> tuple[Any, Metrics, Int[Array, ""]]:
        """Learn from a batch, leaves [segments, steps, ...], with arguments and results as in `run_epochs`."""
        known = Estimates(batch.value, batch.ratio, batch.advantage, batch.target)
        raw = compute_advantage_magnitude(batch.advantage)
        if self.normalize_advantages:
            batch = standardize_advantages(batch, valid_segments)
        batch = replace(batch, ratio=None, bootstrap_value=None)
        layout = RowLayout.from_row(jax.eval_shape(lambda: tree.index(batch, 0)))
        tables, count = layout.pack(batch), len(raw)
        learner: Any = self.agent
        loss = learner.loss if self.refresh == NEVER else learner.loss_with_rows

        def select_valid(of_segments: Any) -> Any:
            return of_segments if valid_segments is None else tree.index(of_segments, valid_segments)

        def update_on_minibatch(carry: tuple[Any, Any], drawn: tuple[Array, Key]) -> tuple[tuple[Any, Any], Metrics]:
            state, known = carry
            known = self.recompute_advantages(known) if self.refresh == MINIBATCH else known
            advantage = raw if self.refresh == NEVER else known.advantage
            rows, weight = self.sampling.sample(drawn[1], drawn[0], select_valid(advantage))
            rows = rows if valid_segments is None else valid_segments[rows]
            part = layout.unpack(jax.tree.map(lambda x: x[rows], tables))
            if self.refresh != NEVER:
                part = self.fill_estimates(part, known, rows, *select_valid((known.advantage, batch.weight)))
            part = part if weight is None else self.weight_advantages(part, weight)
            part = mesh.spread_rows(part, mesh.ENVS)
            state, metrics = self.agent.update(state, lambda params: loss(params, part))
            if self.refresh != NEVER:
                value, ratio = known.value.at[rows].set(metrics[VALUE]), known.ratio.at[rows].set(metrics[RATIO])
                known = replace(known, value=value, ratio=ratio)
            return (state, known), {name: x for name, x in metrics.items() if name not in ROW_METRICS}

        def run_epoch(i: Array, carry: tuple[Any, Any]) -> tuple[tuple[Any, Any], Metrics]:
            state, known = carry
            known = self.recompute_advantages(known) if self.refresh == EPOCH else known
            key_order, key_turns = jax.random.split(jax.random.fold_in(key, i))
            turns = tree.random_permutation(key_order, count).reshape(-1, self.minibatch_size)
            keys = jax.random.split(key_turns, len(turns))
            carry, metrics = jax.lax.scan(update_on_minibatch, (state, known), (turns, keys))
            return carry, tree.mean(metrics)

        start = state, None if self.refresh == NEVER else known
        (state, _), metrics, done = loop_with_metrics(num_epochs, run_epoch, start, self.agent.early_stop)
        return state, metrics, done

    def recompute_advantages(self, known: Estimates) -> Estimates:
        """Return the estimates with advantages and targets computed again from their values and ratios."""
        advantage, target = self.estimate_advantages(known.value, known.ratio)
        return replace(known, advantage=advantage, target=target)

    def fill_estimates(
        self, part: Batch, known: Estimates, rows: Int[Array, " n"], advantages: Array, weight: Any
    ) -> Batch:
        """Fill the current estimates into segments.

        Args:
            part: Segments, leaves [n, steps, ...].
            known: Estimates of all segments.
            rows: Indices of the segments.
            advantages: Advantages of the valid segments, among which those of `part` are standardized.
            weight: Weights of the steps of the valid segments, or None.
        """
        advantage = known.advantage[rows]
        if self.normalize_advantages:
            advantage = standardize(advantage, advantages, weight)
        return replace(part, value=known.value[rows], target=known.target[rows], advantage=advantage)

    def weight_advantages(self, part: Batch, weight: Float[Array, " n"]) -> Batch:
        """Multiply the advantages of segments, standardized among them, by the weight of each segment."""
        part = standardize_advantages(part) if self.normalize_advantages else part
        scaled = jax.vmap(lambda x, w: jax.tree.map(lambda leaf: w * leaf, x))(part.advantage, weight)
        return replace(part, advantage=scaled)
