"""Policies from files of `python -m evorl.export`, and the zoo of policies that ship with evorl."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import jax
import jax.numpy as jnp
import numpy as np

import evorl
from evorl.errors import OptionError, escape, require, unknown_name_error
from evorl.numpy_policy import make_operations, read_policy, run_program, select_solution
from evorl.spaces import get_policy_space, leaf_spaces, to_shape_structs
from evorl.training.configuration import parts, trust_check
from evorl.training.pareto_front import Front
from evorl.training.policy import Policy
from evorl.training.records import files
from evorl.tree import as_arrays
from evorl.types import Env, Key, Memory

ZOO_PREFIX, SUFFIX = "zoo:", ".npz"
ENV_SECTIONS = ("env", "eval_env", "wrappers")  # of a configuration, from which the environment is made


def list_zoo() -> list[str]:
    """Return the names of the policies that ship with evorl."""
    return sorted(path.stem for path in _zoo_folder().glob(f"*{SUFFIX}"))


def describe_zoo() -> str:
    """Return one line for each policy that ships with evorl: its name, its return and the command of its run."""
    lines = []
    for name in list_zoo():
        record = PolicyFile(_zoo_folder() / f"{name}{SUFFIX}").about["record"]
        played = record["policy"]
        lines.append(f"{ZOO_PREFIX}{name}: return {played['mean']:.4g}; {record['command']}")
    return "\n".join(lines)


def _zoo_folder() -> Path:
    return Path(str(evorl.__file__)).parent / "zoo"


def find_policy_file(given: str | Path) -> Path | None:
    """Return the file of zoo:NAME or of FILE.npz; None for a run.

    Raises:
        OptionError: The zoo has no policy with this name.
    """
    name = str(given)
    if not name.startswith(ZOO_PREFIX):
        return Path(name) if name.endswith(SUFFIX) else None
    known = list_zoo()
    if name.removeprefix(ZOO_PREFIX) not in known:
        raise unknown_name_error("policy", name, [f"{ZOO_PREFIX}{one}" for one in known])
    return _zoo_folder() / f"{name.removeprefix(ZOO_PREFIX)}{SUFFIX}"


def describe_environment(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy file holds of the configuration of its run."""
    return {"agent": cfg["agent"]["name"], **{name: cfg.get(name) for name in ENV_SECTIONS}}


