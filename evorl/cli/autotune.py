"""Command `python -m evorl.autotune agent=ppo env=ant`, which finds the fastest settings for this machine."""

import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeGuard

from evorl import package
from evorl.command import command, wants_help
from evorl.errors import OptionError, require, unknown_name_error
from evorl.machine import THREADS_VARIABLE

HELP = """usage: python -m evorl.autotune [option of evorl.train ...] [option=value ...]

  python -m evorl.autotune agent=ppo env=ant write=fast_ant
  python -m evorl.train experiment=fast_ant

  seconds=5        seconds of training in each trial, which runs in its own process
  write=NAME       writes the fastest settings to configs/experiment/NAME.yaml
  again=false      true: ignores the cached result of this machine and measures again

Tunes in this order, each with the best settings so far: devices and threads; num_envs and num_steps of a rollout, with
a constant product; iterations per call of the compiled program (chunk). num_envs and num_steps also affect learning."""

DEFAULT_OPTIONS = {"seconds": 5.0, "write": None, "again": False}
FORBIDDEN_OPTIONS = ("resume", "init_from", "run_dir", "dry_run", "profile", "devices", "chunk")
CACHE_FILE = "autotune.json"  # in the user's cache folder
NUM_ENVS_OPTION, NUM_STEPS_OPTION = "agent.workflow.num_envs", "agent.workflow.num_steps"
FACTORS = (0.25, 0.5, 2, 4)
MIN_SPEEDUP = 1.02  # smaller speedups may be due to chance
Candidate = dict[str, Any]  # options by name, and THREADS_VARIABLE


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as given:
        if not given or wants_help(given):
            print(HELP)
        else:
            _main(given)


def _main(given: Sequence[str]) -> None:
    from evorl.sweeps import experiment
    from evorl.training.configuration import config
    from evorl.training.records.json_cache import JsonCache
    from evorl.training.runs import fingerprint_program

    own = [one for one in given if one.partition("=")[0] in DEFAULT_OPTIONS]
    chosen = [one for one in given if one not in own]
    options: dict[str, Any] = DEFAULT_OPTIONS | {one.key_or_group: one.value() for one in config.parse_overrides(own)}
    path = None if options["write"] is None else experiment.resolve_experiment_path(options["write"], "write")
    _check_options(options, chosen)
    cfg, chosen = config.compose_expanded(chosen)
    data = config.to_plain_data(cfg)
    remembered, name = JsonCache(CACHE_FILE), " ".join([fingerprint_program(data), *describe_machine()])
    best = None if options["again"] else remembered.get(name)
    if not is_candidate(best):
        best = search(list_candidate_groups(data), lambda choice: measure_speed(chosen, choice, options["seconds"]))
        remembered.put(name, best)
    else:
        print(f"cached result for this machine (again=true measures again): {format_candidate(best)}")
    values = {name: value for name, value in best.items() if name != THREADS_VARIABLE}
    words = [*chosen, *(f"{name}={value}" for name, value in values.items())]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        title = f"{config.format_title(data)}, fastest settings on a machine with {describe_machine()[1]}"
        path.write_text(experiment.format_experiment(chosen, values, title), encoding="utf-8")
        print(f"written: {path}")
        words = [f"experiment={options['write']}"]
    threads = f"{THREADS_VARIABLE}={best[THREADS_VARIABLE]} " if THREADS_VARIABLE in best else ""
    print(f"train with it: {threads}{package.format_command('train', *words)}")


def is_candidate(found: Any) -> TypeGuard[Candidate]:
    """Return whether a value from the cache is a valid candidate, since it becomes part of a command."""
    names = {"devices", "chunk", THREADS_VARIABLE, NUM_ENVS_OPTION, NUM_STEPS_OPTION}
    return isinstance(found, dict) and set(found) <= names and all(type(n) is int for n in found.values())


def _check_options(options: Mapping[str, Any], chosen: Sequence[str]) -> None:
    """Raise OptionError if an option is invalid."""
    seconds, again = options["seconds"], options["again"]
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
    require(number, "seconds", seconds, "must be a number above 0")
    require(isinstance(again, bool), "again", again, "must be true or false")
    for one in chosen:
        name = one.partition("=")[0]
        if "=" not in one:
            raise unknown_name_error("option", one, DEFAULT_OPTIONS, "python -m evorl.autotune --help")
        if name in FORBIDDEN_OPTIONS:
            raise OptionError(f"{one}: is not supported in autotune trials")


