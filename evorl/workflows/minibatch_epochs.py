"""Passes over a rollout: gradient steps on minibatches of its segments, whose advantages may be estimated anew."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from evorl import tree
from evorl.agents.losses import RATIO, ROW_METRICS, VALUE, mean_of_rows
from evorl.replay.row_layout import RowLayout
from evorl.types import Batch, Key, Metrics, OnPolicyAgent
from evorl.workflows.base import loop_with_metrics
from evorl.workflows.sampling import Sampling

NEVER, EPOCH, MINIBATCH = REFRESH = "never", "epoch", "minibatch"


@struct.dataclass
class Estimates:
    """What of segments changes as they are learned from, leaves [segments, steps]."""

    value: Any  # by the network that saw them last
    ratio: Any  # of the probability by that network to that by which it was acted
    advantage: Any
    target: Any


def standardize(
    x: Float[Array, "..."], among: Float[Array, "..."] | None = None, weight: Any = ()
) -> Float[Array, "..."]:
    """x, or what it is among, with mean 0 and standard deviation 1, of those that count where not all do."""
    among = x if among is None else among
    if isinstance(weight, tuple):
        return (x - among.mean()) / (among.std() + 1e-8)
    mean = mean_of_rows(weight, among)
    return (x - mean) / (jnp.sqrt(mean_of_rows(weight, (among - mean) ** 2)) + 1e-8)


def compute_advantage_magnitude(advantage: Any) -> Float[Array, "segments steps"]:
    """How large the advantages of segments are; of a game the sum over its members, by group [segments, steps, n]."""
    if not isinstance(advantage, Mapping):
        return advantage
    return sum((jnp.abs(x).sum(-1) for x in advantage.values()), start=jnp.float32(0))


@dataclass(frozen=True)
class MinibatchEpochs:
    """How often what is learned from is estimated anew, and how minibatches are drawn and learned from."""

    agent: OnPolicyAgent
    sampling: Sampling
    segments_per_minibatch: int  # segments of a minibatch
    normalize_advantages: bool  # advantages: among all, or, where segments weigh differently, among a minibatch
    refresh: str  # before each minibatch, each epoch, or never
    # (value, ratio), both [segments, steps], -> (advantage, target)
    estimate_advantages: Callable[[Array, Array], tuple[Array, Array]]

    def run_epochs(
        self,
        agent: Any,
        batch: Batch,
        key: Key,
        times: Int[Array, ""],
        valid_segments: Int[Array, " segments"] | None = None,
    ) -> tuple[Any, Metrics, Int[Array, ""]]:
        """The state of the agent after so many passes over segments, leaves [n, steps, ...], or until it stops early.

        `valid_segments` has for each segment itself, or one that is to be learned from in its place. Returns the mean
        metrics and the number of passes too.
        """
        known = Estimates(batch.value, batch.ratio, batch.advantage, batch.target)
        raw = compute_advantage_magnitude(batch.advantage)
        if self.normalize_advantages:
            batch = replace(batch, advantage=_standardize_groups(batch.advantage, batch.weight, valid_segments))
        batch = replace(batch, ratio=(), bootstrap_value=())
        layout = RowLayout.from_row(jax.eval_shape(lambda: tree.index(batch, 0)))
        tables, count = layout.pack(batch), len(raw)

        def update_on_minibatch(carry: tuple[Any, Any], drawn: tuple[Array, Key]) -> tuple[tuple[Any, Any], Metrics]:
            agent, known = carry
            known = self.recompute_advantages(known) if self.refresh == MINIBATCH else known
            advantage = raw if self.refresh == NEVER else known.advantage
            rows, weight = self.sampling.sample(drawn[1], drawn[0], advantage)
            rows = rows if valid_segments is None else valid_segments[rows]
            part = layout.unpack(jax.tree.map(lambda x: x[rows], tables))
            if self.refresh != NEVER:
                part = self.fill_estimates(part, known, rows, batch.weight)
            part = self.weight_advantages(part, weight)
            agent, metrics = self.agent.update(agent, lambda params: self.agent.loss(params, part))
            if self.refresh != NEVER:
                value, ratio = known.value.at[rows].set(metrics[VALUE]), known.ratio.at[rows].set(metrics[RATIO])
                known = replace(known, value=value, ratio=ratio)
            return (agent, known), {name: x for name, x in metrics.items() if name not in ROW_METRICS}

        def run_epoch(i: Array, carry: tuple[Any, Any]) -> tuple[tuple[Any, Any], Metrics]:
            agent, known = carry
            known = self.recompute_advantages(known) if self.refresh == EPOCH else known
            key_order, key_turns = jax.random.split(jax.random.fold_in(key, i))
            turns = tree.random_permutation(key_order, count).reshape(-1, self.segments_per_minibatch)
            keys = jax.random.split(key_turns, len(turns))
            carry, metrics = jax.lax.scan(update_on_minibatch, (agent, known), (turns, keys))
            return carry, tree.mean(metrics)

        start = agent, () if self.refresh == NEVER else known
        (agent, _), metrics, done = loop_with_metrics(times, run_epoch, start, self.agent.early_stop)
        return agent, metrics, done

    def recompute_advantages(self, known: Estimates) -> Estimates:
        """With the advantages and the targets that follow from the values and ratios."""
        advantage, target = self.estimate_advantages(known.value, known.ratio)
        return replace(known, advantage=advantage, target=target)

    def fill_estimates(self, part: Batch, known: Estimates, rows: Int[Array, " n"], weight: Any) -> Batch:
        """Segments, of which these rows are known; weight is that of all."""
        advantage = known.advantage[rows]
        if self.normalize_advantages:
            advantage = standardize(advantage, known.advantage, weight)
        return replace(part, value=known.value[rows], target=known.target[rows], advantage=advantage)

    def weight_advantages(self, part: Batch, weight: Any) -> Batch:
        """Segments, of which each weighs so much."""
        if isinstance(weight, tuple):
            return part
        advantage = _standardize_groups(part.advantage, part.weight) if self.normalize_advantages else part.advantage
        scaled = jax.vmap(lambda x, w: jax.tree.map(lambda leaf: w * leaf, x))(advantage, weight)
        return replace(part, advantage=scaled)


def _standardize_groups(advantage: Any, weight: Any, valid_segments: Int[Array, " segments"] | None = None) -> Any:
    """Advantages, of a game those of each group, standardized among those that are there and count."""

    def standardize_group(x: Array, weight: Any) -> Array:
        if valid_segments is None:
            return standardize(x, weight=weight)
        return standardize(x, x[valid_segments], tree.index(weight, valid_segments))

    return jax.tree.map(standardize_group, advantage, weight)
