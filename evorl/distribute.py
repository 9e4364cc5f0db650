"""python -m evorl.distribute agent=psro_exact env=leduc workers=2: PSRO whose tasks other processes compute."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evorl.command import command
from evorl.errors import OptionError, WorkerError, require, unknown

HELP = """usage: python -m evorl.distribute agent=psro [option of evorl.train ...] [option=value ...]
       python -m evorl.distribute resume=RUN [iterations=N] [option=value ...]

  python -m evorl.distribute agent=psro_exact env=leduc iterations=20 workers=2

  executor=ray        who computes best responses and payoffs: ray, processes (pip install 'evorl-jax[ray]'), or serial
  workers=2           how many
  cpus_per_worker=1   CPUs of each: 0.5 lets two share one; each has as many threads, at least one
  address=            of a cluster of Ray to compute on; without it this machine, which nobody else can reach then
  staleness=0         how many policies of a player the payoffs may lack that best responses answer; 0 waits for all

What a task has given is on disk at once: a run that was stopped or killed goes on with resume=RUN."""

EXECUTORS = "ray", "serial"
OWN: dict[str, Any] = {"executor": "ray", "workers": 2, "cpus_per_worker": 1.0, "address": None, "staleness": 0}
GOING_ON = "resume", "iterations", "trust"
OF_ONE_PROGRAM = (
    "env_steps episodes minutes num_seeds chunk devices suite profile debug init_from dry_run deterministic"
)
RESULTS = "tasks"  # the folder of a run with what they have given


def main(arguments: list[str] | None = None) -> None:
    """The command line; a mistake prints one line and exits with code 2."""
    with command(arguments) as given:
        if {"-h", "--help"} & set(given):
            print(HELP)
            return
        try:
            distribute(given)
        except (WorkerError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)


def distribute(given: Sequence[str]) -> None:
    """Trains in a new run directory, or goes on in one. Raises OptionError, WorkerError, OSError."""
    from evorl.training.configuration import config

    options, rest = dict(OWN), []
    for one in config.parsed(given):
        if one.key_or_group in (*OWN, *GOING_ON):
            options[one.key_or_group] = one.value()
        else:
            rest.append(str(one.input_line))
    os.environ["PJRT_NPROC"] = str(max(1, int(_number(options, "cpus_per_worker", float))))  # before JAX starts
    if options["executor"] == "serial":
        _train(options, rest)
        return
    if options["executor"] != "ray":
        raise unknown("executor", str(options["executor"]), EXECUTORS)
    from evorl.distributed.actors import Ray

    workers = Ray(_number(options, "workers", int), options["cpus_per_worker"], options["address"])
    with workers.connected():  # before JAX has threads, beside which no process should be forked
        _train(options, rest, workers)


def _number(options: dict[str, Any], name: str, kind: type) -> Any:
    value = options[name]
    right = isinstance(value, (int, kind)) and not isinstance(value, bool)
    require(right, name, value, f"must be a {'whole ' * (kind is int)}number")
    return value


def _train(options: dict[str, Any], rest: Sequence[str], executor: Any = None) -> None:
    from evorl.distributed.coordinator import coordinate
    from evorl.distributed.executors import Serial
    from evorl.distributed.results import Results
    from evorl.training import runs
    from evorl.training.configuration import saved
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.records import files, run_dirs
    from evorl.workflows.psro import PSRO

    enable_compilation_cache()
    cfg, data, kept = _resumed(options, rest) if "resume" in options else _new(options, rest)
    workflow, hyperparams, _ = runs.build(cfg)
    if not isinstance(workflow, PSRO):
        raise OptionError(f"agent={data['agent']['name']}: only PSRO has such tasks, agent=psro or agent=psro_exact")
    iterations = workflow.most_iterations if data["iterations"] is None else data["iterations"]
    staleness = _number(options, "staleness", int)
    run_dir = Path(str(options["resume"])) if "resume" in options else run_dirs.new(data)
    begun = False
    try:
        with (
            files.locked(run_dir, "resume" if "resume" in options else "run_dir"),
            saved.written(kept, run_dir, lambda: begun),
            runs.recording(data, run_dir) as recorders,
        ):
            print(f"{run_dir}: starting", flush=True)
            recorded = _Recorded(workflow, data, run_dir, iterations, recorders)
            given = iterations, data["seed"], hyperparams, None, staleness, Results(run_dir / RESULTS)
            for one in coordinate(workflow, executor or Serial(), *given):
                begun = True
                recorded.add(one)
            recorded.close()
    except OptionError:
        if not begun and "resume" not in options:
            run_dirs.remove(run_dir)
        raise
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(f"stopped; go on with: {_go_on(run_dir)}") from interrupt
    except WorkerError as error:
        raise WorkerError(f"{error}; go on with: {_go_on(run_dir)}") from error
    print(f"saved in {run_dir}\nsee it with: python -m evorl.play {run_dir}")


def _go_on(run_dir: Path) -> str:
    return f"python -m evorl.distribute resume={run_dir}"


def _new(options: dict[str, Any], rest: Sequence[str]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """What is to be trained, as it was composed, as data, and as it is saved."""
    from evorl.training.configuration import config

    for one in rest:
        if one.lstrip("+~").partition("=")[0].partition(".")[0] in OF_ONE_PROGRAM.split():
            raise OptionError(f"{one}: is of a training in one program; iterations= says how many there are")
    cfg = config.load([*rest, f"iterations={options.get('iterations') or 'null'}"])
    return cfg, config.plain(cfg), config.to_save(cfg)


def _resumed(options: dict[str, Any], rest: Sequence[str]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The same of a run that goes on."""
    from evorl.training.configuration import saved

    for one in rest:
        raise OptionError(
            f"{one}: a resumed run keeps its configuration; only iterations and those of --help may change"
        )
    folder = Path(str(options["resume"]))
    data = saved.read(folder, "resume", saved.trusted(options.get("trust", ())))
    require((folder / RESULTS).is_dir(), "resume", folder, "has no tasks; go on with python -m evorl.train")
    data |= {"resume": str(folder)} | {name: options[name] for name in ("iterations",) if name in options}
    return data, data, data


