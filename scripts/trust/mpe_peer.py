"""Run mpe2's side of the comparison: steps from states that are copied, in float64."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

EDGE = 2e-6  # closer than this to a threshold of contact, sight or success, 32 and 64 bits may differ


@dataclass(frozen=True)
class Case:
    """A scenario with its options in evorl and in mpe2, and whether actions are continuous."""

    name: str  # in the configuration
    scenario: str  # class of evorl.envs.mpe
    module: str  # in mpe2
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    continuous: bool = False
    limit: int = 25
    stage: int | None = None  # of the curriculum

    @property
    def label(self) -> str:
        """Return its name and the options that differ from the defaults."""
        options = {**self.ours, **({"continuous": True} if self.continuous else {})}
        options |= {"max_episode_steps": self.limit} if self.limit != 25 else {}
        return " ".join([self.name, *(f"{key}={value}" for key, value in options.items())])


NEAR = {"num_agent_neighbors": 2, "num_landmark_neighbors": 4}
REAL: dict[str, Any] = {"continuous": True}


def several(name: str, scenario: str, module: str, *settings: dict[str, Any]) -> list[Case]:
    """Return a scenario with its defaults and with other settings."""
    return [Case(name, scenario, module, **setting) for setting in ({}, *settings)]


def both(renamed: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
    """Return options for both libraries, with mpe2's names for those that are renamed."""
    return {"ours": options, "theirs": {(renamed or {}).get(name, name): value for name, value in options.items()}}


N = {"num_agents": "N", "num_good": "N"}
CASES = [
    *several("simple", "Simple", "simple_v3", REAL, {"limit": 7}),
    *several(
        "spread", "SimpleSpread", "simple_spread_v3", both(N, num_agents=5, local_ratio=0.2) | REAL,
        both(N, num_agents=2, terminate_on_success=True, **NEAR),
        {"ours": {"stage": 0}, "theirs": {"curriculum": True}, "stage": 0},
    ),
    *several(
        "adversary", "SimpleAdversary", "simple_adversary_v3", both(N, num_good=4) | REAL, both(N, num_good=3, **NEAR)
    ),
    *several(
        "tag", "SimpleTag", "simple_tag_v3", both(num_good=3, num_adversaries=4, num_obstacles=3) | REAL,
        both(num_good=2, num_adversaries=2, num_obstacles=0, terminate_on_success=True),
        both(num_good=2, num_landmark_neighbors=1, num_agent_neighbors=6),
        {"ours": {"stage": 1}, "theirs": {"curriculum": True}, "stage": 1, "continuous": True},
    ),
    *several("push", "SimplePush", "simple_push_v3", REAL, {"limit": 60}),
    *several("crypto", "SimpleCrypto", "simple_crypto_v3", REAL, {"limit": 3}),
    *several("speaker_listener", "SimpleSpeakerListener", "simple_speaker_listener_v4", REAL, {"limit": 60}),
    *several(
        "reference", "SimpleReference", "simple_reference_v3", both(local_ratio=0.9) | REAL, both(local_ratio=0.0)
    ),
    *several(
        "world_comm", "SimpleWorldComm", "simple_world_comm_v3",
        both(num_good=3, num_adversaries=2, num_obstacles=2, num_food=3, num_forests=3) | REAL,
        both(num_good=1, num_adversaries=1, num_obstacles=0, num_food=1, num_forests=1),
        both(num_forests=0),
    ),
    *several(
        "collect_treasure", "CollectTreasure", "collect_treasure_v1",
        both(num_collectors=4, num_deposits=3, num_treasures=8) | REAL,
        both(num_collectors=1, num_deposits=1, num_treasures=1),
    ),
    *several(
        "line", "SimpleLine", "simple_line_v1", both(N, num_agents=7) | REAL,
        both(N, num_agents=3, terminate_on_success=True),
    ),
    *several(
        "formation", "SimpleFormation", "simple_formation_v1", both(N, num_agents=6) | REAL,
        both(N, num_agents=3, terminate_on_success=True),
    ),
]  # fmt: skip


