"""Owners of trials: names that a process holds by a file lock, which the system releases when the process ends."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

PATTERN = re.compile(r"[0-9a-f]{16}")


def is_owner(name: object) -> bool:
    """Return whether a name is one that `hold_owner` gives."""
    return isinstance(name, str) and PATTERN.fullmatch(name) is not None


@contextmanager
def hold_owner(folder: Path) -> Iterator[str]:
    """Give a new name, which is alive as long as this process is in the context.

    Args:
        folder: of the locks, which is made where it is not there.
    """
    folder.mkdir(exist_ok=True)
    name = secrets.token_hex(8)
    with FileLock(_lock_path(folder, name)):
        yield name
    with suppress(OSError):
        _lock_path(folder, name).unlink()


def is_alive(folder: Path, name: str) -> bool:
    """Return whether a process holds a name; the lock of a process that has ended is removed."""
    path = _lock_path(folder, name)
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    with suppress(OSError):
        path.unlink()
    return False


def _lock_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lock"
