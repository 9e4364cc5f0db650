"""Draw docs/arcade.png: the screen of each arcade game after some random steps, by name from the upper left.

python scripts/docs/arcade_pictures.py [folder]       docs, by default
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from evorl import lazy
from evorl.envs import arcade
from evorl.spaces import random_action

WIDTH, HEIGHT, COLUMNS, STEPS = (
    200,
    170,
    5,
    {"Game2048": 150, "Tetris": 150, "ConnectFour": 7, "CartPole": 8, "Snake": 12},
)


def picture(env: Any) -> np.ndarray:
    """Return the last screen before the episode ends, or after the game's number of steps."""
    key = jax.random.key(3)
    state, obs = env.reset(key, env.default_params)
    step = jax.jit(env.step)
    for i in range(STEPS.get(type(env).__name__, 60)):
        key_action, key_step = jax.random.split(jax.random.fold_in(key, i))
        action = random_action(env.action_space, env.observation_space, obs, key_action)
        after, timestep = step(key_step, state, action, env.default_params)
        if timestep.terminated | timestep.truncated:
            break
        state, obs = after, timestep.obs
    image = Image.fromarray(np.asarray(env.render(state)))
    scale = min(WIDTH / image.width, HEIGHT / image.height)
    size = round(image.width * scale), round(image.height * scale)
    page = Image.new("RGB", (WIDTH + 8, HEIGHT + 8), "white")
    page.paste(
        image.resize(size, Image.Resampling.NEAREST), ((page.width - size[0]) // 2, (page.height - size[1]) // 2)
    )
    return np.asarray(page)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    pictures = [picture(getattr(arcade, name)()) for name in lazy.read_public_names("evorl.envs.arcade")]
    rows = [np.concatenate(pictures[i : i + COLUMNS], 1) for i in range(0, len(pictures), COLUMNS)]
    Image.fromarray(np.concatenate(rows)).quantize(64).save(folder / "arcade.png", optimize=True)


if __name__ == "__main__":
    main()
