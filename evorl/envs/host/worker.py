"""A process that plays environments for another one: python worker.py COMMANDS REPLIES LIFE BOARD SIGNS (descriptors).

It leads a process group, which ends with the process that it serves, whatever happens to that. It imports no JAX, and
nothing of evorl but `serial_envs` and `parallel`, which it finds beside itself.
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

SPIN_SECONDS = 50e-6  # seconds of looking before it sleeps
RESET, STEP, STEP_ON, CLOSE = b"r", b"s", b"o", b"c"
COMMAND_HEADER = struct.Struct("<cI")  # what to do, in how many places
READY, REQUESTED, ANSWERED = range(3)  # a worker's signs: whether it has started, how often it was asked and answered
COUNTER_MODULUS = 2**32  # at which these begin anew
SIGNAL_WIDTH = 16  # of signs, a cache line


def read_exactly(file: int, size: int) -> bytes:
    """So many bytes; EOFError where the other end has gone."""
    parts, left = [], size
    while left:
        part = os.read(file, min(left, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def write_all(file: int, data: bytes) -> None:
    """All of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def wait_for_change(signs: Any, place: int, value: int) -> bool:
    """Looks for a moment whether a sign has another value than this."""
    end = time.perf_counter() + SPIN_SECONDS
    while time.perf_counter() < end:
        if signs[place] != value:
            return True
    return False


def close_in_children(files: list[int]) -> None:
    """Close pipes in every process that this one starts: the other end of a pipe would not see that this one has ended.

    Args:
        files: descriptors; a forked process empties its copy of this list.
    """

    def close() -> None:
        while files:
            os.close(files.pop())

    for file in files:
        os.set_inheritable(file, False)
    os.register_at_fork(after_in_child=close)


def start_parent_guard(life: int) -> None:
    """Fork a guard, which kills this process group once the process that it serves has ended.

    So the group ends too where a step hangs, or where this process has been killed before.

    Args:
        life: the read end of a pipe; only the process that is served has the write end.
    """
    if os.fork() == 0:
        os.read(life, 1)
        os.killpg(0, signal.SIGKILL)
    os.close(life)


def load_sibling_module(name: str) -> Any:
    """The module of a file beside this one."""
    spec = importlib.util.spec_from_file_location(f"evorl_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(commands: int, replies: int, life: int, board: int, signs: int) -> None:
    """Serves until the commands end."""
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
        given = pickle.loads(recipe)  # from the process that it serves
        if isinstance(given, dict):
            return load_sibling_module("parallel").ParallelEnvAdapter(**given)
        spec, limit, options, num_masked = given
        env = gymnasium.make(spec, limit, disable_env_checker=True, **options)
        return serial_envs.MaskedEnv(env, num_masked) if num_masked else env

    envs = serial_envs.SerialEnvs(make, layout, layout.create_buffers(settings["places"], board))
    own[READY], asked = 1, 0
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


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError):
        main(*map(int, sys.argv[1:]))
    os._exit(0)
