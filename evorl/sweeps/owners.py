"""Owners of trials: names that a process holds by a file lock, which the system releases when the process ends."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

PATTERN = re.compile(r"[0-9a-f]{16}")


def is_owner(name: object) -> bool:
    """Return whether a value has the form of the names that `hold_owner` creates."""
    return isinstance(name, str) and PATTERN.fullmatch(name) is not None


@contextmanager
def hold_owner(folder: Path) -> Iterator[str]:
    """Create a new owner name, which is alive as long as this process is in the context.

    Args:
        folder: Folder of the locks, created if missing.
    """
    folder.mkdir(exist_ok=True)
    name = secrets.token_hex(8)
    with FileLock(_lock_path(folder, name)):
        yield name
    with suppress(OSError):
        _lock_path(folder, name).unlink()


def is_alive(folder: Path, name: str) -> bool:
    """Return whether a process holds a name; remove the lock file of a process that has ended."""
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
