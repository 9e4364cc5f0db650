"""The store of a sweep: one SQLite file, in which workers take trials, tell how they fare, and end them."""

import json
import math
import re
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from evorl.errors import OptionError, to_printable
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import FAILED, RUNNING, STATES, Evaluation, Sampler, SweepTrial, is_behind
from evorl.training.records import files

NAME, WORKERS, TRIALS = "sweep.sqlite", "workers", "trials"  # in the folder of a sweep
SUGGEST_LOCK_NAME = "suggesting.lock"  # which one process at a time holds
PARTIAL_NAME = f".{NAME}"  # a store that is being made
SCHEMA_VERSION = 2
ALLOWED_FILES = {NAME, f"{NAME}-wal", f"{NAME}-shm"}  # a rollback journal may name any file, which SQLite then deletes
MAX_VALUE_LENGTH = files.MB  # characters of a value
OWNER_PATTERN = re.compile(r"[0-9a-f]{16}")
MAX_DEATHS = 5  # of workers in the same place, after which a trial has failed
LOCK_TIMEOUT_SECONDS = 60  # that one waits for another's transaction
CREATE_TABLES = """
CREATE TABLE sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trials (
    number INTEGER PRIMARY KEY, point TEXT NOT NULL, options TEXT NOT NULL, state TEXT NOT NULL,
    owner TEXT, deaths INTEGER NOT NULL, message TEXT NOT NULL);
CREATE TABLE curves (
    trial INTEGER NOT NULL REFERENCES trials(number), used REAL NOT NULL, cost REAL NOT NULL, score REAL,
    PRIMARY KEY (trial, used));
"""


