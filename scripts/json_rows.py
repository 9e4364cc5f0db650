"""Files of rows, one JSON object in a line, that survive a process that is killed while it writes."""

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path, *names: str) -> list[Row]:
    """Return the complete rows of a file that have the named entries; no rows if there is no file."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [row for row in rows if isinstance(row, dict) and {*names} <= {*row}]


def append_row(path: Path, row: Row) -> None:
    """Append a row in a line of its own, after half a row too; when it returns, the row is on the disk."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read(1) == b"\n" else b"\n")
        file.write(json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
