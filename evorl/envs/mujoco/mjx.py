"""Gymnasium's MuJoCo tasks on MJX, MuJoCo in JAX."""

import contextlib
import importlib.util
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Array, Float, Int

from evorl import mesh, tree
from evorl.envs.mujoco.engine import make_env, mujoco
from evorl.envs.mujoco.gymnasium_task import GymnasiumTask
from evorl.envs.mujoco.initial_states import sample_initial_state
from evorl.envs.mujoco.tasks import TASKS, MuJoCoTask, StepQuantities
from evorl.envs.suites.common import import_extra, in_full_precision, set_default_limit
from evorl.envs.suites.warp_worlds import CONTACT_OVERFLOWS, IMPLS, batch_worlds, silence_solver_limits
from evorl.errors import OptionError, require
from evorl.types import Key, TimeStep

SOLVERS = ("exact", "fast")
FAST_ITERATIONS, FAST_LS_ITERATIONS = 4, 8  # Newton steps, and steps of the line search in each
MIN_TANGENT = 1e-6  # a capsule is exactly upright on a plane if its axis is shorter than this along the plane
INTEGRATORS = ("EULER", "RK4", "IMPLICITFAST")
_trace_lock = threading.RLock()  # MJX's table of collision functions is that of all threads


@struct.dataclass
class MJXState:
    """The state of an MJX environment: all that MJX integrates.

    Args:
        qpos: Generalized positions.
        qvel: Generalized velocities.
        act: Activations of the actuators; None if they have none.
        qacc_warmstart: Accelerations of the last step, where the solver begins.
        position: The x position whose velocity is rewarded; None for tasks that reward that of qpos[0].
        steps: Number of steps in the episode.
    """

    qpos: Float[Array, " nq"]
    qvel: Float[Array, " nv"]
    act: Float[Array, " na"] | None
    qacc_warmstart: Float[Array, " nv"]
    position: Float[Array, ""] | None
    steps: Int[Array, ""]


class System(NamedTuple):
    """A task and its model on MJX."""

    env: Any  # Gymnasium's MujocoEnv, for its options, spaces and model
    task: MuJoCoTask
    model: Any  # mjx.Model
    data: Any  # mjx.Data of the model before any step
    limit: int  # Gymnasium's time limit, in steps


