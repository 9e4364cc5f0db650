"""Runs: from a configuration to the parts of a training, and from a run directory back to a policy."""

import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from evorl import hyperparameters, tree
from evorl.errors import OptionError, require
from evorl.training import config, display, recorders
from evorl.training.checkpoint import Checkpoints
from evorl.training.plan import describe, indexing, require_memory
from evorl.training.policy import Member, Policy, chosen, highest
from evorl.training.program import Program, job
from evorl.training.progress import Budget
from evorl.types import Acts, Env, State, Workflow

WHOLE = {  # numbers, from the least to the most
    "seed": (0, 2**31 - 1),
    "num_seeds": (1, 2**20),
    "evaluations": (1, 2**31 - 1),
    "chunk": (1, 2**20),
    "checkpoint.keep": (1, 2**31 - 1),
}
SWITCHES = ("checkpoint.replay", "tensorboard", "wandb", "dry_run", "deterministic", "debug.nans", "profile")


def build(cfg: DictConfig) -> tuple[Any, Any, Budget]:
    """The workflow, its hyperparameters and the budget that cfg describes; raises OptionError."""
    try:
        OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OptionError):  # which a resolver may have raised
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from error
        raise OptionError(f"{error.full_key}: {str(error).partition(chr(10))[0]}") from error
    for name, value in config.paths(cfg):
        if value == "???":
            raise OptionError(f"{name}: must be given")
    _check(cfg)
    limits = {name: math.inf if cfg[name] is None else cfg[name] for name in vars(Budget(iterations=1))}
    budget = Budget(**limits)
    hyperparams = config.make(cfg.agent.hyperparams, "agent.hyperparams")
    if not dataclasses.is_dataclass(hyperparams):
        raise OptionError(f"agent.hyperparams={hyperparams}: must be a part with a _target_")
    hyperparameters.check(hyperparams, "agent.hyperparams.")
    try:
        return _made(cfg), hyperparams, budget
    except OptionError as error:
        message = str(error)
        for place, given in config.references(cfg.agent, "agent"):
            message = message.replace(place, given)
        raise OptionError(message) from error


def _made(cfg: DictConfig) -> Workflow:
    """The workflow that cfg describes."""
    env = config.part(config.make(cfg.env, "env"), Env, "env")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    workflow = config.make(cfg.agent.workflow, "agent.workflow", env=env, **spaces)
    return config.part(workflow, Workflow, "agent.workflow")


def plan(cfg: DictConfig, workflow: Any, hyperparams: Any) -> str:
    """What training cfg would be; raises OptionError where it does not fit in memory. Nothing is compiled."""
    program = Program(workflow, range(cfg.seed, cfg.seed + cfg.num_seeds), 1, False)
    with indexing():
        shapes = jax.eval_shape(program.init, program.keys, hyperparams)
        jax.eval_shape(program.run, shapes, program.keys, *job(0, 0, False))
    described = describe(workflow, shapes, cfg.num_seeds)
    require_memory(shapes)
    return described


def _check(cfg: DictConfig) -> None:
    """Raises OptionError where an option of the training itself is not of its type or out of its range."""
    for name, (least, most) in WHOLE.items():
        value = OmegaConf.select(cfg, name)
        if name != "chunk" or value is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= least, name, value, f"must be a whole number, at least {least}")
            require(value <= most, name, value, f"must be at most {most}")
    for name in SWITCHES:
        value = OmegaConf.select(cfg, name)
        require(isinstance(value, bool), name, value, "must be true or false")
    for name in (*vars(Budget(iterations=1)), "checkpoint.minutes"):
        value = OmegaConf.select(cfg, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        require(number or (value is None and "." not in name), name, value, "must be a number above 0")
    if cfg.wandb:
        recorders.require_wandb()


def save_config(cfg: DictConfig, run_dir: Path) -> None:
    """Writes config.yaml, as it was given (interpolations stay what they are) but for paths of this machine."""
    parent = Path(cfg.init_from).resolve().name if cfg.init_from else None
    whole = run_dir / "config.new"
    OmegaConf.save(OmegaConf.merge(cfg, {"resume": None, "run_dir": None, "init_from": parent}), whole)
    os.replace(whole, run_dir / "config.yaml")


def saved_config(run_dir: Path, option: str, trust: Sequence[str] = ()) -> DictConfig:
    """The configuration of a run; raises OptionError where there is none that can be read and built.

    It is data from elsewhere: it may name the classes of evorl, of evosax and of the packages in trust, and those that
    files in ./configs name.
    """
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        what = "has no config.yaml" if path.parent.is_dir() else "is not there"
        raise OptionError(f"{option}={run_dir}: is not a run directory, it {what}")
    try:
        saved = OmegaConf.load(path)
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"{option}={run_dir}: its config.yaml cannot be read") from error
    if not isinstance(saved, DictConfig) or not {"agent", "env", "seed", "num_seeds"} <= set(saved):
        raise OptionError(f"{option}={run_dir}: its config.yaml is not that of a training")
    for target, called in config.targets(OmegaConf.to_container(saved)):
        if not config.is_trusted(target, called, trust):
            raise OptionError(
                f"{option}={run_dir}: its config.yaml names {target}, which is not of evorl; where you trust it, "
                f"name it in a file in ./configs, or give trust=['{target.partition('.')[0]}'] to evorl.load"
            )
    return saved


