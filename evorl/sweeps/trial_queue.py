"""Queue of the trials of a sweep, from which a worker claims trials and to which it reports their results."""

from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Protocol, runtime_checkable

from evorl.sweeps.definition import SweepDefinition
from evorl.sweeps.store import SweepStore
from evorl.sweeps.trials import Evaluation, Sampler, SweepTrial


@runtime_checkable
class TrialQueue(Protocol):
    """Protocol of a queue of trials."""

    @property
    def folder(self) -> Path:
        """Return the folder of the sweep, in which the runs of the trials are."""
        ...

    def claim_trials(self, n: int) -> list[SweepTrial]:
        """Return up to n trials that belong to this worker; none if no trial is left.

        Args:
            n: Maximum number of trials.
        """
        ...

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        """Record an evaluation of a trial, and return whether to stop the trial.

        Args:
            number: Number of the trial.
            evaluation: Point of its learning curve.
        """
        ...

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        """End a trial.

        Args:
            number: Number of the trial.
            state: State in which it ends: done, stopped or failed.
            used: Used share of its budget; later evaluations are deleted.
            message: Reason of a failure.
        """
        ...


@dataclass(frozen=True)
class StoreQueue:
    """Queue of the trials in a store on this machine, for the worker that holds an owner name."""

    store: SweepStore
    definition: SweepDefinition
    sampler: Sampler
    owner: str

    @property
    def folder(self) -> Path:
        return self.store.folder

    def claim_trials(self, n: int) -> list[SweepTrial]:
        return self.store.claim_trials(self.owner, n, self.definition.space, self.sampler)

    def observe(self, number: int, evaluation: Evaluation) -> bool:
        return self.store.observe(number, evaluation)

    def end_trial(self, number: int, state: str, used: float = 1.0, message: str = "") -> None:
        self.store.end_trial(number, state, used, message)
