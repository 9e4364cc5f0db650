"""The multi-agent environment of a particle scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from evorl.envs.mpe import draw
from evorl.envs.mpe.observations import one_hot
from evorl.envs.mpe.world import (
    DT,
    EntityGroup,
    EventfulScenario,
    MPEState,
    Scenario,
    SolvableScenario,
    get_entity_values,
    move_agents,
)
from evorl.errors import require_int
from evorl.spaces import Box, Dict, Discrete, Members
from evorl.types import Key, TimeStep

NUM_MOVES = 5  # none, left, right, down, up


@dataclass(frozen=True)
class MPE:
    """A multi-agent particle environment with the rules of mpe2 1.1.1.

    A discrete action is a move: none, left, right, down or up (0 to 4). For an agent that can speak it is
    `move + 5 * word`, or only the word if the agent cannot move. A continuous action has an intensity from 0
    to 1 for each of the five moves, if the agent can move, and for each word.

    Args:
        scenario: Scenario, which defines the agents, landmarks, observations and rewards.
        continuous: Whether actions are continuous.
        max_episode_steps: Steps after which an episode is truncated.

    Source: Lowe et al. 2017, arXiv:1706.02275; mpe2.
    """

    scenario: Scenario
    continuous: bool = False
    max_episode_steps: int = 25

    default_params = None
    fresh_reset = True
    render_fps = 1 / DT

    def __post_init__(self) -> None:
        require_int("max_episode_steps", self.max_episode_steps)

    @property
    def observation_space(self) -> Dict:
        """Return the observation space of each group."""
        infinite = float("inf")
        return Dict(
            {
                name: Members(Box(-infinite, infinite, shape), n)
                for name, n, shape in _infer_observation_shapes(self.scenario)
            }
        )

    @property
    def action_space(self) -> Dict:
        """Return the action space of each group."""
        return Dict(
            {name: Members(self.make_action_space(kind), kind.n) for name, kind in self.scenario.agents.items()}
        )

    def make_action_space(self, kind: EntityGroup) -> Discrete | Box:
        """Return the action space of one agent of a group.

        Args:
            kind: The group.
        """
        if self.continuous:
            return Box(0.0, 1.0, (NUM_MOVES * kind.moves + kind.num_words,))
        return Discrete((NUM_MOVES if kind.moves else 1) * max(kind.num_words, 1))

    def reset(self, key: Key, params: Any) -> tuple[MPEState, dict[str, Array]]:
        del params
        state = self.scenario.init_state(key)
        return state, self.scenario.observe(state)

    def step(self, key: Key, env_state: MPEState, action: Any, params: Any) -> tuple[MPEState, TimeStep]:
        del params
        return self.advance(env_state, action, self.chance(key))

    def chance(self, key: Key) -> Any:
        """Draw the random events of a step, or return None if the scenario has none, as most.

        Args:
            key: Random key of the step.
        """
        return self.scenario.chance(key) if isinstance(self.scenario, EventfulScenario) else None

    def advance(self, env_state: MPEState, action: Any, chance: Any) -> tuple[MPEState, TimeStep]:
        """Step the environment with given random events.

        Args:
            env_state: State before the step.
            action: Actions by group, leaves [members, ...].
            chance: Random events, as `chance` returns them.

        Returns:
            The state after the step, and the time step.
        """
        scenario, agents = self.scenario, self.scenario.agents
        push, said = self.compute_forces(action), self.decode_messages(action)
        at, velocity = move_agents(env_state, push, agents, scenario.landmarks)
        state = replace(env_state, agent_positions=at, velocity=velocity, messages=said, steps=env_state.steps + 1)
        if isinstance(scenario, EventfulScenario):
            state = scenario.apply_events(state, chance)
        late, over = state.steps >= self.max_episode_steps, jnp.bool_(False)
        if isinstance(scenario, SolvableScenario) and scenario.terminate_on_success:
            over = scenario.is_solved(state) & ~late
        return state, TimeStep(scenario.observe(state), scenario.compute_rewards(state), over, late)

    def compute_forces(self, action: Any) -> Float[Array, "2 agents"]:
        """Return the force by which each agent moves itself, shape [2, agents].

        Args:
            action: Actions by group, leaves [members, ...].
        """
        agents = self.scenario.agents
        accel = get_entity_values(agents, "accel") * get_entity_values(agents, "moves")
        if self.continuous:
            still = {name: jnp.zeros((kind.n, NUM_MOVES)) for name, kind in agents.items() if not kind.moves}
            moves = jnp.concatenate([(action | still)[name][:, :NUM_MOVES] for name in agents])
            none, left, right, down, up = jnp.clip(moves, 0, 1).T
        else:
            of_groups = [action[name] % NUM_MOVES for name in agents]
            moves = jnp.concatenate(of_groups) if len(of_groups) > 1 else of_groups[0]
            none, left, right, down, up = ((moves == i).astype(jnp.float32) for i in range(NUM_MOVES))
        del none
        return jnp.stack([right - left, up - down]) * accel

    def decode_messages(self, action: Any) -> Any:
        """Return the messages in actions, shape [speakers, words], or None if no agent can speak.

        Args:
            action: Actions by group, leaves [members, ...].
        """
        speaking = {name: kind for name, kind in self.scenario.agents.items() if kind.num_words}
        if not speaking:
            return None
        if self.continuous:
            words = [jnp.clip(action[name][:, NUM_MOVES * kind.moves :], 0, 1) for name, kind in speaking.items()]
        else:
            words = [
                one_hot(action[name] // (NUM_MOVES if of.moves else 1), of.num_words) for name, of in speaking.items()
            ]
        return jnp.concatenate(words)

    def render_frames(self, states: Sequence[MPEState]) -> list[np.ndarray]:
        """Render states.

        Args:
            states: States of one episode, in order.

        Returns:
            A frame for each state, uint8 [height, width, 3].
        """
        return [draw.render_world(self.scenario, state, self.continuous) for state in states]


@cache
def _infer_observation_shapes(scenario: Scenario) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return the name, the number of members and the observation shape of a member for each group."""
    seen = jax.eval_shape(lambda key: scenario.observe(scenario.init_state(key)), jax.random.key(0))
    return [(name, x.shape[0], x.shape[1:]) for name, x in seen.items()]
