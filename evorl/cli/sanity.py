"""Command `python -m evorl.sanity agent=NAME`, which trains on environments that each test one ability."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import Protocol, runtime_checkable

from evorl import tree
from evorl.command import command, wants_help
from evorl.envs.wrappers import Wrapper
from evorl.errors import OptionError, require, unknown_name_error
from evorl.training import runs
from evorl.training.configuration import config
from evorl.training.configuration.discovery import find_choices
from evorl.training.configuration.parts import require_protocol
from evorl.training.configuration.targets import import_target
from evorl.training.devices import compiler_options, enable_compilation_cache
from evorl.types import (
    ActorCritic,
    Array,
    Env,
    EvolvingWorkflow,
    Key,
    OffPolicyAgent,
    PolicyFn,
    PolicyWorkflow,
    State,
)
from evorl.vector_env import EnvBatch, EnvInstance
from evorl.workflows.evolution import Evolution

HELP = """usage: python -m evorl.sanity agent=NAME [only=CHECK,CHECK] [option=value ...]

  python -m evorl.sanity agent=ppo                            all checks
  python -m evorl.sanity agent=ppo only=bandit seed=3         one check, with other seeds

  num_seeds=3      number of seeds, trained in parallel; each must pass
  env_steps=       maximum number of env steps per check

