"""Detection of divergence: runs with NaN or infinity, and the operation that made the first NaN."""

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from evorl import tree
from evorl.ec.archives import Elites
from evorl.replay.state_replays import split_replays
from evorl.training.devices import fast_compile_options
from evorl.training.program import Program
from evorl.training.progress import Progress
from evorl.training.records.rows import per_seed
from evorl.training.training_options import PendingResult
from evorl.types import Array, EvolvingWorkflow, HasFailureReason, Population, State, Workflow
from evorl.workflows import base

LIBRARIES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")})


class DivergenceMonitor:
    """Detector of NaN and infinity in the real leaves of a state, except replay buffers and archives of elites.

    An archive only accepts finite genomes, so that its size does not slow down the check. Hyperparameters may
    be infinite, and leaves that at first are not finite in any member are ignored. A population has diverged
    if all of its members have. A single diverged member can be replaced, as PBT does.
    """

    def __init__(self, program: Program, state: State) -> None:
        """Compile the check, and find the leaves that are finite now."""
        self._program = program
        look = (
            jax.jit(self._find_nonfinite, out_shardings=program.of_metrics).lower(state).compile(fast_compile_options())
        )
        self._watched = np.logical_not(np.asarray(look(state)).all(2))  # [leaves, seeds]
        members, _ = _get_innermost_members(program.workflow, state)
        self._names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in _real_leaves(members)]
        self.find_nonfinite = look

    def find_diverged(self, found: np.ndarray) -> list[str | None]:
        """Return for each run the first leaf that is not finite, or None, given the output of `find_nonfinite`."""
        seeds = np.moveaxis(found & self._watched[:, :, None], 1, 0)  # [leaves, members] for each seed
        return [self._names[one.any(1).argmax()] if np.all(one.any(0)) else None for one in seeds]

    def check_chunk(self, found: np.ndarray, progress: Progress, chunk: PendingResult, debug: bool) -> str | None:
        """Record in the progress which runs have diverged, and return why training must end, or None.

        Training ends if no run is left, or with `debug` if one has diverged.

        Args:
            found: Output of `find_nonfinite` after the chunk.
            progress: Progress of the training, including the chunk.
            chunk: Result of the chunk. If it has a start state, the chunk is repeated to find the operation.
            debug: Whether one diverged run ends the training.
        """
        lost, iteration = progress.divergence_iterations, progress.iteration
        leaves = enumerate(self.find_diverged(found))
        new = {seed: leaf for seed, leaf in leaves if leaf is not None and lost[seed] is None}
        for seed in new:
            lost[seed] = iteration
        if not new or (None in lost and not debug):
            return None
        first, leaf = next(iter(new.items()))
        problem, seeds = describe_divergence(leaf, iteration), self._program.seeds
        if len(seeds) > 1:
            problem = f"seed {seeds[first]} {problem}"
        if chunk.start_state is not None:
            before = iteration - chunk.count
            problem += f"; {find_first_nan(self._program, chunk.start_state, first, before, chunk.count)}"
        return problem

    def _find_nonfinite(self, state: State) -> Array:
        """Return whether each leaf contains nonfinite values, bool [leaves, seeds, members]."""
        members, size = _get_innermost_members(self._program.workflow, state)
        num_seeds = len(self._program.seeds)
        leaves = [leaf.reshape(num_seeds, size, -1) for _, leaf in _real_leaves(members)]
        found = jnp.array([~jnp.isfinite(leaf).all(-1) for leaf in leaves], bool)
        return found.reshape(len(leaves), num_seeds, size)  # there may be no leaves


