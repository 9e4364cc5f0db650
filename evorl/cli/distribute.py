"""Command `python -m evorl.distribute agent=psro env=leduc workers=2`, which trains with worker processes."""

import datetime
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evorl import package
from evorl.command import command, resume_folders, wants_help
from evorl.errors import DivergedError, OptionError, WorkerError, require, unknown_name_error

HELP = """usage: python -m evorl.distribute agent=psro [option of evorl.train ...] [option=value ...]
       python -m evorl.distribute agent=ppo [option of evorl.train ...] [option=value ...]
       python -m evorl.distribute agent=openes [option of evorl.train ...] [option=value ...]
       python -m evorl.distribute RUN [iterations=N] [option=value ...]
       python -m evorl.distribute -m seed=0,1,2 [option of evorl.train ...] [option=value ...]

  python -m evorl.distribute agent=psro_exact env=leduc iterations=20 workers=2   tasks: best responses and payoffs
  python -m evorl.distribute agent=impala env=cartpole iterations=50 workers=2    tasks: rollouts (PPO, A2C, IMPALA)

  python -m evorl.distribute agent=openes env=gymnasium/CartPole-v1 iterations=50 workers=2    tasks: fitness
  python -m evorl.distribute agent=pbt env=gymnasium/CartPole-v1 iterations=20 workers=2       tasks: members
  python -m evorl.distribute -m agent=ppo,dqn env=gymnasium/CartPole-v1 seed=0,1,2 workers=3   whole trainings

  executor=ray        ray: worker processes of Ray (pip install "ray>=2.60"); serial: this process
  workers=2           number of worker processes
  cpus_per_worker=1   CPUs per worker, and its number of threads (at least one); with 0.5, two workers share a CPU
  gpus_per_worker=0   GPUs per worker; with 0.5, two workers share a GPU and its memory
  address=            address of a Ray cluster; by default Ray runs on this machine only, closed to the network
  staleness=0         PSRO: maximum number of policies per player that may be missing in the payoffs when best
                      responses start
  parts=              rollouts, populations: number of parts into which the environments or the population are split,
                      which affects the results; by default one per worker. agent.workflow.staleness limits how
                      many iterations rollouts are ahead

resume=RUN continues a run that was stopped or killed. Results of PSRO tasks are saved at once, and the learner of a
training from rollouts is saved every checkpoint.minutes."""

EXECUTORS = "ray", "serial"
DEFAULT_OPTIONS: dict[str, Any] = {"executor": "ray", "workers": 2, "cpus_per_worker": 1.0, "address": None}
DEFAULT_OPTIONS["gpus_per_worker"] = 0.0
PSRO_OPTIONS, PART_OPTIONS = ("staleness",), ("parts",)
BUDGET = "iterations", "env_steps"
RESUME_OPTIONS = "resume", "trust", *BUDGET
SINGLE_PROGRAM_OPTIONS = (
    *("episodes", "minutes", "num_seeds", "devices", "suite", "eval_env", "profile", "debug"),
    *("init_from", "preload", "dry_run", "deterministic", "precision", "quiet", "json"),
)
NON_PSRO_OPTIONS = "env_steps", "chunk"  # each iteration writes a row


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as given:
        if not given or wants_help(given):
            print(HELP)
            return
        try:
            if set(given) & {"-m", "--multirun"}:
                distribute_trainings([one for one in given if one not in ("-m", "--multirun")])
            else:
                distribute(resume_folders(given))
        except (WorkerError, DivergedError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)


def distribute(given: Sequence[str]) -> None:
    """Train in a new run directory, or resume a run.

    Raises:
        OptionError: If an option is invalid.
        WorkerError: If worker processes fail.
        DivergedError: If the training diverges.
        OSError: If a file cannot be written.
    """
    from evorl.training.configuration import config

    options, rest = dict(DEFAULT_OPTIONS), []
    for one in config.parse_overrides(given):
        if one.key_or_group in (*DEFAULT_OPTIONS, *PSRO_OPTIONS, *PART_OPTIONS, *RESUME_OPTIONS):
            options[one.key_or_group] = one.value()
        else:
            rest.append(str(one.input_line))
    os.environ["PJRT_NPROC"] = str(max(1, int(_require_number(options, "cpus_per_worker", float))))  # before JAX starts
    if options["executor"] == "serial":
        _train(options, rest)
        return
    if options["executor"] != "ray":
        raise unknown_name_error("executor", str(options["executor"]), EXECUTORS)
    workers = _build_executor(options)
    with workers.connect_to_ray():  # before JAX starts threads, since a process with threads should not fork
        _train(options, rest, workers)


