"""Adapter for Brax environments."""

import contextlib
import copy
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import FrozenDict
from jaxtyping import Float, Int

from evorl import mesh
from evorl.envs import viewer
from evorl.envs.bodies import build_solids, render_poses, suppress_warnings
from evorl.envs.suites.common import in_full_precision
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.spaces import Box
from evorl.types import Array, Key, State, TimeStep
from evorl.vector_env.episodes import SUMMARIES

AUTO = "auto"
BACKENDS = ("generalized", "spring", "positional", "mjx")
GENERALIZED_ONLY = ("swimmer",)  # tasks that have no other backend


@struct.dataclass
class BraxState:
    pipeline_state: State  # Brax's state of the backend
    steps: Int[Array, ""]


@struct.dataclass
class BraxScales:
    """Factors that multiply the gravity, the masses and the friction coefficients of a Brax model."""

    gravity: Float[Array, ""] | float = 1.0
    mass: Float[Array, ""] | float = 1.0  # of each body, with its inertia; above 0
    friction: Float[Array, ""] | float = 1.0  # of each contact


@cache
def choose_backend(name: str) -> str:
    """Return the physics backend of a Brax task for the devices of JAX: "spring" on a GPU, else "generalized".

    The choice of "spring" is printed on stderr, once per task.

    Args:
        name: Name in Brax's registry.
    """
    if jax.default_backend() != "gpu" or name in GENERALIZED_ONLY:
        return "generalized"
    told = (
        f"env={name}: uses env.backend=spring, because this is a GPU; env.backend=generalized is the default on a CPU"
    )
    print(told, file=sys.stderr)
    return "spring"


@dataclass(frozen=True)
class Brax:
    """Any registered Brax environment, with actions in [-1, 1].

    The env params are None or a `BraxScales`, which may differ between vectorized environments. Truncation
    follows from a step count kept here, since Brax's own `time_out` also marks falls (inverted_pendulum, Brax
    0.14.2).

    Args:
        name: Name in Brax's registry, such as "ant".
        backend: Brax's physics backend: "generalized", "spring", "positional" or "mjx". "auto" becomes
            "spring" on a GPU and "generalized" elsewhere, when the environment is created.
        max_episode_steps: Steps after which an episode is truncated.
        options: Keyword arguments of the environment's constructor, such as {"terminate_when_unhealthy":
            False}.
        metrics: Brax metrics to report per episode, by name, and how to aggregate each over the episode:
            "sum", "mean" or "last".

    Raises:
        OptionError: If a value is not allowed or Brax does not know the name.

    Source: Freeman et al. 2021, arXiv:2106.13281.
    """

    name: str
    backend: str = field(default=AUTO, metadata={"auto": lambda options: choose_backend(options["name"])})
    max_episode_steps: int = 1000
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    metrics: Mapping[str, str] = field(default_factory=FrozenDict, repr=False)

    default_params = None
    fresh_reset = False
    positive_params = ("mass",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", FrozenDict(self.options))
        object.__setattr__(self, "metrics", FrozenDict(self.metrics))
        for name, how in self.metrics.items():
            require(how in SUMMARIES, f"metrics.{name}", how, f"must be one of {', '.join(SUMMARIES)}")
        allowed = (AUTO, *BACKENDS)
        require(self.backend in allowed, "backend", self.backend, f"must be one of {', '.join(allowed)}")
        require_int("max_episode_steps", self.max_episode_steps)
        if self.backend == AUTO:
            object.__setattr__(self, "backend", choose_backend(self.name))

    @cached_property
    def env(self) -> Any:
        """Return the wrapped `brax.envs.Env`.

        Raises:
            OptionError: If Brax does not know the name or an option.
        """
        with _suppress_output(), mesh.eager_mode():  # eager even if first used within a trace
            from brax import envs

            patch_fluid()
            if self.name not in envs._envs:
                raise unknown_name_error("Brax environment", self.name, envs._envs, "python -m evorl.train --list")
            try:
                return envs.get_environment(self.name, backend=self.backend, **self.options)
            except TypeError as error:
                raise OptionError(
                    f"options={dict(self.options)}: Brax's {self.name} raises TypeError: {error}"
                ) from error

    @cached_property
    def _obs_shape(self) -> tuple[int, ...]:
        return jax.eval_shape(self.reset, jax.random.key(0), None)[1].shape  # cached by jit for equal environments

    @property
    def observation_space(self) -> Box:
        return Box(-float("inf"), float("inf"), self._obs_shape)

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, (self.env.action_size,))

    @in_full_precision
    @partial(jax.jit, static_argnums=0)  # so that it is traced only once
    def reset(self, key: Key, params: Any) -> tuple[BraxState, Any]:
        state = self._apply_scales(params).reset(key)
        return BraxState(state.pipeline_state, jnp.int32(0)), state.obs

    @in_full_precision
    @partial(jax.jit, static_argnums=0)
    def step(self, key: Key, env_state: BraxState, action: Any, params: Any) -> tuple[BraxState, TimeStep]:
        del key
        from brax.envs import State

        # a step reads only the physics state; observation, reward, metrics and info are outputs
        before = State(env_state.pipeline_state, jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))
        after = self._apply_scales(params).step(before, action)
        steps = env_state.steps + 1
        terminated = jnp.asarray(after.done, bool)
        truncated = ~terminated & (steps >= self.max_episode_steps)
        for name in self.metrics:
            if name not in after.metrics:
                raise unknown_name_error(f"metric of Brax's {self.name}", name, after.metrics)
        info = {name: jnp.float32(after.metrics[name]) for name in self.metrics}
        timestep = TimeStep(after.obs, jnp.float32(after.reward), terminated, truncated, info)
        return BraxState(after.pipeline_state, steps), timestep

    @property
    def episode_info(self) -> Mapping[str, str]:
        return self.metrics

    @property
    def physics(self) -> dict[str, float]:
        """Return the default scales by name (fields of `BraxScales`); empty if the environment has no bodies."""
        return {"gravity": 1.0, "mass": 1.0, "friction": 1.0} if hasattr(self.env, "sys") else {}

    def make_params(self, numbers: Mapping[str, Array]) -> BraxScales:
        """Return env params with these scales.

        Args:
            numbers: Scales by name; those not given are 1.
        """
        return BraxScales(**numbers)

    def _apply_scales(self, params: Any) -> Any:
        """Return the wrapped environment, or a copy of it whose bodies are scaled by the params."""
        if not isinstance(params, BraxScales):
            return self.env
        env = copy.copy(self.env)
        env.sys = scale_system(env.sys, params)
        return env

    @property
    def render_fps(self) -> float | None:
        """Return the environment steps per second of simulated time, or None if the environment has no bodies."""
        return 1 / float(self.env.dt) if hasattr(self.env, "sys") else None

    def render_frames(self, states: Sequence[BraxState]) -> list[np.ndarray]:
        """Render states with MuJoCo.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].

        Raises:
            OptionError: If MuJoCo finds no OpenGL on this machine.
        """
        with _suppress_output():
            return render_poses(self.env.sys.mj_model, [np.asarray(state.pipeline_state.q) for state in states])

    def draw(self, states: list[BraxState], folder: Path) -> list[Path]:
        """Write viewer.html, a page that shows the bodies in 3D.

        Args:
            states: States of one episode, in order.
            folder: Folder to write into.

        Returns:
            Paths of the written files; empty if the environment has no bodies.
        """
        if self.render_fps is None:
            print(f"no pictures: Brax's {self.name} has no bodies to render", file=sys.stderr)
            return []
        shown = folder / "viewer.html"
        physics = [state.pipeline_state for state in states]
        poses = np.array([np.concatenate([state.x.pos, state.x.rot], 1) for state in physics])
        bodies, ground = build_solids(self.env.sys.mj_model)
        page = viewer.build_page(f"{self.name}, {self.backend}", bodies, poses, 1 / self.render_fps, ground)
        shown.write_text(page, "utf-8")
        return [shown]


