"""SQLite file of a sweep: its tables, settings and transactions. Only data is read from it, never code."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from evorl.errors import OptionError
from evorl.training.records import files

NAME = "sweep.sqlite"  # in the folder of a sweep
PARTIAL_NAME = f".{NAME}"  # a file that is being created
SCHEMA_VERSION = 3
ALLOWED_FILES = {NAME, f"{NAME}-wal", f"{NAME}-shm"}  # no rollback journal, which can make SQLite delete any file
MAX_VALUE_LENGTH = files.MB  # characters of a value
DEFAULT_SETTINGS = {"workers": 1, "vmapped": 1, "vectorized": None}
LOCK_TIMEOUT_SECONDS = 60  # how long to wait for the transaction of another process
CREATE_TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, point TEXT NOT NULL, options TEXT NOT NULL, state TEXT NOT NULL,
    owner TEXT, deaths INTEGER NOT NULL, message TEXT NOT NULL);
CREATE TABLE curves (
    trial INTEGER NOT NULL REFERENCES trials(number), used REAL NOT NULL, cost REAL NOT NULL, score REAL,
    PRIMARY KEY (trial, used));
"""


def is_sweep(folder: Path) -> bool:
    """Return whether a folder has the database of a sweep, which may be damaged."""
    return (folder / NAME).is_file()


class SweepDatabase:
    """SQLite file of a sweep. Its schema must match CREATE_TABLES exactly, without triggers or views.

    Args:
        folder: Folder of the sweep.
        option: Name of the option that named the folder, for error messages.

    Raises:
        OptionError: If the file does not exist, does not belong to a sweep, is damaged, or has another schema
            version.
    """

    def __init__(self, folder: Path, option: str) -> None:
        self.folder, self._error_prefix = folder, f"{option}={folder}"
        self.is_writing = False  # whether a write transaction is open
        path = self.folder / NAME
        if not path.is_file() or path.is_symlink():
            what = f"has no {NAME}" if self.folder.is_dir() else "does not exist"
            raise OptionError(f"{self._error_prefix}: is not a sweep, it {what}")
        for other in self.folder.glob(f"{NAME}*"):
            if other.name not in ALLOWED_FILES:
                raise OptionError(f"{self._error_prefix}: its {other.name} does not belong to a sweep")
        self._connection = _connect(path)
        try:
            if self.fetch_rows("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name") != _read_schema():
                raise OptionError(f"{self._error_prefix}: its {NAME} is not the database of a sweep")
            if (found := self.settings["schema"]) != SCHEMA_VERSION:
                raise OptionError(
                    f"{self._error_prefix}: has schema {found}, must be {SCHEMA_VERSION}; use the evorl that wrote it"
                )
        except BaseException:
            self._connection.close()
            raise

    @staticmethod
    def create(folder: Path, settings: Mapping[str, Any]) -> None:
        """Create the file of a new sweep in an existing folder; settings that are not given have their defaults."""
        for left in folder.glob(f"{PARTIAL_NAME}*"):
            left.unlink()
        new = folder / PARTIAL_NAME  # so that the final file is complete or absent
        file = _connect(new)
        file.execute("PRAGMA journal_mode = WAL")  # persists in the file
        file.executescript(CREATE_TABLES)
        for name, value in ({"schema": SCHEMA_VERSION} | DEFAULT_SETTINGS | dict(settings)).items():
            file.execute("INSERT INTO sweep VALUES (?, ?)", (name, json.dumps(value)))
        file.close()
        new.rename(folder / NAME)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings by name."""
        found = {}
        for name, value in self.fetch_rows("SELECT name, value FROM sweep"):
            found[name] = self.parse_json(value, "its settings")
        if not {"schema", "trials", "seed", *DEFAULT_SETTINGS} <= found.keys():
            raise self.make_damage_error("its settings are not complete")
        for name in ("schema", "trials", "seed", "workers", "vmapped"):
            if not isinstance(found[name], int) or not -1 < found[name] < 2**31:
                raise self.make_damage_error(f"its {name} is not a whole number")
        if found["vectorized"] not in (None, True, False):
            raise self.make_damage_error("its vectorized is not true, false or null")
        return found

    def update_settings(self, **settings: Any) -> None:
        """Add or change settings."""
        with self.write_transaction():
            for name, value in settings.items():
                self.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", name, json.dumps(value))

    @contextmanager
    def write_transaction(self) -> Iterator[None]:
        """Open a transaction, whose changes take effect together or not at all."""
        self.is_writing = True
        try:
            yield from self._transaction("BEGIN IMMEDIATE")
        finally:
            self.is_writing = False

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Open a transaction whose queries see one state of the file, or join the open transaction if there is one."""
        if self._connection.in_transaction:
            yield
        else:
            yield from self._transaction("BEGIN")

    def _transaction(self, begin: str) -> Iterator[None]:
        try:
            self._connection.execute(begin)
            try:
                yield
            except BaseException:
                if self._connection.in_transaction:  # SQLite ends it itself if the disk is full
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._to_exception(error) from error

    def execute(self, statement: str, *given: Any) -> None:
        """Execute a statement that changes the tables, within a transaction."""
        self._connection.execute(statement, given)

    def execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute a statement for many rows, within a transaction."""
        self._connection.executemany(statement, rows)

    def fetch_rows(self, query: str, *given: Any) -> list[Any]:
        """Return all rows that a query finds."""
        try:
            return self._connection.execute(query, given).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._to_exception(error) from error

    def parse_json(self, text: Any, what: str) -> Any:
        """Return the value of a JSON text; raise OptionError if it is not valid or too long."""
        try:
            if not isinstance(text, str) or len(text) > MAX_VALUE_LENGTH:
                raise ValueError("no text")
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.make_damage_error(f"{what} cannot be read") from error

    def _to_exception(self, error: sqlite3.DatabaseError) -> Exception:
        """Return the exception to raise for an SQLite error: OSError for a full disk or a lock that is not released."""
        if isinstance(error, sqlite3.OperationalError):
            return OSError(f"{self.folder / NAME}: {error}")
        return self.make_damage_error(str(error))

    def make_damage_error(self, problem: str) -> OptionError:
        """Return the error for a damaged file."""
        return OptionError(f"{self._error_prefix}: its {NAME} is damaged: {problem:.200}")


def _read_schema() -> list[Any]:
    """Return the expected content of sqlite_master."""
    with closing(sqlite3.connect(":memory:")) as file:
        file.executescript(CREATE_TABLES)
        return file.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    file.text_factory = lambda text: text.decode("utf-8", "replace")
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        file.execute(f"PRAGMA {setting}")
    return file
