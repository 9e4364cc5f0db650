"""A small persistent cache in the user's cache folder, for values such as compilation times."""

import contextlib
import json
from pathlib import Path
from typing import Any

from evorl.machine import cache_folder
from evorl.training.records import files

MAX_VALUES = 1000


class JsonCache:
    """Cache of the newest MAX_VALUES values by name, in a JSON file.

    If the file cannot be read or written, the cache is empty.
    """

    def __init__(self, file: str) -> None:
        self._path = cache_folder() / file

    def get(self, name: str) -> Any:
        """Return the value stored under a name, or None."""
        return self._read_all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Store a value that JSON can represent."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            others = {other: x for other, x in self._read_all().items() if other != name}
            kept = dict([*others.items(), (name, value)][-MAX_VALUES:])
            files.write_atomically(self._path, json.dumps(kept, indent=1) + "\n")

    def _read_all(self) -> dict[str, Any]:
        return read_json(self._path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; return an empty dict if there is none or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(files.read_text(path))
        return found if isinstance(found, dict) else {}
    return {}