def describe_machine() -> tuple[str, ...]:
    """Return what the speed of a program depends on in addition to the program itself.

    JAX is not started, since it would reserve the memory of the GPU.
    """
    from evorl.machine import count_cores

    return platform.node(), f"{count_cores()} cores", *list_gpus(), f"jax {metadata.version('jax')}"


def list_gpus() -> list[str]:
    """Return the names of the GPUs that nvidia-smi lists."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    asked = [smi, "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()


def list_candidate_groups(data: Mapping[str, Any]) -> list[list[Candidate]]:
    """Return the groups of candidates; each group is tried with the best candidates of the groups before it."""
    from evorl.machine import count_cores
    from evorl.training import runs

    places: list[Candidate]
    if count := len(list_gpus()):
        places = [{"devices": n} for n in (1, count) if count > 1]
    else:
        places = [
            {"devices": 1},
            {"devices": 1, THREADS_VARIABLE: 1},
            *([{"devices": count_cores()}] if count_cores() > 1 else []),
        ]
    workflow = data["agent"].get("workflow", {})
    envs, steps = workflow.get("num_envs"), workflow.get("num_steps")
    layouts: list[Candidate] = []
    if isinstance(envs, int) and isinstance(steps, int):
        sizes = [(envs * factor, steps / factor) for factor in FACTORS]
        layouts = [
            {NUM_ENVS_OPTION: int(n), NUM_STEPS_OPTION: int(t)}
            for n, t in sizes
            if n % 1 == t % 1 == 0 and min(n, t) >= 1
        ]
    chunk = runs.get_chunk_size(data)
    chunks = sorted({max(int(chunk * factor), 1) for factor in (0.25, 4, 16)} - {chunk})
    return [places, layouts, [{"chunk": n} for n in chunks]]


def search(groups: Sequence[Sequence[Candidate]], measure: Callable[[Candidate], float]) -> Candidate:
    """Find the clearly fastest candidate of each group in turn, and print each trial.

    `measure` raises OptionError if nothing runs.
    """
    from evorl.training.records.display import heartbeat

    trials, total = itertools.count(1), 1 + sum(map(len, groups))

    def measure_and_print(choice: Candidate) -> float:
        print(f"trial {next(trials)} of {total}: {format_candidate(choice)}", flush=True)
        with heartbeat("  running"):
            found = measure(choice)
        print(f"  {found:,.0f} env steps/s" if found else "  cannot run", flush=True)
        return found

    best: Candidate = {}
    fastest = measure_and_print(best)
    for group in groups:
        found = [(measure_and_print(best | choice), i) for i, choice in enumerate(group)]
        rate, i = max(found, default=(0.0, 0))
        if rate > MIN_SPEEDUP * fastest:
            best, fastest = best | group[i], rate
    return best


def measure_speed(chosen: Sequence[str], choice: Candidate, seconds: float) -> float:
    """Return the env steps per second of training, summed over seeds, measured in a separate process.

    If the candidate is not valid, the result is 0. If it is empty and the process fails, OptionError is
    raised with the message of the process.
    """
    from evorl.training.configuration.discovery import BUDGET_OPTIONS
    from evorl.training.records.rows import read_rows

    given = [one for one in chosen if one.partition("=")[0] not in BUDGET_OPTIONS]
    given += [f"{name}={value}" for name, value in choice.items() if name != THREADS_VARIABLE]
    threads = {THREADS_VARIABLE: str(choice[THREADS_VARIABLE])} if THREADS_VARIABLE in choice else {}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        short = [f"minutes={seconds / 60}", "evaluations=1", "tensorboard=false", f"run_dir={run_dir}"]
        process = [sys.executable, "-m", "evorl.train", *given, *short]
        done = subprocess.run(process, capture_output=True, text=True, check=False, env=os.environ | threads)
        if done.returncode in (130, -2):
            raise KeyboardInterrupt
        if done.returncode:
            if not choice:
                raise OptionError(done.stderr.strip().rpartition("\n")[2].removeprefix("error: "))
            return 0.0
        row = read_rows(run_dir, "train").rows[-1]
    if not row["env_steps"]:
        raise OptionError("env_steps=0: autotune compares env steps per second, and this training takes none")
    took = row["seconds"] - row["compile_seconds"] - row["evaluation_seconds"]
    return row["env_steps"] * len(row.get("seeds", {}).get("env_steps", [0])) / took


def format_candidate(choice: Candidate) -> str:
    """Format a candidate as text."""
    return ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in choice.items()) or "default settings"
