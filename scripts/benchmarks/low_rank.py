"""Time low-rank members against a shared policy and against members with full weights, and noise against evosax.

python scripts/benchmarks/low_rank.py                         all parts, of 4096 members
python scripts/benchmarks/low_rank.py forward search          some of them
python scripts/benchmarks/low_rank.py forward --members 65536 --episodes 1 16 --rows gpu.jsonl      for a GPU

Each part is timed in turn with the programs it is compared with: medians of the repeats after a warm-up, compilation
measured separately. Results in the file --rows are not measured again, so the same command continues an interrupted
run.

forward   steps of a policy 27-256-256-8 (ant's), whose action is written into the next observation: low-rank members
          with stored factors, or with factors drawn at each call; one policy that all share; and members with weights
          of their own
search    ask, drawing 128 members of 75,016 weights, and tell, compared with evosax's Open_ES of the same size
brax      100 steps of 256 ants (spring) with low-rank members and with one policy
noise     ask, a sphere and tell of OpenES with hash noise at 70,000 weights, compared with Open_ES (as J5)
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import optax
from evosax.algorithms import Open_ES
from jax.flatten_util import ravel_pytree
from peers_search import LEARNING_RATE, MEMBERS, STD, evosax, ours, scanned
from peers_timing import Case, Program, compare, surroundings

from evorl import tree
from evorl.agents import MLPPolicy
from evorl.agents.base_agent import fill_spaces
from evorl.ec import LowRankES, Noise
from evorl.envs.suites.brax import Brax
from evorl.vector_env import UNLIMITED, Behaviour, ResetStarts, RolloutPlan, TransitionStore, VectorEnv

KEY = jax.random.key(0)
PARTS = ("forward", "search", "brax", "noise")
STEPS, BRAX_STEPS, BRAX_MEMBERS, GENERATIONS = 10, 100, 256, 10
HASH = Noise("hash")
NUMBERS: dict[str, Any] = {"learning_rate": LEARNING_RATE, "std": STD}


def ant() -> tuple[Brax, MLPPolicy]:
    env = Brax("ant", "spring")
    return env, fill_spaces(MLPPolicy(hidden=(256, 256)), env)


def weights(policy: MLPPolicy) -> Any:
    return policy.init(KEY).actor.params


def expressed(evolver: Any, state: Any, behaviour: Behaviour) -> Behaviour:
    """Return the behaviour of the evolver's members, decoded as Evolution decodes them."""
    return replace(behaviour, decode_params=lambda held: evolver.to_params(state, held))


def forwards(members: int, episodes: int, rank: int, dtype: str) -> Case:
    """Return programs that run STEPS policy steps of all members in all of their episodes."""
    env, policy = ant()
    num_envs, mean = members * episodes, weights(policy)
    plain = Behaviour(env, policy)

    def steps(make: Callable[[Any], Behaviour], actors: int) -> Callable[..., Any]:
        vector_env = VectorEnv(env, policy, num_envs=num_envs, num_actors=actors, eval_episodes=num_envs, scan_length=1)

        def run(state: Any, held: Any, obs: Any, keys: Any) -> Any:
            act = vector_env.batch_policy(make(state), RolloutPlan(ResetStarts(), params=held))

            def step(obs: Any, _: None) -> tuple[Any, None]:
                action = act(obs, None, keys)[0]
                return obs.at[:, :8].set(action), None

            return jax.lax.scan(step, obs, length=STEPS)[0]

        return run

    obs, keys = jax.random.normal(KEY, (num_envs, 27)), jax.random.split(KEY, num_envs)
    programs, work = {}, STEPS * num_envs
    for factors in ("held", "drawn"):
        evolver = LowRankES(members, rank, factors, dtype, noise=HASH, **NUMBERS)
        state = evolver.init(KEY, mean)
        held = jax.jit(lambda state, e=evolver: e.materialize(state, e.ask(KEY, state)[0]))(state)
        run = steps(lambda state, e=evolver: expressed(e, state, plain), members)
        programs[f"low rank, {factors}"] = Program(run, (state, held, obs, keys), work)
    one = tree.broadcast(mean, 1)
    programs["one policy"] = Program(steps(lambda _: plain, 1), (None, one, obs, keys), work)
    if members * tree.nbytes(mean) < 2e9:
        own = jax.jit(lambda: tree.broadcast(mean, members))()
        programs["weights of their own"] = Program(steps(lambda _: plain, members), (None, own, obs, keys), work)
    return f"{members} members, {episodes} episodes, rank {rank}, {dtype}", programs


