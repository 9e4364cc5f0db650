"""Keyboard control of an environment by a person, in a terminal."""

import os
import re
import select
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evorl import spaces
from evorl.envs import render
from evorl.envs.render import HasActionMeanings
from evorl.envs.wrappers import unwrap
from evorl.errors import require
from evorl.spaces import Discrete, ObsWithActionMask
from evorl.types import Env

STEP_SECONDS = 0.1  # duration of a step, if the player may do nothing
ARROWS = {"up": "A", "down": "B", "right": "C", "left": "D"}
SPECIAL_KEYS = {"fire": " ", "drop": " ", "hold": "h"}
KEY_LABELS = {" ": "space", "\x1b[A": "↑", "\x1b[B": "↓", "\x1b[C": "→", "\x1b[D": "←"}
DEFAULT_KEYS = "0123456789bcdefgijklmnop"  # keys of actions without a name
QUIT = "q"


def assign_keys(env: Env) -> dict[str, int]:
    """Return the action of each key: by the names of the actions if possible, otherwise by number.

    The action "nothing" has no key.
    """
    assert isinstance(env.action_space, Discrete)
    names, found = get_action_meanings(env) or ("",) * env.action_space.n, {}
    for i, (name, plain) in enumerate(zip(names, DEFAULT_KEYS, strict=False)):
        key = f"\x1b[{ARROWS[name]}" if name in ARROWS else SPECIAL_KEYS.get(name, name if len(name) == 1 else plain)
        found |= {} if name == "nothing" else {key: i}
    return found


def get_action_meanings(env: Env) -> tuple[str, ...]:
    """Return the names of the actions, or () if they have none."""
    inner = unwrap(env)
    return inner.action_meanings if isinstance(inner, HasActionMeanings) else ()


def require_playable(env: Env | None = None) -> None:
    """Raise OptionError if there is no terminal, or if a person cannot play the environment."""
    require(sys.stdin.isatty(), "human", "true", "needs a terminal as standard input")
    if env is None:
        return
    name = type(unwrap(env)).__name__
    discrete = isinstance(env.action_space, Discrete) and env.action_space.n <= len(DEFAULT_KEYS)
    require(
        discrete,
        "human",
        "true",
        f"needs a discrete action space of at most {len(DEFAULT_KEYS)} actions, unlike {name}",
    )
    require(render.get_fps(env) is not None, "human", "true", f"needs pictures, and {name} cannot be rendered")


def play_by_keyboard(env: Env, env_params: Any, seed: int = 0) -> tuple[float, int]:
    """Play one episode by keyboard, and return its return and its number of steps.

    Raises:
        OptionError: There is no terminal, or a person cannot play the environment.
    """
    require_playable(env)
    actions, names = assign_keys(env), get_action_meanings(env)
    pause = STEP_SECONDS if "nothing" in names else None
    named = ", ".join(f"{KEY_LABELS.get(key, key)} {names[i]}" if names else key for key, i in actions.items())
    reset, step, key = jax.jit(env.reset), jax.jit(env.step), jax.random.key(seed)
    state, obs = reset(jax.random.fold_in(key, 0), env_params)
    earned, steps, ended = 0.0, 0, False
    with open_terminal() as shown:
        while not ended:
            told = f"return {earned:.6g} after {steps} steps; keys: {named}, {QUIT} to stop"
            print(f"\x1b[H{render_as_text(env, state)}\x1b[0m{told}\x1b[K", end="", flush=True, file=shown)
            pressed = read_keys(sys.stdin.fileno(), pause)
            if QUIT in pressed:
                break
            chosen = [actions[one] for one in pressed if one in actions]
            action = chosen[-1] if chosen else names.index("nothing") if pause else None
            legal = obs["legal"] if isinstance(env.observation_space, ObsWithActionMask) else None
            if action is None or (legal is not None and not legal[action]):
                continue
            move = spaces.action_from_indices(env.action_space, jnp.int32(action))
            state, timestep = step(jax.random.fold_in(key, steps + 1), state, move, env_params)
            obs, earned, steps = timestep.obs, earned + float(timestep.raw_reward), steps + 1
            ended = bool(timestep.terminated | timestep.truncated)
    print(f"return {earned:.6g} after {steps} steps{'' if ended else ', stopped'}")
    return earned, steps


@contextmanager
def open_terminal() -> Iterator[Any]:
    """Switch the terminal to an alternate screen and unbuffered input without echo, and restore it at the end."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSANOW)
        print("\x1b[?1049h\x1b[?25l\x1b[2J", end="", flush=True)
        yield sys.stdout
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
        print("\x1b[0m\x1b[?25h\x1b[?1049l", end="", flush=True)


def read_keys(fd: int, seconds: float | None) -> list[str]:
    """Return the keys pressed within `seconds`, or with None, wait for the next key.

    At the end of the input, the key is that for quitting.
    """
    if seconds is None:
        text = os.read(fd, 1)
        if text == b"\x1b":
            text += os.read(fd, 2)
    else:
        text = os.read(fd, 64) if select.select([fd], [], [], seconds)[0] else None
    if text == b"":
        return [QUIT]
    found = re.findall(r"\x1b[\[O][A-D]|.", (text or b"").decode("utf-8", "ignore"))
    return [one.replace("\x1bO", "\x1b[") for one in found]


def render_as_text(env: Any, state: Any) -> str:
    """Render a state as text; each colored half block shows two pixels, one above the other."""
    from PIL import Image

    image = Image.fromarray(render.render_states(env, [state])[0])
    size = shutil.get_terminal_size()
    scale = min(size.columns / image.width, 2 * (size.lines - 2) / image.height)
    width, height = max(int(image.width * scale), 1), max(int(image.height * scale) // 2 * 2, 2)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BOX))
    lines = []
    for above, below in zip(pixels[::2], pixels[1::2], strict=True):
        cells = zip(above.tolist(), below.tolist(), strict=True)
        lines.append("".join(f"\x1b[38;2;{a};{b};{c};48;2;{d};{e};{f}m▀" for (a, b, c), (d, e, f) in cells))
    return "\x1b[0m\x1b[K\n".join(lines) + "\x1b[0m\n"
