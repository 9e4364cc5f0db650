"""python -m evorl.train agent=cemrl env=ant: trains a configuration into a new run directory."""

import datetime
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from evorl.errors import OptionError
from evorl.training import config

STARTED = time.perf_counter()
BUDGET = ("env_steps", "episodes", "iterations", "minutes")


def main() -> None:
    """The command line; a mistake prints one line and exits with code 2."""
    arguments = get_args_parser().parse_args()
    try:
        for job in config.sweep(arguments.overrides) if arguments.multirun else [arguments.overrides]:
            config.load(job)
    except OptionError as error:
        _refuse(error)
    hydra.main(config_path=None, config_name="config", version_base="1.3")(_job)()


def _job(cfg: DictConfig) -> None:
    try:
        train(cfg)
    except OptionError as error:
        _refuse(error)


def _refuse(error: OptionError) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def train(cfg: DictConfig) -> Any:
    """Trains what cfg describes in a new run directory, or goes on in the directory cfg.resume; returns a Training."""
    if cfg.resume:
        cfg = _resumed(cfg)
        return _train(cfg, Path(cfg.resume), *build(cfg))
    parts = build(cfg)
    run_dir = _new_run_dir(cfg)
    try:
        return _train(cfg, run_dir, *parts)
    except OptionError:  # found while tracing: nothing has run yet
        shutil.rmtree(run_dir)
        raise


def _train(cfg: DictConfig, run_dir: Path, workflow: Any, hyperparams: Any, budget: Any) -> Any:
    OmegaConf.save(OmegaConf.merge(cfg, {"resume": None, "run_dir": None}), run_dir / "config.yaml")

    from evorl.training import fit as training
    from evorl.training.checkpoint import Checkpoints
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.recorders import Console, JsonLines, forget_after

    enable_compilation_cache()
    checkpoints = Checkpoints(run_dir / "checkpoints", cfg.checkpoint_minutes)
    metrics = run_dir / "metrics.jsonl"
    if cfg.resume:
        if checkpoints.latest is None:
            raise OptionError(f"resume={cfg.resume}: holds no checkpoint")
        forget_after(metrics, checkpoints.latest)
    print(f"{run_dir}: compiling", flush=True)
    result = training.fit(
        workflow,
        hyperparams,
        cfg.seed,
        budget,
        [Console(), JsonLines(metrics)],
        num_seeds=cfg.num_seeds,
        evaluations=cfg.evaluations,
        chunk=cfg.chunk or cfg.agent.chunk,
        checkpoints=checkpoints,
        started=None if cfg.resume else STARTED,
    )
    checkpoints.close()
    print(f"done; go on with: python -m evorl.train resume={run_dir} and a larger budget", flush=True)
    return result


def build(cfg: DictConfig) -> tuple[Any, Any, Any]:
    """The workflow, its hyperparameters and the budget that cfg describes; raises OptionError."""
    from evorl import hyperparameters
    from evorl.training.fit import Budget

    limits = {name: math.inf if cfg[name] is None else cfg[name] for name in BUDGET}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)):
            raise OptionError(f"{name}={limit}: must be a number")
    for name in ("seed", "num_seeds", "evaluations"):
        if isinstance(cfg[name], bool) or not isinstance(cfg[name], int) or cfg[name] < (0 if name == "seed" else 1):
            raise OptionError(f"{name}={cfg[name]}: must be a whole number, at least {0 if name == 'seed' else 1}")
    budget = Budget(**limits)
    hyperparams = config.make(cfg.agent.hyperparams, "agent.hyperparams")
    hyperparameters.check(hyperparams, "agent.hyperparams.")
    env = config.make(cfg.env, "env")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return config.make(cfg.agent.workflow, "agent.workflow", env=env, **spaces), hyperparams, budget


def _new_run_dir(cfg: DictConfig) -> Path:
    if cfg.run_dir:
        run_dir = Path(cfg.run_dir)
        if run_dir.exists():
            raise OptionError(f"run_dir={run_dir}: exists already; resume={run_dir} goes on with it")
    else:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
        run_dir = Path("runs") / f"{cfg.agent.name}-{cfg.env.name}-{now}-{os.getpid()}"
    run_dir.mkdir(parents=True)
    return run_dir


def _resumed(cfg: DictConfig) -> DictConfig:
    """The configuration saved in cfg.resume with this command line's other options in place of its own."""
    path = Path(cfg.resume) / "config.yaml"
    if not path.is_file():
        raise OptionError(f"resume={cfg.resume}: is not a run directory, it has no config.yaml")
    saved = OmegaConf.load(path)
    OmegaConf.set_struct(saved, True)
    given = [line for line in HydraConfig.get().overrides.task if line[:7] != "resume="]
    for line in given:
        name = line.split("=")[0]
        if name not in (*BUDGET, "evaluations", "checkpoint_minutes"):
            raise OptionError(f"{line}: a resumed run keeps its configuration; only its budget may change")
    merged = OmegaConf.merge(saved, OmegaConf.from_dotlist(given), {"resume": cfg.resume})
    assert isinstance(merged, DictConfig)
    return merged


if __name__ == "__main__":
    main()
