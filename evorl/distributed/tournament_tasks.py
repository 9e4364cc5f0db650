"""Distributed tournament: a task is a batch of episodes of all pairs of entrants."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evorl.distributed.executors import Executor, compute_parts
from evorl.distributed.task import RETURNS, FetchFn, Task, Value
from evorl.distributed.values import release_host_envs
from evorl.training.policy import Policy
from evorl.training.tournament import Tournament, TournamentTable
from evorl.types import PolicyWorkflow, State


@dataclass(frozen=True)
class TournamentSpec:
    """Specification of a tournament; see `evorl.training.tournament.Tournament`.

    Args:
        entrants: Workflow and state of each policy; None for an entrant that plays random actions.
        episodes: Number of episodes of each profile.
        seed: Seed of the episodes.
        explores: True if all policies explore.
        parts: Minimum number of tasks, which affects the episodes that are played.
    """

    entrants: Sequence[tuple[PolicyWorkflow, State] | None]
    episodes: int
    seed: int = 0
    explores: bool = False
    parts: int = 1

    def build_programs(self) -> "TournamentPrograms":
        return TournamentPrograms(self)


class TournamentPrograms:
    """Programs that play the batches of a tournament."""

    def __init__(self, spec: TournamentSpec) -> None:
        self.spec = spec
        policies = [None if one is None else Policy(*one) for one in spec.entrants]
        self.tournament = Tournament(policies, spec.episodes, spec.explores, spec.parts)

    def __call__(self, task: Task, fetch: FetchFn) -> Value:
        del fetch
        with release_host_envs():
            return [self.tournament.play_batch(self.spec.seed, task.part)]


def distribute_tournament(spec: TournamentSpec, executor: Executor) -> TournamentTable:
    """Return the payoff table of a tournament whose batches an executor plays.

    The table depends on the specification, but not on the executor.

    Raises:
        OptionError: The policies are for different games.
        WorkerError: If a task fails in a worker, or workers die too often.
    """
    programs = spec.build_programs()
    tournament, none = programs.tournament, np.zeros(0)
    tasks = [Task(RETURNS, 0, i, none, none, ()) for i in range(tournament.num_batches)]
    with executor.start_workers(programs) as workers:
        return tournament.make_table([returns for (returns,) in compute_parts(workers, tasks)])
