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
import jax.numpy as jnp
import numpy as np
from omegaconf import DictConfig

from evorl import hyperparameters, tree
from evorl.envs.spaces import flatten, leaves
from evorl.errors import OptionError, require
from evorl.training import config, display, parts, recorders, saved
from evorl.training.checkpoint import Checkpoints
from evorl.training.discovery import BUDGET
from evorl.training.plan import describe, indexing, require_memory
from evorl.training.program import Program, job
from evorl.training.progress import Budget, Progress
from evorl.training.remembered import Remembered
from evorl.types import Acts, Env, Key, Population, SlotPolicy, State, Workflow
from evorl.workflows.pbt import PBT

COMPILED_IN = "compile_seconds.json"  # by fingerprint
Config: TypeAlias = DictConfig | Mapping[str, Any]  # as it was composed, or as data

WHOLE = {  # numbers, from the least to the most
    "seed": (0, 2**31 - 1),
    "num_seeds": (1, 2**20),
    "evaluations": (1, 2**31 - 1),
    "chunk": (1, 2**20),
    "checkpoint.keep": (1, 2**31 - 1),
}
SWITCHES = ("checkpoint.replay", "tensorboard", "wandb", "dry_run", "deterministic", "debug.nans", "profile")


def build(cfg: Config) -> tuple[Any, Any, Budget]:
    """The workflow, its hyperparameters and the budget that cfg describes; raises OptionError."""
    data = config.plain(cfg) if isinstance(cfg, DictConfig) else cfg
    _check(data)
    budget = Budget(**{name: math.inf if data[name] is None else data[name] for name in BUDGET})
    try:
        return *assemble(data), budget
    except OptionError as error:
        message = str(error)
        for place, given in config.references(cfg.agent, "agent") if isinstance(cfg, DictConfig) else ():
            message = message.replace(place, given)
        raise OptionError(message) from error


def assemble(data: Mapping[str, Any]) -> tuple[Any, Any]:
    """The workflow and its hyperparameters; raises OptionError."""
    hyperparams = parts.make(saved.at(data, "agent.hyperparams"), "agent.hyperparams")
    if not dataclasses.is_dataclass(hyperparams):
        raise OptionError(f"agent.hyperparams={hyperparams}: must be a part with a _target_")
    hyperparameters.check(hyperparams, "agent.hyperparams.")
    env: Any = parts.make(data["env"], "env", Env)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    workflow = parts.make(saved.at(data, "agent.workflow"), "agent.workflow", Workflow, env=env, **spaces)
    return workflow, hyperparams


def plan(cfg: Config, workflow: Any, hyperparams: Any) -> str:
    """What training cfg would be; raises OptionError where it does not fit in memory. Nothing is compiled."""
    program = Program(workflow, range(cfg["seed"], cfg["seed"] + cfg["num_seeds"]), 1, False)
    with indexing():
        shapes = jax.eval_shape(program.init, program.keys, hyperparams)
        jax.eval_shape(program.run, shapes, program.keys, *job(0, 0, False))
    described = describe(workflow, shapes, cfg["num_seeds"])
    require_memory(shapes)
    return described


