"""Measure the overhead of a curriculum: iterations of PLR and ACCEL, by kind, compared with the student's own work.

python scripts/benchmarks/curricula.py [--repeats 9] [--core lstm]
MINIMAX_PYTHON=... python scripts/benchmarks/curricula.py    compared with minimax, in turn; a Python with minimax-lib

The student is the one of U2: 32 environments of 256 steps, 13 x 13 mazes of 60 wall draws, 5 epochs of one minibatch.
The buffer holds 4,000 levels and is half full. An iteration on new levels or children plays and scores them: a rollout,
its values and the buffer. An iteration on replayed levels trains the student: the buffer and one student iteration.
"over" is the time of an iteration divided by the time of its parts alone; 1 means no overhead. Everything runs in one
process, in turn. First steps include tracing, compilation and running. Use a quiet machine. minimax 0.2.0 has the same
sizes, with its maze metrics off; its ACCEL replays levels and plays the children in one call.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from peers_timing import clock, medians, surroundings

from evorl import tree
from evorl.agents import PPO
from evorl.envs.maze import Maze, RandomWalls
from evorl.networks.encoders import CNN
from evorl.networks.recurrent import GRU, LSTM
from evorl.networks.s5 import S5
from evorl.ued import PLR, curricula
from evorl.workflows import OnPolicy

CORES = {"lstm": LSTM(256), "gru": GRU(256), "s5": S5()}
MINIMAX = {  # minimax's iterations, and those of evorl that do the same
    "iteration": ("iteration",),
    "PLR, new levels": ("PLR, new levels",),
    "PLR, replays": ("PLR, replays",),
    "ACCEL, replays and children": ("ACCEL, replays", "ACCEL, children"),
}


class Minimax:
    """Runs minimax's iterations in a process of another Python."""

    def __init__(self, python: str):
        command = [python, str(Path(__file__).with_name("peers_minimax_ued.py"))]
        self.process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = json.loads(self.process.stdout.readline())
        self.times: dict[str, list[Any]] = {name: [] for name in MINIMAX}

    def run(self) -> None:
        for name, times in self.times.items():
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
            times.append(tuple(json.loads(self.process.stdout.readline())))

    def table(self, ours: dict[str, Any]) -> str:
        lines = ["| | evorl CPU s | minimax CPU s | ratio | first two calls, CPU s |\n|---|---|---|---|---|"]
        for name, parts in MINIMAX.items():
            cpu, theirs = sum(medians(ours[part])[1] for part in parts), medians(self.times[name])[1]
            lines.append(f"| {name} | {cpu:.3f} | {theirs:.3f} | {theirs / cpu:.2f} | {self.first[name]:.1f} |")
        return "\n".join(lines)


def student(core: str) -> OnPolicy:
    env = Maze(RandomWalls(fewest=60, most=60))
    spaces = env.observation_space, env.action_space
    agent = PPO(
        hidden=(32,),
        activation="tanh",
        encoder=CNN(embedding=5),
        core=CORES[core],
        learning_rate=1e-4,
        value_coef=0.5,
        entropy_coef=1e-3,
        discount=0.995,
        gae_lambda=0.98,
        observation_space=spaces[0],
        action_space=spaces[1],
    )
    return OnPolicy(
        env, agent, 32, 256, num_epochs=5, batch_size=0, normalize_observations=False, normalize_values=False
    )


def first_step(workflow: Any) -> tuple[Any, Any, float]:
    """Return the jitted step, the initial state, and the wall and CPU seconds of the first step."""
    state = jax.jit(workflow.init)(jax.random.key(0))
    step = jax.jit(workflow.step)
    _, seconds = clock(step, state, jax.random.key(1))
    return step, state, seconds


def half_full(workflow: PLR, state: Any) -> Any:
    """Return the state with half a buffer of drawn levels, as many as replays need, with scores from 0 to 1."""
    count = workflow.capacity // 2
    levels = curricula.sample_levels(workflow.env, jax.random.key(2), state.env_params, count)
    score = jax.random.uniform(jax.random.key(3), (count,))

    @jax.jit
    def fill(buffer: Any) -> Any:
        return buffer.insert_levels(levels, score, score, workflow.env.is_same_level, workflow.bound(state).curation)

    buffer = fill(state.buffer)
    assert 2 * int(buffer.size) > workflow.capacity * 0.99, "drawn levels that are alike"
    size = jnp.int32(count)
    return state.replace(buffer=buffer.replace(score_table=buffer.score_table.replace(size=size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--core", choices=tuple(CORES), default="lstm")
    given = parser.parse_args()
    alone = student(given.core)
    step, state, first_alone = first_step(alone)
    played = jax.jit(lambda state, key: alone.prepare_batch(*alone.collect(state, key)[:2])[1])
    plr, accel = PLR(alone), PLR(alone, num_edits=20)
    plr_step, plr_state, first_plr = first_step(plr)
    accel_step, accel_state, first_accel = first_step(accel)

    def replaying(state: Any, always: float) -> Any:
        return state.replace(numbers=state.numbers | {"replay": jnp.float32(always)})

    plr_state, accel_state = half_full(plr, plr_state), half_full(accel, accel_state)
    parents = tree.index(accel_state.buffer.levels, slice(0, 32))
    fertile = replaying(accel_state, 1.0).replace(parents=parents, children_due=jnp.bool_(True))
    cases = {
        "rollout and values": (played, state),
        "iteration": (step, state),
        "PLR, new levels": (plr_step, replaying(plr_state, 0.0)),
        "PLR, replays": (plr_step, replaying(plr_state, 1.0)),
        "ACCEL, new levels": (accel_step, replaying(accel_state, 0.0)),
        "ACCEL, replays": (accel_step, replaying(accel_state, 1.0)),
        "ACCEL, children": (accel_step, fertile),
    }
    for name, (run, begun) in cases.items():
        _, metrics = jax.block_until_ready(run(begun, jax.random.key(4))) if "," in name else (None, {})
        learned = "replays" in name
        assert not metrics or (float(metrics["levels/replayed"]), int(metrics["gradient_steps"]) > 0) == (learned,) * 2
        jax.block_until_ready(run(begun, jax.random.key(4)))
    times: dict[str, list[Any]] = {name: [] for name in cases}
    peer = Minimax(os.environ["MINIMAX_PYTHON"]) if "MINIMAX_PYTHON" in os.environ else None
    for i in range(given.repeats):
        for name, (run, begun) in cases.items():
            times[name].append(clock(run, begun, jax.random.key(5 + i)))
        if peer:
            peer.run()
    parts = {name: medians(times[name]) for name in ("rollout and values", "iteration")}
    print(surroundings(given.repeats))
    print("| | wall s | CPU s | over its parts, wall | CPU |\n|---|---|---|---|---|")
    for name in cases:
        wall, cpu = medians(times[name])
        part = parts["iteration" if "replays" in name or name == "iteration" else "rollout and values"]
        print(f"| {name} | {wall:.3f} | {cpu:.3f} | {wall / part[0]:.2f} | {cpu / part[1]:.2f} |")
    print(f"first step, CPU s: the student {first_alone:.1f}, PLR {first_plr:.1f}, ACCEL {first_accel:.1f}")
    if peer:
        print(peer.table(times))


if __name__ == "__main__":
    main()
