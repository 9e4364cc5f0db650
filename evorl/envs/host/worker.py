"""Worker process that runs environments: python worker.py COMMANDS REPLIES LIFE BOARD SIGNS (file descriptors).

The worker leads a process group, which ends when the parent process ends, for whatever reason. It must not
import JAX or any module of evorl other than `serial_envs` and `parallel`, which it loads from its own folder.
"""

import contextlib
import importlib.util
import json
import mmap
import os
import pickle
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any

SPIN_SECONDS = 50e-6  # seconds of busy waiting before it sleeps
RESET, STEP, STEP_ON, CLOSE = b"r", b"s", b"o", b"c"
COMMAND_HEADER = struct.Struct("<cI")  # command, number of places
READY, REQUESTED, ANSWERED = range(3)  # a worker's signs: has started, number of commands, number of answers
COUNTER_MODULUS = 2**32  # of the counters
SIGNAL_WIDTH = 16  # signs per worker: one cache line


def read_exactly(file: int, size: int) -> bytes:
    """Read this many bytes from a file descriptor; raise EOFError if the other end is closed."""
    parts, left = [], size
    while left:
        part = os.read(file, min(left, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    """Write all bytes to a file descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def wait_for_change(signs: Any, place: int, value: int) -> bool:
    """Spin for at most SPIN_SECONDS, and return whether a counter differs from a value."""
    end = time.perf_counter() + SPIN_SECONDS
    while time.perf_counter() < end:
        if signs[place] != value:
            return True
    return False


def close_in_children(files: list[int]) -> None:
    """Close descriptors of pipes in every process that this process starts.

    A child that kept one end open would prevent the other end from noticing that this process has ended.

    Args:
        files: File descriptors; a forked child empties its copy of this list.
    """

    def close() -> None:
        while files:
            os.close(files.pop())

    for file in files:
        os.set_inheritable(file, False)
    os.register_at_fork(after_in_child=close)


def start_parent_guard(life: int) -> None:
    """Fork a guard process, which kills this process group once the parent process has ended.

    So the group also ends if a step hangs or if this process has been killed before.

    Args:
        life: Read end of a pipe whose write end only the parent process holds.
    """
    if os.fork() == 0:
        os.read(life, 1)
        os.killpg(0, signal.SIGKILL)
    os.close(life)


def load_sibling_module(name: str) -> Any:
    """Import the module of a file in the same folder."""
    spec = importlib.util.spec_from_file_location(f"evorl_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(commands: int, replies: int, life: int, board: int, signs: int) -> None:
    """Execute commands until the parent closes their pipe."""
    close_in_children([commands, replies])
    start_parent_guard(life)
    (size,) = struct.unpack("<I", read_exactly(commands, 4))
    settings = json.loads(read_exactly(commands, size))
    sys.path[:] = settings["path"]
    import numpy as np

    serial_envs = load_sibling_module("serial_envs")
    layout = serial_envs.Layout.from_dict(settings["layout"])
    own = np.frombuffer(mmap.mmap(signs, 0), np.uint32).reshape(-1, SIGNAL_WIDTH)[settings["worker"]]
    (size,) = struct.unpack("<I", read_exactly(commands, 4))
    recipe = read_exactly(commands, size)
    import gymnasium

    def make() -> Any:
        given = pickle.loads(recipe)  # from the parent process
        if isinstance(given, dict):
            return load_sibling_module("parallel").ParallelEnvAdapter(**given)
        spec, limit, options, num_masked = given
        env = gymnasium.make(spec, limit, disable_env_checker=True, **options)
        return serial_envs.MaskedEnv(env, num_masked) if num_masked else env

    envs = serial_envs.SerialEnvs(make, layout, layout.create_buffers(settings["places"], board))
    own[READY], asked = 1, 0
    try:
        while True:
            wait_for_change(own, REQUESTED, asked)
            kind, count = COMMAND_HEADER.unpack(read_exactly(commands, COMMAND_HEADER.size))
            asked = (asked + 1) % COUNTER_MODULUS
            places = np.frombuffer(read_exactly(commands, 4 * count), np.int32).tolist()
            seeds = []
            if kind in (RESET, STEP_ON):
                seeds = np.frombuffer(read_exactly(commands, 8 * count), np.uint64).tolist()
            if kind == RESET:
                failed = envs.reset(places, seeds)
            elif kind in (STEP, STEP_ON):
                failed = envs.step(places, seeds)
            else:
                failed = envs.close(places) or {}
            said = json.dumps(failed).encode() if failed else b""
            write_all(replies, struct.pack("<I", len(said)) + said)
            own[ANSWERED] = asked
    except EOFError:  # the parent has closed the pipe
        envs.close(list(envs.envs))


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        main(*map(int, sys.argv[1:]))
    os._exit(0)