def searches(rank: int) -> Case:
    """Return programs that run generations of MEMBERS members with ant's number of weights."""
    mean = weights(ant()[1])
    size = sum(x.size for x in jax.tree.leaves(mean))
    programs = {}
    for source in ("hash", "exact"):
        evolver = LowRankES(MEMBERS, rank, noise=Noise(source), **NUMBERS)

        def generation(state: Any, key: Any, evolver: LowRankES = evolver) -> Any:
            key_ask, key_tell = jax.random.split(key)
            genomes, state = evolver.ask(key_ask, state)
            held = evolver.materialize(state, genomes)
            fitness = -jax.vmap(lambda own: (ravel_pytree(own)[0] ** 2).sum())(held)
            return evolver.tell(key_tell, genomes, fitness, state)[0], fitness.max()

        state = jax.jit(evolver.init)(KEY, mean)
        programs[f"low rank, {source}"] = scanned(generation, state, GENERATIONS)
    return f"{size} weights, rank {rank}", programs | {"evosax Open_ES": open_es(size)}


def open_es(size: int) -> Program:
    adam, std = optax.adam(LEARNING_RATE), optax.constant_schedule(STD)
    return evosax(Open_ES, size, GENERATIONS, optimizer=adam, std_schedule=std)


def noises() -> Case:
    size = 70_000
    return f"{size} weights", {"OpenES, hash": ours(HASH, size, GENERATIONS), "evosax Open_ES": open_es(size)}


def plays(rank: int) -> Case:
    """Return programs that play ant with low-rank members and with one policy."""
    env, policy = ant()
    members, mean = BRAX_MEMBERS, weights(policy)
    plain = Behaviour(env, policy)
    evolver = LowRankES(members, rank, noise=HASH, **NUMBERS)

    def run(actors: int) -> Callable[..., Any]:
        vector_env = VectorEnv(env, policy, num_envs=members, num_actors=actors, eval_episodes=members, scan_length=20)
        plan = RolloutPlan(vector_env.make_starts(), steps=BRAX_STEPS, episodes=UNLIMITED)

        def play(state: Any, held: Any) -> Any:
            behaviour = expressed(evolver, state, plain) if actors > 1 else plain
            todo = replace(plan, params=held)
            store = TransitionStore(20, None, lambda into, rows, mask: into)
            return vector_env.rollout(behaviour, env.default_params, todo, None, KEY, store).stats

        return play

    state = evolver.init(KEY, mean)
    held = jax.jit(lambda: evolver.materialize(state, evolver.ask(KEY, state)[0]))()
    work = BRAX_STEPS * members
    programs = {
        "low rank": Program(run(members), (state, held), work),
        "one policy": Program(run(1), (None, tree.broadcast(mean, 1)), work),
    }
    return f"{members} members, rank {rank}", programs


def table(found: dict[str, Any]) -> None:
    print(f"\n| {found['workload']} | program | {found['unit']} | times as fast as the first | by CPU |\n|{'---|' * 5}")
    for case, programs in found["cases"].items():
        for name, times in programs.items():
            over = [f"{1 / times[ratio]:.2f}" if ratio in times else "1" for ratio in ("ratio", "ratio_cpu")]
            print(f"| {case} | {name} | {times[found['unit']]:,.0f} | {over[0]} | {over[1]} |")


def planned(given: argparse.Namespace) -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Yield the name, the unit and the constructor of each case to measure."""
    for rank in given.ranks:
        for episodes in given.episodes:
            for dtype in given.dtypes:
                sizes = given.members, episodes, rank, dtype
                yield f"forward {sizes}", "steps/s", partial(forwards, *sizes)
        yield f"brax {rank}", "steps/s", partial(plays, rank)
        yield f"search {rank}", "us", partial(searches, rank)
    yield "noise", "us", noises


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--members", type=int, default=4096)
    parser.add_argument("--episodes", type=int, nargs="*", default=[1])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1])
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rows", type=Path, help="JSON lines that are kept")
    given = parser.parse_args()
    lines = given.rows.read_text(encoding="utf-8").splitlines() if given.rows and given.rows.exists() else []
    kept = {row["workload"]: row for row in map(json.loads, lines)}
    for name, unit, case in planned(given):
        if name.split()[0] not in (given.parts or PARTS):
            continue
        if name not in kept:
            kept[name] = compare(name, [case()], unit, given.repeats)
            if given.rows:
                with given.rows.open("a", encoding="utf-8") as file:
                    print(json.dumps(kept[name]), file=file)
        table(kept[name])
    print(f"\n{json.dumps(surroundings(given.repeats))}")


if __name__ == "__main__":
    main()
