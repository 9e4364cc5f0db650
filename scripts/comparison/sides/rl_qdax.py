"""Updates of TD3 with QDax."""

# pyright: reportMissingImports=false
from typing import Any

import jax
import jax.numpy as jnp
from jax_rounds import scan_steps
from qdax.baselines.td3 import TD3, TD3Config
from qdax.core.neuroevolution.buffers.buffer import Transition
from side import Round, serve
from updates_sizes import ACTIONS, BATCH, INTERVAL, OBS, UPDATES


class OneBatch:
    """A replay buffer that always returns the same batch."""

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), 3)
        obs, actions, next_obs = (
            jax.random.normal(key, (BATCH, n)) for key, n in zip(keys, (OBS, ACTIONS, OBS), strict=True)
        )
        never = jnp.zeros(BATCH)
        self.batch = Transition(obs, next_obs, obs.mean(-1), never, never, jnp.tanh(actions))

    def sample(self, key: Any, sample_size: int) -> Any:
        del key, sample_size
        return self.batch


def td3_updates(size: int) -> Round:
    agent, replay = TD3(TD3Config(batch_size=BATCH, policy_delay=INTERVAL), ACTIONS), OneBatch()
    keys = jax.random.split(jax.random.key(0), size)
    states = jax.vmap(lambda key: agent.init(key, ACTIONS, OBS))(keys)
    update = lambda state: agent.update(state, replay)[0]  # noqa: E731

    def step(states: Any, key: Any) -> tuple[Any, None]:
        del key
        if size == 1:
            return jax.tree.map(lambda x: x[None], update(jax.tree.map(lambda x: x[0], states))), None
        return jax.vmap(update)(states), None

    return scan_steps(step, states, UPDATES // size, UPDATES)


if __name__ == "__main__":
    serve({"td3_updates": td3_updates}, "qdax", "jax")
