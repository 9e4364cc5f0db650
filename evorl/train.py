"""python -m evorl.train agent=cemrl env=ant: trains a configuration into a new run directory."""

import contextlib
import ctypes
import datetime
import io
import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, NoReturn

from evorl.command import command
from evorl.errors import DivergedError, OptionError, refuse
from evorl.training import discovery

STARTED = [time.perf_counter()]  # of the process, which the first training in it takes for its own
RUNS = Path("runs")  # where run directories go that are not named
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
BUDGET = ("env_steps", "episodes", "iterations", "minutes")
SWITCHES = ("tensorboard", "wandb", "debug", "dry_run", "profile")
OF_THE_RUN = (*BUDGET, *SWITCHES, "evaluations", "checkpoint")  # a resumed run may change these


def main(arguments: list[str] | None = None) -> None:
    """The command line; a mistake prints one line and exits with code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _keep_memory_together()
    with command():
        if {"-h", "--help"} & set(arguments):
            print(discovery.HELP)
        elif "--list" in arguments:
            print(discovery.listing())
        else:
            discovery.check_choices(arguments)
            _main(arguments)


def _main(arguments: list[str]) -> None:
    import hydra
    from hydra._internal.utils import get_args_parser

    from evorl.training import config, multirun

    def run(arguments: list[str]) -> None:
        sys.argv[1:] = discovery.placed(arguments)
        shown = io.StringIO()  # as Hydra answers a reader that has gone with a traceback
        with contextlib.redirect_stdout(shown) if parsed.cfg or parsed.info else contextlib.nullcontext():
            hydra.main(config_path=None, config_name="config", version_base="1.3")(_job)()
        print(shown.getvalue(), end="")

    parser: Any = get_args_parser()
    parser.error = _unusable
    parsed = parser.parse_args(arguments)
    jobs = list(config.sweep(parsed.overrides)) if parsed.multirun else [parsed.overrides]
    cfgs = [] if parsed.shell_completion else [config.load(job) for job in jobs]  # finds a mistake in the last one too
    if not parsed.multirun or parsed.shell_completion:
        run(arguments)
        return
    flags = [one for one in arguments if one not in (*parsed.overrides, "-m", "--multirun")]
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    multirun.run(jobs, cfgs, RUNS / f"{now}-{os.getpid()}", lambda job: run([*flags, *job]))


def _keep_memory_together() -> None:
    """One heap for all threads to come, where there is glibc: with one for each, every checkpoint leaves holes."""
    arena_max = -8  # M_ARENA_MAX of malloc.h
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(arena_max, 1)


def _unusable(message: str) -> NoReturn:
    raise OptionError(f"{message}; python -m evorl.train --help")


def _job(cfg: Any) -> None:
    try:
        result = train(cfg)
    except OptionError as error:
        refuse(error)
    except (DivergedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if result is not None and result.stopped:
        sys.exit(130)


def train(cfg: Any) -> Any:
    """Trains what cfg describes in a new run directory, or goes on in the directory cfg.resume; returns a Training.

    Where cfg.dry_run, prints what the training would be and returns None. Raises OptionError, DivergedError, OSError.
    """
    from evorl.training import runs
    from evorl.training.plan import shapes

    if cfg.resume:
        cfg = runs.resumed(cfg, OF_THE_RUN)
    flags = os.environ.get("XLA_FLAGS", "")
    if cfg.deterministic is True and DETERMINISTIC not in flags:  # which the backend reads when it starts
        os.environ["XLA_FLAGS"] = f"{flags} {DETERMINISTIC}".strip()
    parts = runs.build(cfg)
    if cfg.dry_run:
        print(runs.plan(cfg, *parts[:2]))
        return None
    if cfg.resume:
        return _train(cfg, Path(cfg.resume), *parts)
    shapes(*parts[:2], cfg.num_seeds)  # what a part lacks is found before there is a folder
    run_dir = _new_run_dir(cfg)
    try:
        return _train(cfg, run_dir, *parts)
    except (OptionError, KeyboardInterrupt):  # while compiling: nothing has run yet
        shutil.rmtree(run_dir)
        if not cfg.run_dir and not any(RUNS.iterdir()):
            RUNS.rmdir()
        raise


def _train(cfg: Any, run_dir: Path, workflow: Any, hyperparams: Any, budget: Any) -> Any:
    from evorl.training import runs
    from evorl.training.checkpoint import Checkpoints
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.fit import fit
    from evorl.training.profile import Profile
    from evorl.types import Acts, Population

    for library in ("absl", "asyncio"):  # orbax tells of what it does there, and of what it raises too
        logging.getLogger(library).setLevel(logging.CRITICAL)
    sys.unraisablehook = _of_main_thread
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    enable_compilation_cache()
    say = lambda line: print(line, flush=True)  # noqa: E731
    checkpoints = Checkpoints(run_dir / "checkpoints", **cfg.checkpoint, report=say)
    runs.save_config(cfg, run_dir)
    parent = runs.parent_state(cfg) if cfg.init_from and not cfg.resume else None
    profile = Profile(run_dir / "profile") if cfg.profile else None
    say(f"{run_dir}: compiling")
    go_on = f"python -m evorl.train resume={run_dir}"
    try:
        with runs.recording(cfg, run_dir) as recorders, Stopping() as stopping:
            result = fit(
                workflow,
                hyperparams,
                cfg.seed,
                budget,
                recorders,
                num_seeds=cfg.num_seeds,
                evaluations=cfg.evaluations,
                chunk=cfg.chunk or cfg.agent.chunk,
                checkpoints=checkpoints,
                init_from=parent,
                started=STARTED.pop() if STARTED and not cfg.resume else None,
                stop=stopping,
                profile=profile,
                debug_nans=cfg.debug.nans,
                keep_rows=False,
            )
            checkpoints.close()
    except (DivergedError, OSError) as error:
        with contextlib.suppress(OSError):
            checkpoints.close()
        saved = runs.left(checkpoints, run_dir) if isinstance(error, DivergedError) else f"go on with: {go_on}"
        raise type(error)(f"{error}; {saved}") from error
    if profile is not None and result.rows:
        say(profile.table(result.rows[-1]))
    if result.stopped:
        say(f"stopped and saved; go on with: {go_on}")
    else:
        seen = f"; see it with: python -m evorl.play {run_dir}" if isinstance(workflow, (Acts, Population)) else ""
        say(f"done{seen}")
        say(f"go on with: {go_on} and a larger budget")
    return result


def _of_main_thread(unraisable: Any) -> None:
    """Says nothing of a failed save's parts, which tensorstore's own threads raise; the save itself has raised too."""
    if threading.current_thread() is threading.main_thread():
        sys.__unraisablehook__(unraisable)


class Stopping:
    """Whether a first SIGINT or SIGTERM has come, so that a training saves and ends; a second ends it at once."""

    def __enter__(self) -> "Stopping":
        self._asked = False
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __call__(self) -> bool:
        return self._asked

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: Any) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        print("stopping after this chunk; once more to stop without saving", file=sys.stderr, flush=True)


def _new_run_dir(cfg: Any) -> Path:
    from evorl.training import config

    if cfg.run_dir:
        run_dir = Path(cfg.run_dir)
        if run_dir.exists():
            raise OptionError(f"run_dir={run_dir}: exists already; resume={run_dir} goes on with it")
    else:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        run_dir = RUNS / f"{cfg.agent.name}-{config.label(cfg.env)}-{now}-{os.getpid()}"
    try:
        run_dir.mkdir(parents=True)
    except OSError as error:
        raise OptionError(f"run_dir={run_dir}: cannot be made: {error.strerror}") from error
    return run_dir


if __name__ == "__main__":
    main()
