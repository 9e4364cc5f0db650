"""Store of a sweep: a SQLite file from which workers claim trials, and in which they record and end them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from evorl.errors import OptionError, to_printable
from evorl.sweeps import owners
from evorl.sweeps.database import MAX_VALUE_LENGTH, PARTIAL_NAME, SweepDatabase
from evorl.sweeps.space import SearchSpace, is_finite, is_value
from evorl.sweeps.trials import FAILED, RUNNING, STATES, Evaluation, Sampler, SweepTrial, is_behind

WORKERS, TRIALS = "workers", "trials"  # subfolders of a sweep
SUGGEST_LOCK_NAME = "suggesting.lock"  # held by the process that suggests trials
MAX_DEATHS = 5  # deaths of workers without progress of a trial, after which the trial fails


@dataclass
class TrialCache:
    """Trials that have ended, which never change; the stores of the threads of a process may share it.

    A read needs only the trials of `open_numbers` and those from `first_unseen` on. These two are replaced
    together, so that another thread never sees one without the other.
    """

    ended: dict[int, SweepTrial] = field(default_factory=dict)
    rest: tuple[int, frozenset[int]] = (0, frozenset())  # first_unseen, open_numbers: running ones below it
    checked: tuple[SearchSpace | None, frozenset[int]] = (None, frozenset())  # trials that belong to the space

    @property
    def first_running(self) -> int:
        """Return a number below which all trials have ended."""
        return min(self.rest[1], default=self.rest[0])


class SweepStore:
    """Trials of a sweep, which several processes read and write; each change is one transaction.

    A trial belongs to its owner as long as that owner holds the lock of its name. Every value that is read is
    validated.

    Args:
        folder: Folder of the sweep.
        option: Name of the option that named the folder, for error messages.
        cache: Trials that another store of this process has read; None for a cache of its own.

    Raises:
        OptionError: If the store does not exist, does not belong to a sweep, or is damaged.
    """

    def __init__(self, folder: Path, option: str = "resume", cache: TrialCache | None = None) -> None:
        self.folder = Path(folder)
        self._file = SweepDatabase(self.folder, option)
        self._cache = TrialCache() if cache is None else cache

    @classmethod
    def create(cls, folder: Path, settings: Mapping[str, Any]) -> "SweepStore":
        """Create a new store in an existing folder."""
        SweepDatabase.create(folder, settings)
        return cls(folder)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings by name."""
        return self._file.settings

    def update_settings(self, **settings: Any) -> None:
        """Add or change settings."""
        self._file.update_settings(**settings)

    def read_trials(self, space: SearchSpace | None = None) -> list[SweepTrial]:
        """Return all trials in order.

        Args:
            space: Search space that the values must belong to; None to skip this check.

        Raises:
            OptionError: If a trial is damaged.
        """
        found, damage = self.read_intact_trials(space)
        if damage:
            raise damage[0]
        return found

    def read_intact_trials(self, space: SearchSpace | None = None) -> tuple[list[SweepTrial], list[OptionError]]:
        """Return the intact trials in order, and the errors of the damaged ones; see `read_trials`."""
        first_unseen, open_numbers = self._cache.rest
        first, still_open = min(open_numbers, default=first_unseen), ",".join(map(str, sorted(open_numbers)))
        new, of_new = (  # the first condition makes SQLite search the index
            f" WHERE {name} >= {first} AND ({name} >= {first_unseen} OR {name} IN ({still_open}))"
            for name in ("number", "trial")
        )
        known = dict(self._cache.ended)
        with self._file.read_transaction():
            rows = self._file.fetch_rows(
                f"SELECT number, point, options, state, message FROM trials{new} ORDER BY number"
            )
            points = self._file.fetch_rows(f"SELECT trial, used, cost, score FROM curves{of_new} ORDER BY trial, used")
        curves: dict[int, list[Any]] = {}
        for trial, *point in points:
            curves.setdefault(trial, []).append(point)
        damage = list[OptionError]()
        for row in rows:
            try:
                trial = self._parse_trial(row, curves.get(row[0], []))
            except OptionError as error:
                damage.append(error)
            else:
                known[trial.number] = trial
        if not self._file.is_writing:  # what is written now may be rolled back
            self._remember(known, first_unseen, open_numbers)
        found = [known[number] for number in sorted(known)]
        if space is None:
            return found, damage
        of_space, numbers = self._cache.checked
        checked = numbers if of_space == space else frozenset[int]()
        others = [
            one
            for one in found
            if one.number not in checked and (len(one.point) != space.size or not space.holds(one.values))
        ]
        if not others and not damage:
            self._cache.checked = space, frozenset(one.number for one in found if one.state != RUNNING)
        damage += [self._file.make_damage_error(f"its trial {one.number} has another search space") for one in others]
        return [one for one in found if one not in others] if others else found, damage

    def _remember(self, trials: Mapping[int, SweepTrial], first_unseen: int, open_numbers: frozenset[int]) -> None:
        """Put the trials that have ended into the cache, and mark the others, also damaged ones, as open."""
        self._cache.ended.update({number: one for number, one in trials.items() if one.state != RUNNING})
        while first_unseen in trials:
            first_unseen += 1
        running = {number for number, one in trials.items() if one.state == RUNNING and number < first_unseen}
        self._cache.rest = first_unseen, frozenset(running | open_numbers - self._cache.ended.keys())

    def _parse_trial(self, row: Sequence[Any], curve: Sequence[Any]) -> SweepTrial:
        number, point, values, state, message = row
        named = f"its trial {number:.9g}" if isinstance(number, (int, float)) else "one of its trials"
        point, values = self._file.parse_json(point, named), self._file.parse_json(values, named)
        whole = state in STATES
        whole &= isinstance(message, str) and len(message) <= MAX_VALUE_LENGTH
        whole &= isinstance(point, list) and all(is_finite(x) and 0 <= x <= 1 for x in point)
        whole &= isinstance(values, dict) and all(map(is_value, values.values()))
        whole &= all(is_finite(used) and 0 <= used <= 1 and is_finite(cost) for used, cost, _ in curve)
        whole &= all(score is None or is_finite(score) for _, _, score in curve)
        if not (isinstance(number, int) and 0 <= number < 2**31 and whole):
            raise self._file.make_damage_error(f"{named} is not valid")
        told = [Evaluation(used, cost, math.nan if score is None else score) for used, cost, score in curve]
        return SweepTrial(number, tuple(point), values, state, tuple(told), message)

    def count_remaining(self, total: int) -> int:
        """Return the number of trials that can be claimed: those not started, and those whose owner is gone."""
        ((begun,),) = self._file.fetch_rows("SELECT COUNT(*) FROM trials")
        return max(total - begun, 0) + self._check_running_owners().count(False)

    def has_active_owner(self) -> bool:
        """Return whether a running trial has an owner that is alive."""
        return any(self._check_running_owners())

    def _check_running_owners(self) -> list[bool]:
        """Return, for each running trial, whether its owner is alive."""
        owners = self._file.fetch_rows(
            "SELECT owner FROM trials WHERE state = ? AND number >= ?", RUNNING, self._cache.first_running
        )
        return [self._is_alive(owner) for (owner,) in owners]

    @contextmanager
    def register_owner(self) -> Iterator[str]:
        """Create an owner name, which this process holds within the context, and then release its unfinished trials.

        After an exception, the trials keep the name, so that this counts as the death of a worker. Ctrl-C or
        a signal to stop does not count.
        """
        with owners.hold_owner(self.folder / WORKERS) as name:
            try:
                yield name
            except Exception:
                raise  # the trials keep the name, so that this counts as a death: one of them may be the cause
            except BaseException:
                self._release_trials(name)
                raise
            self._release_trials(name)

    def claim_trials(self, owner: str, n: int, space: SearchSpace, sampler: Sampler) -> list[SweepTrial]:
        """Claim up to n trials for an owner: first those whose owner is gone, then new ones from the sampler.

        Only one process suggests trials at a time. It does so outside of transactions, so that workers that
        only record evaluations need not wait.
        """
        if self._claim_orphans(owner, n, space)[1]:
            with FileLock(self.folder / SUGGEST_LOCK_NAME):
                while not self._insert_suggestions(owner, n, space, sampler):
                    pass  # another process inserted trials without the lock
        mine = self._list_owned_trials(owner)
        return [trial for trial in self.read_trials() if trial.number in mine]

    def _claim_orphans(self, owner: str, n: int, space: SearchSpace) -> tuple[list[SweepTrial], int, int]:
        """Claim trials whose owner is gone; return all trials, the number of new ones to suggest, and the seed."""
        self.read_trials(space)  # so that the transaction, for which others wait, reads only what is new
        with self._file.write_transaction():
            self._reclaim_trials(owner, n)
            settings, trials, mine = self.settings, self.read_trials(space), self._list_owned_trials(owner)
        return trials, max(min(n - len(mine), settings["trials"] - len(trials)), 0), settings["seed"]

    def _insert_suggestions(self, owner: str, n: int, space: SearchSpace, sampler: Sampler) -> bool:
        """Suggest new trials and insert them; return False if others were inserted in the meantime."""
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
        """Record an evaluation of a trial, and return whether to stop the trial because it is behind the others."""
        used, cost, score = evaluation
        with self._file.write_transaction():
            ((last,),) = self._file.fetch_rows("SELECT MAX(used) FROM curves WHERE trial = ?", number)
            row = number, used, cost, score if math.isfinite(score) else None
            self._file.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", *row)
            if last is None or used > last:
                self._file.execute("UPDATE trials SET deaths = 0 WHERE number = ?", number)
        trials = self.read_trials()
        told = [one for one in trials[number].curve if one.used_share <= used]  # later points are from before a death
        now = SweepTrial(number, trials[number].point, trials[number].values, RUNNING, tuple(told))
        return used < 1 and is_behind(now, trials)

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """End a trial, and delete evaluations beyond the used share of its budget."""
        with self._file.write_transaction():
            self._file.execute("DELETE FROM curves WHERE trial = ? AND used > ?", number, used)
            self._file.execute(
                "UPDATE trials SET state = ?, message = ?, owner = NULL WHERE number = ?", state, message, number
            )

    def require_owner(self, number: int, owner: str) -> None:
        """Raise OptionError unless a running trial belongs to an owner; others may have taken it over."""
        if number not in self._list_owned_trials(owner):
            raise OptionError(f"trial {number} belongs to another worker")

    def _release_trials(self, owner: str) -> None:
        with self._file.write_transaction():
            self._file.execute("UPDATE trials SET owner = NULL WHERE owner = ?", owner)

    def _list_owned_trials(self, owner: str) -> set[int]:
        owned = "SELECT number FROM trials WHERE owner = ? AND state = ? AND number >= ?"
        rows = self._file.fetch_rows(owned, owner, RUNNING, self._cache.first_running)
        return {number for (number,) in rows}

    def _reclaim_trials(self, owner: str, n: int) -> None:
        """Give an owner the running trials whose owner is gone; mark those as failed in which too many workers died."""
        rows = self._file.fetch_rows(
            "SELECT number, owner, deaths FROM trials"
            " WHERE state = ? AND owner IS NOT ? AND number >= ? ORDER BY number",
            RUNNING,
            owner,
            self._cache.first_running,
        )
        for number, before, deaths in rows:
            if not isinstance(deaths, int):
                raise self._file.make_damage_error(f"its trial {number} is not valid")
            deaths += before is not None
            if self._is_alive(before):
                continue
            if deaths >= MAX_DEATHS:
                self._file.execute(
                    "UPDATE trials SET state = ?, owner = NULL, message = ? WHERE number = ?",
                    FAILED,
                    f"{MAX_DEATHS} workers died at the same point of the trial",
                    number,
                )
            elif len(self._list_owned_trials(owner)) < n:
                row = owner, deaths, number
                self._file.execute("UPDATE trials SET owner = ?, deaths = ? WHERE number = ?", *row)

    def _is_alive(self, owner: str | None) -> bool:
        """Return whether a process holds the name of an owner; raise OptionError if the name is invalid."""
        if owner is None:
            return False
        if not owners.is_owner(owner):
            problem = f"an owner is {to_printable(owner)}, must be 16 hexadecimal digits"
            raise self._file.make_damage_error(problem)
        return owners.is_alive(self.folder / WORKERS, owner)


def is_empty_or_partial(folder: Path) -> bool:
    """Return whether a folder is empty, or has only files of an unfinished creation of a store."""
    return folder.is_dir() and all(path.name.startswith(PARTIAL_NAME) for path in folder.iterdir())


def get_trial_folder(sweep: Path, number: int) -> Path:
    """Return the run directory of a trial."""
    return sweep / TRIALS / f"{number:05}"


def require_any_success(trials: Sequence[SweepTrial]) -> Sequence[SweepTrial]:
    """Return the trials; raise OptionError if there are trials and all have failed."""
    if trials and all(one.state == FAILED for one in trials):
        raise OptionError(f"all {len(trials)} trials have failed; the first one: {trials[0].message}")
    return trials
