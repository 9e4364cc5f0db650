"""Command `python -m evorl.sweep agent=ppo env=cartpole trials=40`, which searches hyperparameters."""

import datetime
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from evorl import package
from evorl.command import command, require_words, resume_folders, wants_help
from evorl.errors import OptionError, is_number, require, require_int, unknown_name_error

HELP = """usage: python -m evorl.sweep [option of evorl.train ...] [space.NAME=PRIOR ...] [option=value ...]
       python -m evorl.sweep SWEEP [trials=N] [workers=N]
       python -m evorl.sweep report SWEEP [experiment=NAME]
       python -m evorl.sweep worker SWEEP [most=N]

  python -m evorl.sweep agent=ppo env=cartpole 'space.env_steps=${log_uniform:20_000,200_000}' trials=40 workers=2

  space.NAME=      prior of an option, in addition to the priors that the agent declares: a hyperparameter or a field
                   of the agent or its workflow (space.num_envs='${power_of_two:16,256}'), of the environment, or a
                   budget; a list gives values to choose from (space.activation=[relu,tanh], space.agent=[ppo,a2c]);
                   a number fixes the option; space={} ignores the declared priors
  trials=40        number of trials
  workers=1        number of worker processes, each with its own cores if there are enough; 0 with listen
  executor=local   local: processes on this machine; ray: processes that Ray places (pip install "ray>=2.60")
  address=         ray: address of a cluster; by default Ray runs on this machine only, closed to the network
  cpus_per_worker=1, gpus_per_worker=0   ray: resources of a worker; 0.5 GPUs give it half of a GPU's memory
  listen=          address or name of this machine, optionally with :PORT, at which other machines reach it. There,
                   evorl.sweep worker SWEEP trains trials, at most N; SWEEP is on storage that all machines share
  vmapped=1        trials per worker in one program, if they differ only in hyperparameters and budget
  vectorized=      with vmapped: true runs them with vmap, false in turns, which is the default on a CPU
  score=return     metric to maximize: of evaluations, or train/NAME for a training metric
  cost=env_steps   metric to minimize, or seconds
  sampler=protein  sampler that suggests trials: protein, random, tpe (Optuna); sampler.OPTION= sets its options
  sweep_dir=       folder of the sweep; by default a new folder in sweeps/
  seed=0           seed of the sampler, and of every trial
  trust=[NAME]     packages whose classes a resumed sweep may name

A trial is stopped if its score is below that of 70 % of the other trials, at least eight, at the same cost. The results
are in SWEEP/report.html."""

SWEEPS_DIR = Path("sweeps")
DEFAULT_OPTIONS = {"trials": 40, "workers": 1, "vmapped": 1, "vectorized": None}
DEFAULT_OPTIONS |= {"score": "return", "cost": "env_steps", "sampler": "protein"}
WORKER_OPTIONS: dict[str, Any] = {"executor": "local", "address": None, "cpus_per_worker": 1.0, "gpus_per_worker": 0.0}
WORKER_OPTIONS |= {"listen": None}  # of one call, and not kept by the sweep
EXECUTORS = "local", "ray"
INTEGER_OPTIONS = ("trials", "workers", "vmapped")
RESUMABLE_OPTIONS = (*INTEGER_OPTIONS, "vectorized")  # options that may change when a sweep is resumed
TRAINING_ONLY_OPTIONS = (
    "run_dir",
    "init_from",
    "preload",
    "dry_run",
    "profile",
    "debug.nans",
    "wandb",
    "quiet",
    "json",
    "distributed",
)  # options of a training that a sweep does not accept


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its idle threads would busy-wait on shared cores
    with command(arguments) as given:
        if not given or wants_help(given):
            print(HELP)
        elif given and given[0] == "report":
            report_sweep(given[1:])
        elif given and given[0] == "worker":
            work_for_sweep(given[1:])
        else:
            start_or_resume_sweep(resume_folders(given))


def report_sweep(given: Sequence[str]) -> None:
    """Write the report of a sweep, and its best trial as an experiment if a name is given."""
    from evorl.reports import sweeps as reports
    from evorl.sweeps.definition import open_sweep
    from evorl.training.configuration.config_file import parse_trust

    folders = [one for one in given if "=" not in one]
    options = parse_sweep_options([one for one in given if "=" in one], ("experiment", "trust"))
    require_words(len(folders) == 1, "report", folders, "give one sweep: python -m evorl.sweep report SWEEP")
    store, definition = open_sweep(Path(folders[0]), parse_trust(options.get("trust", ())), "report")
    for line in reports.write_report(store, definition, options.get("experiment")):
        print(line)