class _Recorded:
    """The rows and checkpoints of a run, as evorl.train writes them."""

    def __init__(
        self, workflow: Any, data: Mapping[str, Any], run_dir: Path, iterations: int, recorders: Sequence[Any]
    ) -> None:
        import jax

        from evorl.training.journal import Journal
        from evorl.training.progress import Budget
        from evorl.training.records.checkpoint import Checkpoints

        self.checkpoints = Checkpoints(run_dir / "checkpoints", **data["checkpoint"])
        self.journal = Journal([data["seed"]], Budget(iterations=iterations), recorders, keep_rows=False)
        self.journal.resume()  # all rows come again
        self.evaluate, self.key = jax.jit(workflow.evaluate), jax.random.key(data["seed"])
        self.state: Any = None

    def add(self, one: Any) -> None:
        """Records an iteration and an evaluation of it."""
        import jax
        import numpy as np

        from evorl.training.records.rows import row_of

        progress, self.state = self.journal.progress, one.state
        if not progress.iteration:
            self.journal.begin(one.state)
        metrics = {name: np.asarray(x)[None] for name, x in jax.device_get(one.metrics).items()}
        duration, progress.seconds = one.seconds - progress.seconds, one.seconds
        counted = self.journal.count(1, metrics)
        self.journal.record(row_of(progress, counted, "train", duration))
        begun = time.perf_counter()
        measured = jax.device_get(self.evaluate(one.state, self.key))
        self.journal.evaluated(one.state, measured, time.perf_counter() - begun)
        if self.checkpoints.due():
            self.save()

    def save(self) -> None:
        """Saves what there is, unless a checkpoint is newer: a run that goes on comes to its iterations again."""
        if self.state is not None and self.journal.progress.iteration > (self.checkpoints.latest or 0):
            progress = asdict(self.journal.progress)
            self.checkpoints.save(self.journal.progress.iteration, self.state, self.journal.best, progress)

    def close(self) -> None:
        """Saves the last state."""
        self.save()
        self.checkpoints.close()


if __name__ == "__main__":
    main()