class Peer:
    """A game of mpe2; in every other episode agents begin near something, so that more events occur."""

    def __init__(self, case: Case, seed: int) -> None:
        module = importlib.import_module(f"mpe2.{case.module}")
        self.case, self.rng = case, np.random.default_rng(seed)
        options = case.theirs | {"continuous_actions": case.continuous, "max_cycles": case.limit}
        self.game = module.parallel_env(**options)
        self.game.reset(seed=seed)
        self.world, self.scenario = self.game.unwrapped.world, self.game.unwrapped.scenario
        if case.stage is not None:  # 1.1.1 keeps it at 0: a property of its base class accepts nothing else
            type(self.scenario).curriculum_stage = case.stage
        self.names = [agent.name for agent in self.world.agents]

    def steps(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield random steps: the state before, the action, the observation and reward after, and the end flags."""
        fresh = True
        for i in range(count):
            if fresh:
                self.game.reset(seed=int(self.rng.integers(2**31)))
                if i % 2:
                    self.gather()
            self.round()
            before = self.state()
            action = {name: self.draw(name) for name in self.names}
            seen, earned, over, late, _ = self.game.step(dict(action))
            fresh = any(over.values()) or any(late.values())
            yield {
                "before": before,
                "action": [np.asarray(action[name]) for name in self.names],
                "after": self.state(),
                "obs": [seen[name] for name in self.names],
                "reward": np.array([earned[name] for name in self.names]),
                "terminated": any(over.values()),
                "truncated": any(late.values()),
                "touches": self.touches(),
                "edge": self.on_edge(),
            }

    def round(self) -> None:
        """Round positions and velocities to 32 bits."""
        for entity in self.world.entities:
            entity.state.p_pos = entity.state.p_pos.astype(np.float32).astype(float)
            entity.state.p_vel = entity.state.p_vel.astype(np.float32).astype(float)

    def draw(self, name: str) -> Any:
        """Sample a random action; a continuous one is sometimes all zeros, which is no message either."""
        space = self.game.action_space(name)
        if not self.case.continuous:
            return int(self.rng.integers(space.n))
        return self.rng.uniform(0, 1, space.shape).astype(np.float32) * (self.rng.random() > 0.1)

    def gather(self) -> None:
        """Move agents near landmarks or their targets, and give collectors something to hold."""
        places = [landmark.state.p_pos for landmark in self.world.landmarks] or [np.zeros(2)]
        if self.case.name == "line":
            places = self.scenario._expected_positions
        elif self.case.name == "formation":
            angles = 2 * np.pi * np.arange(len(self.names)) / len(self.names) + self.rng.uniform(0, 6)
            places = [places[0] + 0.5 * np.array([np.cos(angle), np.sin(angle)]) for angle in angles]
        spread = 0.1 if len(places) < len(self.names) else self.rng.choice([0.01, 0.1])
        for i, agent in enumerate(self.world.agents):
            agent.state.p_pos = places[i % len(places)] + self.rng.normal(0, spread, 2)
            if getattr(agent, "collector", False):
                kinds = [None, *self.world.treasure_types]
                agent.holding = kinds[self.rng.integers(len(kinds))]

    def state(self) -> dict[str, np.ndarray]:
        """Return the fields of an evorl.envs.mpe.world.MPEState, with the same shapes."""
        agents, landmarks = self.world.agents, self.world.landmarks
        named = {landmark: i for i, landmark in enumerate(landmarks)}
        state = {
            "agent_positions": np.array([agent.state.p_pos for agent in agents]).T,
            "velocity": np.array([agent.state.p_vel for agent in agents]).T,
            "landmark_positions": np.reshape([landmark.state.p_pos for landmark in landmarks], (-1, 2)).T,
            "steps": np.int32(self.game.unwrapped.steps),
        }
        if speakers := [agent.state.c for agent in agents if not agent.silent]:
            state["messages"] = np.array(speakers)
        match self.case.name:
            case "adversary" | "push":
                state["goal"] = np.array([named[agents[-1].goal_a]])
            case "speaker_listener":
                state["goal"] = np.array([named[agents[0].goal_b]])
            case "reference":
                state["goal"] = np.array([named[agent.goal_b] for agent in agents])
            case "crypto":
                state["goal"] = np.array([named[agents[2].goal_a], agents[2].key.argmax()])
            case "collect_treasure":
                held = [agent.holding for agent in agents if agent.collector]
                state["held"] = np.array([-1 if kind is None else kind for kind in held])
                state["kinds"] = np.array([treasure.type for treasure in landmarks])
                state["alive"] = np.array([treasure.alive for treasure in landmarks])
        return state

    def apart(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the distances of entities from agents, and those at which contact begins, both [agents, entities]."""
        at = np.array([entity.state.p_pos for entity in self.world.entities])
        size, agents = np.array([entity.size for entity in self.world.entities]), len(self.names)
        return np.linalg.norm(at[:agents, None] - at, axis=-1), size[:agents, None] + size

    def touches(self) -> bool:
        """Return whether an agent touches something."""
        far, least = self.apart()
        return bool(((far < least) & ~np.eye(*far.shape, dtype=bool)).any())

    def on_edge(self) -> bool:
        """Return whether rounding may decide the step.

        It may if a distance is at a threshold, or if two distances are equal where the nearest come first.
        """
        (far, least), agents = self.apart(), len(self.names)
        covered = 0.1 if self.case.name == "spread" else np.nan
        if any((np.abs(far - limit) < EDGE).any() for limit in (least, covered)):
            return True
        missing = getattr(self.scenario, "_delta_dists", None)
        if missing is not None and (np.abs(missing - 0.05) < EDGE).any():
            return True
        if self.case.name == "formation":  # the first target rotates with the smallest angle, which may be 0
            x, y = np.array([agent.state.p_pos - self.world.landmarks[0].state.p_pos for agent in self.world.agents]).T
            return bool(((np.abs(y) < EDGE) & (x > 0)).any())
        if "num_agent_neighbors" in self.case.ours or self.case.name == "collect_treasure":
            rows = [np.sort(row[part]) for row in far for part in (slice(agents), slice(agents, None))]
            return any(((row[1:] - row[:-1] < EDGE) & (row[1:] < 100)).any() for row in rows)
        return False
