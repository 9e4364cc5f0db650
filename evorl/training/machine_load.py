"""Load of the machine: busy CPU cores and GPUs."""

import contextlib
import shutil
import subprocess
import time
from typing import IO

from evorl.machine import count_cores

QUERY_SECONDS = 10.0  # seconds between two queries of the GPUs
QUERY_ARGUMENTS = ("--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")


class MachineLoad:
    """Meter of the CPU cores that this process has kept busy since the last call, and of the GPU load by nvidia-smi."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._smi, self._asked = shutil.which("nvidia-smi"), -QUERY_SECONDS
        self._asking: subprocess.Popen[str] | None = None
        self._gpus = ""

    def __call__(self) -> str:
        """Return the load, such as "1.7 of 2 cores   GPU 93 %, 5,210 of 81,559 MB", without waiting for nvidia-smi."""
        wall, cpu = time.perf_counter(), time.process_time()
        busy = (cpu - self._cpu) / max(wall - self._wall, 1e-9)
        self._wall, self._cpu = wall, cpu
        self._poll_gpus(wall)
        return "   ".join(filter(None, [f"{busy:.1f} of {count_cores()} cores", self._gpus]))

    def _poll_gpus(self, now: float) -> None:
        if self._asking is not None and self._asking.poll() is not None:
            told: IO[str] | None = self._asking.stdout
            lines = told.read().splitlines() if told is not None and self._asking.returncode == 0 else []
            self._gpus = "   ".join(filter(None, map(_format_gpu, lines)))
            self.close()
        if self._smi is not None and self._asking is None and now - self._asked >= QUERY_SECONDS:
            self._asked = now
            with contextlib.suppress(OSError):
                self._asking = subprocess.Popen(
                    [self._smi, *QUERY_ARGUMENTS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )

    def close(self) -> None:
        """Kill the running nvidia-smi process, if any."""
        if self._asking is not None:
            self._asking.kill()
            self._asking.wait()
            if self._asking.stdout is not None:
                self._asking.stdout.close()
            self._asking = None


def _format_gpu(line: str) -> str:
    """Format a line of nvidia-smi about a GPU; return "" if its values are unknown."""
    numbers = [part.strip() for part in line.split(",")]
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        return ""
    use, used, total = map(int, numbers)
    return f"GPU {use} %, {used:,} of {total:,} MB"
