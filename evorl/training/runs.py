"""Runs: from a configuration to the parts of a training, and from a run directory back to a policy."""

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

from evorl import hyperparameters, tree
from evorl.errors import OptionError, require
from evorl.training import front
from evorl.training.configuration import config, options, parts, saved
from evorl.training.configuration.discovery import BUDGET
from evorl.training.devices import cores, host_devices
from evorl.training.elsewhere import Elsewhere
from evorl.training.front import Front
from evorl.training.plan import describe, shapes, unkept
from evorl.training.policy import Member, Policy, chosen, highest
from evorl.training.profile import Profile
from evorl.training.program import Program, mesh_shape
from evorl.training.progress import Budget, Progress
from evorl.training.records import display, recorders
from evorl.training.records.checkpoint import Checkpoints
from evorl.training.records.remembered import Remembered
from evorl.types import Acts, SpreadByDefault, State, Workflow

COMPILED_IN = "compile_seconds.json"  # by fingerprint
Config: TypeAlias = DictConfig | Mapping[str, Any]  # as it was composed, or as data


def build(cfg: Config) -> tuple[Any, Any, Budget]:
    """The workflow, its hyperparameters and the budget that cfg describes; raises OptionError."""
    data = config.plain(cfg) if isinstance(cfg, DictConfig) else cfg
    options.check(data)
    host_devices(devices(data), required=data["devices"] is not None)  # else fit takes what is there
    budget = Budget(**{name: math.inf if data[name] is None else data[name] for name in BUDGET})
    try:
        workflow, hyperparams = assemble(data)
        if (other := parts.evaluated(data)) is not None:
            Elsewhere(workflow, other)  # which refuses one that its policy cannot play in
        if data["devices"] is not None:
            mesh_shape(workflow, data["num_seeds"], data["devices"])
        return workflow, hyperparams, budget
    except OptionError as error:
        message = str(error)
        for place, given in (
            config.references(cfg.agent, "agent") if isinstance(cfg, DictConfig) and "agent" in cfg else ()
        ):
            message = message.replace(place, given)
        raise OptionError(message) from error


def devices(data: Mapping[str, Any]) -> int:
    """How many devices of the CPU a training takes, by its configuration alone, so that nothing has started yet.

    What it gives, or as many as divide its seeds or else what its workflow says to be independent, at most one a core.
    """
    if data["devices"] is not None:
        return data["devices"]
    seeds = data["num_seeds"]
    several = isinstance(seeds, int) and seeds > 1  # what is no number is refused where it is built
    count = seeds if several else _independent(saved.at(data, "agent.workflow"))
    return max(n for n in range(1, cores() + 1) if count % n == 0)


def _independent(node: Any) -> int:
    """The number in the field of a part that says how many of what is independent it has, or in that part's own."""
    while isinstance(node, Mapping):
        try:
            target = parts.find(str(node.get("_target_")))
        except (ImportError, AttributeError, ValueError):  # which assemble refuses
            return 1
        names = target.spread_by if isinstance(target, SpreadByDefault) else ()
        given = (saved.at(node, name, None) for name in names)
        node = next(filter(None, given), 1)
    return node if isinstance(node, int) and node > 0 else 1


