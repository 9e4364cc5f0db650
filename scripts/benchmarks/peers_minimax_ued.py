"""Time iterations of minimax's curricula, for `curricula.py`, in a separate environment with minimax-lib 0.2.0.

The first line printed is the CPU seconds of the first two calls of each curriculum, which compile. Every input line
names a curriculum. The answer is a line of JSON: the wall and CPU seconds of an iteration. The curricula are: DR; PLR
that always plays new levels; PLR that always replays; ACCEL that always replays, and plays the children too. Metrics of
the mazes are off.
"""

import json
import sys
import time
import types

import jax
import jax.numpy as jnp

jax.tree_map = jax.tree.map  # pyright: ignore  # its name in the JAX version of minimax
sys.modules["wandb"] = types.ModuleType("wandb")  # imported, not used

import minimax.agents as agents  # noqa: E402  # pyright: ignore[reportMissingImports]  # no dependency of evorl
import minimax.envs as envs  # noqa: E402  # pyright: ignore[reportMissingImports]
import minimax.models as models  # noqa: E402  # pyright: ignore[reportMissingImports]
from minimax.runners import DRRunner, PLRRunner  # noqa: E402  # pyright: ignore[reportMissingImports]

ENV = {"height": 13, "width": 13, "n_walls": 60, "replace_wall_pos": True, "normalize_obs": True, "see_agent": False}
TRAINING = {
    "n_parallel": 32,
    "n_rollout_steps": 256,
    "lr": 1e-4,
    "discount": 0.995,
    "gae_lambda": 0.98,
    "track_env_metrics": False,
}
CURATION = {
    "buffer_size": 4000,
    "staleness_coef": 0.5,
    "temp": 0.3,
    "use_robust_plr": True,
    "ued_score": "max_mc",
    "force_unique": True,
}
EDITS = {"mutation_fn": "default", "n_mutations": 20}
CASES = {
    "iteration": (DRRunner, {}),
    "PLR, new levels": (PLRRunner, {**CURATION, "replay_prob": 0.0}),
    "PLR, replays": (PLRRunner, {**CURATION, "replay_prob": 1.0}),
    "ACCEL, replays and children": (PLRRunner, {**CURATION, "replay_prob": 1.0, **EDITS}),
}


def half_full(runner, train_state):
    """Return the training state with 2,000 drawn levels in the buffer, with scores from 0 to 1."""
    buffer, count = train_state.plr_buffer, CURATION["buffer_size"] // 2
    _, levels, _ = runner.benv.reset(jax.random.PRNGKey(1)[None], count)
    score = jax.random.uniform(jax.random.PRNGKey(2), (1, count))
    buffer = buffer.replace(
        levels=jax.tree.map(lambda all_, some: all_.at[:, :count].set(some), buffer.levels, levels),
        scores=buffer.scores.at[:, :count].set(score),
        max_returns=buffer.max_returns.at[:, :count].set(score),
        filled=buffer.filled.at[:, :count].set(True),
        filled_count=jnp.full_like(buffer.filled_count, count),
    )
    return train_state.replace(plr_buffer=buffer)


def begin(cls, options):
    env = envs.make("Maze", ENV)[0]
    model = models.make(
        env_name="Maze",
        model_name="default_student_cnn",
        output_dim=env.action_space().n,
        recurrent_arch="lstm",
        recurrent_hidden_dim=256,
    )
    agent = agents.PPOAgent(model=model, n_epochs=5, n_minibatches=1, entropy_coef=1e-3)
    runner = cls(env_name="Maze", env_kwargs=ENV, student_agents=[agent], **TRAINING, **options)
    state = list(runner.reset(jax.random.PRNGKey(0)))
    if options:
        state[1] = half_full(runner, state[1])
    return runner, state


def iterate(runner, state):
    """Run one iteration; return the next state, and the wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    _, *state = jax.block_until_ready(runner.run(*state))
    return state, (time.perf_counter() - wall, time.process_time() - cpu)


def main() -> None:
    programs, first = {}, {}
    for name, (cls, options) in CASES.items():
        runner, state = begin(cls, options)
        learned = jax.tree.leaves(state[1].params)[0]
        state, (_, once) = iterate(runner, state)
        state, (_, twice) = iterate(runner, state)
        changed = bool((jax.tree.leaves(state[1].params)[0] != learned).any())
        assert changed == ("new" not in name), name
        programs[name], first[name] = (runner, state), once + twice
    print(json.dumps(first), flush=True)
    for line in sys.stdin:
        name = line.strip()
        runner, state = programs[name]
        state, times = iterate(runner, state)
        programs[name] = runner, state
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
