"""Draw the pictures of README and docs: curves from recorded rows, fronts from the zoo, screens of environments.

python scripts/docs/pictures.py              all that this machine can draw
python scripts/docs/pictures.py curves maze  only these

`suites` needs the extra `suites`. Rows are recorded by the scripts that docs/results.md names.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

import evorl
from evorl import lazy, tree
from evorl.envs import arcade, render
from evorl.envs.maze import RandomWalls, ood, pad, render_level_grid
from evorl.plots.chart import Chart, assign_colors, save_charts
from evorl.plots.curves import RETURN_TITLE, compute_intervals, plot_curves
from evorl.plots.fronts import plot_front
from evorl.plots.lineage import plot_population
from evorl.population.lineage import member_history
from evorl.spaces import random_action
from evorl.training.configuration import config
from evorl.training.configuration.parts import make_task

DOCS = Path(__file__).parents[2] / "docs"
ROWS, PICTURES = DOCS / "rows", DOCS / "pictures"
SUITES = (
    "gymnax/Breakout-MinAtar",
    "jumanji/Snake-v1",
    "jumanji/PacMan-v1",
    "craftax/Craftax-Classic-Symbolic-v1",
    "xland/MiniGrid-FourRooms",
    "navix/Navix-FourRooms-v0",
)
SCREEN, COLUMNS = (200, 170), 5
ARCADE_STEPS = {"Game2048": 150, "Tetris": 150, "ConnectFour": 7, "CartPole": 8, "Snake": 12}


def read_jsonl(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROWS / name).read_text().splitlines()]


def draw_curves() -> None:
    """Draw PBT against fixed hyperparameters over steps, and evolution against gradients over seconds."""
    panels: dict[str, dict[str, Any]] = {}
    for row in read_jsonl("curves.jsonl"):
        panels.setdefault(row["panel"], {}).setdefault(row["label"], []).append(row)
    charts = []
    for panel, runs in panels.items():
        x_name, x_title, scale = "seconds", "seconds, 8 seeds in one program", "log"
        if any("members" in rows[0] for rows in runs.values()):
            x_name, x_title, scale = "env_steps", "env steps of a member", "linear"
        curves = {}
        for label, rows in runs.items():
            returns = np.array([row["returns"] for row in rows])
            x = np.array([row[x_name] / row.get("members", 1) for row in rows])
            curves[label] = (x, returns, compute_intervals(returns))
        chart = plot_curves(curves, assign_colors(list(curves)), x_title, RETURN_TITLE, x_scale=scale)
        charts.append(Chart(chart.spec, chart.tables, panel, groups=chart.groups))
    save_charts(charts, PICTURES / "evolution_and_gradients.png", columns=3, width=300)


def draw_lineage() -> None:
    """Draw the population of the first seed of the PBT run in `curves`."""
    save_charts(plot_population(member_history(read_jsonl("pbt.jsonl"))), PICTURES / "lineage.png", width=640)


def draw_archive() -> None:
    """Draw the archive of the zoo's MAP-Elites run."""
    save_charts(plot_front(evorl.load_front("zoo:map_elites_point_maze")), PICTURES / "archive.png", width=300)


def draw_front() -> None:
    """Draw the front of the zoo's NSGA-II run."""
    save_charts(plot_front(evorl.load_front("zoo:nsga2_hopper")), PICTURES / "front.png", width=360)


def draw_maze() -> None:
    """Draw a strip of random levels, and the out-of-distribution set."""
    keys = jax.random.split(jax.random.key(0), 8)
    source = RandomWalls(fewest=25, most=60, solvable=True)
    levels = jax.vmap(source.sample, (0, None))(keys, source.default_params)
    Image.fromarray(render_level_grid(levels)).save(PICTURES / "maze_random.png", optimize=True)
    known = [source.sample(keys[0], None) for source in ood.LEVELS.values()]
    named = [pad(level, 19, 19) for level in known if level.height < 20]
    grid = render_level_grid(tree.stack(named), columns=5, tile=6)
    Image.fromarray(grid).save(PICTURES / "maze_ood.png", optimize=True)


def draw_arcade() -> None:
    """Draw the screen of each arcade game after some random steps."""
    names = lazy.read_public_names("evorl.envs.arcade")
    screens = [_fit_screen(_play_game(getattr(arcade, name)(), ARCADE_STEPS.get(name, 60))) for name in names]
    rows = [np.concatenate(screens[i : i + COLUMNS], 1) for i in range(0, len(screens), COLUMNS)]
    Image.fromarray(np.concatenate(rows)).quantize(64).save(PICTURES / "arcade.png", optimize=True)


def draw_suites() -> None:
    """Draw one environment of each suite that has pictures, in the middle of an episode of random actions."""
    frames, height = [], 240
    for name in SUITES:
        env: Any = make_task(config.to_plain_data(config.compose_config([f"env={name}"])))
        states = play_randomly(env, jax.random.key(1), 30)
        image = Image.fromarray(render.render_states(env, states)[len(states) // 2])
        scaled = image.resize((round(image.width * height / image.height), height), Image.Resampling.LANCZOS)
        frames.append(np.pad(np.asarray(scaled), ((4, 4), (4, 4), (0, 0)), constant_values=255))
    Image.fromarray(np.concatenate(frames, axis=1)).quantize(128).save(PICTURES / "suites.png")


def play_randomly(env: Any, key: Any, steps: int) -> list[Any]:
    """Return the states of an episode of random actions, at most `steps` after the first."""
    params = env.default_params
    state, obs = jax.jit(env.reset)(key, params)
    states, step = [state], jax.jit(env.step)
    for i in range(steps):
        key_action, key_step = jax.random.split(jax.random.fold_in(key, i))
        action = random_action(env.action_space, env.observation_space, obs, key_action)
        state, timestep = step(key_step, state, action, params)
        if timestep.terminated | timestep.truncated:
            break
        obs, states = timestep.obs, [*states, state]
    return states


def _play_game(env: Any, steps: int) -> Image.Image:
    return Image.fromarray(np.asarray(env.render(play_randomly(env, jax.random.key(3), steps)[-1])))


def _fit_screen(image: Image.Image) -> np.ndarray:
    """Return an image in the middle of a white screen."""
    width, height = SCREEN
    scale = min(width / image.width, height / image.height)
    size = round(image.width * scale), round(image.height * scale)
    page = Image.new("RGB", (width + 8, height + 8), "white")
    middle = (page.width - size[0]) // 2, (page.height - size[1]) // 2
    page.paste(image.resize(size, Image.Resampling.NEAREST), middle)
    return np.asarray(page)


DRAW: dict[str, Callable[[], None]] = {
    "curves": draw_curves,
    "lineage": draw_lineage,
    "archive": draw_archive,
    "front": draw_front,
    "maze": draw_maze,
    "arcade": draw_arcade,
    "suites": draw_suites,
}


def main() -> None:
    for name in sys.argv[1:] or [name for name in DRAW if name != "suites"]:
        DRAW[name]()
        print(name, flush=True)


if __name__ == "__main__":
    main()
