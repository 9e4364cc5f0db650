"""Brax environments."""

import contextlib
import copy
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
from evorl.errors import OptionError, require, require_int, unknown_name_error
from evorl.spaces import Box
from evorl.types import Array, Key, State, TimeStep
from evorl.vector_env.episodes import SUMMARIES

BACKENDS = ("generalized", "spring", "positional", "mjx")


@struct.dataclass
class BraxState:
    pipeline_state: State  # Brax's, of the backend
    steps: Int[Array, ""]


@struct.dataclass
class BraxScales:
    """How often a model's own gravity, masses and coefficients of friction are taken."""

    gravity: Float[Array, ""] | float = 1.0
    mass: Float[Array, ""] | float = 1.0  # above 0, of every body, with its inertia
    friction: Float[Array, ""] | float = 1.0  # of every contact


@dataclass(frozen=True)
class Brax:
    """Any registered Brax environment (Freeman et al. 2021, arXiv:2106.13281); actions are in [-1, 1].

    Params are None or BraxScales, of which each environment may have its own.

    options go to the environment's constructor, such as {"terminate_when_unhealthy": False}. metrics says, by name,
    what becomes of one of Brax's over an episode, its "sum", "mean" or "last" value. Time is counted here: Brax's own
    `time_out` marks falls too (inverted_pendulum, 0.14.2).
    """

    name: str
    backend: str = "generalized"
    max_episode_steps: int = 1000
    options: Mapping[str, Any] = field(default_factory=FrozenDict)
    metrics: Mapping[str, str] = field(default_factory=FrozenDict, repr=False)

    default_params = None
    fresh_reset = False
    positive_params = ("mass",)  # of its physics

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", FrozenDict(self.options))
        object.__setattr__(self, "metrics", FrozenDict(self.metrics))
        for name, how in self.metrics.items():
            require(how in SUMMARIES, f"metrics.{name}", how, f"must be one of {', '.join(SUMMARIES)}")
        require(self.backend in BACKENDS, "backend", self.backend, f"must be one of {', '.join(BACKENDS)}")
        require_int("max_episode_steps", self.max_episode_steps)

    @cached_property
    def env(self) -> Any:
        """The wrapped brax.envs.Env."""
        with _suppress_output(), mesh.eager_mode():  # also where a trace asks for it first
            from brax import envs

            patch_fluid()
            if self.name not in envs._envs:
                raise unknown_name_error("Brax environment", self.name, envs._envs, "python -m evorl.train --list")
            try:
                return envs.get_environment(self.name, backend=self.backend, **self.options)
            except TypeError as error:
                raise OptionError(f"options={dict(self.options)}: Brax's {self.name} answers: {error}") from error

    @cached_property
    def _obs_shape(self) -> tuple[int, ...]:
        return jax.eval_shape(self.reset, jax.random.key(0), None)[1].shape  # traced once for all that equal it

    @property
    def observation_space(self) -> Box:
        return Box(-float("inf"), float("inf"), self._obs_shape)

    @property
    def action_space(self) -> Box:
        return Box(-1.0, 1.0, (self.env.action_size,))

    @partial(jax.jit, static_argnums=0)  # so that it is traced once, wherever it is called
    def reset(self, key: Key, params: Any) -> tuple[BraxState, Any]:
        state = self._apply_scales(params).reset(key)
        return BraxState(state.pipeline_state, jnp.int32(0)), state.obs

    @partial(jax.jit, static_argnums=0)
    def step(self, key: Key, env_state: BraxState, action: Any, params: Any) -> tuple[BraxState, TimeStep]:
        del key
        from brax.envs import State

        # what a step reads of the last one is its physics alone: observation, reward, metrics and info are outputs
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
        """The numbers of BraxScales, of an environment that has bodies."""
        return {"gravity": 1.0, "mass": 1.0, "friction": 1.0} if hasattr(self.env, "sys") else {}

    def make_params(self, numbers: Mapping[str, Array]) -> BraxScales:
        """Params with these scales, by name."""
        return BraxScales(**numbers)

    def _apply_scales(self, params: Any) -> Any:
        """The wrapped environment, or a copy of it, for a trace, whose bodies are scaled."""
        if not isinstance(params, BraxScales):
            return self.env
        env = copy.copy(self.env)
        env.sys = scale_system(env.sys, params)
        return env

    @property
    def render_fps(self) -> float | None:
        """Steps per second of the physics; None where there are no bodies."""
        return 1 / float(self.env.dt) if hasattr(self.env, "sys") else None

    def render_frames(self, states: Sequence[BraxState]) -> list[np.ndarray]:
        """Render states by MuJoCo; raise OptionError where it finds no OpenGL."""
        with _suppress_output():
            return render_poses(self.env.sys.mj_model, [np.asarray(state.pipeline_state.q) for state in states])

    def draw(self, states: list[BraxState], folder: Path) -> list[Path]:
        """Write viewer.html, a page that shows the bodies in three dimensions."""
        if self.render_fps is None:
            print(f"no pictures: Brax's {self.name} has no bodies to draw", file=sys.stderr)
            return []
        shown = folder / "viewer.html"
        physics = [state.pipeline_state for state in states]
        poses = np.array([np.concatenate([state.x.pos, state.x.rot], 1) for state in physics])
        bodies, ground = build_solids(self.env.sys.mj_model)
        page = viewer.build_page(f"{self.name}, {self.backend}", bodies, poses, 1 / self.render_fps, ground)
        shown.write_text(page, "utf-8")
        return [shown]


def scale_system(sys: Any, by: BraxScales) -> Any:
    """A brax.System with other gravity, masses and friction, in the fields of all backends.

    What constraints weigh by is 1 / mass of links; of joints, whose armature a has no mass of a body, 1 / w - a is.
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
    """Lets Brax's fluid model, which the swimmer needs, run on a jax whose clip knows no a_min any more.

    Brax 0.14.2 calls jnp.clip(x, a_min=...) there; jax removed that name. Applied only where both are so.
    """
    from brax import fluid

    try:
        fluid.jp.clip(jnp.zeros(1), a_min=0.0)
    except TypeError:

        def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Any:
            return jnp.clip(x, a_min if min is None else min, a_max if max is None else max)

        fluid.jp = SimpleNamespace(**vars(jnp) | {"clip": clip})


def _import_mujoco() -> Any:
    """MuJoCo's module; raises OptionError where it does not find the OpenGL that MUJOCO_GL asks for."""
    try:
        import mujoco
    except (ImportError, AttributeError) as error:
        chosen = os.environ.get("MUJOCO_GL")
        require(not chosen, "MUJOCO_GL", chosen, "MuJoCo does not find it here, without which it only draws no GIF")
        raise error
    return mujoco


@contextlib.contextmanager
def _suppress_output() -> Any:
    """Without what Brax and MuJoCo say of their maintenance, of warp, and into MUJOCO_LOG.TXT of old models."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with suppress_warnings(_import_mujoco()):
            yield
