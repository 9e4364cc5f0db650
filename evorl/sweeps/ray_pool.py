"""Worker processes of a sweep on the machines of a Ray cluster."""

from collections.abc import Sequence
from pathlib import Path

from evorl.distributed.process_pool import RayProcessPool
from evorl.sweeps.messages import ADDRESS_VARIABLE, MainProcessAddress
from evorl.sweeps.worker_pool import INTERRUPT_EXIT_CODE, MODULE, BaseWorkerPool


class RayWorkerPool(BaseWorkerPool):
    """Pool of worker processes that Ray places.

    Args:
        processes: Pool of processes.
        most: Maximum number of workers.
        address: Address of the main process.
        folder: Folder of the sweep on storage that all machines share.
        trust: Packages whose classes the definition may name.
    """

    def __init__(
        self, processes: RayProcessPool, most: int, address: MainProcessAddress, folder: Path, trust: Sequence[str]
    ) -> None:
        super().__init__(folder.absolute(), most)
        self._processes, self._trust = processes, trust
        self._environment = {ADDRESS_VARIABLE: address.to_text()}

    def __len__(self) -> int:
        return len(self._processes)

    def poll_workers(self) -> None:
        ended = self._processes.poll()
        self.losses += [(place, code) for place, code in ended.items() if code not in (0, INTERRUPT_EXIT_CODE)]

    def stop(self) -> None:
        self._processes.stop()

    def kill(self) -> None:
        self._processes.kill()

    def _is_free(self, place: int) -> bool:
        return place not in self._processes

    def _start_worker(self, place: int) -> None:
        arguments = ["-m", MODULE, str(self._folder), *self._trust]
        self._processes.start(place, arguments, self._environment, self.log_path(place))
