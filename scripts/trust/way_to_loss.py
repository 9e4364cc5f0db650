"""Count the calls, files and lines between a workflow's step and its agent's loss, and the size of the program.

python scripts/trust/way_to_loss.py

Frames are calls of functions of evorl, files those that they are in. StableHLO is the text of one step that JAX passes
to XLA; plain PPO is `tests/plain_ppo.py`, one file of the same arithmetic.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import jax

import evorl
from evorl import PPO, TD3, CartPole, OffPolicy, OnPolicy
from evorl.envs.sanity import Continuous

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests import plain_ppo

PACKAGE = Path(evorl.__file__).parent
SEEN: list[traceback.FrameSummary] = []


def remember_stack() -> None:
    """Store the calls of evorl from `step` to here."""
    if not SEEN:
        frames = [one for one in traceback.extract_stack() if Path(one.filename).is_relative_to(PACKAGE)]
        SEEN.extend(frames[max(i for i, one in enumerate(frames) if one.name == "step") :])


def watch(agent: type, loss: str) -> None:
    """Make an agent's loss store the stack from which it is called."""
    method = getattr(agent, loss)

    def watched(*given: Any, **named: Any) -> Any:
        remember_stack()
        return method(*given, **named)

    setattr(agent, loss, watched)


def count_plain_lines() -> int:
    """Return the number of StableHLO lines of a step of the plain PPO."""
    config, env, key = plain_ppo.Config(), CartPole(), jax.random.key(0)
    params = jax.eval_shape(OnPolicy(env, PPO(hidden=(64, 64))).agent.init, key).actor.params["params"]
    params = {name: params[name] for name in ("policy", "value")}
    state = jax.eval_shape(lambda params, key: plain_ppo.init(env, params, key, config), params, key)
    step = jax.jit(lambda state, key: plain_ppo.step(env, state, key, config))
    return len(step.lower(state, key).as_text().splitlines())


def main() -> None:
    watch(PPO, "loss_of_rows")
    watch(TD3, "critic_loss")
    workflows = {
        "PPO": OnPolicy(CartPole(), PPO(hidden=(64, 64))),
        "TD3": OffPolicy(Continuous(), TD3(hidden=(64, 64)), capacity=1000, batch_size=32, random_steps=40),
    }
    rows, calls = [f"| plain PPO | | 1 | | {count_plain_lines():,} |"], []
    for name, workflow in workflows.items():
        SEEN.clear()
        key = jax.random.key(0)
        state = jax.eval_shape(workflow.init, key)
        text = jax.jit(workflow.step).lower(state, key).as_text()
        files = {one.filename for one in SEEN}
        lines = sum(len(Path(one).read_text(encoding="utf-8").splitlines()) for one in files)
        rows.append(f"| {name} | {len(SEEN)} | {len(files)} | {lines:,} | {len(text.splitlines()):,} |")
        calls += [f"{name}:", *(f"    {Path(one.filename).relative_to(PACKAGE)}: {one.name}" for one in SEEN)]
    print("\n".join(["| | frames | files | their lines | StableHLO lines |", "|---" * 5 + "|", *rows, "", *calls]))


if __name__ == "__main__":
    main()
