"""What a cluster of Ray leaves on this machine: processes, sockets that listen, files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evorl.distributed.cluster import import_ray
from evorl.errors import OptionError

LISTENS = "0A"  # of /proc/net/tcp
UP = """
import os, signal, sys, time
from evorl.distributed.cluster import connect_to_ray
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in a shell's background
    with connect_to_ray() as ray:
        actor = ray.remote(num_cpus=0.5)(type("A", (), {"pid": lambda self: os.getpid()})).remote()
        print("up", ray.get(actor.pid.remote()), flush=True)
        sys.stdin.readline()
        {then}
"""


def require_ray():
    """Skips a module where there is no Ray; imports it as evorl does."""
    try:
        import_ray()
    except OptionError as missing:
        pytest.skip(str(missing), allow_module_level=True)


def processes(root):
    """A process and all that it has started, and what these have, by number."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(path.parent.name)] = int(fields[1])
    found = {root}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def find_actors():
    """The workers that compute tasks of this process on Ray, by number."""
    found = []
    for number in processes(os.getpid()):
        try:
            if Path(f"/proc/{number}/cmdline").read_bytes().startswith(b"ray::RayWorker"):
                found.append(number)
        except OSError:
            pass
    return sorted(found)


def alive(numbers):
    """Those of processes that have not ended; one that nobody has asked how it ended has."""
    left = set()
    for one in numbers:
        try:
            if Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.add(one)
        except OSError:
            pass
    return left


def gone_within(numbers, seconds):
    """Which processes are left after so many seconds at most."""
    until = time.monotonic() + seconds
    while (left := alive(numbers)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def listening(numbers):
    """The addresses, as the kernel prints them, at which processes listen."""
    inodes = set()
    for one in numbers:
        for file in Path(f"/proc/{one}/fd").glob("*"):
            try:
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def started(then, home, **options):
    """A process of its own group that has a cluster up, and waits for a line; `then` is what it does after it."""
    code = UP.replace("{then}", then)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"HOME": str(home)},
        start_new_session=True,
        **options,
    )
    line = process.stdout.readline()
    assert line.startswith("up"), process.communicate(timeout=60)
    return process
