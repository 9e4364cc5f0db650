"""Re-creation of a member of a population as a run of its own."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from evorl import tree
from evorl.errors import OptionError, require, require_int
from evorl.parts import get_number
from evorl.population.lineage import member_history
from evorl.replay.state_replays import join_replays, split_replays
from evorl.training import runs
from evorl.training.configuration import config_file
from evorl.training.progress import Budget, Progress
from evorl.training.records import run_dirs
from evorl.training.records.checkpoint import Checkpoints, get_leaf_shapes
from evorl.training.records.rows import JSON_LINES, read_rows
from evorl.types import EvolvingWorkflow, State, Workflow

RUN_OPTIONS = ("run_dir", "resume", "init_from", "preload")  # options of the parent run that a fork does not have


def fork_member(
    run: Path,
    member: int,
    generation: int,
    run_dir: Path | None = None,
    seed: int | None = None,
    trust: Sequence[str] = (),
) -> Path:
    """Re-create a member of a population as it was after a generation, and make it a run of its own.

    The population trains again from its initial state to this generation. Equal devices and versions give
    bitwise the same members. The parents of all members are compared with those that the run recorded.

    Args:
        run: Run directory of the population.
        member: Index of the member.
        generation: Generation, from 1. The member has the weights and the hyperparameters with which the next
            generation begins.
        run_dir: Run directory to create; None for a new one in runs/.
        seed: Seed of the run; None for the first.
        trust: Packages whose classes the configuration may name.

    Returns:
        The new run directory. `python -m evorl.train resume=` trains it.

    Raises:
        OptionError: The run has no such member or generation, or the members of this training have other
            parents than those of the run.
    """
    data = config_file.read_config(run, "run", trust)
    first, count = data["seed"], data["num_seeds"]
    chosen = first if seed is None else seed
    require(first <= chosen < first + count, "seed", chosen, f"must be from {first} to {first + count - 1}")
    workflow, _ = runs.build(data)
    rows = read_rows(run, "train")[0] if (run / JSON_LINES).is_file() else []
    recorded = member_history(rows, chosen - first).get("source", np.zeros((0, 0)))
    if not isinstance(workflow, EvolvingWorkflow) or not len(recorded):
        raise OptionError(f"run={run}: has no evolving population")
    for option in ("init_from", "preload", "number_changes"):
        require(not data.get(option), option, data.get(option), "such a run cannot be trained again from its beginning")
    require_int("member", member, 0, workflow.population.size - 1)
    require_int("generation", generation, 1, len(recorded))
    state = _train_again(data, workflow, generation, recorded[:generation], chosen - first)
    own = _with_own_replay(*workflow.get_member(state, member))
    return _write_run(_describe_member(data, workflow, own, chosen), own, run_dir)


def _train_again(data: Mapping[str, Any], workflow: Any, generation: int, recorded: np.ndarray, seed: int) -> State:
    """Return the state of one seed after a generation; raise OptionError if parents differ from the recorded ones."""
    rows: list[Any] = []
    budget = Budget(iterations=generation)
    state = runs.fit_configuration({**data, "evaluations": 1}, workflow, budget, [rows.append]).state
    found = member_history(rows, seed)["source"]
    differ = np.flatnonzero((found != recorded).any(1))
    if differ.size:
        other = "with other devices or versions than the run was trained with"
        raise OptionError(f"fork: the parents of generation {differ[0] + 1} differ from the recorded ones, {other}")
    return tree.index(state, seed) if data["num_seeds"] > 1 else state


def _with_own_replay(workflow: Workflow, state: State) -> State:
    """Return the state, with empty replay buffers if its own belong to all members of a population."""
    init = partial(workflow.init, jax.random.key(0), state.numbers)
    shared, own = split_replays(state)[1], split_replays(jax.eval_shape(init))[1]
    if get_leaf_shapes(shared) == get_leaf_shapes(own):
        return state
    return join_replays(state, split_replays(jax.jit(init)())[1])


def _describe_member(data: Mapping[str, Any], workflow: Any, state: Any, seed: int) -> dict[str, Any]:
    """Return the configuration of a run of one member, with its hyperparameters."""
    agent = data["agent"]
    alone = {
        "name": agent.get("inner", {}).get("name", agent["name"]),
        "chunk": agent.get("inner", {}).get("chunk", 1),
        "workflow": config_file.lookup(agent, "workflow.population.inner"),
    }
    own = {**data, "agent": alone, "seed": seed, "num_seeds": 1, "devices": None}
    own |= {option: None for option in RUN_OPTIONS if option in data}
    searched = workflow.search_space.priors if hasattr(workflow, "search_space") else ()
    values = {f"agent.workflow.{name}": float(get_number(state.numbers, name)) for name in searched}
    return config_file.set_values(own, values, ("agent",))


def _write_run(data: dict[str, Any], state: State, run_dir: Path | None) -> Path:
    """Write a run directory with a checkpoint of iteration 0."""
    data["run_dir"] = None if run_dir is None else str(run_dir)
    created = run_dirs.create_run_dir(data)
    config_file.write_config(data, created)
    with closing(Checkpoints(created / "checkpoints", **data["checkpoint"])) as checkpoints:
        checkpoints.save(0, state, split_replays(state)[0], asdict(Progress()))
    return created
