"""Profile of a training: the share of time of each part of the program, from a traced iteration."""

import re
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

PARTS = ("environment", "policy", "learning", "replay", "evolution")  # names of jax.named_scope
CONTROL = ("while", "call", "conditional")  # operations that contain others, and their time
TRACE_SECONDS = 180.0  # minimum seconds between two traces
MAX_TRACE_SHARE = 0.01  # maximum share of the time for traces


class Profile:
    """Profiler that traces an iteration from time to time; the folder holds the newest trace.

    TensorBoard and Perfetto can read the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.shares: dict[str, float] = {}
        self._next = -float("inf")

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a trace: at first, and then every few minutes."""
        return time.perf_counter() >= self._next

    @contextmanager
    def trace(self, compiled: Any) -> Iterator[None]:
        """Trace the code in this context, and compute the share of device time of each part of the compiled program."""
        began = time.perf_counter()
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        shutil.rmtree(self.folder / "plugins", ignore_errors=True)
        jax.profiler.start_trace(str(self.folder), profiler_options=options)
        try:
            yield
        finally:
            jax.profiler.stop_trace()
        seconds: dict[str, float] = dict.fromkeys((*PARTS, "other"), 0.0)
        parts = _map_operations(compiled.as_text())
        for operation, duration in _read_operations(self.folder, parts):
            if not operation.startswith(CONTROL):
                seconds[parts[operation]] += duration
        total = sum(seconds.values())
        self.shares = {part: value / total for part, value in seconds.items()} if total else {}
        now = time.perf_counter()
        self._next = now + max(TRACE_SECONDS, (now - began) / MAX_TRACE_SHARE)

    def format_table(self, row: dict[str, Any]) -> str:
        """Format the wall time of the training up to a row as a Markdown table; its lines add up to the total."""
        wall, compiling, evaluation = (row[name] for name in ("seconds", "compile_seconds", "evaluation_seconds"))
        host = row["idle_seconds"]
        training = wall - compiling - evaluation - host
        lines = {part: share * training for part, share in (self.shares or {"training": 1.0}).items()}
        lines |= {"evaluation": evaluation, "host, while the device is idle": host, "compiling": compiling}
        width = max(map(len, lines))
        rows = [f"| {part:{width}} | {value:8.2f} | {value / wall:6.1%} |" for part, value in lines.items()]
        return "\n".join(
            [f"| {'part':{width}} |  seconds |  share |", f"|{'-' * (width + 2)}|---------:|-------:|", *rows]
        )


def _map_operations(text: str) -> dict[str, str]:
    """Return the part of every operation of a compiled program: the innermost known scope in its metadata."""
    parts: dict[str, str] = {}
    scope = re.compile(r"\b(" + "|".join(PARTS) + r")\b")
    for line in text.splitlines():
        operation = re.match(r"\s*(?:ROOT )?%?([\w.-]+) = ", line)
        if operation:
            source = re.search(r'op_name="([^"]*)"', line)
            found = scope.findall(source[1]) if source else []
            parts[operation[1]] = found[-1] if found else "other"
    return parts


def _read_operations(folder: Path, known: Container[str]) -> Iterator[tuple[str, float]]:
    """Yield the name and the seconds of each known operation in the newest trace of a folder."""
    newest = max(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    for plane in jax.profiler.ProfileData.from_file(str(newest)).planes:
        on_device = plane.name.startswith("/device")  # there, the event name is that of a kernel
        for line in plane.lines:
            for event in line.events:
                operation = str(dict(event.stats).get("hlo_op")) if on_device else event.name
                if operation in known:
                    yield operation, event.duration_ns / 1e9
