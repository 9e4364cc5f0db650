"""Progress displays of a training: a live panel in a terminal, plain lines elsewhere."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from evorl import stats
from evorl.metrics import GROUP_RETURN_PREFIX
from evorl.training.devices import measure_peak_memory
from evorl.training.machine_load import MachineLoad
from evorl.training.profile import Profile
from evorl.training.progress import select_sound
from evorl.training.records.checkpoint import format_bytes
from evorl.training.records.rows import MEMBER_STATISTICS, Row

MEMBER_METRICS = ("fitness", "members")
POLICY_METRICS = ("entropy", "kl", "temperature")
ENV_STEPS, EVALUATIONS = "env steps", "function evaluations"  # both are counted as env_steps in rows


STARTUP_STAGES = ("tracing", "compiling")  # stages before the first row


class LinePrinter:
    """Printer of progress lines: every evaluation, and training rows at most every `every` seconds.

    If there is nothing to print for `patience` seconds, for example during compilation or a long iteration, a
    line says what is running and for how long.
    """

    def __init__(
        self,
        every: float = 2.0,
        out: TextIO | None = None,
        compiled_in: float | None = None,
        patience: float = 20.0,
        unit: str = ENV_STEPS,
    ) -> None:
        self._every, self._out, self._compiled_in, self._patience = every, out, compiled_in, patience
        self._printed = -math.inf
        self._unit, self._speed = unit, SpeedMeter(unit)
        self._stage, self._heard = "", math.inf  # current activity, and when it was announced
        self._closed = threading.Event()
        self._waiter: threading.Thread | None = None

    def __call__(self, row: Row) -> None:
        now = time.perf_counter()
        self.announce("still training: no new metrics")
        if row["kind"] == "evaluation" and row["progress"] >= 1:
            self._heard = math.inf  # this was the last row
        if row["kind"] == "train" and now - self._printed < self._every and row["progress"] < 1:
            return
        self._printed = now
        print(self.format_row(row), file=self._out, flush=True)

    def announce(self, name: str) -> None:
        """Set the current activity, and print from time to time how long it has been running."""
        self._stage, self._heard = name, time.perf_counter()
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._tell_waiting, daemon=True)
            self._waiter.start()

    def start_stage(self, name: str) -> None:
        self.announce(name)
        if name in STARTUP_STAGES:
            print(describe_stage(name, self._compiled_in), file=self._out, flush=True)

    def _tell_waiting(self) -> None:
        told = -math.inf
        while not self._closed.wait(min(self._patience, 1.0)):
            now = time.perf_counter()
            if now - max(self._heard, told) >= self._patience:
                print(f"{self._stage} for {format_clock(now - self._heard)}", file=self._out, flush=True)
                told = now

    def format_row(self, row: Row) -> str:
        """Format a row: percent, time and ETA, iteration, env steps, returns and member statistics.

        A training row also has the speed.
        """
        parts = [
            f"{100 * row['progress']:3.0f}%  {format_clock(row['seconds'])} {format_eta(row):>14}",
            f"iteration {row['iteration']}",
            f"{row.get('env_steps', 0):,} {self._unit}",
            f"{'evaluation' if row['kind'] == 'evaluation' else 'return'} {format_returns(row)}",
            *(f"{name} {values}" for name, values in format_member_spreads(row).items() if name in MEMBER_METRICS),
        ]
        if row["kind"] == "train":
            speeds = self._speed(row).values()  # of gradient steps alone, if no env steps were taken
            parts.append(next(iter(speeds)) if speeds else f"compiled in {row['compile_seconds']:.0f} s")
        return "  ".join(parts)

    def close(self) -> None:
        self._closed.set()


@contextlib.contextmanager
def heartbeat(name: str) -> Iterator[None]:
    """Print every 20 s, within this context, how long an activity has been running."""
    printer = LinePrinter()
    printer.announce(name)
    try:
        yield
    finally:
        printer.close()


class Panel:
    """Live panel in a terminal.

    It shows progress, returns with intervals over seeds, losses, speed, shares of time, machine load, memory
    and members.
    """

    def __init__(
        self,
        title: str,
        every: float = 0.5,
        console: Any = None,
        compiled_in: float | None = None,
        profile: Profile | None = None,
        unit: str = ENV_STEPS,
    ) -> None:
        from rich.live import Live
        from rich.progress_bar import ProgressBar

        self._title, self._every, self._bar = title, every, ProgressBar(1.0, width=40)
        self._compiled_in, self._began = compiled_in, time.perf_counter()
        self._head = "starting"
        names = ("return", "evaluation", "losses", "steps", "speed", "time", "parts", "load", "memory")
        self._facts, self._profile, self._load = dict.fromkeys(names, ""), profile, MachineLoad()
        self._members: dict[str, str] = {}
        self._unit, self._speed, self._shown = unit, SpeedMeter(unit), -math.inf
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)  # during compilation too
        self._live.start(refresh=True)

    def __call__(self, row: Row) -> None:
        facts = self._facts
        steps = f"{row.get('env_steps', 0):,} {self._unit}"
        if row["kind"] == "evaluation":
            facts["evaluation"] = f"{format_returns(row)} at {steps}"
        elif time.perf_counter() - self._shown > self._every or row["progress"] == 1:
            speeds = self._speed(row)
            facts["return"], facts["losses"] = format_returns(row), format_losses(row)
            gradient = f"{row['gradient_steps']:,} gradient steps" if "gradient_steps" in row else ""
            facts["steps"] = "   ".join(filter(None, [f"iteration {row['iteration']}", steps, gradient]))
            if speeds:
                facts["speed"] = "   ".join(speeds.values())
            self._bar.update(row["progress"])
        else:
            return
        self._members |= format_member_spreads(row)
        self._head = f"{100 * row['progress']:.0f}%   {format_clock(row['seconds'])}   {format_eta(row)}"
        facts["time"], facts["load"] = format_time_shares(row), self._load()
        if self._profile is not None:
            facts["parts"] = "   ".join(f"{part} {x:.0%}" for part, x in self._profile.shares.items() if x >= 0.005)
        facts["memory"] = format_bytes(measure_peak_memory())
        self._shown = time.perf_counter()
        self._live.refresh()

    def start_stage(self, name: str) -> None:
        self._head = describe_stage(name, self._compiled_in) if name in STARTUP_STAGES else name
        self._began = time.perf_counter()

    def close(self) -> None:
        self._live.stop()
        self._load.close()

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel as Frame
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, fact in self._facts.items():
            if fact:
                table.add_row(f"[dim]{name}[/dim]", fact)
        if self._members:
            table.add_row("", "[dim]min / median / max of the members[/dim]")
        for name, values in self._members.items():
            table.add_row(f"[dim]{name}[/dim]", values)
        head = Table.grid(padding=(0, 2))
        waiting = "" if self._facts["time"] else f"   {format_clock(time.perf_counter() - self._began)}"
        head.add_row(self._bar, self._head + waiting)
        return Frame(Group(head, table), title=self._title, title_align="left", width=100)


def get_unit(workflow: Any) -> str:
    """Return the unit of a workflow's steps: function evaluations if it has a problem, otherwise env steps."""
    return ENV_STEPS if getattr(workflow, "problem", None) is None else EVALUATIONS


