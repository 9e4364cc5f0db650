"""Runs: from a configuration to the components of a training, and from a run directory to a policy."""

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from omegaconf import DictConfig

from evorl import tree
from evorl.errors import OptionError, require
from evorl.parts import check_unused_numbers, resolve_numbers
from evorl.training import pareto_front, processes
from evorl.training.configuration import config, config_file, options, parts
from evorl.training.configuration.discovery import BUDGET_OPTIONS
from evorl.training.demonstrations import read_demonstrations
from evorl.training.device_mesh import choose_mesh_shape, describe_mesh
from evorl.training.devices import set_host_devices, use_precision
from evorl.training.dry_run import describe_training, find_unmet_limits, trace_shapes
from evorl.training.eval_env import EvalEnvEvaluator
from evorl.training.exported_policy import ExportedPolicy, PolicyFile, find_policy_file
from evorl.training.fit import TrainingResult, fit
from evorl.training.pareto_front import Front
from evorl.training.policy import Member, Policy, find_highest_return, select_member
from evorl.training.profile import Profile
from evorl.training.program import Program
from evorl.training.progress import Budget, Progress
from evorl.training.records import display, recorders
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.json_cache import JsonCache
from evorl.types import PolicyWorkflow, State, Transition, Workflow

COMPILE_SECONDS_FILE = "compile_seconds.json"  # compilation times by fingerprint
Config: TypeAlias = DictConfig | Mapping[str, Any]  # composed by Hydra, or plain data


def build(cfg: Config) -> tuple[Any, Budget]:
    """Build the workflow and the budget that a configuration describes; raise OptionError if it is invalid."""
    data = config.to_plain_data(cfg) if isinstance(cfg, DictConfig) else cfg
    options.check_options(data)
    set_host_devices(_count_local_devices(data["devices"]), required=data["devices"] is not None)
    budget = Budget(**{name: math.inf if data[name] is None else data[name] for name in BUDGET_OPTIONS})
    try:
        workflow = assemble(data)
        resolve_numbers(workflow, place="agent.workflow")  # raises an error for priors that nothing searches
        if isinstance(cfg, DictConfig):  # not a saved run, which may have such a value
            check_unused_numbers(workflow, "agent.workflow")
        if (other := parts.make_eval_env(data)) is not None:
            EvalEnvEvaluator(workflow, other)  # raises an error if the policy cannot play in it
        choose_mesh_shape(workflow, data["num_seeds"], data["devices"])  # raises an error for the number of devices
        return workflow, budget
    except OptionError as error:
        message = str(error)
        for place, given in (
            config.find_references(cfg.agent, "agent") if isinstance(cfg, DictConfig) and "agent" in cfg else ()
        ):
            message = message if message.startswith("unknown option") else message.replace(place, given)
        raise OptionError(message) from error


def _count_local_devices(devices: int | None) -> int | None:
    """Return the number of devices of this process for the option `devices`, those of all processes."""
    count = processes.count()
    fits = f"must be a multiple of {count}, the number of processes"
    require(devices is None or devices % count == 0, "devices", devices, fits)
    return None if devices is None else devices // count


def assemble(data: Mapping[str, Any]) -> Workflow:
    """Instantiate the workflow of a configuration; raise OptionError if it is invalid."""
    given = parts.make_context(parts.make_task(data))
    return parts.instantiate(config_file.lookup(data, "agent.workflow"), "agent.workflow", Workflow, **given)


def describe_dry_run(cfg: Config, workflow: Any, budget: Budget) -> str:
    """Describe the training of a configuration without compiling it; raise OptionError if it does not fit in memory."""
    shapes = trace_shapes(workflow, cfg["num_seeds"])
    found = describe_training(workflow, shapes, cfg["num_seeds"], cfg["checkpoint"]["replay"])
    notes = describe_mesh(workflow, cfg["num_seeds"], cfg["devices"])
    return "\n".join([found, *notes, *find_unmet_limits(workflow, budget, get_chunk_size(cfg))])


def fit_configuration(
    data: Mapping[str, Any], workflow: Workflow, budget: Budget, callbacks: Sequence[Any], **own: Any
) -> TrainingResult:
    """Train as a configuration describes.

    Args:
        data: Configuration, with the number of seeds, the devices and the evaluations.
        workflow: Workflow that `build` made from it.
        budget: Budget that `build` made from it.
        callbacks: Functions that receive each row.
        **own: Other arguments of `fit`.

    Returns:
        The result of `fit`, with the last row only.
    """
    with use_precision(data.get("precision")):
        return fit(
            workflow,
            data["seed"],
            budget,
            callbacks,
            num_seeds=data["num_seeds"],
            evaluations=data["evaluations"],
            evaluation_share=data["evaluation_share"],
            chunk=get_chunk_size(data),
            devices=data["devices"],
            eval_env=parts.make_eval_env(data),
            keep_rows=False,
            progress=False,
            **own,
        )


