"""The store of a sweep: one SQLite file, in which workers take trials, tell how they fare, and end them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from evorl.errors import OptionError, to_printable
from evorl.sweeps import owners
from evorl.sweeps.database import MAX_VALUE_LENGTH, PARTIAL_NAME, SweepDatabase
from evorl.sweeps.space import SearchSpace
from evorl.sweeps.trials import FAILED, RUNNING, STATES, Evaluation, Sampler, SweepTrial, is_behind

WORKERS, TRIALS = "workers", "trials"  # in the folder of a sweep
SUGGEST_LOCK_NAME = "suggesting.lock"  # which one process at a time holds
MAX_DEATHS = 5  # of workers in the same place, after which a trial has failed


class SweepStore:
    """The trials of a sweep, as several processes write them; each change is one transaction.

    A trial is its owner's while that holds the lock of its name. Each value that is read is looked at.

    Args:
        folder: of the sweep.
        option: that named it, for errors.

    Raises:
        OptionError: where it is not there, not that of a sweep, or damaged.
    """

    def __init__(self, folder: Path, option: str = "resume") -> None:
        self.folder = Path(folder)
        self._file = SweepDatabase(self.folder, option)
        self._ended_trials: list[SweepTrial] = []  # the first trials, as far as all have ended: they change no more

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, Any]) -> "SweepStore":
        """Return a new one, in a folder that is there."""
        SweepDatabase.create(folder, settings)
        return cls(folder)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def settings(self) -> dict[str, Any]:
        """What was set, by name."""
        return self._file.settings

    def update_settings(self, **settings: Any) -> None:
        """Set, or change, some."""
        self._file.update_settings(**settings)

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
        with self._file.read_transaction():
            rows = self._file.fetch_rows(
                f"SELECT number, point, options, state, message FROM trials{new} ORDER BY number"
            )
            points = self._file.fetch_rows(f"SELECT trial, used, cost, score FROM curves{of_new} ORDER BY trial, used")
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
        others = [one for one in found if len(one.point) != space.size or not space.holds(one.values)]
        damage += [self._file.make_damage_error(f"its trial {one.number} is of another space") for one in others]
        return [one for one in found if one not in others] if others else found, damage

    def _parse_trial(self, row: Sequence[Any], curve: Sequence[Any]) -> SweepTrial:
        number, point, values, state, message = row
        named = f"its trial {number:.9g}" if isinstance(number, (int, float)) else "a trial of it"
        point, values = self._file.parse_json(point, named), self._file.parse_json(values, named)
        whole = state in STATES
        whole &= isinstance(message, str) and len(message) <= MAX_VALUE_LENGTH
        whole &= isinstance(point, list) and all(_is_finite(x) and 0 <= x <= 1 for x in point)
        whole &= isinstance(values, dict) and all(map(_is_value, values.values()))
        whole &= all(_is_finite(used) and 0 <= used <= 1 and _is_finite(cost) for used, cost, _ in curve)
        whole &= all(score is None or _is_finite(score) for _, _, score in curve)
        if not (isinstance(number, int) and 0 <= number < 2**31 and whole):
            raise self._file.make_damage_error(f"{named} is not that of a sweep")
        told = [Evaluation(used, cost, math.nan if score is None else score) for used, cost, score in curve]
        return SweepTrial(number, tuple(point), values, state, tuple(told), message)

    def count_remaining(self, total: int) -> int:
        """How many trials could be taken: those not begun, and those whose owner is gone."""
        ((begun,),) = self._file.fetch_rows("SELECT COUNT(*) FROM trials")
        return max(total - begun, 0) + self._check_running_owners().count(False)

    def has_active_owner(self) -> bool:
        """Whether a trial has an owner that is there."""
        return any(self._check_running_owners())

    def _check_running_owners(self) -> list[bool]:
        """Of each trial that has not ended whether its owner is there."""
        owners = self._file.fetch_rows(
            "SELECT owner FROM trials WHERE state = ? AND number >= ?", RUNNING, len(self._ended_trials)
        )
        return [self._is_alive(owner) for (owner,) in owners]

    @contextmanager
    def register_owner(self) -> Iterator[str]:
        """Give a name that owns trials as long as this process holds it; then those that have not ended are let go of.

        After an error they count as those of a worker that has died.
        """
        with owners.hold_owner(self.folder / WORKERS) as name:
            try:
                yield name
            except Exception:
                raise  # the trials keep its name, so that this counts as a death: one of them may be the reason
            except BaseException:
                self._release_trials(name)
                raise
            self._release_trials(name)

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
        with self._file.write_transaction():
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
        with self._file.write_transaction():
            ((count,),) = self._file.fetch_rows("SELECT COUNT(*) FROM trials")
            if count != len(trials):
                return False
            self._file.execute_many("INSERT INTO trials VALUES (?, ?, ?, ?, ?, 0, '')", rows)
        return True

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        """Takes an evaluation of a trial; returns whether that is to be stopped, as it is behind the others."""
        used, cost, score = evaluation
        with self._file.write_transaction():
            ((last,),) = self._file.fetch_rows("SELECT MAX(used) FROM curves WHERE trial = ?", number)
            row = number, used, cost, score if math.isfinite(score) else None
            self._file.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", *row)
            if last is None or used > last:
                self._file.execute("UPDATE trials SET deaths = 0 WHERE number = ?", number)
        trials = self.read_trials()
        told = [one for one in trials[number].curve if one.used_share <= used]  # what is later was told before a death
        now = SweepTrial(number, trials[number].point, trials[number].values, RUNNING, tuple(told))
        return used < 1 and is_behind(now, trials)

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """Ends a trial, whose curve ends where so much of its budget was used."""
        with self._file.write_transaction():
            self._file.execute("DELETE FROM curves WHERE trial = ? AND used > ?", number, used)
            self._file.execute(
                "UPDATE trials SET state = ?, message = ?, owner = NULL WHERE number = ?", state, message, number
            )

    def _release_trials(self, owner: str) -> None:
        with self._file.write_transaction():
            self._file.execute("UPDATE trials SET owner = NULL WHERE owner = ?", owner)

    def _list_owned_trials(self, owner: str) -> set[int]:
        owned = "SELECT number FROM trials WHERE owner = ? AND state = ? AND number >= ?"
        rows = self._file.fetch_rows(owned, owner, RUNNING, len(self._ended_trials))
        return {number for (number,) in rows}

    def _reclaim_trials(self, owner: str, n: int) -> None:
        """Trials whose owner is gone are this one's; too often where they stand, they have failed."""
        rows = self._file.fetch_rows(
            "SELECT number, owner, deaths FROM trials"
            " WHERE state = ? AND owner IS NOT ? AND number >= ? ORDER BY number",
            RUNNING,
            owner,
            len(self._ended_trials),
        )
        for number, before, deaths in rows:
            if not isinstance(deaths, int):
                raise self._file.make_damage_error(f"its trial {number} is not that of a sweep")
            deaths += before is not None
            if self._is_alive(before):
                continue
            if deaths >= MAX_DEATHS:
                self._file.execute(
                    "UPDATE trials SET state = ?, owner = NULL, message = ? WHERE number = ?",
                    FAILED,
                    f"{MAX_DEATHS} workers have died in the same place of it",
                    number,
                )
            elif len(self._list_owned_trials(owner)) < n:
                row = owner, deaths, number
                self._file.execute("UPDATE trials SET owner = ?, deaths = ? WHERE number = ?", *row)

    def _is_alive(self, owner: str | None) -> bool:
        """Return whether a process holds the name of an owner; raises OptionError where that is none."""
        if owner is None:
            return False
        if not owners.is_owner(owner):
            problem = f"an owner in it is {to_printable(owner)}, must be 16 hexadecimal digits"
            raise self._file.make_damage_error(problem)
        return owners.is_alive(self.folder / WORKERS, owner)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**63


def _is_value(value: Any) -> bool:
    """Return whether this may be the value of an option: a number, a category, or a list of such."""
    if isinstance(value, list):
        return all(map(_is_value, value))
    return value is None or isinstance(value, (bool, str)) or _is_finite(value)


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
