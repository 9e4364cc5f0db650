"""Results of tasks on disk: one file each, which is complete or absent, and which contains only arrays."""

import contextlib
import io
import os
import secrets
import zipfile
from pathlib import Path

import numpy as np

from evorl.distributed.task import Value
from evorl.training.records import files

READ_ERRORS = (OSError, ValueError, EOFError, KeyError, MemoryError, RuntimeError, zipfile.BadZipFile)


class ResultStore:
    """Store of values by name, in a folder.

    Args:
        folder: Folder of the files, which is created if it does not exist; None to store nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".*.npz.*"):
                left.unlink(missing_ok=True)

    def get(self, name: str) -> Value | None:
        """Return a value, or None if its file is missing or damaged (each array has a CRC-32).

        A compressed file is not read: it was not written by this class, and a small one could fill the
        memory.

        Args:
            name: Name of the value.
        """
        if (path := self._get_path(name)) is None:
            return None
        with contextlib.suppress(*READ_ERRORS), files.open_for_reading(path) as file:
            if all(member.compress_type == zipfile.ZIP_STORED for member in zipfile.ZipFile(file).infolist()):
                found = np.load(file, allow_pickle=False)
                return [found[f"arr_{i}"] for i in range(len(found.files))]
        return None

    def put(self, name: str, value: Value) -> None:
        """Store a value, which is on disk when this method returns.

        Args:
            name: Name of the value.
            value: Leaves of the value.
        """
        if (path := self._get_path(name)) is None:
            return
        data = io.BytesIO()
        np.savez(data, *value, allow_pickle=False)
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with new.open("xb") as file:
            file.write(data.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def trim(self, kind: str, keep: int) -> None:
        """Remove all values of a kind, named KIND-NUMBER, except those with the largest numbers.

        Args:
            kind: Kind of the values.
            keep: Number of values to keep.
        """
        found = {} if self._folder is None else {path.stem: path for path in self._folder.glob(f"{kind}-*.npz")}
        numbers = [int(number) for name in found if (number := name.removeprefix(f"{kind}-")).isdecimal()]
        for number in sorted(numbers)[:-keep]:
            found[f"{kind}-{number}"].unlink()

    def _get_path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.npz"