def scale_system(sys: Any, by: BraxScales) -> Any:
    """Return a `brax.System` with scaled gravity, masses and friction, in the fields that any backend reads.

    Constraints use inverse weights. For links, they are proportional to 1 / mass. A joint with inverse weight
    w has an armature a, which does not belong to the mass of a body, so only 1 / w - a is proportional to the
    mass.
    """
    inertia, mass = sys.link.inertia, by.mass
    inertia = inertia.replace(mass=mass * inertia.mass, i=mass * inertia.i)
    dofs = lambda weight, armature: 1 / (armature + mass * (1 / weight - armature))  # noqa: E731
    return sys.replace(
        gravity=by.gravity * sys.gravity,
        opt=sys.opt.replace(gravity=by.gravity * sys.opt.gravity),
        link=sys.link.replace(inertia=inertia, invweight=sys.link.invweight / mass),
        dof=sys.dof.replace(invweight=dofs(sys.dof.invweight, sys.dof.armature)),
        body_mass=mass * sys.body_mass,
        body_inertia=mass * sys.body_inertia,
        body_subtreemass=mass * sys.body_subtreemass,
        body_invweight0=sys.body_invweight0 / mass,
        dof_invweight0=dofs(sys.dof_invweight0, sys.dof_armature),
        geom_friction=by.friction * sys.geom_friction,
        pair_friction=by.friction * sys.pair_friction,
    )


def patch_fluid() -> None:
    """Make Brax's fluid model, which the swimmer needs, run on JAX versions whose `clip` has no `a_min`.

    Brax 0.14.2 calls `jnp.clip(x, a_min=...)`, an argument that JAX has removed. The patch is applied only if
    that call fails.
    """
    from brax import fluid

    try:
        fluid.jp.clip(jnp.zeros(1), a_min=0.0)
    except TypeError:

        def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
            return jnp.clip(x, a_min if min is None else min, a_max if max is None else max)

        fluid.jp = SimpleNamespace(**vars(jnp) | {"clip": clip})


def _import_mujoco() -> Any:
    """Import MuJoCo; raise OptionError if it does not find the OpenGL that MUJOCO_GL asks for."""
    try:
        import mujoco
    except (ImportError, AttributeError) as error:
        chosen = os.environ.get("MUJOCO_GL")
        require(not chosen, "MUJOCO_GL", chosen, "MuJoCo cannot load it; unset it (then no GIF is rendered)")
        raise error
    return mujoco


@contextlib.contextmanager
def _suppress_output() -> Any:
    """Suppress messages of Brax and MuJoCo about maintenance, about warp, and in MUJOCO_LOG.TXT about old models."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with suppress_warnings(_import_mujoco()):
            yield