def start_or_resume_sweep(given: Sequence[str]) -> None:
    """Create or resume a sweep, and run it until all its trials have ended."""
    from evorl.reports import sweeps as reports
    from evorl.sweeps import trial_training, worker_pool
    from evorl.sweeps.space import shorten_name
    from evorl.training.configuration.config_file import parse_trust
    from evorl.training.records import files

    known = (*DEFAULT_OPTIONS, *WORKER_OPTIONS, "sweep_dir", "resume", "trust")
    own = [one for one in given if one.partition("=")[0].partition(".")[0] in known]
    options = parse_sweep_options(own, known)
    placing = WORKER_OPTIONS | {name: options.pop(name) for name in WORKER_OPTIONS if name in options}
    check_worker_options(placing)
    rest = [one for one in given if one not in own]
    takes_workers = placing["listen"] is not None and placing["executor"] == "local"  # that others start
    for name in INTEGER_OPTIONS:
        value = options.get(name, DEFAULT_OPTIONS[name])
        whole = isinstance(value, int) and not isinstance(value, bool)
        least = 0 if name == "workers" and takes_workers else 1
        require(whole and value >= least, name, value, f"must be a whole number, at least {least}")
    vectorized = options.get("vectorized")
    require(vectorized in (None, True, False), "vectorized", vectorized, "must be true, false or null")
    if "resume" in options:
        trust = parse_trust(options.pop("trust", ()))
        store, definition = resume_sweep(options, rest, trust)
    else:
        store, definition = create_sweep(options, rest)
        trust = definition.packages
    folder = store.folder
    again = [f"{name}={value}" for name, value in placing.items() if value != WORKER_OPTIONS[name]]
    go_on = f"resume: {package.format_command('sweep', f'resume={folder}', *again, trust=definition.packages)}"
    changed = {name: value for name, value in options.items() if name in RESUMABLE_OPTIONS}
    settings = store.settings | changed
    some = settings["workers"] > 0 or takes_workers
    require(some, "workers", 0, "needs listen=HOST, or give a number of workers")
    try:
        with files.lock_run_dir(folder, "resume"):
            store.update_settings(**changed)
            worker_pool.wait_for_owners(store)
            with open_worker_pool(folder, definition, settings["workers"], placing, trust) as pool:
                say = lambda line: print(line, flush=True)  # noqa: E731
                names = ", ".join(map(shorten_name, definition.space.defaults))
                say(f"{folder}: {settings['trials']} trials over {names}")
                for line in trial_training.find_unmet_sweep_limits(definition):
                    say(line)
                stopped = worker_pool.run_sweep(store, definition, settings["workers"], say, trust, pool)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"stopped without saving; {go_on}") from interrupt
    if stopped:
        print(f"stopped and saved; {go_on}")
        sys.exit(130)
    for line in reports.write_report(store, definition):
        print(line)
    print(f"{go_on} trials={2 * settings['trials']}")


def check_worker_options(given: Mapping[str, Any]) -> None:
    """Raise OptionError if the options that say where workers run are not valid, or do not go together."""
    if given["executor"] not in EXECUTORS:
        raise unknown_name_error("executor", str(given["executor"]), EXECUTORS)
    for name in ("address", "cpus_per_worker", "gpus_per_worker"):
        is_used = given["executor"] == "ray" or given[name] == WORKER_OPTIONS[name]
        require(is_used, name, given[name], "needs executor=ray")
    for name in ("cpus_per_worker", "gpus_per_worker"):
        require(is_number(given[name]), name, given[name], "must be a number")
    for name in ("address", "listen"):
        require(given[name] is None or isinstance(given[name], str), name, given[name], "must be a text")


@contextmanager
def open_worker_pool(
    folder: Path, definition: Any, workers: int, given: Mapping[str, Any], trust: Sequence[str]
) -> Iterator[Any]:
    """Open what the workers of a sweep need: a server for workers on other machines, and Ray.

    Yields:
        The pool of Ray workers; None for processes on this machine.

    Raises:
        OptionError: If the resources are not there, or this process cannot listen.
    """
    from evorl.sweeps.store_server import serve_store

    if given["executor"] == "local":
        with serve_store(folder, definition, *parse_listen(given["listen"])) if given["listen"] else nullcontext():
            yield None
        return
    from evorl.distributed.process_pool import RayProcessPool
    from evorl.distributed.ray_executor import RayExecutor
    from evorl.sweeps.ray_pool import RayWorkerPool

    resources = given["cpus_per_worker"], given["address"], given["gpus_per_worker"]
    executor = RayExecutor(workers, *resources)
    with executor.connect_to_ray() as ray:
        here = parse_listen(given["listen"] or ray.util.get_node_ip_address())
        with serve_store(folder, definition, *here) as address:
            pool = RayWorkerPool(RayProcessPool(ray, executor), workers, address, folder, trust)
            try:
                yield pool
            finally:
                pool.kill()


def parse_listen(text: str) -> tuple[str, int]:
    """Return the host and the port of HOST or HOST:PORT; the port is 0 if none is given."""
    host, _, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "0")
    require(bool(host) and port.isdecimal() and int(port) < 2**16, "listen", text, "must be HOST or HOST:PORT")
    return host, int(port)


