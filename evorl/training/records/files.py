"""Files of a run directory: they are read and written without following links, and locked during training."""

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from filelock import FileLock, Timeout

from evorl.errors import LockedError, OptionError, require

LOCK, HOLDER = ".lock", ".lock.holder"
WANDB = "wandb"  # folder that Weights & Biases writes; evorl never reads it
MB = 10**6
TEXT_BYTES, LINE_BYTES, PIECE_BYTES = 16 * MB, 256 * MB, 2**16
ORBAX_FILES = re.compile(r"_.*|metadata|process_\d+|manifest\.ocdbt|commit_success\.txt")  # metadata files of orbax
MAX_DEPTH = 16  # maximum nesting of folders


def require_regular_files(folder: Path, option: str) -> None:
    """Require that the folder of a run or a sweep contains only folders and regular files without other names.

    A symbolic or hard link could make a program read or overwrite files elsewhere, and a pipe could block it.
    Everything that reads such a folder calls this first, because orbax opens files whose names evorl does not
    control.

    Args:
        folder: Folder of a run or a sweep.
        option: Option that names the folder in error messages.

    Raises:
        OptionError: An entry is of another kind, is nested too deep, or is an orbax metadata file that is too
            large. The message names the first such entry.
    """
    try:
        for path, found in _walk_entries(folder):
            name = path.relative_to(folder)
            if stat.S_ISDIR(found.st_mode):
                require(len(name.parts) < MAX_DEPTH, option, folder, f"must not be deeper than {MAX_DEPTH} folders")
                continue
            linked = stat.S_ISLNK(found.st_mode) or found.st_nlink > 1
            if linked or not stat.S_ISREG(found.st_mode):
                what = "is a symbolic or hard link" if linked else "is not a regular file"
                raise OptionError(f"{option}={folder}: its {name} {what}; a run may contain regular files only")
            if ORBAX_FILES.fullmatch(path.name) and found.st_size > TEXT_BYTES:
                raise OptionError(f"{option}={folder}: its {name} is larger than {TEXT_BYTES / MB:g} MB")
    except OSError as error:
        raise OptionError(f"{option}={folder}: cannot be read: {error.strerror}") from error


def _walk_entries(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield all entries of a folder and its subfolders, except those in the folder of Weights & Biases.

    Other processes may write in the folder of Weights & Biases.
    """
    folders = [folder]
    while folders:
        here = folders.pop()
        with contextlib.suppress(*[FileNotFoundError] * (here != folder)):
            for entry in sorted(os.scandir(here), key=lambda entry: entry.name):
                with contextlib.suppress(FileNotFoundError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False) and Path(entry.path) != folder / WANDB:
                        folders.append(Path(entry.path))


def read_text(path: Path, max_bytes: int = TEXT_BYTES) -> str:
    """Read a text file, in pieces so that a signal can interrupt it.

    Args:
        path: Regular file with one name.
        max_bytes: Maximum size in bytes.

    Raises:
        OSError: The path is a link or not a regular file, or the file is too large.
        UnicodeDecodeError: The text is not UTF-8.
    """
    with open_for_reading(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"is larger than {max_bytes / MB:g} MB", str(path))
        return b"".join(iter(lambda: file.read(PIECE_BYTES), b"")).decode("utf-8")


def open_for_reading(path: Path) -> BinaryIO:
    """Open a file for reading. The caller must limit how much it reads.

    Raises:
        OSError: The path is a link or not a regular file.
    """
    return _open_regular_file(path, os.O_RDONLY)


def read_tail(path: Path) -> str:
    """Read the end of a file (64 KiB), and replace bytes that are not UTF-8.

    Raises:
        OSError: The path is a link or not a regular file.
    """
    with open_for_reading(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - PIECE_BYTES, 0))
        return file.read(PIECE_BYTES).decode("utf-8", "replace")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, one at a time; a killed process may leave an incomplete last line.

    Args:
        path: Regular file with one name.

    Raises:
        OSError: The path is a link or not a regular file, or a line is longer than 256 MB.
    """
    with open_for_reading(path) as file:
        while line := file.readline(LINE_BYTES):
            if not line.endswith(b"\n"):
                if len(line) == LINE_BYTES:
                    raise OSError(errno.EFBIG, f"has a line of more than {LINE_BYTES / MB:g} MB", str(path))
                return
            yield line


def truncate_lines(path: Path, count: int) -> None:
    """Truncate a file to its first `count` lines.

    Args:
        path: Regular file with one name. It may be missing if `count` is 0.
        count: Number of lines to keep.

    Raises:
        OptionError: The file has fewer lines or cannot be read.
    """
    if not count and not path.exists():
        return
    have = 0
    try:
        with _open_regular_file(path, os.O_RDWR) as file:
            while have < count and (line := file.readline(LINE_BYTES)):
                have += line.endswith(b"\n")
            if have == count:
                file.truncate(file.tell())
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}") from error
    if have < count:
        raise OptionError(f"{path}: has lost rows: {have} of {count} lines are left")


@contextmanager
def open_for_appending(path: Path) -> Iterator[TextIO]:
    """Open a file for appending, and create it if it is missing.

    Raises:
        OSError: The path is a link or not a regular file.
    """
    with io.TextIOWrapper(
        _open_regular_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "utf-8", newline=""
    ) as file:
        yield file


def _open_regular_file(path: Path, flags: int) -> BinaryIO:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)  # O_NONBLOCK: opening a pipe would block
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is a link or not a regular file", str(path))
    modes = {os.O_RDONLY: "rb", os.O_RDWR: "rb+"}
    return cast(BinaryIO, open(descriptor, modes.get(flags, "ab")))


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file under a temporary name and rename it, so that the file is never incomplete."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(new, "xb", opener=partial(os.open, mode=mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


@contextmanager
def lock_run_dir(run_dir: Path, option: str, patience: float = 0) -> Iterator[None]:
    """Lock a run directory, so that no other training writes to it.

    The operating system releases the lock when the process ends for any reason. Reading needs no lock.

    Args:
        run_dir: Run directory.
        option: Option that names it, for the error.
        patience: Seconds to wait for the lock.

    Raises:
        LockedError: Another process holds the lock.
    """
    lock = FileLock(run_dir / LOCK, timeout=patience)
    try:
        lock.acquire()
    except Timeout as error:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            who = read_text(run_dir / HOLDER).strip()
            raise LockedError(f"{option}={run_dir}: process {who:.20} is writing to it") from error
        raise LockedError(f"{option}={run_dir}: another process is writing to it") from error
    try:
        write_atomically(run_dir / HOLDER, f"{os.getpid()}\n")
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(run_dir / HOLDER)
        lock.release()
