"""The front or the archive that a run has found, as numbers, and who of it is to act."""

import csv
import io
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import yaml
from flax.core import unfreeze

from evorl import tree
from evorl.ec.objectives import resolve_objectives
from evorl.errors import OptionError, require
from evorl.metrics import GROUP_RETURN_PREFIX
from evorl.training.records import files
from evorl.types import (
    HasObjectiveNames,
    Params,
    SearchResults,
    SearchWorkflow,
    State,
    SupportsPolicyParams,
    Workflow,
)


@dataclass(frozen=True)
class Front:
    """Solutions of which none is better than another in all objectives, or none does what another does.

    They are from the best to the worst of the first objective.
    """

    names: tuple[str, ...]  # of the objectives
    values: np.ndarray  # [k, m], as they are, not as they are weighted
    params: Params  # leaves [k, ...]
    descriptors: np.ndarray  # [k, d], of an archive; [k, 0] of a front
    capacity: int  # how many solutions there could be

    @classmethod
    def from_state(cls, workflow: Workflow, state: State) -> "Front | None":
        """What a workflow has found beside a policy; None where that is nothing, or nothing yet."""
        return cls.from_results(workflow, workflow.results(state)) if isinstance(workflow, SearchWorkflow) else None

    @classmethod
    def from_results(cls, workflow: SearchWorkflow, found: SearchResults | None) -> "Front | None":
        """Of what a workflow has found."""
        if found is None or not np.any(found.valid_mask):
            return None
        n = len(found.valid_mask)
        fitness = np.asarray(found.fitness, np.float64).reshape(n, -1)
        weights = resolve_objectives(workflow.evolver.objectives, fitness.shape[1])
        there = np.flatnonzero(found.valid_mask)
        there = there[np.lexsort(-fitness[there].T[::-1])]
        values = fitness[there] / np.array(list(weights.values()), np.float64) + 0.0  # never -0
        descriptor = np.zeros((n, 0)) if found.descriptor is None else found.descriptor
        kinds = np.asarray(descriptor, np.float64).reshape(n, -1)[there]
        params = jax.tree.map(lambda x: np.asarray(x)[there], found.params)
        return cls(name_objectives(workflow, weights), values, params, kinds, n)

    def __str__(self) -> str:
        ends = zip(self.names, self.values.min(0), self.values.max(0), strict=True)
        k, cells = len(self.values), self.capacity
        kind = f"archive of {k} in {cells} cells" if self.descriptors.size else f"front of {k}"
        return f"{kind}: " + "; ".join(f"{name} {low:.4g} to {high:.4g}" for name, low, high in ends)

    def solution(self, number: int = 0) -> Params:
        """The parameters of one, by default the best of the first objective; raises OptionError where there is none."""
        allowed = f"must be from 0 to {len(self.values) - 1}, a line of front.csv"
        require(0 <= number < len(self.values), "solution", number, allowed)
        return tree.index(self.params, number)

    def write_csv(self, path: Path, with_params: bool) -> None:
        """A line for each solution: its number, its objectives, its descriptor, its parameters where asked for."""
        rows = np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(self.params)], 1)
        text, columns = io.StringIO(), [f"x{i}" for i in range(rows.shape[1])] if with_params else []
        writer = csv.writer(text, lineterminator="\n")
        kinds = [f"descriptor/{i}" for i in range(self.descriptors.shape[1])]
        writer.writerow(["solution", *self.names, *kinds, *columns])
        for i, (values, kind, row) in enumerate(zip(self.values, self.descriptors, rows, strict=True)):
            writer.writerow([i, *(f"{number:.9g}" for number in (*values, *kind, *(row if with_params else ())))])
        files.write_atomically(path, text.getvalue())

    def write_solution(self, path: Path) -> None:
        """The best solution, whose parameters are a mapping, by their names in one line of YAML, as an option takes
        them.
        """
        named = jax.tree.map(lambda x: np.vectorize(lambda number: float(f"{number:.9g}"))(x).tolist(), self.solution())
        plain = unfreeze(named)
        files.write_atomically(path, yaml.safe_dump(plain, default_flow_style=True, width=math.inf, sort_keys=False))


def name_objectives(workflow: SearchWorkflow, objectives: Collection[str]) -> tuple[str, ...]:
    """Return the names of objectives: those of the problem or environment where it names what are returns by number."""
    of = getattr(workflow, "problem", None) or getattr(workflow, "env", None)
    by_number = all(name.startswith(GROUP_RETURN_PREFIX) for name in objectives)
    if by_number and isinstance(of, HasObjectiveNames) and len(of.objective_names) == len(objectives):
        return tuple(of.objective_names)
    return tuple(objectives)


def with_solution(front: Front | None, workflow: Workflow, state: State, number: int | None) -> State:
    """The state with the solution of this number, where one is given, in the place of the one that stands for the
    search; raises OptionError where there is none.
    """
    if number is None:
        return state
    if front is None:
        raise OptionError(f"solution={number}: this run has found no front")
    if not isinstance(workflow, SupportsPolicyParams):
        raise OptionError(f"solution={number}: {type(workflow).__name__} keeps no policy to be played")
    return workflow.with_policy_params(state, front.solution(number))


def describe_fronts(workflow: Workflow, states: State, seeds: int) -> list[str]:
    """What each run of a training has found; leaves of states lead with [seeds] where there are several."""
    if not isinstance(workflow, SearchWorkflow):
        return []
    if seeds == 1:
        return [str(front)] if (front := Front.from_state(workflow, states)) is not None else []
    found = jax.vmap(workflow.results)(states)  # of whose other leaves, such as replays, nothing is copied
    fronts = [Front.from_results(workflow, tree.index(found, i)) for i in range(seeds)]
    return [f"run {i}: {front}" for i, front in enumerate(fronts) if front is not None]


def has_front(workflow: Workflow) -> bool:
    """Whether a workflow keeps a front rather than one solution."""
    return isinstance(workflow, SearchWorkflow) and workflow.evolver.keeps_many
