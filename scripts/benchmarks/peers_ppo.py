"""Compare a whole PPO training on CartPole with rejax (J2): 100,000 steps without evaluation."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from peers_timing import Case, Program, Times

from evorl import Gymnax
from evorl.agents import PPO
from evorl.workflows import OnPolicy

STEPS = 100_000


def evorl_ppo() -> Program:
    env = Gymnax("CartPole-v1")
    agent = PPO(hidden=(64, 64), activation="swish", learning_rate=7.5e-4, value_coef=0.5)
    workflow = OnPolicy(
        env, agent, num_envs=5, num_steps=100, num_epochs=5, batch_size=100, normalize_observations=False
    )

    def train(key: jax.Array) -> Any:
        key_init, key_steps = jax.random.split(key)
        state = workflow.init(key_init)
        return jax.lax.scan(workflow.step, state, jax.random.split(key_steps, STEPS // workflow.num_transitions))

    return Program(train, (jax.random.key(0),), STEPS)


@dataclass
class Remote:
    """A program in another Python environment, with the same interface as `Program`."""

    python: str
    script: str
    work: int
    compile_cpu_s: float = 0.0
    times: list[Times] = field(default_factory=list)
    process: Any = None

    def compile(self) -> None:
        command = [self.python, str(Path(__file__).with_name(self.script))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.compile_cpu_s = json.loads(self.process.stdout.readline())

    def run(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(tuple(json.loads(self.process.stdout.readline())))


def trainings(rejax_python: str | None) -> Iterator[Case]:
    programs: dict[str, Any] = {"evorl": evorl_ppo()}
    if rejax_python:
        programs["rejax"] = Remote(rejax_python, "peers_rejax.py", STEPS)
    yield "CartPole-v1", programs