@dataclass(frozen=True)
class MJX(GymnasiumTask):
    """One of Gymnasium's v5 MuJoCo tasks by its id, such as MJX("HalfCheetah-v5"), simulated by MJX in JAX.

    Observations, rewards and ends are computed by the equations of `MuJoCo`, the same tasks on MuJoCo's C
    engine. States are float32.

    Args:
        name: Id of the task in Gymnasium.
        options: Keyword arguments of Gymnasium's environment, such as {"ctrl_cost_weight": 0.2}.
        solver: "exact" takes solver, iterations and tolerance of the task's model, with Newton's method in
            place of PGS, which MJX does not have. "fast" takes at most 4 iterations of Newton's method with 8
            iterations of the line search each.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the task's own limit.
        impl: Implementation of MJX: "jax", or "warp" (MJX-Warp, which is made for GPUs and also runs on CPUs).
            Warp does not compute the contact forces cfrc_ext, which Ant and the Humanoids read.

    Raises:
        OptionError: If a value is not allowed, the task or an option is unknown, or MJX cannot simulate the
            model.

    Source: Todorov et al. 2012, MuJoCo; MJX, https://mujoco.readthedocs.io/en/stable/mjx.html.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    solver: str = "exact"
    max_episode_steps: int = 0
    impl: str = "jax"

    engine_name = "MJX"
    default_params = None
    fresh_reset = False

    def __post_init__(self) -> None:
        plain = {name: tuple(x) if isinstance(x, list) else x for name, x in self.options.items()}
        object.__setattr__(self, "options", FrozenDict(plain))
        require(self.solver in SOLVERS, "solver", self.solver, f"must be one of {', '.join(SOLVERS)}")
        require(self.impl in IMPLS, "impl", self.impl, f"must be one of {', '.join(IMPLS)}")
        unread = self.impl == "jax" or self.name not in TASKS or "cfrc_ext" not in TASKS[self.name].reads
        require(unread, "impl", self.impl, f"must be jax for {self.name}: MJX-Warp does not compute cfrc_ext")
        set_default_limit(self, lambda: self._system.limit)

    @cached_property
    def _system(self) -> System:
        import gymnasium

        mjx, env = import_mjx(), make_env(self.name, self.options, "mjx")
        option = env.model.opt
        if option.solver == mujoco.mjtSolver.mjSOL_PGS or self.solver == "fast":
            option.solver = mujoco.mjtSolver.mjSOL_NEWTON
        if self.solver == "fast":
            option.iterations = min(option.iterations, FAST_ITERATIONS)
            option.ls_iterations = min(option.ls_iterations, FAST_LS_ITERATIONS)
        given = f"env.options={dict(self.options)}"
        if problem := find_unsupported(env.model):
            raise OptionError(f"{given}: MJX cannot simulate this model ({problem}); env=mujoco/{self.name} can")
        with mesh.eager_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = mjx.put_model(env.model, impl="jax")
                data = mjx.make_data(model, impl="jax")
            except NotImplementedError as error:
                raise OptionError(
                    f"{given}: MJX cannot simulate this model ({error}); env=mujoco/{self.name} can"
                ) from error
            if self.impl == "warp":
                installed = importlib.util.find_spec("warp") is not None
                require(installed, "impl", self.impl, "needs the package warp-lang: pip install warp-lang")
                model = silence_solver_limits(mjx.put_model(env.model, impl="warp"))
        return System(env, TASKS[self.name], model, data, int(gymnasium.spec(self.name).max_episode_steps or 0))

    @in_full_precision
    @partial(jax.jit, static_argnums=0)  # so that it is traced only once
    def reset(self, key: Key, params: Any) -> tuple[MJXState, Any]:
        """Sample an initial state from the distribution of Gymnasium's reset."""
        del params
        return self._reset_worlds(key) if self.impl == "warp" else self._reset_world(self._system.data, key)

    def _reset_world(self, blank: Any, key: Key) -> tuple[MJXState, Any]:
        qpos, qvel = sample_initial_state(self.name, self._system.env, key)
        data = blank.replace(qpos=qpos, qvel=qvel)
        with align_contact_frames():
            data = self._compute_reads(data)
        state = self._build_state(data, jnp.int32(0))
        return state, self._build_obs(data)

    @in_full_precision
    @partial(jax.jit, static_argnums=0)
    def step(self, key: Key, env_state: MJXState, action: Any, params: Any) -> tuple[MJXState, TimeStep]:
        del key, params
        action = jnp.float32(action)
        if self.impl == "warp":
            return self._step_worlds(env_state, action)
        return self._step_world(self._system.data, env_state, action)

    def _step_world(self, blank: Any, env_state: MJXState, action: Array) -> tuple[MJXState, TimeStep]:
        mjx, (env, task, model, _, _) = import_mjx(), self._system
        data = blank.replace(
            qpos=env_state.qpos, qvel=env_state.qvel, qacc_warmstart=env_state.qacc_warmstart, ctrl=action
        )
        data = data if env_state.act is None else data.replace(act=env_state.act)
        with align_contact_frames():
            data = jax.lax.fori_loop(0, env.frame_skip, lambda _, data: mjx.step(model, data), data)
            data = mjx.rne_postconstraint(model, data) if "cfrc_ext" in task.reads else data
        state = self._build_state(data, env_state.steps + 1)
        before, after = (state.qpos[0] if state.position is None else state.position for state in (env_state, state))
        step = StepQuantities(self._name_quantities(data), action[None], ((after - before) / env.dt)[None])
        reward, terminated = (part[0] for part in task.outcome(env, step))
        truncated = ~terminated & (state.steps >= self.max_episode_steps)
        reward = jnp.float32(reward)
        if self.impl == "warp":
            reward = jnp.where(data._impl.overflow & CONTACT_OVERFLOWS, jnp.nan, reward)
        return state, TimeStep(self._build_obs(data), reward, terminated, truncated)

    @cached_property
    def _reset_worlds(self) -> Callable[..., Any]:
        return batch_worlds(lambda n, keys: jax.vmap(partial(self._reset_world, self._make_warp_data(n)))(keys))

    @cached_property
    def _step_worlds(self) -> Callable[..., Any]:
        def run(n: int, states: MJXState, actions: Array) -> tuple[MJXState, TimeStep]:
            return jax.vmap(partial(self._step_world, self._make_warp_data(n)))(states, actions)

        return batch_worlds(run)

    def _make_warp_data(self, worlds: int) -> Any:
        """Return the data of a world, with room for the most contacts and constraints that MJX in JAX provides for."""
        env, most = self._system.env, self._system.data._impl
        return import_mjx().make_data(env.model, impl="warp", naconmax=worlds * most.ncon, njmax=most.nefc)

    def _compute_reads(self, data: Any) -> Any:
        """Compute what the task reads of a state that was not reached by a step."""
        mjx, (_, task, model, _, _) = import_mjx(), self._system
        if "qfrc_constraint" in task.reads:
            return mjx.forward(model, data)
        parts = [mjx.kinematics, mjx.com_pos, mjx.tendon, mjx.transmission, mjx.fwd_velocity, mjx.fwd_actuation]
        for part in parts if "cvel" in task.reads else parts[:1] if task.reads else []:
            data = part(model, data)
        return data

    def _name_quantities(self, data: Any) -> dict[str, Any]:
        """Return qpos, qvel and what the task reads, by name, as one row."""
        names = ("qpos", "qvel", *self._system.task.reads)
        return {name: getattr(data._impl if hasattr(data._impl, name) else data, name)[None] for name in names}

    def _build_obs(self, data: Any) -> Float[Array, " size"]:
        parts = self._system.task.obs(self._system.env, self._name_quantities(data))
        return jnp.concatenate(parts, 1)[0].astype(jnp.float32)

    def _build_state(self, data: Any, steps: Any) -> MJXState:
        env, task, *_ = self._system
        tracked = task.tracked_position and task.tracked_position(env, self._name_quantities(data))[0]
        act = data.act if env.model.na else None
        return tree.drop_weak_types(MJXState(data.qpos, data.qvel, act, data.qacc_warmstart, tracked, steps))

    @property
    def _gymnasium_env(self) -> Any:
        return self._system.env

    def _get_positions(self, states: Sequence[MJXState]) -> list[np.ndarray]:
        return [np.asarray(state.qpos) for state in states]


