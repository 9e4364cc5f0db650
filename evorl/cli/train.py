"""Command `python -m evorl.train agent=cemrl env=ant`, which trains a configuration in a new run directory."""

import contextlib
import ctypes
import datetime
import gc
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from evorl import package
from evorl.command import command, redirect_text, resume_folders, wants_help
from evorl.errors import DivergedError, HostError, OptionError, exit_with_error, require, unknown_name_error
from evorl.training.configuration import discovery
from evorl.training.stopping import StopHandler

PROCESS_START_TIMES = [time.perf_counter()]  # start of the process, which counts as the start of its first training
GARBAGE_THRESHOLD = 50_000  # objects between garbage collections; with Python's 700, they take a tenth of the startup
SWITCHES = ("tensorboard", "wandb", "debug", "dry_run", "profile", "quiet", "json")
RESUMABLE_OPTIONS = (
    *discovery.BUDGET_OPTIONS,
    *SWITCHES,
    "devices",
    "distributed",
    "evaluations",
    "evaluation_share",
    "checkpoint",
)  # options that may change when a run is resumed
RESERVED_HYDRA_OPTIONS = (
    "hydra.run",
    "hydra.job",
    "hydra.output_subdir",
    "hydra.mode",
)  # Hydra options that evorl sets itself


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    _use_single_malloc_arena()
    gc.set_threshold(GARBAGE_THRESHOLD)
    with command(arguments) as given:
        if not given or wants_help(given):
            print(discovery.HELP)
        elif "--list" in given:
            suites = [one.removeprefix("env=") for one in given if one.startswith("env=")]
            print("\n".join(map(list_suite_envs, suites)) if suites else discovery.format_choices())
        else:
            words = [_quote_processes(one) for one in resume_folders(given)]
            discovery.check_choices(words)
            _main(words)


def list_suite_envs(suite: str) -> str:
    """Return the environments of a suite as text; raise OptionError if the suite is unknown or not installed."""
    choice = (envs := discovery.find_choices("env")).get(suite)
    if choice is None or not choice.is_suite:
        suites = [name for name, one in envs.items() if one.is_suite]
        raise unknown_name_error("suite", suite, suites, "python -m evorl.train --list")
    from evorl.training.configuration.targets import import_target

    target = choice.read()["_target_"]
    return "\n".join(f"env={suite}/{name}" for name in import_target(target).names())


def _main(arguments: list[str]) -> None:
    import hydra

    from evorl.training.configuration import config
    from evorl.training.configuration.hydra_internals import get_args_parser

    def run(arguments: list[str], of_run: Sequence[str] = (), sections: Sequence[str] = ()) -> None:
        sys.argv[1:] = discovery.to_hydra_overrides(arguments)
        shown = io.StringIO()  # otherwise, Hydra prints a traceback if the reader of the output has exited
        with contextlib.redirect_stdout(shown) if parsed.cfg or parsed.info else contextlib.nullcontext():
            job = hydra.main(config_path=None, config_name="config", version_base="1.3")
            job(lambda cfg: _run_job(cfg, of_run, sections))()
        print(shown.getvalue(), end="")

    parser: Any = get_args_parser()
    parser.error = _raise_usage_error
    parsed = parser.parse_args(arguments)
    for one in parsed.overrides:
        if one.lstrip("+~").startswith(RESERVED_HYDRA_OPTIONS):
            raise OptionError(f"{one}: is set by evorl; use run_dir= for the output folder")
    if not parsed.multirun:
        for one in config.parse_overrides(parsed.overrides):
            if one.is_sweep_override():
                raise OptionError(f"{one.input_line}: several values need a multirun: python -m evorl.train -m")
    jobs = list(config.expand_sweep(parsed.overrides)) if parsed.multirun else [parsed.overrides]
    if parsed.shell_completion:
        run(arguments)
        return
    if parsed.multirun and any(one.startswith("init_from=") for one in parsed.overrides):
        raise OptionError("-m: does not take init_from=; start one training for each run, without -m")
    if not parsed.multirun and any(one.startswith(("resume=", "init_from=")) for one in parsed.overrides):
        from evorl.training import continuation

        composed, of_run, sections = continuation.split_overrides(parsed.overrides)
        composed = config.compose_expanded(composed)[1]  # finds user errors early
        run([*(one for one in arguments if one not in parsed.overrides), *composed], of_run, sections)
        return
    composed = [config.compose_expanded(job) for job in jobs]  # finds user errors in all jobs at the start
    cfgs, jobs = [cfg for cfg, _ in composed], [job for _, job in composed]
    if not parsed.multirun:
        named = dict(zip(parsed.overrides, jobs[0], strict=True))
        run([named.get(one, one) for one in arguments])
        return
    from evorl.training import processes
    from evorl.training.configuration import multirun
    from evorl.training.records.run_dirs import RUNS_FOLDER

    flags = [one for one in arguments if one not in (*parsed.overrides, "-m", "--multirun")]
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    if any(processes.needs_several(str(config.to_plain_data(cfg)["distributed"])) for cfg in cfgs):
        raise OptionError("-m: trains in one process; start one training in several processes, or use distributed=off")
    fixed = {(cfg.devices, cfg.deterministic) if not cfg.resume else str(cfg.resume) for cfg in cfgs}
    apart = len(fixed) > 1
    start = multirun.run_in_process if apart else run  # JAX reads these options once in a process

    def tell(table: str) -> None:
        with _redirect_text(cfgs[0]):
            print(table, flush=True)

    multirun.run_jobs(jobs, cfgs, RUNS_FOLDER / f"{now}-{os.getpid()}", lambda job: start([*flags, *job]), tell)


