"""Usage: python reaper.py FOLDER. Wait until standard input ends, then end a cluster and remove its folder.

All processes that have files open in the folder are killed. A cluster thus ends with the process that started
it, however that process ends. Without this, two of Ray's processes would run for another minute after it was
killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def find_processes(folder: str) -> set[int]:
    """Return the processes that have files open in a folder; none if the system has no /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"{folder}/"):
                found.add(int(path.parts[2]))
    return found


def main() -> None:
    """Wait until standard input ends, then kill the processes and remove the folder."""
    folder, parent = sys.argv[1], os.getppid()
    sys.stdin.buffer.read()
    while left := find_processes(folder) - {parent}:
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
