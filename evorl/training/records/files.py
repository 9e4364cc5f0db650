"""Files of a run directory: read and written where no link leads, and locked while a training writes them."""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from filelock import FileLock, Timeout

from evorl.errors import OptionError

LOCK, HOLDER = ".lock", ".lock.holder"
FOREIGN = "wandb"  # the one folder that others write, whose links may lead to places within it


def require_own(folder: Path, option: str) -> None:
    """Raises OptionError where a folder holds anything but folders and files of its own.

    A link could make us read or overwrite what lies elsewhere; a second name of a file is one too.
    """
    for path, found in _entries(folder):
        name = path.relative_to(folder)
        foreign = stat.S_ISLNK(found.st_mode) and len(name.parts) > 1 and name.parts[0] == FOREIGN
        if stat.S_ISDIR(found.st_mode) or (foreign and path.resolve().is_relative_to(folder.resolve() / FOREIGN)):
            continue
        linked = stat.S_ISLNK(found.st_mode) or found.st_nlink > 1
        if linked or not stat.S_ISREG(found.st_mode):
            what = "leads elsewhere, or is known there by another name" if linked else "is no file"
            raise OptionError(f"{option}={folder}: its {name} {what}; a run holds files of its own only")


def _entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        yield Path(entry.path), entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))


def read(path: Path) -> str:
    """The text of a file. Raises OSError, also where it is a link or no file, and UnicodeDecodeError."""
    with _opened(path, os.O_RDONLY) as file:
        return file.read()


@contextmanager
def appending(path: Path) -> Iterator[TextIO]:
    """A file to write to at its end, made where there is none. Raises OSError where it is a link or no file."""
    with _opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
        yield file


def _opened(path: Path, flags: int) -> TextIO:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # a pipe would wait for its other end
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(f"{path}: is a link or no file")
    return os.fdopen(descriptor, "r" if flags == os.O_RDONLY else "a", encoding="utf-8", newline="")


def replace(path: Path, text: str) -> None:
    """Writes a file anew, under another name first, so that whatever had its name is whole or gone."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with new.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


@contextmanager
def locked(run_dir: Path, option: str) -> Iterator[None]:
    """Keeps other trainings from writing to a run directory; raises OptionError where one does.

    The system releases the lock when the process ends, however it does. Reading needs none.
    """
    lock = FileLock(run_dir / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            who = read(run_dir / HOLDER).strip()
            raise OptionError(f"{option}={run_dir}: process {who:.20} is writing to it") from error
        raise OptionError(f"{option}={run_dir}: another process is writing to it") from error
    try:
        replace(run_dir / HOLDER, f"{os.getpid()}\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(run_dir / HOLDER)
        lock.release()
