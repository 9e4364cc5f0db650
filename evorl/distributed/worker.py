"""Ray actor that computes tasks.

It imports JAX only after the environment variables are set, which determine the number of threads.
"""

import copy
import os
import pickle
from typing import Any

from evorl.distributed.task import Task, Value


class RayWorker:
    """Process that computes tasks sequentially."""

    def __init__(self, environment: dict[str, str], caches: bool, spec: bytes) -> None:
        os.environ.update(environment)
        from evorl.training.devices import enable_compilation_cache

        if caches:
            enable_compilation_cache()
        own = copy.deepcopy(pickle.loads(spec))  # so that Flax modules get ids of this process, not of another
        self._programs = own.build_programs()

    def get_process_id(self) -> int:
        """Return the process id, once the process is ready."""
        return os.getpid()

    def compute(self, task: Task, values: dict[str, Any]) -> Value:
        """Return the result of a task; the values that it reads are fetched if they were not read before."""
        import ray  # pyright: ignore[reportMissingImports]  optional dependency

        return self._programs(task, lambda name: ray.get(values[name]))
