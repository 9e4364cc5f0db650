"""Draw the pictures of docs/environments/maze.md: a strip of random levels, and the out-of-distribution set.

python scripts/docs/maze_pictures.py [folder]       docs, by default
"""

import sys
from pathlib import Path

import jax
from PIL import Image

from evorl import tree
from evorl.envs.maze import RandomWalls, ood, pad, render_level_grid


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    keys = jax.random.split(jax.random.key(0), 8)
    source = RandomWalls(fewest=25, most=60, solvable=True)
    levels = jax.vmap(source.sample, (0, None))(keys, source.default_params)
    Image.fromarray(render_level_grid(levels)).save(folder / "maze_random.png", optimize=True)
    known = [source.sample(keys[0], None) for source in ood.LEVELS.values()]
    named = [pad(level, 19, 19) for level in known if level.height < 20]
    Image.fromarray(render_level_grid(tree.stack(named), columns=5, tile=6)).save(
        folder / "maze_ood.png", optimize=True
    )


if __name__ == "__main__":
    main()