class PolicyFile:
    """Content of a policy file.

    Args:
        path: The file.

    Attributes:
        program: Operations of the policy.
        arrays: Parameters by name.
        about: The environment and, for policies of the zoo, their results.
        front: Front or archive, if the file has its solutions. Its parameters are lists of arrays.

    Raises:
        OptionError: The file cannot be read, or is not a policy that this version can read.
    """

    def __init__(self, path: Path) -> None:
        try:
            with _open(path) as file:
                self.program, self.arrays, self.about = read_policy(file, f"run={path}")
            self.front = self._read_front()
        except OSError as error:
            raise OptionError(f"run={path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            told = str(error) if str(error).startswith("run=") else f"run={path}: is not an exported policy"
            raise OptionError(told) from error

    def _read_front(self) -> Front | None:
        if not (names := self.program.get("solutions")):
            return None
        values, descriptors = (np.asarray(self.arrays[f"front_{name}"], float) for name in ("values", "descriptors"))
        objectives = tuple(escape(str(name))[:MAX_NAME] for name in self.program["objectives"])
        k, params = len(values), [self.arrays[name] for name in names]
        fits = values.shape == (k, len(objectives)) and descriptors.ndim == 2 and len(descriptors) == k > 0
        if not fits or any(len(x) != k for x in params):
            raise ValueError("its solutions do not fit each other")
        return Front(objectives, values, params, descriptors, int(self.program["capacity"]))


def _open(path: Path) -> BinaryIO:
    """Open a policy file; installers may have made hard links of those of the zoo."""
    return path.open("rb") if path.parent == _zoo_folder() else files.open_for_reading(path)


MAX_NAME = 80  # characters of the name of an objective


class ExportedPolicy(Policy):
    """Policy from a file of `python -m evorl.export`, or of the zoo.

    It plays in the environment of its run. It acts greedily, or samples its actions if it was exported with
    sampled=true.

    Args:
        path: The file.
        solution: Number of a solution, if the file has those of a front or an archive; None for 0.
        trust: Packages whose classes the description of the environment may name.
        env: Environment in which the policy plays, with the same spaces; None for that of the run.

    Raises:
        OptionError: The file is not a policy that this version can read, or does not fit its environment.
    """

    def __init__(
        self, path: Path, solution: int | None = None, trust: Sequence[str] = (), env: Env | None = None
    ) -> None:
        file = PolicyFile(path)
        try:
            arrays = select_solution(file.program, file.arrays, solution or 0)
        except ValueError as error:
            raise OptionError(str(error)) from error
        self.about, self.front, self._program = file.about, file.front, file.program
        self.env = env or _make_env(file.about, trust, f"run={path}: its environment")
        self.env_params = as_arrays(self.env.default_params)
        shapes = [(tuple(leaf["shape"]), leaf["dtype"]) for leaf in self._program["obs"]]
        seen = leaf_spaces(get_policy_space(self.env.observation_space))
        wanted = [(leaf.shape, str(np.dtype(leaf.dtype))) for leaf in seen]
        require(shapes == wanted, "run", path, "its policy does not fit its environment")
        self._arrays = {name: jnp.asarray(x) for name, x in arrays.items() if not name.startswith("front_")}
        self.memory = [self._arrays[name] for name in self._program["memory"]]
        self.is_random = any(operation == "random_bits" for operation, *_ in self._program["operations"])
        self._modes = {False: self._run, True: self._run if self.is_random else _refuse_to_explore}
        self._act = jax.jit(self._act_on_rows, static_argnames="explores")
        self._require_runnable(f"run={path}: is not an exported policy")

    def __call__(self, obs: Any, *given: Any, key: Any = None) -> Any:
        """Return the action as `Policy` does; a policy that samples its actions needs a key."""
        keys = [x for x in given[self.is_recurrent :] if x is not None]
        needs = self.is_random and key is None and not keys
        require(not needs, "key", key, "must be a key or a seed, since this policy samples its actions")
        return super().__call__(obs, *given, key=key)

    def _require_runnable(self, problem: str) -> None:
        """Raise OptionError unless the program gives actions of the environment and the next recurrent state."""
        obs = to_shape_structs(self.env.observation_space)
        try:
            action, memory, _ = jax.eval_shape(self._run, obs, self.memory, jax.random.key(0))
        except Exception as error:  # each operation raises its own
            raise OptionError(problem) from error
        actions = [x.shape for x in jax.tree.leaves(action)]
        fits = actions == [leaf.shape for leaf in leaf_spaces(self.env.action_space)]
        if not fits or [x.shape for x in memory] != [x.shape for x in self.memory]:
            raise OptionError(problem)

    def _run(self, obs: Any, memory: Memory, key: Key) -> tuple[Any, Memory, dict[str, Any]]:
        count = itertools.count()
        draw_bits = lambda shape: jax.random.bits(jax.random.fold_in(key, next(count)), shape)  # noqa: E731
        return *run_program(self._program, self._arrays, obs, memory, make_operations(jnp, draw_bits)), {}


def _refuse_to_explore(*_: Any) -> Any:
    raise OptionError("explore=true: this file has the greedy policy; export the run again with sampled=true")


def _make_env(about: Mapping[str, Any], trust: Sequence[str], where: str) -> Any:
    """Make the environment that a policy file describes, after the check of foreign configurations."""
    data = {name: about.get(name) for name in ENV_SECTIONS}
    if not isinstance(data["env"], dict):
        raise OptionError(f"{where} is not described; export the run again, or read the file with evorl.numpy_policy")
    trust_check.require_known(data, trust, where)
    require(isinstance(data["wrappers"], (list, type(None))), "wrappers", data["wrappers"], "must be a list")
    return parts.make_eval_env(data) or parts.make_wrapped_env(data["env"], "env", data)
