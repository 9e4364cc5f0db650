"""Pool of processes, each in an actor of a Ray cluster with its share of the resources."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evorl.distributed.process_actor import ProcessActor
from evorl.distributed.ray_executor import RayExecutor

POLL_SECONDS, STOP_SECONDS = 1, 30  # time to wait for the answers of actors
LOST_EXIT_CODE = -9  # of a process whose actor or machine was lost


class RayProcessPool:
    """Pool of processes that Ray places.

    Args:
        ray: Module ray, which is connected to a cluster.
        executor: Executor with the resources of a process.
    """

    def __init__(self, ray: Any, executor: RayExecutor) -> None:
        self._ray, self._environment = ray, executor.worker_environment
        resources = {"num_cpus": executor.cpus_per_worker, "num_gpus": executor.gpus_per_worker}
        self._actor = ray.remote(**resources, max_restarts=0)(ProcessActor)
        self._actors: dict[int, Any] = {}  # by place
        self._questions: dict[int, Any] = {}  # references to answers that have not arrived, by place

    def __len__(self) -> int:
        return len(self._actors)

    def __contains__(self, place: int) -> bool:
        return place in self._actors

    def start(self, place: int, arguments: Sequence[str], environment: dict[str, str], log: Path) -> None:
        """Start a Python process in a free place, and in the folder of this process, which all machines share.

        Args:
            place: Number of the place.
            arguments: Arguments of Python.
            environment: Environment variables in addition to those of the resources.
            log: File to which the output is appended, on storage that all machines share.
        """
        self._actors[place] = self._actor.remote(arguments, self._environment | environment, str(log), str(Path.cwd()))

    def poll(self) -> dict[int, int]:
        """Return the exit codes of the processes that have ended since the last call, by place."""
        for place in self._actors.keys() - self._questions.keys():
            self._questions[place] = self._actors[place].poll.remote()
        asked = list(self._questions.values())
        arrived = self._ray.wait(asked, num_returns=len(asked), timeout=POLL_SECONDS)[0] if asked else ()
        ended = {}
        for place in [place for place, reference in self._questions.items() if reference in arrived]:
            code = self._find_exit_code(self._questions.pop(place))
            if code is not None:
                self._end_actor(self._actors.pop(place))
                ended[place] = code
        return ended

    def stop(self) -> None:
        """Ask all processes to save and exit."""
        for actor in self._actors.values():
            with suppress(Exception):  # the cluster may have ended
                self._ray.get(actor.stop.remote(), timeout=STOP_SECONDS)

    def kill(self) -> None:
        """Kill all processes."""
        for actor in self._actors.values():
            with suppress(Exception):
                self._ray.get(actor.kill.remote(), timeout=STOP_SECONDS)
            self._end_actor(actor)

    def _find_exit_code(self, answer: Any) -> int | None:
        try:
            return self._ray.get(answer)[1]
        except self._ray.exceptions.RayError:
            return LOST_EXIT_CODE

    def _end_actor(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)