def assemble(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """The workflow and its hyperparameters; raises OptionError."""
    hyperparams = parts.make(saved.at(data, "agent.hyperparams"), "agent.hyperparams")
    if not dataclasses.is_dataclass(hyperparams):
        raise OptionError(f"agent.hyperparams={hyperparams}: must be a part with a _target_")
    hyperparameters.check(hyperparams, "agent.hyperparams.")
    given = parts.surroundings(parts.played(data))
    workflow = parts.make(saved.at(data, "agent.workflow"), "agent.workflow", Workflow, **given)
    return workflow, hyperparams


def plan(cfg: Config, workflow: Any, hyperparams: Any, budget: Budget) -> str:
    """What training cfg would be; raises OptionError where it does not fit in memory. Nothing is compiled."""
    found = describe(workflow, shapes(workflow, hyperparams, cfg["num_seeds"]), cfg["num_seeds"])
    return "\n".join([found, *unkept(workflow, budget, chunk(cfg))])


def chunk(data: Config) -> int:
    """Return how many iterations a call of the device makes."""
    return data["chunk"] or data["agent"].get("chunk", 1)


def resumed(
    cfg: DictConfig, overrides: Sequence[str], changeable: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration saved in cfg.resume with the overrides: all that it takes to go on, and what is to be kept."""
    given = {}
    for one in config.parsed(overrides):
        if one.is_delete():
            raise OptionError(f"{one.package or one.input_line}: a resumed run keeps its configuration")
        given[one.package or one.key_or_group] = one.value()
    now = config.plain(cfg)
    for name in ("resume", "trust"):
        given.pop(name, None)
    kept = saved.read(Path(cfg.resume), "resume", saved.trusted(now["trust"]))
    kept |= {name: now[name] for name in changeable if name not in kept or name in saved.OF_THE_READER}
    changed = {name: value for name, value in given.items() if name.partition(".")[0] in changeable}
    kept = saved.given(kept, changed, changeable)
    return saved.given(kept, given, changeable) | {"resume": cfg.resume}, kept


def saved_checkpoints(run_dir: Path, option: str) -> Checkpoints:
    """The checkpoints of a run; raises OptionError where there are none."""
    folder = run_dir / "checkpoints"
    checkpoints = Checkpoints(folder, writes=False) if folder.is_dir() else None
    if checkpoints is None or checkpoints.latest is None:
        raise OptionError(f"{option}={run_dir}: holds no checkpoint")
    return checkpoints


def fingerprint(data: Mapping[str, Any]) -> str:
    """What trainings that compile to the same program have in common."""
    other = [data["eval_env"]] if data.get("eval_env") is not None else []
    played = data.get("env") or data["problem"], *(data.get("wrappers") or ()), *other
    told = json.dumps([data["agent"], *played, data["num_seeds"]], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@contextmanager
def recording(
    data: Mapping[str, Any], run_dir: Path, profile: Profile | None = None
) -> Iterator[list[recorders.Recorder]]:
    """The recorders of a run, closed at the end; of a terminal's panel, which shows what a profile has found."""
    seed, count = data["seed"], data["num_seeds"]
    title = f"{config.title(data)}, {count} seed{'s' * (count > 1)}, {run_dir}"
    with ExitStack() as stack:
        last = Remembered(COMPILED_IN).get(fingerprint(data))
        last = last if isinstance(last, float) else None
        shown = display.Lines(compiled_in=last)
        if sys.stdout.isatty():
            shown = display.Panel(title, compiled_in=last, profile=profile)
        opened: list[recorders.Recorder] = [shown, recorders.JsonLines(run_dir), recorders.Csv(run_dir, seed)]
        if data["tensorboard"]:
            opened.append(recorders.TensorBoard(run_dir, seed))
        if data["wandb"]:
            opened.append(recorders.Wandb(run_dir, dict(data)))
        for recorder in opened:
            stack.callback(recorder.close)
        yield opened


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a run directory holds: leaves of state and best_returns lead with [num_seeds] where there are several."""

    cfg: Mapping[str, Any]
    workflow: Workflow
    state: State  # without replays
    best_returns: np.ndarray

    def any_one(self, seed: int | None, member: Member) -> tuple[Workflow, State]:
        """The workflow and state of one seed, and of one member of a population; by default of the best ones.

        member is of the outermost population, of those within it the best one is taken; or the path through them all.
        """
        workflow, state, returns = self.workflow, self.state, self.best_returns
        first, count = self.cfg["seed"], self.cfg["num_seeds"]
        if count > 1:
            allowed = f"must be from {first} to {first + count - 1}"
            require(seed is None or 0 <= seed - first < count, "seed", seed, allowed)
            index = highest(returns) if seed is None else seed - first
            state, returns = tree.index(state, index), returns[index]
        else:
            require(seed in (None, first), "seed", seed, f"must be {first}, the only one of this run")
        return chosen(workflow, state, np.asarray(returns), member)

    def one(self, seed: int | None, member: Member) -> tuple[Acts, State]:
        """The same of a workflow that has a policy; raises OptionError where it has none."""
        workflow, state = self.any_one(seed, member)
        return self.acting(workflow), state

    def acting(self, workflow: Workflow) -> Acts:
        """workflow; raises OptionError where it has no policy."""
        if not isinstance(workflow, Acts):
            agent, name = self.cfg["agent"]["name"], type(workflow).__name__
            raise OptionError(f"agent={agent}: {name} keeps no policy; train one with what it has found")
        return workflow


def restored(
    run_dir: Path, option: str, which: str | None, trust: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> Restored:
    """What the newest checkpoint of a run holds, by default the best, or the last front; raises OptionError."""
    require(which in ("best", "last", None), "which", which, "must be best or last")
    data = saved.given(saved.read(run_dir, option, trust), given or {})
    options.check(data)
    checkpoints = saved_checkpoints(run_dir, option)
    seeds = data["num_seeds"]
    workflow, hyperparams = assemble(data)
    program = Program(workflow, range(seeds), 1, False)
    which = which or ("last" if front.is_kept(workflow) else "best")
    state, progress = checkpoints.restore_policy(jax.eval_shape(program.init, program.keys, hyperparams), which)
    best, shape = Progress.of(progress, seeds).best, (seeds,) * (seeds > 1)
    return Restored(data, workflow, state, np.zeros(shape) if best is None else np.asarray(best))


def parent_state(data: Mapping[str, Any]) -> State:
    """The states of data's init_from that its runs begin with, or its best seed's where their number differs."""
    run_dir, trust, seeds = Path(data["init_from"]), saved.trusted(data["trust"]), data["num_seeds"]
    missing = saved.missing(saved.read(run_dir, "init_from", trust))
    parent = restored(run_dir, "init_from", "best", trust, {name: saved.at(data, name) for name in missing})
    if parent.cfg["num_seeds"] == seeds:
        return parent.state
    state = tree.index(parent.state, highest(parent.best_returns)) if parent.cfg["num_seeds"] > 1 else parent.state
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
    """The policy of a run directory, at its best evaluation or the `last` step; by default of the best seed and member.

    Of a run with a front it is by default that of the last step; solution is a number in front.csv, who is to act.
    Of populations within each other member is the outermost's, or one number for each, as in [2, 0].
    trust names packages besides evorl whose classes its configuration may use; given has, by dotted name, what
    environment variables gave when it was trained, which is not saved.
    Raises OptionError where run_dir holds no checkpoint, or not that seed, member or solution.
    """
    workflow, state = restored(Path(run_dir), "run", which, trust, given).one(seed, member)
    shown = Front.of(workflow, state) if solution is not None else None
    return Policy(workflow, front.acting(shown, workflow, state, solution))


def found(run_dir: str | Path, seed: int | None = None, which: str | None = None, trust: Sequence[str] = ()) -> Front:
    """What the search of a run directory has found, best first, of which solution(0) is a pytree; see load.

    Raises OptionError where that is nothing beside a policy.
    """
    workflow, state = restored(Path(run_dir), "run", which, trust).any_one(seed, None)
    if (shown := Front.of(workflow, state)) is None:
        raise OptionError(f"run={run_dir}: has found no front")
    return shown
