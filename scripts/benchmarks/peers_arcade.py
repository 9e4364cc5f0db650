"""Compare the rules of the arcade with PufferLib's C games: observations, rewards and ends over 2,000 steps.

python scripts/benchmarks/peers_arcade.py PUFFER [GAMES]        compares all; PUFFER is PufferLib 3.0.0's source
python scripts/benchmarks/peers_arcade.py PUFFER --record DIR   and writes what C did, which tests replay without it

pip download --no-deps --no-build-isolation --no-clean pufferlib==3.0.0 fails, and leaves the source in TMPDIR. A few
lines of C around a game's header make it a library that this process calls.

The randomness of C is copied: the numbers that it draws are read, and evorl starts each episode in C's state. A step
that ends an episode in C shows the next episode, so only its reward and end are compared. The same holds for a step
with a point of Pong, which shows an old frame. In Breakout and Pong, four of five actions follow the ball, and Tetris
begins with lines that lack two cells, so that there is something to compare. In Breakout a difference in rounding grows
about tenfold with every hit of the paddle, so evorl restarts from C's state every 50 steps.
"""

import argparse
import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from peers_arcade_games import GAMES, HEAD, STEPS, Peer, f32, i32, library

from evorl import tree

SETTINGS = {"WIDE": 26, "HIGH": 26, "FOODS": 4, "LEVEL": 1}  # settings of Snake, as in evorl, and of Freeway


def recorded(puffer: Path, peer: Peer, steps: int) -> dict[str, Any]:
    """Play the C game, and return its trace in evorl's format, with the states in which evorl is to start.

    The leaves of the trace have shape [steps, ...].
    """
    game, out = library(puffer, peer, SETTINGS), np.zeros(4096)
    rng = np.random.default_rng(0)

    def look() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        numbers = out[: game.look(out.ctypes.data_as(ctypes.POINTER(ctypes.c_double)))].copy()
        draws = numbers[3 : 3 + min(int(numbers[2]), 16)].astype(int)
        return numbers[:2], draws, numbers[HEAD:]

    game.make(1, 1)
    game.start()
    seen, of_state = np.split(look()[2], [peer.seen])
    state = peer.state(of_state)
    starts, rows, begins = [state], [], True
    for i in range(1, steps + 1):
        skilled = peer.skilled if rng.random() < 0.8 else None
        action = i32(skilled(seen) if skilled else rng.integers(peer.env.action_space.n))
        game.step(int(action))
        (reward, ended), draws, numbers = look()
        seen, of_state = np.split(numbers, [peer.seen])
        after = peer.state(of_state)
        ended = bool(ended) or (peer.dies and reward == -1)
        stale = ended or (peer.game == "Pong" and abs(reward) == 1)
        row = {"action": action, "reward": f32(reward), "ended": ended, "stale": stale, "begins": begins}
        row |= {"chance": peer.chance(draws, state, of_state)}
        rows.append(row | {"obs": f32(peer.obs(seen, after))})
        state = after
        if ended:
            if peer.game == "CConnect4":  # its next step only starts an episode
                game.step(0)
            game.start()
            state = peer.state(look()[2][peer.seen :])
        if begins := ended or i % peer.again == 0:
            starts.append(state)
    return tree.stack(rows) | {"starts": tree.stack(starts)}


def replayed(env: Any, trace: dict[str, Any]) -> Any:
    """Replay the actions and random draws of a trace in evorl; return its TimeSteps, [steps]."""

    def step(state: Any, row: dict[str, Any]) -> tuple[Any, Any]:
        state = tree.select(row["begins"], tree.index(trace["starts"], row["start"]), state)
        return env.advance(state, row["action"], row["chance"])

    rows = {name: jnp.asarray(trace[name]) for name in ("action", "chance", "begins")}
    rows["start"] = jnp.cumsum(rows["begins"]) - 1
    return jax.jit(lambda rows: jax.lax.scan(step, tree.index(trace["starts"], 0), rows)[1])(rows)


def compared(env: Any, trace: dict[str, Any]) -> tuple[float, float, int]:
    """Return the largest difference of observations and of rewards, and the number of steps whose ends differ."""
    ours = jax.device_get(replayed(env, trace))
    obs = ours.obs["obs"] if isinstance(ours.obs, dict) else ours.obs
    shown = ~np.asarray(trace["stale"])
    apart = np.abs(obs[shown].astype(float) - np.asarray(trace["obs"])[shown]).max()
    ends = (ours.terminated | ours.truncated) != np.asarray(trace["ended"])
    return float(apart), float(np.abs(ours.reward - np.asarray(trace["reward"])).max()), int(ends.sum())


def write(trace: dict[str, Any], path: Path) -> None:
    """Write what a test needs to replay a trace: every 16th observation, and the leaves of the states by name."""
    starts = {f"starts.{name}": leaf for name, leaf in vars(trace["starts"]).items()}
    kept = {name: np.asarray(leaf) for name, leaf in trace.items() if name != "starts"} | starts
    kept["obs"] = kept["obs"][::16]
    arrays: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in kept.items()}
    np.savez_compressed(path, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("puffer", type=Path)
    parser.add_argument("games", nargs="*", default=list(GAMES))
    parser.add_argument("--record", type=Path)
    parser.add_argument(
        "--random", action="store_true", help="random actions alone, and no copy of C's state meanwhile"
    )
    args = parser.parse_args()
    print("| | steps | episodes | obs difference | reward difference | ends that differ |\n|---|---|---|---|---|---|")
    for name in args.games:
        peer = replace(GAMES[name], skilled=None, again=STEPS) if args.random else GAMES[name]
        trace = recorded(args.puffer, peer, STEPS)
        apart, reward, ends = compared(peer.env, trace)
        episodes = int(np.asarray(trace["ended"]).sum())
        if args.record:
            write(trace, args.record / f"{name}.npz")
        print(f"| {name} | {STEPS:,} | {episodes} | {apart:.1e} | {reward:.1e} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
