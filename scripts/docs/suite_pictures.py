"""Draw docs/suites.png: one environment of each suite that has pictures, after 30 random steps.

pip install -e ".[suites]" && python scripts/docs/suite_pictures.py
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from evorl.envs import render
from evorl.spaces import random_action
from evorl.training.configuration import config
from evorl.training.configuration.parts import make_task

NAMES = (
    "gymnax/Breakout-MinAtar",
    "jumanji/Snake-v1",
    "jumanji/PacMan-v1",
    "craftax/Craftax-Classic-Symbolic-v1",
    "xland/MiniGrid-FourRooms",
    "navix/Navix-FourRooms-v0",
)
HEIGHT, STEPS = 240, 30
OUT = Path(__file__).parents[2] / "docs" / "suites.png"


def picture(name: str) -> Image.Image:
    """Return the frame in the middle of an episode."""
    env: Any = make_task(config.to_plain_data(config.compose_config([f"env={name}"])))
    params, key = env.default_params, jax.random.key(1)
    state, obs = jax.jit(env.reset)(key, params)
    states, step = [state], jax.jit(env.step)
    for i in range(STEPS):
        key_action, key_step = jax.random.split(jax.random.fold_in(key, i))
        action = random_action(env.action_space, env.observation_space, obs, key_action)
        state, timestep = step(key_step, state, action, params)
        if timestep.terminated | timestep.truncated:
            break
        obs, states = timestep.obs, [*states, state]
    return Image.fromarray(render.render_states(env, states)[len(states) // 2])


def main() -> None:
    pictures = []
    for name in NAMES:
        image = picture(name)
        scaled = image.resize((round(image.width * HEIGHT / image.height), HEIGHT), Image.Resampling.LANCZOS)
        pictures.append(np.pad(np.asarray(scaled), ((4, 4), (4, 4), (0, 0)), constant_values=255))
    Image.fromarray(np.concatenate(pictures, axis=1)).quantize(128).save(OUT)


if __name__ == "__main__":
    main()