def _quote_processes(argument: str) -> str:
    """Quote the value of distributed=ADDRESS,COUNT,ID, whose commas would separate values of a multirun."""
    name, _, value = argument.partition("=")
    return f"{name}='{value}'" if name == "distributed" and "," in value and "'" not in value else argument


def _use_single_malloc_arena() -> None:
    """Use one malloc arena for all threads with glibc, since otherwise every checkpoint fragments memory."""
    arena_max = -8  # M_ARENA_MAX of malloc.h
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(arena_max, 1)


def _raise_usage_error(message: str) -> NoReturn:
    raise OptionError(f"{message}; options are name=value, such as seed=1; python -m evorl.train --help")


def _redirect_text(cfg: Any) -> contextlib.AbstractContextManager[TextIO | None]:
    from evorl.training.configuration import config, options

    data = config.to_plain_data(cfg)
    return redirect_text(*(options.require_boolean(data, name) for name in ("quiet", "json")))


def _run_job(cfg: Any, of_run: Sequence[str], sections: Sequence[str]) -> None:
    from evorl.training import processes
    from evorl.training.configuration import config

    try:
        distributed = str(config.to_plain_data(cfg)["distributed"])
        with processes.session(distributed), _redirect_text(cfg) as out, processes.only_first_prints():
            result = train(cfg, of_run, sections, out)
    except OptionError as error:
        if not processes.is_first():
            sys.exit(2)  # the first process prints it, or its watcher does
        exit_with_error(error)
    except (DivergedError, HostError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if result is not None and result.stopped:
        sys.exit(130)


def train(cfg: Any, of_run: Sequence[str] = (), sections: Sequence[str] = (), out: TextIO | None = None) -> Any:
    """Train a configuration in a new run directory, or resume the run in cfg.resume.

    If cfg.dry_run is set, only a description of the training is printed.

    Args:
        cfg: Configuration.
        of_run: Overrides of the agent and the environment of the run in cfg.resume or cfg.init_from.
        sections: Sections that are taken from the configuration of the run in cfg.init_from, such as "agent".
        out: Stream for rows and the result as lines of JSON; None for none.

    Returns:
        A TrainingResult; None for a dry run.

    Raises:
        OptionError: If an option is invalid.
        DivergedError: If the training diverges.
        HostError: If an environment on the host fails.
        OSError: If a file cannot be written.
        KeyboardInterrupt: If a signal ends the training without saving.
    """
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from evorl.training import continuation, processes, runs
    from evorl.training.configuration import config_file
    from evorl.training.devices import set_deterministic_ops
    from evorl.training.records import files, run_dirs
    from evorl.training.suites.mazes import make_suite_measure

    if cfg.resume:
        given: Any = OmegaConf.to_container(HydraConfig.get().overrides.task)  # unresolved: it may contain ${...}
        data, kept, numbers = continuation.load_resumed_config(cfg, given, RESUMABLE_OPTIONS, of_run)
    else:
        (data, kept), numbers = continuation.inherit_config(cfg, sections, of_run), {}
    data, kept = ({**one, "distributed": processes.AUTO} for one in (data, kept))  # it is of this process alone
    processes.require_same_options(data)
    if data["deterministic"] is True:
        set_deterministic_ops()
    workflow, budget = runs.build(data if cfg.resume or sections else cfg)
    measure = make_suite_measure(data.get("suite"), workflow)
    if data["dry_run"]:
        print(runs.describe_dry_run(data, workflow, budget))
        return None
    with StopHandler() as stopping:
        run_dir = Path(processes.on_first(lambda: str(cfg.resume or run_dirs.create_run_dir(data))))
        try:
            with contextlib.ExitStack() as stack:

                def open_run_dir() -> None:
                    stack.enter_context(files.lock_run_dir(run_dir, "resume" if cfg.resume else "run_dir"))
                    rollback = config_file.write_with_rollback(kept, run_dir, lambda: stopping.has_started)
                    stack.enter_context(rollback)

                processes.on_first(open_run_dir)
                return _train(data, run_dir, (workflow, budget, measure), numbers, stopping, out)
        except (OptionError, KeyboardInterrupt):
            if not cfg.resume and not stopping.has_started and processes.is_first():
                run_dirs.remove_run_dir(run_dir)
            raise


def _train(
    data: Mapping[str, Any],
    run_dir: Path,
    built: tuple[Any, Any, Any],
    numbers: Mapping[str, float],
    stopping: StopHandler,
    out: TextIO | None,
) -> Any:
    from evorl.training import pareto_front, processes, runs
    from evorl.training.configuration import trust_check
    from evorl.training.device_mesh import describe_mesh
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.dry_run import find_unmet_limits
    from evorl.training.host_envs import find_host_envs
    from evorl.training.profile import Profile
    from evorl.training.records.checkpoint import Checkpoints
    from evorl.training.records.json_cache import JsonCache
    from evorl.training.records.recorders import JsonStream
    from evorl.training.summary import describe_checkpoint, make_result_row, summarize_training

    workflow, budget, measure = built
    for library in ("absl", "asyncio"):  # orbax logs its progress there, and also what it raises
        logging.getLogger(library).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")
    enable_compilation_cache()
    say = lambda line: print(line, flush=True)  # noqa: E731
    checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"], report=say)
    if data["resume"] and not checkpoints.latest_iteration:
        begun = checkpoints.latest_iteration == 0  # its checkpoint has the weights, and the replay buffer by default
        for name, is_kept in (("init_from", begun), ("preload", begun and data["checkpoint"]["replay"])):
            lost = f"no checkpoint of {run_dir} has it; start the run again"
            require(is_kept or not data.get(name), name, data.get(name), lost)
    parent = runs.restore_parent_state(data) if data["init_from"] and not data["resume"] else None
    demonstrations = runs.read_preload(data) if data.get("preload") and not data["resume"] else None
    profile = Profile(run_dir / "profile") if data["profile"] else None
    rows_out = [] if out is None or not processes.is_first() else [JsonStream(out)]
    say(f"{run_dir}: starting")
    notes = find_unmet_limits(workflow, budget, runs.get_chunk_size(data))
    for line in [*describe_mesh(workflow, data["num_seeds"], data["devices"]), *notes]:
        say(line)
    if data["resume"] and find_host_envs(workflow):
        say("the host environments start new episodes")
    go_on = package.format_command("train", f"resume={run_dir}", trust=trust_check.find_trust_packages(data))
    processes.advise(f"resume: {go_on}")
    try:
        opened = runs.open_run_recorders(data, run_dir, profile)
        with opened if processes.is_first() else contextlib.nullcontext([]) as recorders:
            result = runs.fit_configuration(
                data,
                workflow,
                budget,
                [*recorders, *rows_out],
                checkpoints=checkpoints,
                init_from=parent,
                demonstrations=demonstrations,
                new_numbers=numbers,
                started=PROCESS_START_TIMES.pop() if PROCESS_START_TIMES and not data["resume"] else None,
                stop=stopping,
                profile=profile,
                debug_nans=data["debug"]["nans"],
                measure=measure,
            )
            checkpoints.close()
    except (DivergedError, HostError, OSError) as error:
        with contextlib.suppress(OSError):
            checkpoints.close()
        left = f"resume: {go_on}"
        if isinstance(error, DivergedError):
            left = describe_checkpoint(checkpoints, run_dir, trust_check.find_trust_packages(data))
        raise type(error)(f"{error}; {left}") from error
    except KeyboardInterrupt as interrupt:
        message = (
            f"stopped without saving; resume: {go_on}" if stopping.has_started else "stopped before training began"
        )
        raise KeyboardInterrupt(message) from interrupt
    if not data["resume"] and processes.is_first():
        JsonCache(runs.COMPILE_SECONDS_FILE).put(runs.fingerprint_program(data), result.progress.compile_seconds)
    for stream in rows_out:
        stream(make_result_row(result.progress, run_dir, result.stopped))
    if profile is not None and result.rows:
        say(profile.format_table(result.rows[-1]))
    if result.stopped:
        say(f"stopped and saved; resume: {go_on}")
        return result
    found = pareto_front.describe_fronts(workflow, result.state, data["num_seeds"])
    for line in summarize_training(workflow, data, result.progress, budget, run_dir, go_on, found):
        say(line)
    return result