class StepMonitor:
    """Detector of environment steps with a nonfinite reward or observation; it prints one warning about them."""

    def __init__(self) -> None:
        self._has_warned = False

    def check(self, metrics: Mapping[str, np.ndarray], lost: Sequence[int | None]) -> str | None:
        """Return why training must end if no step of a chunk was valid, otherwise None.

        Args:
            metrics: Metrics of the chunk.
            lost: For each run, the iteration after which it diverged, or None. Diverged runs are ignored.
        """
        if "bad_rewards" not in metrics:
            return None
        sound = np.array([iteration is None for iteration in lost])
        counts = ("env_steps", "restarts", "bad_rewards")
        steps, cut, of_reward = (int(np.dot(per_seed(metrics[name], len(sound)), sound)) for name in counts)
        if not cut:
            return None
        what = f"{of_reward} rewards and {cut - of_reward} observations were NaN or infinite"
        if not steps:
            return f"no environment step is valid: {what}"
        if not self._has_warned:
            self._has_warned = True
            told = f"{what}; these steps are excluded from learning, and their environments are reset"
            print(told, file=sys.stderr, flush=True)
        return None


def find_failure_reason(workflow: Workflow, state: State, num_seeds: int = 1) -> str | None:
    """Return why a workflow cannot continue from the state of one of its runs, or None if it can or does not say."""
    if not isinstance(workflow, HasFailureReason):
        return None
    states = [state] if num_seeds == 1 else [tree.index(state, i) for i in range(num_seeds)]
    return next((why for one in states if (why := workflow.failure_reason(one)) is not None), None)


def describe_divergence(leaf: str, iteration: int) -> str:
    """Return the error message of a run whose leaf is not finite after an iteration."""
    return f"diverged: {leaf} is not finite after iteration {iteration}"


def _get_innermost_members(workflow: Workflow, state: State) -> tuple[State, int]:
    """Return the state of the innermost members, and their number.

    The leaves have the members as leading axes, after the seeds.
    """
    size = 1
    while isinstance(workflow, (Population, EvolvingWorkflow)):
        if isinstance(workflow, EvolvingWorkflow):
            workflow, state = workflow.population, state.members
        else:
            workflow, size = workflow.inner, size * workflow.size
    return state, size


def _real_leaves(state: State) -> list[tuple[Any, Any]]:
    is_archive = lambda x: isinstance(x, Elites)  # noqa: E731
    is_number = lambda path: jax.tree_util.keystr(path[:1], simple=True) == "numbers"  # noqa: E731
    leaves = jax.tree_util.tree_leaves_with_path(split_replays(state)[0], is_leaf=is_archive)
    leaves = [(path, leaf) for path, leaf in leaves if not is_archive(leaf) and not is_number(path)]
    return [(path, leaf) for path, leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def find_first_nan(program: Program, state: State, seed: int, first: int, count: int) -> str:
    """Return the operation that made the first NaN in `count` iterations of a run, given the state before them.

    `seed` is the index of the run among the seeds of the program. `first` is the number of iterations before
    this state.
    """
    if len(program.seeds) > 1:
        state = tree.index(state, seed)

    def step(state: State, key: Array) -> State:
        return base.step_or_evaluate(program.workflow, state, key, False)[0]

    checked = jax.jit(checkify.checkify(step, errors=checkify.nan_checks))
    for i in range(first, first + count):
        error, state = checked(state, jax.random.fold_in(program.keys[seed, 1], jnp.uint32(i)))
        found: Any = error.get_exception()
        if found is not None:
            return f"iteration {i + 1}, {_locate(found)}"
    return "no operation produced a NaN; a value overflowed to infinity"


def _locate(error: Any) -> str:
    """Return the operation of an error, with function, file and line of the innermost frame outside of libraries."""
    operation = str(error).rpartition(": ")[2].rstrip(".")
    own = [frame for frame in error.traceback_info.frames if not _is_library_file(frame.file_name)]
    if not own:
        return operation
    frame = own[0]
    path = Path(frame.file_name)
    return f"{operation} in {frame.function_name} ({'/'.join(path.parts[-3:])}:{frame.line_num})"


def _is_library_file(file: str) -> bool:
    installed = file.startswith(LIBRARIES) or file.startswith("<")
    return installed and f"{Path(__file__).parents[1]}/" not in file