All other options of python -m evorl.train are allowed too. Exit code 1 if a check failed."""

NUM_SEEDS = 3
NUM_EPISODES = 256  # number of episodes over which a score is averaged
CHANCE_SCORE = 0.4  # maximum score of a policy without memory if memory is needed
MAX_SIZES = {  # upper bounds; an experiment sanity/AGENT may set other options of an agent
    "agent.workflow.agent.hidden": 64,
    "agent.workflow.agent.agents.hidden": 64,
    "agent.workflow.random_steps": 1000,
    "agent.workflow.vbn_steps": 1000,
}


@runtime_checkable
class ScoredEnv(Env, Protocol):
    """Protocol of an environment that scores an episode that has ended."""

    def score(self, env_state: State) -> Array:
        """Return the score of the episode, from 0 to 1.

        Args:
            env_state: State of the environment at the end of the episode.

        Returns:
            The score, [].
        """
        ...


@dataclass(frozen=True)
class SanityCheck:
    """Check of one ability: every seed must reach the threshold within a number of env steps."""

    threshold: float
    env_steps: int
    search: tuple[float, int] | None = None  # both for search without gradients; None to skip it
    needs_memory: bool = False  # an agent without memory must stay at CHANCE_SCORE
    needs_chance: bool = False  # the exploring policy is scored; a deterministic one must not pass
    is_game: bool = False  # a single-agent agent controls all members jointly


CHECKS = {
    "bandit": SanityCheck(0.9, 10_000, search=(0.9, 200_000)),
    "password": SanityCheck(0.95, 15_000, search=(0.95, 300_000)),
    "stochastic": SanityCheck(0.99, 40_000, search=(0.99, 40_000), needs_chance=True),
    "pair": SanityCheck(0.95, 10_000, search=(0.95, 200_000), is_game=True),
    "spaces": SanityCheck(0.95, 40_000),
    "memory": SanityCheck(0.95, 200_000, search=(0.5, 1_000_000), needs_memory=True),
    "continuous": SanityCheck(0.9, 200_000, search=(0.1, 1_000_000)),
    "squared": SanityCheck(0.95, 200_000),
    "grid": SanityCheck(0.95, 200_000),
}


@dataclass(frozen=True)
class CheckResult:
    verdict: str
    failed: bool
    score: float  # of the worst seed; of the best one if the check must fail


def main(arguments: list[str] | None = None) -> None:
    """Run the command; exit with code 1 if a check failed, and with code 2 and one line for a user error."""
    with command(arguments) as given:
        if wants_help(given):
            print(HELP)
            return
        enable_compilation_cache()
        failed = [name for name, result in run_checks(given) if result.failed]
        if failed:
            print(f"failed: {', '.join(failed)}")
            sys.exit(1)


def run_checks(arguments: Sequence[str]) -> Iterator[tuple[str, CheckResult]]:
    """Run the requested checks, print a line for each, and yield their results; raise OptionError if none can run."""
    names, overrides, plays = parse_checks(arguments)
    built = {
        name: _build_check(CHECKS[name], config.compose_config(overrides + _check_overrides(name, arguments, plays)))
        for name in names
    }
    errors = [parts for parts in built.values() if isinstance(parts, OptionError)]
    if len(errors) == len(names):
        raise errors[0]
    print(f"{'check':10}  {'score':>5}  {'threshold':>9}  {'env steps':>10}  {'seconds':>7}")
    for name, parts in built.items():
        if isinstance(parts, OptionError):
            print(f"{name:10}  {'':5}  {'':9}  {'':10}  {'':7}  skipped: {parts}", flush=True)
            continue
        check, cfg, workflow = parts
        started = time.perf_counter()
        env_steps = min(check.env_steps, cfg.env_steps or check.env_steps)
        result = judge(check, workflow, env_steps, cfg.seed, cfg.num_seeds)
        seconds = time.perf_counter() - started
        numbers = f"{result.score:5.2f}  {check.threshold:9.2f}  {env_steps:10,}  {seconds:7.1f}"
        print(f"{name:10}  {numbers}  {result.verdict}", flush=True)
        yield name, result


def adapt_check(check: SanityCheck, workflow: Any) -> SanityCheck:
    """Adapt a check to a workflow; raise OptionError if the check does not apply to it.

    Each member of a population gets the env steps of the check. Evolutionary search without gradients has its
    own threshold and env steps.
    """
    if isinstance(workflow, EvolvingWorkflow):
        member = adapt_check(check, workflow.population.inner)
        return replace(member, env_steps=workflow.population.size * member.env_steps)
    if not isinstance(workflow, Evolution):
        return check
    if check.search is None:
        raise OptionError("not a check for gradient-free search")
    threshold, env_steps = check.search
    return replace(check, threshold=threshold, env_steps=env_steps)


def parse_checks(arguments: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Return the checks to run, the overrides that they share, and whether it is a multi-agent agent.

    Raises:
        OptionError: If an argument is invalid.
    """
    given = {name: value for name, _, value in (argument.partition("=") for argument in arguments)}
    agent = given.get("agent")
    require(bool(agent), "agent", agent, "must be given: python -m evorl.sanity agent=NAME")
    require("env" not in given, "env", given.get("env"), "each check has its own; choose checks with only=")
    names = given["only"].split(",") if "only" in given else list(CHECKS)
    for name in names:
        if name not in CHECKS:
            raise unknown_name_error("check", name, CHECKS)
    overrides = [f"agent={agent}", f"num_seeds={NUM_SEEDS}"]
    if f"sanity/{agent}" in find_choices("experiment") and "experiment" not in given:
        overrides.append(f"experiment=sanity/{agent}")
    elif not {"experiment", "env_steps"} & set(given):
        overrides.append(f"env_steps={sys.maxsize}")  # each check limits the env steps itself
    options = dict(config.iterate_paths(config.compose_config([f"agent={agent}", "env=sanity_bandit"])))
    overrides += [f"{name}={_cap_size(size, options[name])}" for name, size in MAX_SIZES.items() if name in options]
    return names, overrides, _is_multi_agent(options)


def _cap_size(size: int, given: Any) -> Any:
    return [min(size, width) for width in given] if isinstance(given, Sequence) else min(size, given)


def _check_overrides(name: str, arguments: Sequence[str], plays: bool) -> list[str]:
    own = [argument for argument in arguments if argument.partition("=")[0] not in ("agent", "only")]
    return [f"env=sanity_{name}", *["wrappers=[joint]"] * (CHECKS[name].is_game and not plays), *own]


def _is_multi_agent(options: Mapping[str, Any]) -> bool:
    """Return whether the options describe a multi-agent agent."""
    targets = [str(value) for name, value in options.items() if name.endswith("workflow.agent._target_")]
    with suppress(ImportError, AttributeError, ValueError):  # reported when the agent is built
        return any(hasattr(import_target(target), "groups") for target in targets)
    return False


def _build_check(check: SanityCheck, cfg: Any) -> tuple[SanityCheck, Any, PolicyWorkflow] | OptionError:
    """Return the adapted check, the configuration and the workflow, or the error if the agent cannot be built."""
    try:
        workflow, _ = runs.build(cfg)
        return (
            adapt_check(check, workflow),
            cfg,
            require_protocol(workflow, PolicyWorkflow, "agent.workflow"),
        )
    except OptionError as error:
        return error