def get_chunk_size(data: Config) -> int:
    """Return the number of iterations per call of the compiled program."""
    return data["chunk"] or data["agent"].get("chunk", 1)


def open_checkpoints(run_dir: Path, option: str) -> Checkpoints:
    """Open the checkpoints of a run for reading; raise OptionError if there is none."""
    folder = run_dir / "checkpoints"
    checkpoints = Checkpoints(folder, writes=False) if folder.is_dir() else None
    if checkpoints is None or checkpoints.latest_iteration is None:
        raise OptionError(f"{option}={run_dir}: has no checkpoint")
    return checkpoints


def fingerprint_program(data: Mapping[str, Any]) -> str:
    """Return a hash that is equal for trainings with the same compiled program."""
    other = [data["eval_env"]] if data.get("eval_env") is not None else []
    played = data.get("env") or data["problem"], *(data.get("wrappers") or ()), *other
    told = json.dumps([data["agent"], *played, data["num_seeds"], data.get("precision")], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@contextmanager
def open_run_recorders(
    data: Mapping[str, Any], run_dir: Path, profile: Profile | None = None
) -> Iterator[list[recorders.Recorder]]:
    """Open the recorders of a run, including its display, and close them at the end.

    The panel in a terminal also shows the results of the profile.
    """
    seed, count = data["seed"], data["num_seeds"]
    title = f"{config.format_title(data)}, {count} seed{'s' * (count > 1)}, {run_dir}"
    with ExitStack() as stack:
        last = JsonCache(COMPILE_SECONDS_FILE).get(fingerprint_program(data))
        last = last if isinstance(last, float) else None
        words = {"compiled_in": last, "unit": display.EVALUATIONS if data.get("problem") else display.ENV_STEPS}
        shown = display.LinePrinter(**words)
        if sys.stdout.isatty():
            shown = display.Panel(title, profile=profile, **words)
        opened: list[recorders.Recorder] = [shown, recorders.JsonLines(run_dir), recorders.Csv(run_dir, seed)]
        if data["tensorboard"]:
            opened.append(recorders.TensorBoard(run_dir, seed))
        if options.is_wandb_enabled(data):
            given = {name: value for name, value in data["wandb"].items() if name != "enabled"}
            opened.append(recorders.Wandb(run_dir, dict(data), **given))
        for recorder in opened:
            stack.callback(recorder.close)
        yield opened


@dataclasses.dataclass(frozen=True)
class RunCheckpoint:
    """Contents of the newest checkpoint of a run.

    With several seeds, the leaves of the state and best_returns have a leading axis [num_seeds].
    """

    cfg: Mapping[str, Any]
    workflow: Workflow
    state: State  # without replay buffers
    best_returns: np.ndarray

    def select_member(self, seed: int | None, member: Member) -> tuple[Workflow, State]:
        """Return the workflow and the state of one seed and one member of a population, by default the best ones.

        An int is a member of the outermost population; within it, the best members of inner populations are
        taken. A list is the path through all nested populations.
        """
        workflow, state, returns = self.workflow, self.state, self.best_returns
        first, count = self.cfg["seed"], self.cfg["num_seeds"]
        if count > 1:
            allowed = f"must be from {first} to {first + count - 1}"
            require(seed is None or 0 <= seed - first < count, "seed", seed, allowed)
            index = find_highest_return(returns) if seed is None else seed - first
            state, returns = tree.index(state, index), returns[index]
        else:
            require(seed in (None, first), "seed", seed, f"must be {first}, the only seed of this run")
        return select_member(workflow, state, np.asarray(returns), member)

    def select_policy(self, seed: int | None, member: Member) -> tuple[PolicyWorkflow, State]:
        """Return the workflow and the state of `select_member`; raise OptionError if the workflow has no policy."""
        workflow, state = self.select_member(seed, member)
        return self.require_policy(workflow), state

    def require_policy(self, workflow: Workflow) -> PolicyWorkflow:
        """Return the workflow; raise OptionError if it has no policy."""
        if not isinstance(workflow, PolicyWorkflow):
            agent, name = self.cfg["agent"]["name"], type(workflow).__name__
            raise OptionError(f"agent={agent}: {name} has no policy; train an agent with its results")
        return workflow


def restore_run(
    run_dir: Path, option: str, which: str | None, trust: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> RunCheckpoint:
    """Restore the newest checkpoint of a run: by default its best policies, or the last front if it has one.

    Raises:
        OptionError: There is no readable run or checkpoint, or an option is invalid.
    """
    require(which in ("best", "last", None), "which", which, "must be best or last")
    data = config_file.set_values(config_file.read_config(run_dir, option, trust), given or {})
    options.check_options(data)
    checkpoints = open_checkpoints(run_dir, option)
    seeds = data["num_seeds"]
    workflow = assemble(data)
    program = Program(workflow, range(seeds), 1, False)
    which = which or ("last" if pareto_front.has_front(workflow) else "best")
    state, progress = checkpoints.restore_policy(
        jax.eval_shape(program.init, program.keys, resolve_numbers(workflow)), which
    )
    best, shape = Progress.from_dict(progress, seeds).best_returns, (seeds,) * (seeds > 1)
    return RunCheckpoint(data, workflow, state, np.zeros(shape) if best is None else np.asarray(best))


def read_preload(data: Mapping[str, Any]) -> Transition:
    """Read the demonstrations in the file of the option preload; raise OptionError if it is invalid."""
    path = data["preload"]
    require(data.get("problem") is None, "preload", path, "needs an environment, not a problem")
    return read_demonstrations(Path(path), parts.make_wrapped_env(data["env"], "env", data))


def restore_parent_state(data: Mapping[str, Any]) -> State:
    """Restore the state of init_from from which new runs start.

    If both runs have the same number of seeds, each seed starts from its own state. Otherwise, all seeds
    start from the state of the best seed.
    """
    run_dir, trust, seeds = Path(data["init_from"]), config_file.parse_trust(data["trust"]), data["num_seeds"]
    missing = config_file.find_missing(config_file.read_config(run_dir, "init_from", trust))
    parent = restore_run(
        run_dir, "init_from", "best", trust, {name: config_file.lookup(data, name) for name in missing}
    )
    if parent.cfg["num_seeds"] == seeds:
        return parent.state
    state = (
        tree.index(parent.state, find_highest_return(parent.best_returns))
        if parent.cfg["num_seeds"] > 1
        else parent.state
    )
    return tree.broadcast(state, seeds) if seeds > 1 else state


def load(
    run_dir: str | Path,
    member: Member = None,
    seed: int | None = None,
    which: str | None = None,
    trust: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
    solution: int | None = None,
) -> Policy:
    """Load the policy of a run, by default of its best seed and member, or an exported policy.

    Args:
        run_dir: Run directory; a file of `evorl.export`, FILE.npz; or zoo:NAME for a policy that ships with evorl.
        member: Index of the member if the run trained a population. For nested populations, a list of one
            index per population, outermost first, as in [2, 0]; an int is an index of the outermost
            population. None for the best member.
        seed: Seed of the run. None for the best seed.
        which: "best" for the policy at its best evaluation, or "last" for that of the last step. None for
            "best", or for "last" if the run has a Pareto front or an archive.
        trust: Names of packages, besides evorl, whose classes the configuration may use.
        given: Configuration values that came from environment variables and are therefore not saved, by
            dotted name.
        solution: Number of a solution in front.csv. None for the policy that represents the search.

    Returns:
        The policy, which takes and returns NumPy arrays.

    Raises:
        OptionError: The run directory has no checkpoint, or no such seed, member or solution.
    """
    if (file := find_policy_file(run_dir)) is not None:
        for name, value in (("member", member), ("seed", seed), ("which", which)):
            require(value is None, name, value, "an exported policy has no choice of this")
        return ExportedPolicy(file, solution, trust)
    workflow, state = restore_run(Path(run_dir), "run", which, trust, given).select_policy(seed, member)
    shown = Front.from_state(workflow, state) if solution is not None else None
    return Policy(workflow, pareto_front.with_solution(shown, workflow, state, solution))


def load_front(
    run_dir: str | Path, seed: int | None = None, which: str | None = None, trust: Sequence[str] = ()
) -> Front:
    """Load the Pareto front or the archive of a run, best first; its `solution(0)` returns the best parameters.

    Args:
        run_dir: Run directory.
        seed: Seed of the run. None for the best seed.
        which: "best" for the state at the best evaluation, or "last" for that of the last step. None for
            "last".
        trust: Names of packages, besides evorl, whose classes the configuration may use.

    Returns:
        The front or archive.

    Raises:
        OptionError: The run directory has no checkpoint or no such seed, or the run has found no front or
            archive.
    """
    if (file := find_policy_file(run_dir)) is not None:
        front = PolicyFile(file).front
        require(front is not None, "run", run_dir, "has no Pareto front or archive")
        assert front is not None
        return front
    workflow, state = restore_run(Path(run_dir), "run", which, trust).select_member(seed, None)
    if (shown := Front.from_state(workflow, state)) is None:
        raise OptionError(f"run={run_dir}: has no Pareto front or archive")
    return shown
