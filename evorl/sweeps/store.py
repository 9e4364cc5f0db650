"""The store of a sweep: one SQLite file, in which workers take trials, tell how they fare, and end them."""

import json
import math
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from evorl.errors import OptionError
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import FAILED, RUNNING, Evaluation, Sampler, Trial, is_behind

NAME, WORKERS, TRIALS = "sweep.sqlite", "workers", "trials"  # in the folder of a sweep
HALF = f".{NAME}"  # a store that is being made
SCHEMA = 1
DEATHS = 5  # of workers in the same place, after which a trial has failed
SECONDS = 60  # that one waits for another's transaction
TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, point TEXT NOT NULL, options TEXT NOT NULL, state TEXT NOT NULL,
    owner TEXT, deaths INTEGER NOT NULL, message TEXT NOT NULL);
CREATE TABLE curves (
    trial INTEGER NOT NULL REFERENCES trials(number), used REAL NOT NULL, cost REAL NOT NULL, score REAL,
    PRIMARY KEY (trial, used));
"""


class Store:
    """The trials of a sweep, as several processes write them; each change is one transaction.

    A trial is its owner's while that holds the lock of its name, which the system releases when a process ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / NAME).is_file():
            raise OptionError(
                f"resume={folder}: is no sweep, it {'has no ' + NAME if folder.is_dir() else 'is not there'}"
            )
        self._file = _connected(self.folder / NAME)
        try:
            found = self.settings["schema"]
        except (sqlite3.DatabaseError, LookupError, ValueError) as error:
            self._file.close()
            raise OptionError(f"resume={folder}: its {NAME} is not that of a sweep") from error
        if found != SCHEMA:
            raise OptionError(f"resume={folder}: was written by another version of evorl")

    @classmethod
    def made(cls, folder: Path, settings: Mapping[str, Any]) -> "Store":
        """A new one, in a folder that is there."""
        for left in folder.glob(f"{HALF}*"):
            left.unlink()
        new = folder / HALF  # so that there is a whole one or none
        file = _connected(new)
        file.execute("PRAGMA journal_mode = WAL")  # which the file keeps
        file.executescript(TABLES)
        for name, value in ({"schema": SCHEMA} | dict(settings)).items():
            file.execute("INSERT INTO sweep VALUES (?, ?)", (name, json.dumps(value)))
        file.close()
        new.rename(folder / NAME)
        return cls(folder)

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    @property
    def settings(self) -> dict[str, Any]:
        """What was set, by name."""
        return {name: json.loads(value) for name, value in self._file.execute("SELECT name, value FROM sweep")}

    def change(self, **settings: Any) -> None:
        """Sets, or changes, some."""
        with self._writing():
            for name, value in settings.items():
                self._file.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (name, json.dumps(value)))

    def trials(self) -> list[Trial]:
        """All, in order."""
        with self._reading():
            rows = self._file.execute("SELECT number, point, options, state, message FROM trials ORDER BY number")
            found = [list(row) for row in rows]
            curves: dict[int, list[Evaluation]] = {}
            for trial, used, cost, score in self._file.execute("SELECT * FROM curves ORDER BY trial, used"):
                curves.setdefault(trial, []).append(Evaluation(used, cost, math.nan if score is None else score))
        return [
            Trial(number, tuple(json.loads(point)), json.loads(values), state, tuple(curves.get(number, ())), message)
            for number, point, values, state, message in found
        ]

    def left(self, total: int) -> int:
        """How many trials could be taken: those not begun, and those whose owner is gone."""
        (begun,) = self._file.execute("SELECT COUNT(*) FROM trials").fetchone()
        return max(total - begun, 0) + self._running().count(False)

    def is_worked_on(self) -> bool:
        """Whether a trial has an owner that is there."""
        return any(self._running())

    def _running(self) -> list[bool]:
        """Of each trial that has not ended whether its owner is there."""
        owners = self._file.execute("SELECT owner FROM trials WHERE state = ?", (RUNNING,)).fetchall()
        return [self._alive(owner) for (owner,) in owners]

    @contextmanager
    def owner(self) -> Iterator[str]:
        """A name that owns trials as long as this process holds it; then those that have not ended are let go of."""
        (self.folder / WORKERS).mkdir(exist_ok=True)
        name = secrets.token_hex(8)
        lock = FileLock(self._lock(name))
        with lock:
            try:
                yield name
            finally:
                with self._writing():
                    self._file.execute("UPDATE trials SET owner = NULL WHERE owner = ?", (name,))
        with suppress(OSError):
            self._lock(name).unlink()

    def take(self, owner: str, n: int, space: SearchSpace, sampler: Sampler) -> list[Trial]:
        """Up to n trials for an owner: those whose own is gone, then new ones, which the sampler suggests."""
        with self._writing():
            settings = self.settings
            self._take_over(owner, n)
            trials, mine = self.trials(), self._owned(owner)
            fresh = max(min(n - len(mine), settings["trials"] - len(trials)), 0)
            points = sampler.suggest(space, trials, fresh, settings["seed"]) if fresh else np.empty((0, space.size))
            for number, point in enumerate(np.asarray(points, float), len(trials)):
                values = json.dumps(space.decode(point))
                self._file.execute(
                    "INSERT INTO trials VALUES (?, ?, ?, ?, ?, 0, '')",
                    (number, json.dumps(point.tolist()), values, RUNNING, owner),
                )
            mine = self._owned(owner)
        return [trial for trial in self.trials() if trial.number in mine]

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        """Takes an evaluation of a trial; returns whether that is to be stopped, as it is behind the others."""
        used, cost, score = evaluation
        with self._writing():
            last = self._file.execute("SELECT MAX(used) FROM curves WHERE trial = ?", (number,)).fetchone()[0]
            row = number, used, cost, score if math.isfinite(score) else None
            self._file.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", row)
            if last is None or used > last:
                self._file.execute("UPDATE trials SET deaths = 0 WHERE number = ?", (number,))
        trials = self.trials()
        told = [one for one in trials[number].curve if one.used <= used]  # what is later was told before a death
        now = Trial(number, trials[number].point, trials[number].values, RUNNING, tuple(told))
        return used < 1 and is_behind(now, trials)

    def end(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """Ends a trial, whose curve ends where so much of its budget was used."""
        with self._writing():
            self._file.execute("DELETE FROM curves WHERE trial = ? AND used > ?", (number, used))
            self._file.execute(
                "UPDATE trials SET state = ?, message = ?, owner = NULL WHERE number = ?", (state, message, number)
            )

    def _owned(self, owner: str) -> set[int]:
        rows = self._file.execute("SELECT number FROM trials WHERE owner = ? AND state = ?", (owner, RUNNING))
        return {number for (number,) in rows}

    def _take_over(self, owner: str, n: int) -> None:
        """Trials whose owner is gone are this one's; too often where they stand, they have failed."""
        rows = self._file.execute(
            "SELECT number, owner, deaths FROM trials WHERE state = ? AND owner IS NOT ? ORDER BY number",
            (RUNNING, owner),
        )
        for number, before, deaths in rows.fetchall():
            deaths += before is not None
            if self._alive(before):
                continue
            if deaths >= DEATHS:
                self._file.execute(
                    "UPDATE trials SET state = ?, owner = NULL, message = ? WHERE number = ?",
                    (FAILED, f"{DEATHS} workers have died in the same place of it", number),
                )
            elif len(self._owned(owner)) < n:
                row = owner, deaths, number
                self._file.execute("UPDATE trials SET owner = ?, deaths = ? WHERE number = ?", row)

    def _alive(self, owner: str | None) -> bool:
        """Whether the lock of a name is held."""
        if owner is None or not self._lock(owner).exists():
            return False
        lock = FileLock(self._lock(owner), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return True
        lock.release()
        with suppress(OSError):
            self._lock(owner).unlink()
        return False

    def _lock(self, owner: str) -> Path:
        return self.folder / WORKERS / f"{owner}.lock"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        yield from self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if self._file.in_transaction:
            yield
        else:
            yield from self._transaction("BEGIN")

    def _transaction(self, begin: str) -> Iterator[None]:
        self._file.execute(begin)
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=SECONDS, isolation_level=None)


def is_unmade(folder: Path) -> bool:
    """Whether a folder holds nothing, or what was left of making a store there."""
    return folder.is_dir() and all(path.name.startswith(HALF) for path in folder.iterdir())


def folder_of(sweep: Path, number: int) -> Path:
    """Where a trial is trained."""
    return sweep / TRIALS / f"{number:05}"


def checked(trials: Sequence[Trial]) -> Sequence[Trial]:
    """trials; raises OptionError where all have failed."""
    if trials and all(one.state == FAILED for one in trials):
        raise OptionError(f"all {len(trials)} trials have failed; the first one: {trials[0].message}")
    return trials
