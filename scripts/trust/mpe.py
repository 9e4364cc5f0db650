"""Compare every MPE scenario with mpe2: 3,000 random steps at each setting, each from mpe2's state, in 32 and 64 bits.

pip install mpe2==1.1.1 && python scripts/trust/mpe.py [NAME ...] [--steps 3000] [--record tests/recorded/mpe.npz]

Before each step mpe2's positions and velocities are rounded to 32 bits, so that both begin the step in the same state.
Prints for each setting:
  - the largest difference of observations and of rewards;
  - the number of steps that only one of both takes for the last;
  - the number of steps in which an agent touched something;
  - the number of steps that ended an episode early;
  - the number of skipped steps, in which a pair was within 2e-6 of a threshold of contact or order.
The random positions at which treasures reappear are copied. --record keeps 8 steps of each setting for
tests/test_mpe.py. The exit code is 1 if anything differs by over 1e-5.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from mpe_peer import CASES, Case, Peer

from evorl.envs import mpe
from evorl.envs.mpe.treasure import TreasureState
from evorl.envs.mpe.world import MPEState, get_group_slice

TOLERANCE, KEPT = 1e-5, 8


@dataclass(frozen=True)
class Rows:
    """A batch of steps, in the format of evorl's game."""

    before: MPEState
    action: dict[str, np.ndarray]
    chance: Any
    obs: dict[str, np.ndarray]
    reward: dict[str, np.ndarray]
    terminated: np.ndarray
    truncated: np.ndarray
    touches: np.ndarray
    edge: np.ndarray


def game(case: Case) -> mpe.MPE:
    """Return evorl's game of a case."""
    return mpe.MPE(getattr(mpe, case.scenario)(**case.ours), case.continuous, case.limit)


def state(fields: dict[str, np.ndarray]) -> MPEState:
    """Convert mpe2's state to evorl's, leaves [steps, ...]."""
    dtypes = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}
    narrow: dict[str, Any] = {name: x.astype(dtypes.get(x.dtype, x.dtype)) for name, x in fields.items()}
    cargo = None
    if "held" in narrow:
        earned: Any = np.zeros(len(narrow["held"]), np.float32)
        cargo = TreasureState(narrow.pop("held"), narrow.pop("kinds"), narrow.pop("alive"), earned)
    absent: dict[str, Any] = {"messages": None, "goal": None}
    return MPEState(**absent | narrow, scenario_state=cargo)


def rows(case: Case, steps: int, seed: int = 0) -> Rows:
    """Return the steps that mpe2 plays."""
    played = [*Peer(case, seed).steps(steps)]
    agents = game(case).scenario.agents

    def stacked(name: str) -> dict[str, np.ndarray]:
        each = [np.array([step[name][i] for step in played]) for i in range(len(played[0][name]))]
        return {group: np.stack(each[get_group_slice(agents, group)], axis=1) for group in agents}

    before, after = (
        state({key: np.array([step[when][key] for step in played]) for key in played[0][when]})
        for when in ("before", "after")
    )
    chance = (after.landmark_positions, after.scenario_state.kinds) if before.scenario_state else None
    action = {k: x.astype(np.float32 if case.continuous else np.int32) for k, x in stacked("action").items()}
    flags = (np.array([step[name] for step in played]) for name in ("terminated", "truncated", "touches", "edge"))
    return Rows(before, action, chance, stacked("obs"), stacked("reward"), *flags)


def differences(case: Case, rows: Rows) -> tuple[float, float, int]:
    """Return the largest difference of observations and of rewards, and the number of different ends.

    Steps at a threshold are left out.
    """
    _, ours = jax.jit(jax.vmap(game(case).advance))(rows.before, rows.action, rows.chance)
    kept = ~rows.edge

    def most(a: Any, b: Any) -> float:
        return max(float(np.abs(np.asarray(a[k], float) - b[k])[kept].max(initial=0)) for k in b)

    ends = (ours.terminated != rows.terminated) | (ours.truncated != rows.truncated)
    return most(ours.obs, rows.obs), most(ours.reward, rows.reward), int((np.asarray(ends) & kept).sum())


def recorded(case: Case, rows: Rows) -> dict[str, np.ndarray]:
    """Return, by name, the first steps and the most eventful ones, without steps at a threshold."""
    lively = np.concatenate([x.reshape(len(rows.edge), -1) for x in rows.reward.values()], -1)
    lively = np.abs(lively - np.median(lively, 0)).sum(-1) + 100 * rows.terminated + 50 * rows.truncated
    lively[rows.edge] = -1
    chosen = np.unique(np.concatenate([np.argsort(-lively)[: KEPT // 2], np.flatnonzero(~rows.edge)[: KEPT // 2]]))
    parts = {name: getattr(rows, name) for name in ("before", "action", "chance", "obs", "reward")}
    leaves = jax.tree.leaves(parts)
    out = {f"{i}": np.asarray(x)[chosen] for i, x in enumerate(leaves)}
    out = {key: x.astype(np.float32) if x.dtype == np.float64 else x for key, x in out.items()}
    return out | {"terminated": rows.terminated[chosen], "truncated": rows.truncated[chosen]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    cases = [case for case in CASES if not args.names or case.name in args.names]
    kept: dict[str, np.ndarray] = {}
    wrong = 0
    print("| setting | seen differs by | earned differs by | other ends | touches | early ends | skipped |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        played = rows(case, args.steps)
        seen, earned, ends = differences(case, played)
        wrong += seen > TOLERANCE or earned > TOLERANCE or ends > 0
        counts = f"{ends} | {played.touches.sum()} | {played.terminated.sum()} | {played.edge.sum()}"
        print(f"| {case.label} | {seen:.1e} | {earned:.1e} | {counts} |", flush=True)
        if args.record:
            made = {"scenario": case.scenario, "options": case.ours, "continuous": case.continuous, "limit": case.limit}
            kept |= {f"{case.label}|{key}": x for key, x in recorded(case, played).items()}
            kept[f"{case.label}|made"] = np.array(json.dumps(made))
    if args.record:
        np.savez_compressed(args.record, allow_pickle=False, **kept)
        print(f"{args.record}: {args.record.stat().st_size / 1e3:.0f} kB")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