def _check(data: Mapping[str, Any]) -> None:
    """Raises OptionError where an option of the training itself is missing, not of its type or out of its range."""
    for name in (*WHOLE, *SWITCHES, *BUDGET, "checkpoint.minutes"):
        if saved.at(data, name) == "???":
            raise OptionError(f"{name}: must be given")
    for name, (least, most) in WHOLE.items():
        value = saved.at(data, name)
        if name != "chunk" or value is not None:
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= least, name, value, f"must be a whole number, at least {least}")
            require(value <= most, name, value, f"must be at most {most}")
    for name in SWITCHES:
        value = saved.at(data, name)
        require(isinstance(value, bool), name, value, "must be true or false")
    share = saved.at(data, "evaluation_share")
    number = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 < share <= 1
    require(number, "evaluation_share", share, "must be a number above 0, at most 1")
    for name in (*BUDGET, "checkpoint.minutes"):
        value = saved.at(data, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        require(number or (value is None and "." not in name), name, value, "must be a number above 0")
    if data["wandb"]:
        recorders.require_wandb()


def resumed(
    cfg: DictConfig, overrides: Sequence[str], changeable: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration saved in cfg.resume with the overrides: all that it takes to go on, and what is to be kept."""
    given = {}
    for one in config.parsed(overrides):
        if one.is_delete():
            raise OptionError(f"{one.input_line}: a run keeps its configuration")
        given[one.key_or_group] = one.value()
    now = config.plain(cfg)
    for name in ("resume", "trust"):
        given.pop(name, None)
    kept = saved.read(Path(cfg.resume), "resume", saved.trusted(now["trust"]))
    kept |= {name: now[name] for name in changeable if name not in kept}
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


def left(checkpoints: Checkpoints, run_dir: Path) -> str:
    """What is left of a run that has diverged."""
    if checkpoints.latest is None:
        return "it had no checkpoint yet"
    return f"its last checkpoint is of iteration {checkpoints.latest}: init_from={run_dir} begins with its best policy"


def fingerprint(data: Mapping[str, Any]) -> str:
    """What trainings that compile to the same program have in common."""
    parts = json.dumps([data["agent"], data["env"], data["num_seeds"]], sort_keys=True, default=str)
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


@contextmanager
def recording(data: Mapping[str, Any], run_dir: Path) -> Iterator[list[recorders.Recorder]]:
    """The recorders of a run, closed at the end."""
    seed, count = data["seed"], data["num_seeds"]
    title = f"{data['agent']['name']} on {config.label(data['env'])}, {count} seed{'s' * (count > 1)}, {run_dir}"
    with ExitStack() as stack:
        last = Remembered(COMPILED_IN).get(fingerprint(data))
        shown = display.Panel(title, compiled_in=last) if sys.stdout.isatty() else display.Lines(compiled_in=last)
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

    def one(self, seed: int | None, member: int | None) -> tuple[Acts, State]:
        """The workflow and state of one seed, and of one member of a population; by default of the best ones.

        member is of the outermost population; of those within it the best one is taken.
        """
        workflow, state, returns = self.workflow, self.state, self.best_returns
        if self.cfg["num_seeds"] > 1:
            first = self.cfg["seed"]
            allowed = f"must be from {first} to {first + self.cfg['num_seeds'] - 1}"
            require(seed is None or 0 <= seed - first < self.cfg["num_seeds"], "seed", seed, allowed)
            index = _best(returns) if seed is None else seed - first
            state, returns = tree.index(state, index), returns[index]
        else:
            only = self.cfg["seed"]
            require(seed in (None, only), "seed", seed, f"must be {only}, the only one of this run")
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
            agent, name = self.cfg["agent"]["name"], type(workflow).__name__
            raise OptionError(f"agent={agent}: {name} keeps no policy; train one with what it has found")
        require(member in (None, 0), "member", member, "this run has one only")
        return workflow, state


def _best(returns: np.ndarray) -> int:
    """The index on the leading axis under which the highest return lies."""
    return int(returns.reshape(len(returns), -1).max(1).argmax())


def restored(
    run_dir: Path, option: str, which: str, trust: Sequence[str] = (), given: Mapping[str, Any] | None = None
) -> Restored:
    """What the newest checkpoint of a run holds; raises OptionError where there is none."""
    require(which in ("best", "last"), "which", which, "must be best or last")
    data = saved.given(saved.read(run_dir, option, trust), given or {})
    checkpoints = saved_checkpoints(run_dir, option)
    seeds = data["num_seeds"]
    workflow, hyperparams = assemble(data)
    program = Program(workflow, range(seeds), 1, False)
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
    state = tree.index(parent.state, _best(parent.best_returns)) if parent.cfg["num_seeds"] > 1 else parent.state
    return tree.broadcast(state, seeds) if seeds > 1 else state


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
    given: Mapping[str, Any] | None = None,
) -> Policy:
    """The policy of a run directory, at its best evaluation or the `last` step; by default of the best seed and member.

    trust names packages besides evorl whose classes its configuration may use; given has, by dotted name, what
    environment variables gave when it was trained, which is not saved.
    Raises OptionError where run_dir holds no checkpoint, or not that seed or member.
    """
    return Policy(*restored(Path(run_dir), "run", which, trust, given).one(seed, member))
