"""Small facts that outlast a process, in the user's cache folder, such as how long something took to compile."""

import contextlib
import json
from pathlib import Path
from typing import Any

from evorl.training.devices import cache_folder
from evorl.training.records import files


class Remembered:
    """Values by name in one JSON file. Where it cannot be read or written, nothing is remembered."""

    def __init__(self, file: str) -> None:
        self._path = cache_folder() / file

    def get(self, name: str) -> Any:
        """What is remembered under a name, or None."""
        return self._all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Remembers a value that JSON can hold."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.replace(self._path, json.dumps(self._all() | {name: value}, indent=1) + "\n")

    def _all(self) -> dict[str, Any]:
        return read(self._path)


def read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(files.read(path))
        return found if isinstance(found, dict) else {}
    return {}
