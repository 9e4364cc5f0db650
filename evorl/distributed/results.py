"""What tasks have given, on disk: a file each, whole or not there, of arrays and nothing that could run."""

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
    """Values by name in a folder, or nowhere."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(".*.npz.*"):
                left.unlink(missing_ok=True)

    def get(self, name: str) -> Value | None:
        """Return a value, or None where there is none that is whole (each array has its CRC-32).

        What is compressed is none of ours: a small file could fill the memory.
        """
        if (path := self._get_path(name)) is None:
            return None
        with contextlib.suppress(*READ_ERRORS), files.open_for_reading(path) as file:
            if all(member.compress_type == zipfile.ZIP_STORED for member in zipfile.ZipFile(file).infolist()):
                found = np.load(file, allow_pickle=False)
                return [found[f"arr_{i}"] for i in range(len(found.files))]
        return None

    def put(self, name: str, value: Value) -> None:
        """Writes a value, which is on disk when this returns."""
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
        """Removes all values but the last of a kind, whose names are KIND-NUMBER."""
        found = {} if self._folder is None else {path.stem: path for path in self._folder.glob(f"{kind}-*.npz")}
        numbers = [int(number) for name in found if (number := name.removeprefix(f"{kind}-")).isdecimal()]
        for number in sorted(numbers)[:-keep]:
            found[f"{kind}-{number}"].unlink()

    def _get_path(self, name: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{name}.npz"