def distribute_trainings(given: Sequence[str]) -> None:
    """Run the trainings of a multirun, each in a process of its own that Ray places; print their table.

    Raises:
        OptionError: If an option is invalid.
        SystemExit: With the first exit code that is not 0, or 130 if a signal has stopped the trainings.
    """
    from evorl.training.configuration import config, multirun, trust_check
    from evorl.training.records.run_dirs import RUNS_FOLDER

    overrides = config.parse_overrides(given)
    options = DEFAULT_OPTIONS | {
        one.key_or_group: one.value() for one in overrides if one.key_or_group in DEFAULT_OPTIONS
    }
    only = f"must be ray; python -m evorl.train -m {' '.join(given)} trains in this process"
    require(options["executor"] == "ray", "executor", options["executor"], only)
    for one in given:
        if one.startswith(("resume=", "init_from=")):
            raise OptionError(f"{one}: is not supported with -m")
    rest = [str(one.input_line) for one in overrides if one.key_or_group not in DEFAULT_OPTIONS]
    composed = [config.compose_expanded(job) for job in config.expand_sweep(rest)]  # finds user errors at the start
    cfgs, words = [cfg for cfg, _ in composed], [job for _, job in composed]
    executor = _build_executor(options)
    from evorl.distributed.jobs import Job, run_jobs
    from evorl.distributed.process_pool import RayProcessPool

    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    with executor.connect_to_ray() as ray:
        folders = multirun.choose_folders(words, cfgs, RUNS_FOLDER / f"{now}-{os.getpid()}")
        packages = [trust_check.find_trust_packages(config.to_plain_data(cfg)) for cfg in cfgs]
        jobs = [Job(*each) for each in zip(words, folders, packages, strict=True)]
        stopped = run_jobs(jobs, RayProcessPool(ray, executor), executor.workers, lambda line: print(line, flush=True))
    codes = [multirun.STOP_CODE if job.code is None else job.code for job in jobs]
    print(multirun.format_run_table(words, folders, codes), flush=True)
    sys.exit(multirun.STOP_CODE if stopped else next(filter(None, codes), 0))


def _build_executor(options: dict[str, Any]) -> Any:
    from evorl.distributed.ray_executor import RayExecutor

    cpus, gpus = (_require_number(options, name, float) for name in ("cpus_per_worker", "gpus_per_worker"))
    return RayExecutor(_require_number(options, "workers", int), cpus, options["address"], gpus)


def _require_number(options: dict[str, Any], name: str, kind: type) -> Any:
    value = options[name]
    right = isinstance(value, (int, kind)) and not isinstance(value, bool)
    require(right, name, value, f"must be a {'whole ' * (kind is int)}number")
    return value


def _train(options: dict[str, Any], rest: Sequence[str], executor: Any = None) -> None:
    from evorl.distributed.executors import SerialExecutor
    from evorl.distributed.task_training import RESULTS_FOLDER
    from evorl.training import runs
    from evorl.training.configuration import config_file, parts, trust_check
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.records import files, run_dirs
    from evorl.training.run_recorder import RunContext
    from evorl.training.summary import summarize_training

    enable_compilation_cache()
    cfg, data, kept = _load_resumed(options, rest) if "resume" in options else _load_new(options, rest)
    workflow, _ = runs.build(cfg)
    data, kept = parts.resolve_auto(data), parts.resolve_auto(kept)  # workers may have other devices
    training = partial(_build_training(workflow, options, rest, data), executor=executor or SerialExecutor())
    run_dir = Path(str(options["resume"])) if "resume" in options else run_dirs.create_run_dir(data)
    (run_dir / RESULTS_FOLDER).mkdir(
        exist_ok=True
    )  # before config.yaml, so that a run that is stopped at once can be resumed
    recorded: Any = None
    go_on = _resume_command(run_dir, options, trust_check.find_trust_packages(data))
    try:
        with (
            files.lock_run_dir(run_dir, "resume" if "resume" in options else "run_dir"),
            config_file.write_with_rollback(kept, run_dir, lambda: recorded is not None),
            runs.open_run_recorders(data, run_dir) as recorders,
        ):
            print(f"{run_dir}: starting", flush=True)
            run = RunContext(data, run_dir, recorders)
            for recorded in training(workflow, run):  # noqa: B007  the last one is used
                pass
    except OptionError:
        if recorded is None and "resume" not in options:
            run_dirs.remove_run_dir(run_dir)
        raise
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"stopped; resume: {go_on}") from interrupt
    except WorkerError as error:
        raise WorkerError(f"{error}; resume: {go_on}") from error
    log = recorded.training_log
    for line in summarize_training(workflow, data, log.progress, log.budget, run_dir, go_on):
        print(line, flush=True)


