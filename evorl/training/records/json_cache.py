"""Small facts that outlast a process, in the user's cache folder, such as how long something took to compile."""

import contextlib
import json
from pathlib import Path
from typing import Any

from evorl.training.devices import cache_folder
from evorl.training.records import files

MAX_VALUES = 1000


class JsonCache:
    """The newest MAX_VALUES values by name in a JSON file; none where it cannot be read or written."""

    def __init__(self, file: str) -> None:
        self._path = cache_folder() / file

    def get(self, name: str) -> Any:
        """What is remembered under a name, or None."""
        return self._read_all().get(name)

    def put(self, name: str, value: Any) -> None:
        """Remembers a value that JSON can hold."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            others = {other: x for other, x in self._read_all().items() if other != name}
            kept = dict([*others.items(), (name, value)][-MAX_VALUES:])
            files.write_atomically(self._path, json.dumps(kept, indent=1) + "\n")

    def _read_all(self) -> dict[str, Any]:
        return read_json(self._path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(files.read_text(path))
        return found if isinstance(found, dict) else {}
    return {}
