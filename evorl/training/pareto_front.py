"""The Pareto front or archive that a run has found: its objective values, its CSV file, and its solutions."""

import csv
import io
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import yaml
from flax.core import unfreeze

from evorl import tree
from evorl.ec.objectives import resolve_objectives
from evorl.errors import OptionError, escape_cell, require
from evorl.metrics import GROUP_RETURN_PREFIX
from evorl.training import processes
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

PLAIN_NAME = re.compile(r"-?[\w./]+")  # of an objective, such as -f1


@dataclass(frozen=True)
class Front:
    """Solutions of a Pareto front (none dominates another) or an archive (behavior descriptors differ).

    They are sorted by the first objective, best first.
    """

    names: tuple[str, ...]  # names of the objectives
    values: np.ndarray  # objectives [k, m], without their weights
    params: Params  # leaves [k, ...]
    descriptors: np.ndarray  # behavior descriptors [k, d] of an archive; [k, 0] for a front
    capacity: int  # maximum number of solutions

    @classmethod
    def from_state(cls, workflow: Workflow, state: State) -> "Front | None":
        """Return the front or archive in the state of a workflow; None if there is none, or no solution yet."""
        return cls.from_results(workflow, workflow.results(state)) if isinstance(workflow, SearchWorkflow) else None

    @classmethod
    def from_results(cls, workflow: SearchWorkflow, found: SearchResults | None) -> "Front | None":
        """Return the front or archive in the results of a search; None if they contain no solution."""
        if found is None or not np.any(found.valid_mask):
            return None
        n = len(found.valid_mask)
        fitness = np.asarray(found.fitness, np.float64).reshape(n, -1)
        weights = resolve_objectives(workflow.evolver.objectives, fitness.shape[1])
        there = np.flatnonzero(found.valid_mask)
        there = there[np.lexsort(-fitness[there].T[::-1])]
        values = fitness[there] / np.array(list(weights.values()), np.float64) + 0.0  # avoids -0
        descriptor = np.zeros((n, 0)) if found.descriptor is None else found.descriptor
        kinds = np.asarray(descriptor, np.float64).reshape(n, -1)[there]
        params = jax.tree.map(lambda x: np.asarray(x)[there], found.params)
        return cls(name_objectives(workflow, weights), values, params, kinds, n)

    def __str__(self) -> str:
        ends = zip(self.names, self.values.min(0), self.values.max(0), strict=True)
        k, cells = len(self.values), self.capacity
        kind = f"archive with {k} of {cells} cells filled" if self.descriptors.size else f"Pareto front of {k}"
        return f"{kind}: " + "; ".join(f"{name} {low:.4g} to {high:.4g}" for name, low, high in ends)

    def solution(self, number: int = 0) -> Params:
        """Return the parameters of one solution, by default the best in the first objective.

        Raises:
            OptionError: There is no solution with this number.
        """
        allowed = f"must be from 0 to {len(self.values) - 1}, a row of front.csv"
        require(0 <= number < len(self.values), "solution", number, allowed)
        return tree.index(self.params, number)

    def write_csv(self, path: Path, with_params: bool) -> None:
        """Write one line per solution: its number, objectives, descriptor and, if requested, parameters."""
        rows = np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(self.params)], 1)
        text, columns = io.StringIO(), [f"x{i}" for i in range(rows.shape[1])] if with_params else []
        writer = csv.writer(text, lineterminator="\n")
        kinds = [f"descriptor/{i}" for i in range(self.descriptors.shape[1])]
        names = [name if PLAIN_NAME.fullmatch(name) else escape_cell(name) for name in self.names]
        writer.writerow(["solution", *names, *kinds, *columns])
        for i, (values, kind, row) in enumerate(zip(self.values, self.descriptors, rows, strict=True)):
            writer.writerow([i, *(f"{number:.9g}" for number in (*values, *kind, *(row if with_params else ())))])
        files.write_atomically(path, text.getvalue())

    def write_solution(self, path: Path) -> None:
        """Write the best solution as one line of YAML from parameter names to values, in the format of an option.

        The parameters must be a mapping.
        """
        named = jax.tree.map(lambda x: np.vectorize(lambda number: float(f"{number:.9g}"))(x).tolist(), self.solution())
        plain = unfreeze(named)
        files.write_atomically(path, yaml.safe_dump(plain, default_flow_style=True, width=math.inf, sort_keys=False))


def name_objectives(workflow: SearchWorkflow, objectives: Collection[str]) -> tuple[str, ...]:
    """Return the names of the objectives, those of the problem or environment if it names its numbered returns."""
    of = getattr(workflow, "problem", None) or getattr(workflow, "env", None)
    by_number = all(name.startswith(GROUP_RETURN_PREFIX) for name in objectives)
    if by_number and isinstance(of, HasObjectiveNames) and len(of.objective_names) == len(objectives):
        return tuple(of.objective_names)
    return tuple(objectives)


def with_solution(front: Front | None, workflow: Workflow, state: State, number: int | None) -> State:
    """Return the state with one solution of the front as its policy; the state itself if the number is None.

    Raises:
        OptionError: There is no front or no solution with this number, or the workflow has no policy.
    """
    if number is None:
        return state
    if front is None:
        raise OptionError(f"solution={number}: this run has no Pareto front or archive")
    if not isinstance(workflow, SupportsPolicyParams):
        raise OptionError(f"solution={number}: {type(workflow).__name__} has no policy to evaluate")
    return workflow.with_policy_params(state, front.solution(number))


def describe_fronts(workflow: Workflow, states: State, seeds: int) -> list[str]:
    """Return one line for each run of a training that has found a front or an archive.

    With several seeds, the leaves of `states` have a leading axis [seeds]. With several processes, all must call
    this together.
    """
    if not isinstance(workflow, SearchWorkflow):
        return []
    results = workflow.results if seeds == 1 else jax.vmap(workflow.results)
    found = processes.gathered(jax.jit(results)(states))  # without the other leaves, such as replay buffers
    fronts = [Front.from_results(workflow, found if seeds == 1 else tree.index(found, i)) for i in range(seeds)]
    return [f"run {i}: " * (seeds > 1) + str(front) for i, front in enumerate(fronts) if front is not None]


def has_front(workflow: Workflow) -> bool:
    """Return whether a workflow keeps a front or an archive instead of a single solution."""
    return isinstance(workflow, SearchWorkflow) and workflow.evolver.keeps_many