def work_for_sweep(given: Sequence[str]) -> None:
    """Train trials of a sweep whose main process is on another machine, until none is left."""
    from evorl.sweeps import worker
    from evorl.sweeps.messages import MainProcessAddress
    from evorl.sweeps.remote_queue import make_stop_request
    from evorl.training.configuration.config_file import parse_trust

    folders = [one for one in given if "=" not in one]
    options = parse_sweep_options([one for one in given if "=" in one], ("most", "trust"))
    require_words(len(folders) == 1, "worker", folders, "give one sweep: python -m evorl.sweep worker SWEEP")
    most = options.get("most")
    if most is not None:
        require_int("most", most)
    folder, trust = Path(folders[0]), parse_trust(options.get("trust", ()))
    address = MainProcessAddress.read(folder, "worker")
    with worker.start_worker() as stopping:
        worker.run_remote_worker(address, folder, trust, stopping, make_stop_request(), most)


def create_sweep(options: dict[str, Any], rest: Sequence[str]) -> tuple[Any, Any]:
    """Create a new sweep; raise OptionError if an option is invalid."""
    from evorl.sweeps import definition, space_options, store, trial_batch, trial_training

    for one in rest:
        if f"{one.partition('=')[0]}.".startswith(tuple(f"{name}." for name in TRAINING_ONLY_OPTIONS)):
            raise OptionError(f"{one}: is for a single training, not for a sweep")
    searched = [one for one in rest if one.partition("=")[0].partition(".")[0] == definition.SPACE]
    chosen = [one for one in rest if one not in searched]
    score, cost, sampler = (str(options.get(name, DEFAULT_OPTIONS[name])) for name in ("score", "cost", "sampler"))
    node = space_options.build_sampler_node(sampler, options.get("sampler.", {}))
    variants, space = space_options.parse_search(chosen, searched)
    found = definition.SweepDefinition(variants, space, node, score, cost, variants[0].base["seed"])
    known = trial_training.list_metric_names(found)
    for name, value in (("score", score), ("cost", cost)):
        if value not in known:
            raise unknown_name_error(name, value, known)
    trial_batch.require_batchable(found, options.get("vmapped", DEFAULT_OPTIONS["vmapped"]))
    settings = {name: options.get(name, DEFAULT_OPTIONS[name]) for name in RESUMABLE_OPTIONS}
    require_several_trials(settings)
    folder = Path(str(options["sweep_dir"])) if options.get("sweep_dir") else SWEEPS_DIR / _default_name(found.base)
    if folder.exists() and not store.is_empty_or_partial(folder):
        raise OptionError(f"sweep_dir={folder}: exists already; use resume={folder} to continue it")
    folder.mkdir(parents=True, exist_ok=True)
    settings |= {"definition": found.to_data(), "seed": found.seed}
    return store.SweepStore.create(folder, settings), found


def resume_sweep(options: dict[str, Any], rest: Sequence[str], trust: Sequence[str]) -> tuple[Any, Any]:
    """Open a sweep; raise OptionError if an option is invalid or may not change."""
    from evorl.sweeps import definition, space_options, trial_batch

    store, found = definition.open_sweep(Path(str(options.pop("resume"))), trust, "resume")
    for trial in store.read_trials(found.space):
        found.check_values(trial.values)
    searched = [one for one in rest if one.partition("=")[0].partition(".")[0] == definition.SPACE]
    if searched:
        space_options.require_same_space(searched, found, f"resume={store.folder}")
    for name in [*(set(options) - set(RESUMABLE_OPTIONS)), *(one for one in rest if one not in searched)]:
        allowed = f"a resumed sweep keeps its configuration; only {', '.join(RESUMABLE_OPTIONS)} may change"
        raise OptionError(f"{name}: {allowed}")
    trial_batch.require_batchable(found, options.get("vmapped", 1))
    require_several_trials(store.settings | options)
    return store, found


def require_several_trials(settings: Mapping[str, Any]) -> None:
    """Raise OptionError if vectorized=true has no effect, because a program trains one trial."""
    has_effect = not settings["vectorized"] or settings["vmapped"] > 1
    require(has_effect, "vectorized", settings["vectorized"], "needs vmapped above 1")


def parse_sweep_options(given: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """Return the options of a sweep; raise OptionError for unknown ones.

    The options of the sampler are nested under the key "sampler.".
    """
    from evorl.training.configuration import config

    found: dict[str, Any] = {}
    for one in config.parse_overrides(given):
        name, value = one.key_or_group, one.value()
        if name.startswith("sampler."):
            found.setdefault("sampler.", {})[name.removeprefix("sampler.")] = value
        elif name in known:
            found[name] = value
        else:
            raise unknown_name_error("option", name, known)
    return found


def _default_name(data: Mapping[str, Any]) -> str:
    from evorl.training.configuration import config

    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{config.format_title(data).replace(' on ', '-').replace('/', '-')}-{now}-{os.getpid()}"