def find_unsupported(model: Any) -> str:
    """Return what MJX would ignore or refuse only when it is traced in a mujoco.MjModel; empty if there is nothing."""
    integrator = mujoco.mjtIntegrator(model.opt.integrator).name.removeprefix("mjINT_")
    if integrator not in INTEGRATORS:
        return f"integrator {integrator}; allowed: {', '.join(INTEGRATORS)}"
    ignored = {"noslip_iterations": model.opt.noslip_iterations, "actuator delays": model.nhistory}
    ignored["plugins"] = model.nplugin
    return ", ".join(name for name, count in ignored.items() if count)


@contextlib.contextmanager
def align_contact_frames() -> Iterator[None]:
    """Let MJX align the friction directions of a capsule on a plane with the capsule's axis, as MuJoCo's C engine does.

    Within this context, traced programs do so. MJX 3.17 takes other directions if the capsule is within 30
    degrees of the plane's normal. The pyramidal friction cone depends on them.
    """
    driver = importlib.import_module("mujoco.mjx._src.collision_driver")
    functions, pair = driver._COLLISION_FUNC, (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_CAPSULE)
    with _trace_lock:
        original = functions[pair]
        functions[pair] = align_with_axis(original)
        try:
            yield
        finally:
            functions[pair] = original


def align_with_axis(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return MJX's collision of capsules with a plane, with friction directions along the axis of each capsule."""

    @wraps(original)  # copies its number of contacts, too
    def collide(model: Any, data: Any, key: Any, geom: Any) -> tuple[Any, Any, Any]:
        dist, pos, frame = original(model, data, key, geom)  # two contacts for each capsule
        axis, normal = jnp.repeat(data.geom_xmat[geom[:, 1], :, 2], 2, axis=0), frame[:, 0]
        along = axis - normal * (axis * normal).sum(1, keepdims=True)
        size = jnp.linalg.norm(along, axis=1, keepdims=True)
        first = jnp.where(size < MIN_TANGENT, frame[:, 1], along / jnp.maximum(size, MIN_TANGENT))
        return dist, pos, jnp.stack([normal, first, jnp.cross(normal, first)], 1)

    return collide


def import_mjx() -> Any:
    """Import MJX without its messages about Warp, which it does not need."""
    with contextlib.redirect_stdout(io.StringIO()):
        return import_extra("mujoco.mjx", "mujoco")
