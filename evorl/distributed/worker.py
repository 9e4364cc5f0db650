"""An actor of Ray that computes tasks. JAX is imported once it is there: with threads as the coordinator says."""

import copy
import os
import pickle
from typing import Any

from evorl.distributed.task import Task, Value


class RayWorker:
    """A process that computes one task after the other."""

    def __init__(self, environment: dict[str, str], caches: bool, spec: bytes) -> None:
        os.environ.update(environment)
        from evorl.training.devices import enable_compilation_cache

        if caches:
            enable_compilation_cache()
        own = copy.deepcopy(pickle.loads(spec))  # whose modules of flax have no numbers of another process
        self._programs = own.build_programs()

    def get_process_id(self) -> int:
        """Its number, once it is ready."""
        return os.getpid()

    def compute(self, task: Task, values: dict[str, Any]) -> Value:
        """What comes out of a task that reads values, which are fetched where they were not seen before."""
        import ray  # pyright: ignore[reportMissingImports]  an extra

        return self._programs(task, lambda name: ray.get(values[name]))