class SpeedMeter:
    """Meter of the steps per second between consecutive rows; `unit` is the unit of their `env_steps`."""

    def __init__(self, unit: str) -> None:
        self._last: Row | None = None
        self._labels = {"env_steps": unit, "gradient_steps": "gradient steps"}

    def __call__(self, row: Row) -> dict[str, str]:
        """Return the speeds of counts that rose by name, such as "1,234 env steps/s"; empty for the first row."""
        last, self._last = self._last, row
        if last is None or row["seconds"] <= last["seconds"]:
            return {}
        seconds = row["seconds"] - last["seconds"]
        return {
            name: f"{(row[name] - last.get(name, 0)) / seconds:,.0f} {words}/s"
            for name, words in self._labels.items()
            if row.get(name, 0) > last.get(name, 0)
        }


def format_returns(row: Row) -> str:
    """Format the mean return, with its 95 % interval over seeds, and in games the return of each group."""
    groups = [
        f"{name.removeprefix(GROUP_RETURN_PREFIX)} {row[name]:.1f}"
        for name in row
        if name.startswith(GROUP_RETURN_PREFIX)
    ]
    return _format_mean_return(row) + (f" ({', '.join(groups)})" if len(groups) > 1 else "")


def _format_mean_return(row: Row) -> str:
    """Format the mean return over the sound seeds in which an episode ended, with its 95 % interval."""
    seeds: dict[str, list[Any]] = row.get("seeds", {})
    found = seeds.get("return", [row["return"]])
    lengths = seeds.get("episode_length", [row.get("episode_length", 1)] * len(found))  # not every workflow reports it
    sound = select_sound([*zip(found, lengths, strict=True)], seeds.get("diverged", [0] * len(found)))
    ended = [x for x, length in sound if length]
    values = [x for x in ended if np.isfinite(x)]
    if not ended:
        return "no episode ended"
    if len(values) < 2:
        return f"{row['return']:.1f}" + f" ({len(values)} of {len(found)} seeds)" * (len(found) > 1)
    return f"{stats.MeanEstimate.from_scores(values):.1f} over {len(values)} seeds"


def format_losses(row: Row) -> str:
    """Format the losses and the policy statistics (entropy, KL divergence, temperature) of a row, at most five."""
    found = {name: row[name] for name in row if name.endswith("_loss") or name in POLICY_METRICS}
    return "   ".join(f"{name} {x:.3g}" for name, x in list(found.items())[:5])


def describe_stage(stage: str, compiled_in: float | None) -> str:
    """Describe a stage before the first row; for tracing, also how long the startup took last time, if known."""
    last = f"; the last time, the startup took {compiled_in:.0f} s" if compiled_in is not None else ""
    return f"{stage}{last if stage == 'tracing' else ''}"


def format_member_spreads(row: Row) -> dict[str, str]:
    """Format min / median / max over the members: of fitness, searched hyperparameters and evaluation returns."""
    found = {}
    for name in row.get("members", {}):
        if f"{name}_median" in row:
            form = ".1f" if name in ("fitness", "return") else ".3g"
            values = " / ".join(f"{row[f'{name}_{end}']:{form}}" for end in MEMBER_STATISTICS)
            found["members" if name == "return" else name] = values
    return found


def format_time_shares(row: Row) -> str:
    """Format the shares of time of training, evaluation and recording (callbacks and checkpoints).

    Recording mostly runs at the same time as the device.
    """
    running = max(row["seconds"] - row["compile_seconds"], 1e-9)
    evaluation, host = row["evaluation_seconds"] / running, row["host_seconds"] / running
    return (
        f"training {max(0, 1 - evaluation):.0%}   evaluation {evaluation:.0%}   "
        f"recording {host:.1%}   plus {row['compile_seconds']:.0f} s of compilation"
    )


def format_eta(row: Row) -> str:
    """Estimate the remaining time of a training from its progress so far."""
    done, running = row["progress"], row["seconds"] - row["compile_seconds"]
    return f"{format_clock(running * (1 - done) / done)} left" if done > 0 else ""


def format_clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
