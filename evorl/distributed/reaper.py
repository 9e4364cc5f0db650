"""python reaper.py FOLDER: once standard input ends, ends who has files open in a folder, and removes it.

So a cluster ends with the process that has started it, however that ends: of Ray's own processes two would go on for a
minute where that was killed.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def find_processes(folder: str) -> set[int]:
    """The processes that have files open in a folder; none where the system has no /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"{folder}/"):
                found.add(int(path.parts[2]))
    return found


def main() -> None:
    """Waits, and clears up."""
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