def _build_training(workflow: Any, options: dict[str, Any], rest: Sequence[str], data: dict[str, Any]) -> Any:
    """Return the function that trains a workflow by tasks.

    OptionError is raised if the workflow cannot be trained by tasks, or an option does not apply to it.
    """
    from evorl.distributed import task_training
    from evorl.leagues.psro import PSRO
    from evorl.workflows.evolution import Evolution
    from evorl.workflows.on_policy import OnPolicy
    from evorl.workflows.pbt import PBT

    given = [f"{name}={options[name]}" for name in (*PSRO_OPTIONS, *PART_OPTIONS, *BUDGET) if name in options]
    if isinstance(workflow, PSRO):
        _refuse([*rest, *given], NON_PSRO_OPTIONS, "is not supported with PSRO; use iterations=")
        _refuse(
            rest,
            ["evaluations", "evaluation_share"],
            "is not supported with PSRO, which evaluates after each iteration",
        )
        _refuse(given, PART_OPTIONS, "is for agents such as ppo and openes, not for PSRO")
        staleness = _require_number(options, "staleness", int) if "staleness" in options else 0
        return partial(task_training.train_psro, staleness=staleness)
    _refuse(given, PSRO_OPTIONS, "is for PSRO; use agent.workflow.staleness for rollouts")
    parts = _require_number(options, "parts", int) if "parts" in options else None
    sizes = {"parts": parts, "workers": _require_number(options, "workers", int)}
    if isinstance(workflow, OnPolicy):
        task_training.count_iterations(workflow, data)
        return partial(task_training.train_from_rollouts, **sizes)
    if isinstance(workflow, Evolution | PBT):
        task_training.parse_iterations(data)
        return partial(task_training.train_by_parts, **sizes)
    name = data["agent"]["name"]
    kinds = "PSRO, an on-policy agent, an evolver of policies or PBT, such as agent=psro, ppo, openes or pbt"
    raise OptionError(f"agent={name}: must be {kinds}")


def _refuse(given: Sequence[str], names: Sequence[str], why: str) -> None:
    """Raise OptionError if one of the given options has one of the names."""
    for one in given:
        if one.lstrip("+~").partition("=")[0].partition(".")[0] in names:
            raise OptionError(f"{one}: {why}")


def _resume_command(run_dir: Path, options: dict[str, Any], trust: Sequence[str]) -> str:
    """Return the command that resumes a run, with the options that the run does not save."""
    own = [
        f"{name}={options[name]}"
        for name in (*DEFAULT_OPTIONS, *PSRO_OPTIONS)
        if options.get(name) != DEFAULT_OPTIONS.get(name)
    ]
    return package.format_command("distribute", f"resume={run_dir}", *own, trust=trust)


def _load_new(options: dict[str, Any], rest: Sequence[str]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the configuration of a new run as composed, as plain data, and as data to save."""
    from evorl.training.configuration import config

    _refuse(
        rest,
        SINGLE_PROGRAM_OPTIONS,
        "is not supported in distributed training; budgets are iterations and env_steps",
    )
    budget = [f"{name}={options[name]}" for name in BUDGET if options.get(name) is not None]
    cfg = config.compose_config([*rest, *budget])
    data = config.to_plain_data(cfg)
    for name in SINGLE_PROGRAM_OPTIONS:
        value = data.get(name)
        is_used = value != {"nans": False} if name == "debug" else name != "num_seeds" and bool(value)
        require(not is_used, name, value, "of the experiment: is not supported in distributed training")
    if cfg.num_seeds != 1:
        print(f"num_seeds={cfg.num_seeds}: one seed is trained; -m seed=0,1,2 trains several")
        cfg.num_seeds = 1
    return cfg, config.to_plain_data(cfg), config.to_savable_data(cfg)


def _load_resumed(options: dict[str, Any], rest: Sequence[str]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the configuration of a resumed run, in the form of `_load_new`."""
    from evorl.distributed.task_training import RESULTS_FOLDER
    from evorl.training.configuration import config, config_file, discovery

    given = {}
    for one in config.parse_overrides(discovery.to_hydra_overrides(rest)):
        if one.key_or_group.partition(".")[0] != "wandb" or one.is_delete():
            kept = "a resumed run keeps its configuration; only the budget, wandb and the options of --help may change"
            raise OptionError(f"{one.input_line}: {kept}")
        given[one.key_or_group] = one.value()
    folder = Path(str(options["resume"]))
    data = config_file.read_config(folder, "resume", config_file.parse_trust(options.get("trust", ())))
    require(
        (folder / RESULTS_FOLDER).is_dir(),
        "resume",
        folder,
        "was not trained with evorl.distribute; resume it with python -m evorl.train",
    )
    limits = {name: options[name] for name in BUDGET if options.get(name) is not None}
    data |= dict.fromkeys(discovery.BUDGET_OPTIONS if limits else ()) | limits | {"resume": str(folder)}
    return config_file.set_values(data, given, ("wandb",)), data, data