def judge(
    check: SanityCheck,
    workflow: PolicyWorkflow,
    env_steps: int,
    seed: int = 0,
    num_seeds: int = NUM_SEEDS,
) -> CheckResult:
    """Train all seeds and compare their scores with the requirements of the check."""
    explores = (True, False) if check.needs_chance else (False,)
    keys = jax.vmap(jax.random.key)(seed + jnp.arange(num_seeds))
    one = jax.vmap(lambda key: train_and_score(workflow, env_steps, explores, key))
    learn = jax.jit(one, compiler_options=compiler_options())
    found = np.asarray(learn(keys))  # [num_seeds, policies], the greedy policy last
    worst, greedy = float(found[:, 0].min()), float(found[:, -1].max())
    lacks = missing_ability(check, workflow)
    if lacks and greedy <= (CHANCE_SCORE if check.needs_memory else check.threshold):
        return CheckResult(f"fails as expected {lacks}", False, greedy)
    if lacks:
        return CheckResult(f"FAILED: must not pass {lacks}", True, greedy)
    if check.needs_chance and greedy >= check.threshold:
        return CheckResult("FAILED: its greedy policy must not pass", True, greedy)
    passed = worst >= check.threshold
    return CheckResult("passed" if passed else "FAILED", not passed, worst)


def missing_ability(check: SanityCheck, workflow: PolicyWorkflow) -> str:
    """Describe the ability without which the agent must not pass the check; "" if it lacks none."""
    agent = workflow.agent
    if check.needs_memory and not jax.tree.leaves(agent.initial_memory()):
        return "without recurrent state"
    follows_values = isinstance(agent, OffPolicyAgent) and not isinstance(agent, ActorCritic)
    learns_greedily = isinstance(workflow, Evolution) and not workflow.explore
    return "with a deterministic policy" if check.needs_chance and (follows_values or learns_greedily) else ""


def train_and_score(workflow: PolicyWorkflow, env_steps: int, explores: Sequence[bool], key: Key) -> Array:
    """Train one seed and return the scores of its policies, shape [len(explores)]."""
    key_train, key_play = jax.random.split(key)
    state = train_seed(workflow, env_steps, key_train)
    return jnp.stack([score_policy(workflow, workflow.policy(state, each), key_play) for each in explores])


def train_seed(workflow: PolicyWorkflow, env_steps: int, key: Key) -> State:
    """Return the state after the iteration that reaches env_steps."""
    key_init, key_steps = jax.random.split(key)

    def step(loop: tuple[State, Array, Array]) -> tuple[State, Array, Array]:
        state, i, taken = loop
        state, metrics = workflow.step(state, jax.random.fold_in(key_steps, i))
        return state, i + 1, taken + metrics["env_steps"]

    start = workflow.init(key_init), jnp.int32(0), jnp.int32(0)
    return jax.lax.while_loop(lambda loop: tree.any_unbatched(loop[2] < env_steps), step, start)[0]


def score_policy(workflow: PolicyWorkflow, act: PolicyFn, key: Key) -> Array:
    """Return the mean score of NUM_EPISODES complete episodes, []."""
    env, memory = workflow.env, workflow.agent.initial_memory()
    key_start, key_play = jax.random.split(key)
    world = EnvBatch(env, env.default_params, memory, NUM_EPISODES)
    begin = world.init_envs(world.reset(jax.random.split(key_start, NUM_EPISODES)))

    def step(carry: tuple[EnvInstance, Array], key: Key) -> tuple[tuple[EnvInstance, Array], None]:
        envs, ended = carry
        keys = jax.random.split(key, NUM_EPISODES)
        after, transition = world.interact(jax.vmap(act), envs, keys)
        return (tree.select(ended, envs, after), ended | transition.is_done), None

    keys = jax.random.split(key_play, env.max_episode_steps)
    (envs, _), _ = jax.lax.scan(step, (begin, jnp.zeros(NUM_EPISODES, bool)), keys)
    scored, states = env, envs.env_state
    while isinstance(scored, Wrapper):
        scored, states = scored.inner, states.inner
    assert isinstance(scored, ScoredEnv)
    return jax.vmap(scored.score)(states).mean()
