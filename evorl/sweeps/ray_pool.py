"""Worker processes of a sweep on the machines of a Ray cluster."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evorl.distributed.ray_executor import RayExecutor
from evorl.sweeps.messages import ADDRESS_VARIABLE, MainProcessAddress
from evorl.sweeps.process_actor import ProcessActor
from evorl.sweeps.worker_pool import INTERRUPT_EXIT_CODE, MODULE, BaseWorkerPool

POLL_SECONDS, STOP_SECONDS = 1, 30  # time to wait for the answers of actors
LOST_EXIT_CODE = -9  # of a worker whose actor or machine was lost


class RayWorkerPool(BaseWorkerPool):
    """Pool of worker processes that Ray places, each in an actor with its share of CPUs and GPUs.

    Args:
        ray: Module ray, which is connected to a cluster.
        executor: Executor with the number of workers and their resources.
        address: Address of the main process.
        folder: Folder of the sweep on storage that all machines share.
        trust: Packages whose classes the definition may name.
    """

    def __init__(
        self, ray: Any, executor: RayExecutor, address: MainProcessAddress, folder: Path, trust: Sequence[str]
    ) -> None:
        super().__init__(folder.absolute(), executor.workers)
        self._ray, self._trust = ray, trust
        self._environment = executor.worker_environment | {ADDRESS_VARIABLE: address.to_text()}
        resources = {"num_cpus": executor.cpus_per_worker, "num_gpus": executor.gpus_per_worker}
        self._actor = ray.remote(**resources, max_restarts=0)(ProcessActor)
        self._actors: dict[int, Any] = {}  # by place
        self._questions: dict[int, Any] = {}  # references to answers that have not arrived, by place

    def __len__(self) -> int:
        return len(self._actors)

    def poll_workers(self) -> None:
        for place in self._actors.keys() - self._questions.keys():
            self._questions[place] = self._actors[place].poll.remote()
        references = list(self._questions.values())
        arrived = self._ray.wait(references, num_returns=len(references), timeout=POLL_SECONDS)[0] if references else ()
        for place in [place for place, reference in self._questions.items() if reference in arrived]:
            code = self._find_exit_code(self._questions.pop(place))
            if code is not None:
                self._end_actor(self._actors.pop(place))
                if code not in (0, INTERRUPT_EXIT_CODE):
                    self.losses.append((place, code))

    def stop(self) -> None:
        for actor in self._actors.values():
            with suppress(Exception):  # the cluster may have ended
                self._ray.get(actor.stop.remote(), timeout=STOP_SECONDS)

    def kill(self) -> None:
        for actor in self._actors.values():
            with suppress(Exception):
                self._ray.get(actor.kill.remote(), timeout=STOP_SECONDS)
            self._end_actor(actor)

    @property
    def process_ids(self) -> list[int]:
        """Return the numbers of the worker processes, each on its own machine."""
        return [self._ray.get(actor.poll.remote())[0] for actor in self._actors.values()]

    def _start_worker(self, place: int) -> None:
        arguments = ["-m", MODULE, str(self._folder), *self._trust]
        self._actors[place] = self._actor.remote(arguments, self._environment, str(self.log_path(place)))

    def _is_free(self, place: int) -> bool:
        return place not in self._actors

    def _find_exit_code(self, answer: Any) -> int | None:
        try:
            return self._ray.get(answer)[1]
        except self._ray.exceptions.RayError:
            return LOST_EXIT_CODE

    def _end_actor(self, actor: Any) -> None:
        with suppress(Exception):
            self._ray.kill(actor)
