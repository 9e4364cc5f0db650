"""Adapter for multi-agent games of JaxMARL (Rutherford et al. 2024, arXiv:2311.10090)."""

import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from evorl import mesh, tree
from evorl.envs.games.agent_groups import group_agents, split_groups, stack_groups
from evorl.envs.suites.common import (
    SuiteState,
    cast_obs,
    freeze,
    import_extra,
    infer_space,
    set_default_limit,
    unfreeze,
)
from evorl.errors import OptionError, require, unknown_name_error
from evorl.spaces import Box, Dict, Discrete, Members, MultiDiscrete, ObsWithActionMask, Space, to_bound
from evorl.types import Array, Key, TimeStep

MAPS = {  # by game: the option for the map, and the module and the name of the dict of maps
    "SMAX": ("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
    "HeuristicEnemySMAX": ("scenario", "smax.smax_env", "MAP_NAME_TO_SCENARIO"),
    "overcooked": ("layout", "overcooked.layouts", "overcooked_layouts"),
    "overcooked_v2": ("layout", "overcooked_v2.layouts", "overcooked_v2_layouts"),
    "jaxnav": ("map_id", "jaxnav.maps.map_registration", "registered_maps"),
}
SHAPED_GAMES = ("overcooked", "overcooked_v2")  # games with shaped rewards
TIME_OBSERVING_GAMES = ("overcooked",)  # observations show the remaining time; only the time limit ends them
STATE = "world_state"


@dataclass(frozen=True)
class JaxMARL:
    """A JaxMARL game by its name, such as JaxMARL("HeuristicEnemySMAX", "3m").

    Agents with equal spaces whose names differ only in a number form a group. The time limit truncates an
    episode, even if the library terminates it.

    Args:
        name: One of `names()`.
        map: Scenario of SMAX, layout of Overcooked, or kind of map of JaxNav; empty takes the game's default.
        max_episode_steps: Steps after which an episode is truncated; 0 takes the game's own limit.
        shaping: Coefficient of Overcooked's shaped reward, which is added to the reward that agents learn
            from.
        options: Other keyword arguments of `jaxmarl.make`.

    Raises:
        OptionError: If a value is not allowed or the game cannot be created.

    Source: Rutherford et al. 2024, arXiv:2311.10090.
    """

    name: str
    map: str = ""
    max_episode_steps: int = 0
    shaping: float = 0.0
    options: Mapping[str, Any] = field(default_factory=FrozenDict)

    default_params = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", freeze(self.options))
        shaped = f"must be 0; only {' and '.join(SHAPED_GAMES)} have shaped rewards"
        require(not self.shaping or self.name in SHAPED_GAMES, "env.shaping", self.shaping, shaped)
        set_default_limit(self, lambda: _get_time_limit(self._default_env))

    @staticmethod
    def names() -> list[str]:
        """Return the names of the available games.

        JaxRobotarium, which is not a package, and games whose enemies need a learned policy are left out.
        """
        others = "Robotarium", "LearnedPolicy"
        return [name for name in _import_quietly("jaxmarl").registered_envs if not any(x in name for x in others)]

    @cached_property
    def _default_env(self) -> Any:
        """Return the game with the library's own time limit."""
        if self.name not in self.names():
            raise unknown_name_error("game of JaxMARL", self.name, self.names(), "--list env=jaxmarl")
        return self._make_env()

    def _make_env(self, **limit: Any) -> Any:
        of_map = self._map_option
        try:
            with mesh.eager_mode(), _suppress_output():
                given = {name: _to_option(one) for name, one in self.options.items()}
                return _import_quietly("jaxmarl").make(self.name, **given | of_map | limit)
        except Exception as error:
            why = f"{self.name} cannot be created, {type(error).__name__}: {error}".partition("\n")[0]
            raise OptionError(f"env.options={dict(self.options)}: {why}") from error

    @property
    def _map_option(self) -> dict[str, Any]:
        """Return the map as an option of the game; raise OptionError if the game does not have it."""
        if not self.map:
            return {}
        require(self.name in MAPS, "env.map", self.map, f"{self.name} has no maps; only {', '.join(MAPS)} have them")
        option, module, names = MAPS[self.name]
        maps = getattr(_import_quietly(f"jaxmarl.environments.{module}"), names)
        if self.map not in maps:
            raise unknown_name_error(f"map of {self.name}", self.map, maps)
        return {option: maps[self.map] if isinstance(maps, Mapping) else self.map}

    @cached_property
    def env(self) -> Any:
        """Return the wrapped game, with a time limit that is never reached, since the adapter truncates.

        Games that show the remaining time in observations (Overcooked) keep the limit itself.
        """
        own, limit = self._default_env, self.max_episode_steps
        if hasattr(own, "episode_length"):  # MABrax, which would also reset itself
            return self._make_env(episode_length=(limit + 1) * own.action_repeat, auto_reset=False)
        if hasattr(own, "num_outer_steps"):  # repeated games, which the library restarts within a step
            inner, outer = own.num_inner_steps, own.num_outer_steps
            longer = {"num_inner_steps": limit + 1} if outer == 1 else {"num_outer_steps": limit // inner + 2}
            return self._make_env(**longer)
        if hasattr(own, "max_steps"):
            vars(own).get("_env", own).max_steps = limit + (self.name not in TIME_OBSERVING_GAMES)
        return own

    @property
    def fresh_reset(self) -> bool:
        return not hasattr(self._default_env, "episode_length")

    @property
    def episode_info(self) -> dict[str, str]:
        """Return the info of an episode: in battles against an enemy of the library, whether they were won."""
        return {"won": "last"} if self.name.endswith("EnemySMAX") else {}

    @cached_property
    def _start_shapes(self) -> tuple[dict[Any, Any], Any, Any]:
        """Return the shapes of each agent's observation, of the game's state, and of the global state (or None)."""

        def reset_game(key: Key) -> Any:
            seen, inner = self.env.reset(key)
            return self._split_by_agent(seen), inner, seen.get(STATE) if isinstance(seen, Mapping) else None

        with _suppress_output():
            return jax.eval_shape(reset_game, jax.random.key(0))

    @cached_property
    def _agent_spaces(self) -> dict[Any, tuple[Space, Space]]:
        """Return the observation space (without the action mask) and the action space of each agent."""
        seen = self._start_shapes[0]
        return {
            agent: (infer_space(seen[agent]), _to_action_space(self.env.action_space(agent)))
            for agent in self.env.agents
        }

    @cached_property
    def agents(self) -> dict[str, tuple[Any, ...]]:
        """Return JaxMARL's agents of each group."""
        return group_agents(self._agent_spaces)

    @cached_property
    def masked(self) -> bool:
        """Return whether the game has action masks."""
        try:
            masks = jax.eval_shape(self._get_legal_actions, self._start_shapes[1])
        except NotImplementedError:
            return False
        actions = {agent: action for agent, (_, action) in self._agent_spaces.items()}
        return all(isinstance(one, Discrete) and masks[agent].shape == (one.n,) for agent, one in actions.items())

    @cached_property
    def observation_space(self) -> Dict:
        found: dict[str, Space] = {}
        for group, (agent, *others) in self.agents.items():
            seen, action = self._agent_spaces[agent]
            space = ObsWithActionMask(seen, (action.n,)) if self.masked and isinstance(action, Discrete) else seen
            found[group] = Members(space, 1 + len(others))
        known_to_all = self._start_shapes[2]
        return Dict(found if known_to_all is None else found | {"state": infer_space(known_to_all)})

    @cached_property
    def action_space(self) -> Dict:
        return Dict({group: Members(self._agent_spaces[of[0]][1], len(of)) for group, of in self.agents.items()})

    def reset(self, key: Key, params: Any) -> tuple[SuiteState, Any]:
        del params
        with _suppress_output():
            seen, inner = self.env.reset(key)
        return SuiteState.init(inner), self._build_obs(seen, inner)

    def step(self, key: Key, env_state: SuiteState, action: Any, params: Any) -> tuple[SuiteState, TimeStep]:
        del params
        acts = split_groups(self.agents, action)
        ordered = {agent: acts[agent] for agent in self.env.agents}
        given = ordered if isinstance(self.env.agents[0], str) else tuple(ordered.values())
        with _suppress_output():
            seen, inner, rewards, done, info = self.env.step_env(key, env_state.inner, given)
        state, reward = env_state.advance(inner), self._split_by_agent(rewards)
        over = done["__all__"] & (self.name not in TIME_OBSERVING_GAMES)
        timestep = state.to_timestep(self._build_obs(seen, inner), 0, over, self.max_episode_steps)
        won = jnp.stack([*reward.values()]).max() >= 1  # the bonus of a battle, as the library counts it
        timestep = replace(timestep, reward=self._group_rewards(reward), info=dict.fromkeys(self.episode_info, won))
        if not self.shaping:
            return state, timestep
        shaped = self._split_by_agent(info["shaped_reward"])
        learned = {agent: x + self.shaping * shaped[agent] for agent, x in reward.items()}
        return state, timestep.with_shaped_reward(self._group_rewards(learned))

    def _group_rewards(self, reward: dict[Any, Any]) -> Any:
        """Stack the rewards of agents by group."""
        return stack_groups(self.agents, {agent: jnp.asarray(x, jnp.float32) for agent, x in reward.items()})

    def _split_by_agent(self, values: Any) -> dict[Any, Any]:
        """Return values by agent; the library has them by name, as a sequence, or as arrays [agents, ...]."""
        if self.name == "storm" and isinstance(values, Mapping):  # its inventories have the agents on the last axis
            values = {**values, "inventory": values["inventory"].T}
        return {agent: _take_agent(values, i, agent) for i, agent in enumerate(self.env.agents)}

    def _get_legal_actions(self, inner: Any) -> dict[Any, Array]:
        """Return the action mask of each agent; raise NotImplementedError if the game has none."""
        return getattr(self.env, "get_legal_moves", self.env.get_avail_actions)(inner)

    def _build_obs(self, seen: Any, inner: Any) -> dict[str, Any]:
        obs = self._split_by_agent(seen)
        if self.masked:
            legal = self._get_legal_actions(inner)
            obs = {agent: {"obs": of, "legal": legal[agent]} for agent, of in obs.items()}
        found = stack_groups(self.agents, obs)
        if "state" in self.observation_space.parts:
            found["state"] = seen[STATE]
        return cast_obs(found, self.observation_space)


def _take_agent(values: Any, i: int, agent: Any) -> Any:
    if isinstance(values, (tuple, list)):
        return values[i]
    return values[agent] if isinstance(values, Mapping) and agent in values else tree.index(values, i)


def _get_time_limit(game: Any) -> int:
    """Return the number of steps after which a game of the library ends."""
    if hasattr(game, "episode_length"):
        return game.episode_length // game.action_repeat
    if hasattr(game, "num_outer_steps"):
        return game.num_inner_steps * game.num_outer_steps
    if hasattr(game, "max_steps"):
        return game.max_steps
    # Hanabi has no limit. Upper bound: each play or discard draws a card; after the last card each agent acts once
    # more; each hint uses an initial token or one that a discard or a complete firework has given back
    draws = int(game.deck_size) - game.num_agents * game.hand_size
    return 2 * (draws + game.num_agents) + int(game.max_info_tokens)


def _to_action_space(space: Any) -> Space:
    """Convert an action space of JaxMARL to one of evorl."""
    if hasattr(space, "num_categories"):
        return MultiDiscrete(tuple(np.asarray(space.num_categories).tolist()))
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    low, high = (to_bound(np.broadcast_to(np.asarray(x), space.shape)) for x in (space.low, space.high))
    return Box(low, high, tuple(space.shape))


def _to_option(value: Any) -> Any:
    """Convert an option to the type that the library expects: tuples of numbers become arrays."""
    numbers = isinstance(value, tuple) and np.asarray(value).dtype.kind in "biuf"
    return jnp.asarray(value) if numbers else unfreeze(value)


def _import_quietly(module: str) -> Any:
    with _suppress_output():
        return import_extra(module, "jaxmarl")


@contextmanager
def _suppress_output() -> Iterator[None]:
    """Suppress what the library prints and its warnings during import, creation and tracing."""
    nowhere, kept = io.StringIO(), (sys.__stdout__, sys.__stderr__)  # importing Brax writes to sys.__stdout__
    with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.__stdout__ = sys.__stderr__ = nowhere  # pyright: ignore
        try:
            yield
        finally:
            sys.__stdout__, sys.__stderr__ = kept  # pyright: ignore