class SweepStore:
    """The trials of a sweep, as several processes write them; each change is one transaction.

    A trial is its owner's while that holds the lock of its name, which the system releases when a process ends. What is
    read is data alone: the file holds our tables, word by word, no triggers and no views, and each value is looked at.
    """

    def __init__(self, folder: Path, option: str = "resume") -> None:
        self.folder, self._error_prefix = Path(folder), f"{option}={folder}"
        self._ended_trials: list[SweepTrial] = []  # the first trials, as far as all have ended: they change no more
        path = self.folder / NAME
        if not path.is_file() or path.is_symlink():
            what = f"has no {NAME}" if self.folder.is_dir() else "is not there"
            raise OptionError(f"{self._error_prefix}: is no sweep, it {what}")
        for other in self.folder.glob(f"{NAME}*"):
            if other.name not in ALLOWED_FILES:
                raise OptionError(f"{self._error_prefix}: its {other.name} is not that of a sweep")
        self._connection = _connect(path)
        try:
            if self._fetch_rows("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name") != _read_schema():
                raise OptionError(f"{self._error_prefix}: its {NAME} is not that of a sweep")
            if (found := self.settings["schema"]) != SCHEMA_VERSION:
                raise OptionError(
                    f"{self._error_prefix}: has schema {found}, must be {SCHEMA_VERSION}, as this version writes it"
                )
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, Any]) -> "SweepStore":
        """A new one, in a folder that is there."""
        for left in folder.glob(f"{PARTIAL_NAME}*"):
            left.unlink()
        new = folder / PARTIAL_NAME  # so that there is a whole one or none
        file = _connect(new)
        file.execute("PRAGMA journal_mode = WAL")  # which the file keeps
        file.executescript(CREATE_TABLES)
        for name, value in ({"schema": SCHEMA_VERSION} | dict(settings)).items():
            file.execute("INSERT INTO sweep VALUES (?, ?)", (name, json.dumps(value)))
        file.close()
        new.rename(folder / NAME)
        return cls(folder)

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()

    @property
    def settings(self) -> dict[str, Any]:
        """What was set, by name."""
        found = {}
        for name, value in self._fetch_rows("SELECT name, value FROM sweep"):
            found[name] = self._parse_json(value, "its settings")
        for name in ("schema", "trials", "seed", "workers", "vmapped"):
            if not isinstance(found.get(name, 1), int) or not -1 < found.get(name, 1) < 2**31:
                raise self._make_damage_error(f"its {name} is no whole number")
        if found.get("side_by_side") not in (None, True, False) or not {"schema", "trials", "seed"} <= set(found):
            raise self._make_damage_error("its settings are not those of a sweep")
        return found

    def update_settings(self, **settings: Any) -> None:
        """Sets, or changes, some."""
        with self._write_transaction():
            for name, value in settings.items():
                self._connection.execute("INSERT OR REPLACE INTO sweep VALUES (?, ?)", (name, json.dumps(value)))

    def read_trials(self, space: SearchSpace | None = None) -> list[SweepTrial]:
        """Return all, in order.

        Args:
            space: that their values are of, where that is to be looked at.

        Raises:
            OptionError: where one is damaged.
        """
        found, damage = self.read_intact_trials(space)
        if damage:
            raise damage[0]
        return found

    def read_intact_trials(self, space: SearchSpace | None = None) -> tuple[list[SweepTrial], list[OptionError]]:
        """Return the trials that are whole, in order, and what is wrong with the others; see trials."""
        known = len(self._ended_trials)
        new, of_new = (f" WHERE {number} >= {known}" if known else "" for number in ("number", "trial"))
        with self._read_transaction():
            rows = self._fetch_rows(f"SELECT number, point, options, state, message FROM trials{new} ORDER BY number")
            points = self._fetch_rows(f"SELECT trial, used, cost, score FROM curves{of_new} ORDER BY trial, used")
        curves: dict[int, list[Any]] = {}
        for trial, *point in points:
            curves.setdefault(trial, []).append(point)
        found, damage = list(self._ended_trials), list[OptionError]()
        for row in rows:
            try:
                found.append(self._parse_trial(row, curves.get(row[0], [])))
            except OptionError as error:
                damage.append(error)
        for trial in found[known:]:
            if trial.number != len(self._ended_trials) or trial.state == RUNNING:
                break
            self._ended_trials.append(trial)
        if space is None:
            return found, damage
        names = set(space.defaults)
        others = [one for one in found if len(one.point) != space.size or one.values.keys() != names]
        damage += [self._make_damage_error(f"its trial {one.number} is of another space") for one in others]
        return [one for one in found if one not in others] if others else found, damage

    def _parse_trial(self, row: Sequence[Any], curve: Sequence[Any]) -> SweepTrial:
        number, point, values, state, message = row
        named = f"its trial {number:.9g}" if isinstance(number, (int, float)) else "a trial of it"
        point, values = self._parse_json(point, named), self._parse_json(values, named)
        whole = state in STATES
        whole &= isinstance(message, str) and len(message) <= MAX_VALUE_LENGTH
        whole &= isinstance(point, list) and all(_is_finite(x) and 0 <= x <= 1 for x in point)
        whole &= isinstance(values, dict) and all(_is_finite(x) for x in values.values())
        whole &= all(_is_finite(used) and 0 <= used <= 1 and _is_finite(cost) for used, cost, _ in curve)
        whole &= all(score is None or _is_finite(score) for _, _, score in curve)
        if not (isinstance(number, int) and 0 <= number < 2**31 and whole):
            raise self._make_damage_error(f"{named} is not that of a sweep")
        told = [Evaluation(used, cost, math.nan if score is None else score) for used, cost, score in curve]
        return SweepTrial(number, tuple(point), values, state, tuple(told), message)

    def count_remaining(self, total: int) -> int:
        """How many trials could be taken: those not begun, and those whose owner is gone."""
        ((begun,),) = self._fetch_rows("SELECT COUNT(*) FROM trials")
        return max(total - begun, 0) + self._check_running_owners().count(False)

    def has_active_owner(self) -> bool:
        """Whether a trial has an owner that is there."""
        return any(self._check_running_owners())

    def _check_running_owners(self) -> list[bool]:
        """Of each trial that has not ended whether its owner is there."""
        owners = self._fetch_rows(
            "SELECT owner FROM trials WHERE state = ? AND number >= ?", RUNNING, len(self._ended_trials)
        )
        return [self._is_alive(owner) for (owner,) in owners]

    @contextmanager
    def register_owner(self) -> Iterator[str]:
        """Give a name that owns trials as long as this process holds it; then those that have not ended are let go of.

        After an error they count as those of a worker that has died.
        """
        (self.folder / WORKERS).mkdir(exist_ok=True)
        name = secrets.token_hex(8)
        lock = FileLock(self._lock_path(name))
        with lock:
            try:
                yield name
            except Exception:
                raise  # the trials keep its name, so that this counts as a death: one of them may be the reason
            except BaseException:
                self._release_trials(name)
                raise
            self._release_trials(name)
        with suppress(OSError):
            self._lock_path(name).unlink()

    def claim_trials(self, owner: str, n: int, space: SearchSpace, sampler: Sampler) -> list[SweepTrial]:
        """Return up to n trials for an owner: those whose own is gone, then new ones, which the sampler suggests.

        One process suggests at a time, outside of transactions, so that nobody waits for it who only tells of a trial.
        """
        if self._claim_orphans(owner, n, space)[1]:
            with FileLock(self.folder / SUGGEST_LOCK_NAME):
                while not self._insert_suggestions(owner, n, space, sampler):
                    pass  # someone without the lock was faster
        mine = self._list_owned_trials(owner)
        return [trial for trial in self.read_trials() if trial.number in mine]

    def _claim_orphans(self, owner: str, n: int, space: SearchSpace) -> tuple[list[SweepTrial], int, int]:
        """Give an owner the trials whose own is gone; return all trials, how many new ones it wants, and the seed."""
        with self._write_transaction():
            self._reclaim_trials(owner, n)
            settings, trials, mine = self.settings, self.read_trials(space), self._list_owned_trials(owner)
        return trials, max(min(n - len(mine), settings["trials"] - len(trials)), 0), settings["seed"]

    def _insert_suggestions(self, owner: str, n: int, space: SearchSpace, sampler: Sampler) -> bool:
        """Suggest new trials and put them in; return False where there are others by then, of which it did not know."""
        trials, fresh, seed = self._claim_orphans(owner, n, space)
        points = np.asarray(sampler.suggest(space, trials, fresh, seed) if fresh else (), float)
        rows = [
            (number, json.dumps(point.tolist()), json.dumps(space.decode(point)), RUNNING, owner)
            for number, point in enumerate(points, len(trials))
        ]
        with self._write_transaction():
            ((count,),) = self._fetch_rows("SELECT COUNT(*) FROM trials")
            if count != len(trials):
                return False
            self._connection.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, ?, 0, '')", rows)
        return True

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        """Takes an evaluation of a trial; returns whether that is to be stopped, as it is behind the others."""
        used, cost, score = evaluation
        with self._write_transaction():
            ((last,),) = self._fetch_rows("SELECT MAX(used) FROM curves WHERE trial = ?", number)
            row = number, used, cost, score if math.isfinite(score) else None
            self._connection.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", row)
            if last is None or used > last:
                self._connection.execute("UPDATE trials SET deaths = 0 WHERE number = ?", (number,))
        trials = self.read_trials()
        told = [one for one in trials[number].curve if one.used_share <= used]  # what is later was told before a death
        now = SweepTrial(number, trials[number].point, trials[number].values, RUNNING, tuple(told))
        return used < 1 and is_behind(now, trials)

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """Ends a trial, whose curve ends where so much of its budget was used."""
        with self._write_transaction():
            self._connection.execute("DELETE FROM curves WHERE trial = ? AND used > ?", (number, used))
            self._connection.execute(
                "UPDATE trials SET state = ?, message = ?, owner = NULL WHERE number = ?", (state, message, number)
            )

    def _release_trials(self, owner: str) -> None:
        with self._write_transaction():
            self._connection.execute("UPDATE trials SET owner = NULL WHERE owner = ?", (owner,))

    def _list_owned_trials(self, owner: str) -> set[int]:
        owned = "SELECT number FROM trials WHERE owner = ? AND state = ? AND number >= ?"
        rows = self._fetch_rows(owned, owner, RUNNING, len(self._ended_trials))
        return {number for (number,) in rows}

    def _reclaim_trials(self, owner: str, n: int) -> None:
        """Trials whose owner is gone are this one's; too often where they stand, they have failed."""
        rows = self._fetch_rows(
            "SELECT number, owner, deaths FROM trials"
            " WHERE state = ? AND owner IS NOT ? AND number >= ? ORDER BY number",
            RUNNING,
            owner,
            len(self._ended_trials),
        )
        for number, before, deaths in rows:
            if not isinstance(deaths, int):
                raise self._make_damage_error(f"its trial {number} is not that of a sweep")
            deaths += before is not None
            if self._is_alive(before):
                continue
            if deaths >= MAX_DEATHS:
                self._connection.execute(
                    "UPDATE trials SET state = ?, owner = NULL, message = ? WHERE number = ?",
                    (FAILED, f"{MAX_DEATHS} workers have died in the same place of it", number),
                )
            elif len(self._list_owned_trials(owner)) < n:
                row = owner, deaths, number
                self._connection.execute("UPDATE trials SET owner = ?, deaths = ? WHERE number = ?", row)

    def _is_alive(self, owner: str | None) -> bool:
        """Whether the lock of a name is held."""
        if owner is None or not self._lock_path(str(owner)).exists():
            return False
        lock = FileLock(self._lock_path(owner), timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return True
        lock.release()
        with suppress(OSError):
            self._lock_path(owner).unlink()
        return False

    def _lock_path(self, owner: str) -> Path:
        if not OWNER_PATTERN.fullmatch(owner):
            raise self._make_damage_error(f"an owner in it is {to_printable(owner)}, must be 16 hexadecimal digits")
        return self.folder / WORKERS / f"{owner}.lock"

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        yield from self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _read_transaction(self) -> Iterator[None]:
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
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise self._to_exception(error) from error

    def _fetch_rows(self, query: str, *given: Any) -> list[Any]:
        """Return what a query finds, all of it."""
        try:
            return self._connection.execute(query, given).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._to_exception(error) from error

    def _parse_json(self, text: Any, what: str) -> Any:
        try:
            if not isinstance(text, str) or len(text) > MAX_VALUE_LENGTH:
                raise ValueError("no text")
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._make_damage_error(f"{what} cannot be read") from error

    def _to_exception(self, error: sqlite3.DatabaseError) -> Exception:
        """Return what to raise: of a full disk, or a lock that nobody lets go of, OSError."""
        if isinstance(error, sqlite3.OperationalError):
            return OSError(f"{self.folder / NAME}: {error}")
        return self._make_damage_error(str(error))

    def _make_damage_error(self, problem: str) -> OptionError:
        return OptionError(f"{self._error_prefix}: its {NAME} is damaged: {problem:.200}")


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63


def _read_schema() -> list[Any]:
    """Return what SQLite keeps of our tables."""
    with closing(sqlite3.connect(":memory:")) as file:
        file.executescript(CREATE_TABLES)
        return file.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _connect(path: Path) -> sqlite3.Connection:
    file = sqlite3.connect(path, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None)
    file.text_factory = lambda text: text.decode("utf-8", "replace")
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        file.execute(f"PRAGMA {setting}")
    return file


def is_empty_or_partial(folder: Path) -> bool:
    """Whether a folder holds nothing, or what was left of making a store there."""
    return folder.is_dir() and all(path.name.startswith(PARTIAL_NAME) for path in folder.iterdir())


def get_trial_folder(sweep: Path, number: int) -> Path:
    """Where a trial is trained."""
    return sweep / TRIALS / f"{number:05}"


def require_any_success(trials: Sequence[SweepTrial]) -> Sequence[SweepTrial]:
    """trials; raises OptionError where all have failed."""
    if trials and all(one.state == FAILED for one in trials):
        raise OptionError(f"all {len(trials)} trials have failed; the first one: {trials[0].message}")
    return trials
