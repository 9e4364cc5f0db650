"""Distributed training: tasks, the executors that compute them, and the coordinators that create them."""

from evorl.distributed.coordinator import coordinate_psro as coordinate_psro
from evorl.distributed.evolution_coordinator import coordinate_evolution as coordinate_evolution
from evorl.distributed.executors import SerialExecutor as SerialExecutor
from evorl.distributed.population_coordinator import coordinate_population as coordinate_population
from evorl.distributed.ray_executor import RayExecutor as RayExecutor
from evorl.distributed.results import ResultStore as ResultStore
from evorl.distributed.rollout_coordinator import coordinate_rollouts as coordinate_rollouts
