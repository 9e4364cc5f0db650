"""Ray actor that runs one process, such as a training. JAX runs in that process, not in the actor.

The process gets the CPUs and GPUs that Ray gives to the actor, and a pipe as standard input, which ends with
the actor.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class ProcessActor:
    """Python process in a folder on the machine of this actor, whose output is appended to a file."""

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], log: str, folder: str) -> None:
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with Path(log).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | environment,
                cwd=folder,
            )

    def poll(self) -> tuple[int, int | None]:
        """Return the number of the process, and its exit code or None if it runs."""
        return self._process.pid, self._process.poll()

    def stop(self) -> None:
        """Ask the process to save and exit."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