def resumed(cfg: DictConfig, changeable: Sequence[str]) -> DictConfig:
    """The configuration saved in cfg.resume with this command line's other options in place of its own."""
    saved = saved_config(Path(cfg.resume), "resume")
    OmegaConf.set_struct(saved, True)
    given = [line for line in HydraConfig.get().overrides.task if not line.startswith("resume=")]
    for line in given:
        if line.lstrip("+").split("=")[0].split(".")[0] not in changeable:
            raise OptionError(f"{line}: a resumed run keeps its configuration; only {', '.join(changeable)} may change")
    merged = OmegaConf.merge(saved, OmegaConf.from_dotlist(given), {"resume": cfg.resume})
    assert isinstance(merged, DictConfig)
    return merged


def saved_checkpoints(run_dir: Path, option: str) -> Checkpoints:
    """The checkpoints of a run; raises OptionError where there are none."""
    folder = run_dir / "checkpoints"
    checkpoints = Checkpoints(folder, writes=False) if folder.is_dir() else None
    if checkpoints is None or checkpoints.latest is None:
        raise OptionError(f"{option}={run_dir}: holds no checkpoint")
    return checkpoints


def left(checkpoints: Checkpoints, run_dir: Path) -> str:
    """What is left of a run that has diverged."""
    if checkpoints.latest is None:
        return "it had no checkpoint yet"
    return f"its last checkpoint is of iteration {checkpoints.latest}: init_from={run_dir} begins with its best policy"


@contextmanager
def recording(cfg: DictConfig, run_dir: Path) -> Iterator[list[recorders.Recorder]]:
    """The recorders of a run, closed at the end."""
    title = f"{cfg.agent.name} on {config.label(cfg.env)}, {cfg.num_seeds} seed{'s' * (cfg.num_seeds > 1)}, {run_dir}"
    with ExitStack() as stack:
        shown = display.Panel(title) if sys.stdout.isatty() else display.Lines()
        opened: list[recorders.Recorder] = [shown, recorders.JsonLines(run_dir), recorders.Csv(run_dir, cfg.seed)]
        if cfg.tensorboard:
            opened.append(recorders.TensorBoard(run_dir, cfg.seed))
        if cfg.wandb:
            opened.append(recorders.Wandb(run_dir, OmegaConf.to_container(cfg)))  # pyright: ignore[reportArgumentType]
        for recorder in opened:
            stack.callback(recorder.close)
        yield opened


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a run directory holds: leaves of state and best_returns lead with [num_seeds] where there are several."""

    cfg: DictConfig
    workflow: Workflow
    state: State  # without replays
    best_returns: np.ndarray

    def one(self, seed: int | None, member: Member) -> tuple[Acts, State]:
        """The workflow and state of one seed, and of one member of a population; by default of the best ones.

        member is of the outermost population, of those within it the best one is taken; or the path through them all.
        """
        workflow, state, returns = self.workflow, self.state, self.best_returns
        if self.cfg.num_seeds > 1:
            first = self.cfg.seed
            allowed = f"must be from {first} to {first + self.cfg.num_seeds - 1}"
            require(seed is None or 0 <= seed - first < self.cfg.num_seeds, "seed", seed, allowed)
            index = highest(returns) if seed is None else seed - first
            state, returns = tree.index(state, index), returns[index]
        else:
            require(seed in (None, self.cfg.seed), "seed", seed, f"must be {self.cfg.seed}, the only one of this run")
        workflow, state = chosen(workflow, state, np.asarray(returns), member)
        if not isinstance(workflow, Acts):
            name = type(workflow).__name__
            raise OptionError(f"agent={self.cfg.agent.name}: {name} keeps no policy; train one with what it has found")
        return workflow, state


def restored(run_dir: Path, option: str, which: str, trust: Sequence[str] = ()) -> Restored:
    """What the newest checkpoint of a run holds; raises OptionError where there is none."""
    require(which in ("best", "last"), "which", which, "must be best or last")
    cfg = saved_config(run_dir, option, trust)
    checkpoints = saved_checkpoints(run_dir, option)
    workflow, hyperparams, _ = build(cfg)
    program = Program(workflow, range(cfg.num_seeds), 1, False)
    state, progress = checkpoints.restore_policy(jax.eval_shape(program.init, program.keys, hyperparams), which)
    best = progress["best"]
    shape = (cfg.num_seeds,) * (cfg.num_seeds > 1)
    return Restored(cfg, workflow, state, np.zeros(shape) if best is None else np.asarray(best))


def parent_state(cfg: DictConfig) -> State:
    """The states of cfg.init_from that the runs of cfg begin with, or its best seed's where their number differs."""
    parent = restored(Path(cfg.init_from), "init_from", "best")
    if parent.cfg.num_seeds == cfg.num_seeds:
        return parent.state
    state = tree.index(parent.state, highest(parent.best_returns)) if parent.cfg.num_seeds > 1 else parent.state
    return tree.broadcast(state, cfg.num_seeds) if cfg.num_seeds > 1 else state


def load(
    run_dir: str | Path,
    member: Member = None,
    seed: int | None = None,
    which: str = "best",
    trust: Sequence[str] = (),
) -> Policy:
    """The policy of a run directory, at its best evaluation or the `last` step; by default of the best seed and member.

    Of populations within each other member is the outermost's, or one number for each, as in [2, 0].
    trust names packages besides evorl whose classes its configuration may use.
    Raises OptionError where run_dir holds no checkpoint, or not that seed or member.
    """
    return Policy(*restored(Path(run_dir), "run", which, trust).one(seed, member))
