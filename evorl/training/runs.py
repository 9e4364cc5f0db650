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
import jax.numpy as jnp
import numpy as np
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from evorl import hyperparameters, tree
from evorl.envs.spaces import flatten, leaves
from evorl.errors import OptionError, require
from evorl.training import config, display, recorders
from evorl.training.checkpoint import Checkpoints
from evorl.training.plan import describe, shapes
from evorl.training.program import Program
from evorl.training.progress import Budget
from evorl.types import Acts, Env, Key, Population, SlotPolicy, State, Workflow
from evorl.workflows.pbt import PBT

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
    return describe(workflow, shapes(workflow, hyperparams, cfg.num_seeds), cfg.num_seeds)


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

    def one(self, seed: int | None, member: int | None) -> tuple[Acts, State]:
        """The workflow and state of one seed, and of one member of a population; by default of the best ones.

        member is of the outermost population; of those within it the best one is taken.
        """
        workflow, state, returns = self.workflow, self.state, self.best_returns
        if self.cfg.num_seeds > 1:
            first = self.cfg.seed
            allowed = f"must be from {first} to {first + self.cfg.num_seeds - 1}"
            require(seed is None or 0 <= seed - first < self.cfg.num_seeds, "seed", seed, allowed)
            index = _best(returns) if seed is None else seed - first
            state, returns = tree.index(state, index), returns[index]
        else:
            require(seed in (None, self.cfg.seed), "seed", seed, f"must be {self.cfg.seed}, the only one of this run")
        while isinstance(workflow, (Population, PBT)):
            population = workflow.population if isinstance(workflow, PBT) else workflow
            allowed = f"must be from 0 to {population.size - 1}"
            require(member is None or 0 <= member < population.size, "member", member, allowed)
            if isinstance(workflow, PBT):  # whose return is one number, that of its fittest member
                index = int(workflow.fittest(state)) if member is None else member
            else:
                index = _best(returns) if member is None else member
                returns = returns[index]
            (workflow, state), member = workflow.member(state, index), None
        if not isinstance(workflow, Acts):
            name = type(workflow).__name__
            raise OptionError(f"agent={self.cfg.agent.name}: {name} keeps no policy; train one with what it has found")
        require(member in (None, 0), "member", member, "this run has one only")
        return workflow, state


def _best(returns: np.ndarray) -> int:
    """The index on the leading axis under which the highest return lies."""
    return int(returns.reshape(len(returns), -1).max(1).argmax())


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
    state = tree.index(parent.state, _best(parent.best_returns)) if parent.cfg.num_seeds > 1 else parent.state
    return tree.broadcast(state, cfg.num_seeds) if cfg.num_seeds > 1 else state


class Policy:
    """What a run has learned: obs, of one or of many environments, [..., *shape] -> action [..., *shape]."""

    def __init__(self, workflow: Acts, state: State) -> None:
        self.env, self.env_params, self.memory = workflow.env, state.env_params, workflow.agent.memory()
        self._modes = {explores: workflow.policy(state, explores) for explores in (False, True)}
        self._act = jax.jit(self._batched, static_argnames="explores")

    def __call__(self, obs: Any, key: Key | None = None) -> Any:
        """The greedy action, or, where a key is given, one that explores."""
        return self._act(obs, jax.random.key(0) if key is None else key, explores=key is not None)

    def act(self, explores: bool = False) -> SlotPolicy:
        """The same for one environment as rollouts take it, (obs, memory, key) -> (action, memory, extras)."""
        return self._modes[explores]

    def _batched(self, obs: Any, key: Key, explores: bool) -> Any:
        space = self.env.observation_space
        given, shapes = [jnp.shape(part) for part in flatten(space, obs)], [leaf.shape for leaf in leaves(space)]
        leading = given[0][: len(given[0]) - len(shapes[0])]
        for shape, wanted in zip(given, shapes, strict=True):
            require(shape == (*leading, *wanted), "obs", list(shape), f"must be {list(wanted)}, or many of them")
        keys = jax.random.split(key, math.prod(leading))
        act = jax.vmap(lambda obs, key: self._modes[explores](obs, self.memory, key)[0])
        rows = jax.tree.map(lambda x: jnp.reshape(x, (-1, *jnp.shape(x)[len(leading) :])), obs)
        return jax.tree.map(lambda x: x.reshape(*leading, *x.shape[1:]), act(rows, keys))


def load(
    run_dir: str | Path,
    member: int | None = None,
    seed: int | None = None,
    which: str = "best",
    trust: Sequence[str] = (),
) -> Policy:
    """The policy of a run directory, at its best evaluation or the `last` step; by default of the best seed and member.

    trust names packages besides evorl whose classes its configuration may use.
    Raises OptionError where run_dir holds no checkpoint, or not that seed or member.
    """
    return Policy(*restored(Path(run_dir), "run", which, trust).one(seed, member))
