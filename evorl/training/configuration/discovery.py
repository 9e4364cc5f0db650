"""Discovery of the available agents, environments and other choices in the configuration files.

It imports nothing that takes long to load.
"""

import importlib.util
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evorl import package
from evorl.errors import OptionError, require, unknown_name_error
from evorl.training.configuration.choices import EXTRA_PREFIX, PACKAGES_PREFIX, Choice, read_choices

PACKAGE_FOLDER = Path(__file__).parents[2]
PACKAGE_CONFIGS = next(
    path for path in (PACKAGE_FOLDER / "configs", PACKAGE_FOLDER.parent / "configs") if path.is_dir()
)
BUDGET_OPTIONS = ("env_steps", "episodes", "iterations", "minutes")
GROUPS = (
    "agent",
    "agent/learner",
    "agent/evolver",
    "agent/population",
    "agent/selection",
    "agent/variation",
    "agent/solver",
    "env",
    "problem",
    "core",
    "encoder",
    "replay",
    "experiment",
)
FOLDER_GROUPS = ("env", "experiment")  # groups whose choices may be in subfolders
EVAL_ENV = "eval_env"  # place of a separate environment for evaluation
OPTIONAL_GROUPS = ("env", "problem", "experiment")
REMOVALS = {f"{EVAL_ENV}=null": f"~env@{EVAL_ENV}"} | {f"{name}=null": f"~{name}" for name in OPTIONAL_GROUPS}
LEARNER_GROUPS = {
    "core": "workflow.agent",
    "encoder": "workflow.agent",
    "replay": "workflow",
}  # choices that belong to a learner, and their place in it

HELP = """usage: python -m evorl.train [agent=NAME] [env=NAME] [experiment=NAME] [option=value ...]
       python -m evorl.train agent=search problem=NAME [agent/evolver=NAME] [option=value ...]

  python -m evorl.train agent=cemrl env=ant minutes=3         train into a new folder in runs/
  python -m evorl.train agent=td3 env=hopper num_seeds=8      eight runs in one program
  python -m evorl.train -m env=hopper,walker2d seed=0,1       several runs, sequentially
  python -m evorl.train runs/NAME minutes=60                  resume a run
  python -m evorl.train init_from=runs/NAME env=ant           start a new run from the weights of another
  python -m evorl.play runs/NAME                              evaluate a run and write its viewer or Pareto front
  python -m evorl.curve curve.png runs/A runs/B               plot learning curves and print a table
  python -m evorl.lineage runs/NAME                           plot how the population of a run evolved
  python -m evorl.league runs/A runs/B random                 play a tournament between runs of one game
  python -m evorl.sweep --help                                search hyperparameters
  python -m evorl.autotune --help                             find the fastest settings for this machine

  --list        print agents, environments and experiments
  --cfg job     print every option with its value, given the other arguments
  -m            run all combinations of comma-separated values
  --version     print the versions of evorl, jax, brax and Python
  -sc ACTION    shell completion: evorl-train -sc install=bash (docs/howto/configuration.md)

Budgets: env_steps, episodes, iterations, minutes. They replace the default budget or, on resume, the saved one. With
        several, training ends when every run has reached one of them. Compile time does not count as minutes.
Others: eval_env (another environment for evaluation, with options eval_env.*), seed, num_seeds, devices, evaluations,
        suite, chunk, run_dir, checkpoint.{minutes,keep,replay}, tensorboard, wandb (or any of
        wandb.{project,entity,group,tags,mode}), profile, dry_run (prints sizes, trains nothing), deterministic,
        precision, debug.nans, quiet (prints errors only), json (prints rows and the result as JSON lines to standard
        output).
Every field and hyperparameter of a component is an option: agent.workflow.*, env.*, problem.*; the shortest
unambiguous ending of its name is enough: learning_rate=1e-3"""


def find_config_folders() -> list[Path]:
    """Return the configuration folders in order of priority: ./configs, if it exists, then those shipped with evorl."""
    own = Path.cwd() / "configs"
    return [own, PACKAGE_CONFIGS] if own.is_dir() and own != PACKAGE_CONFIGS else [PACKAGE_CONFIGS]


def find_choices(group: str) -> dict[str, Choice]:
    """Return the choices of a group by name; the user's choices replace shipped ones of the same name."""
    found: dict[str, Choice] = {}
    for folder in reversed(find_config_folders()):
        found |= read_choices(folder / group, group in FOLDER_GROUPS)
    return found


def format_choices() -> str:
    """Format every choice of every group, each with the first comment of its file."""
    lines = []
    for group in (*GROUPS, "wrapper"):
        lines.append(f"{group}=" if group != "wrapper" else "wrappers=[...]")
        choices = {f"{name}/NAME" if one.is_suite else name: one for name, one in find_choices(group).items()}
        width = max(map(len, choices))
        for name, choice in choices.items():
            lines.append(f"  {name:{width}}  {choice.summary}{_format_missing_packages(choice)}".rstrip())
    return "\n".join(lines)


def split_suite_name(group: str, name: str) -> tuple[str, str] | None:
    """Split an environment name such as gymnax/CartPole-v1 into the suite and the rest; None without a suite."""
    suite, _, rest = name.partition("/")
    choice = find_choices(group).get(suite) if group == "env" and rest else None
    return (suite, rest) if choice is not None and choice.is_suite else None


def _format_missing_packages(choice: Choice) -> str:
    """Return how to install the packages that a choice imports, if one of them is not installed."""
    needed = _find_words(choice, PACKAGES_PREFIX)
    extra = next(iter(_find_words(choice, EXTRA_PREFIX)), choice.path.stem)
    return f"; {package.install_command(extra)}" if any(map(_is_missing, needed)) else ""


def _find_words(choice: Choice, prefix: str) -> list[str]:
    lines = (comment.removeprefix(prefix).split() for comment in choice.comments if comment.startswith(prefix))
    return [word for words in lines for word in words]


def _is_missing(name: str) -> bool:
    return importlib.util.find_spec(name) is None


def resolve_group(key: str) -> tuple[str, str]:
    """Return the group that an override key chooses from, and where Hydra places the choice.

    agent/inner is an agent within an agent, placed at agent.inner; agent/inner/learner is the learner of that
    inner agent. eval_env is an environment.
    """
    if key == EVAL_ENV:
        return "env", f"env@{EVAL_ENV}"
    outer, _, part = key.partition("@")[0].rpartition("/")
    if not outer.startswith("agent") or "@" in key:
        return key.partition("@")[0], key
    place = outer.replace("/", ".")
    return ("agent", f"agent@{place}.inner") if part == "inner" else (f"agent/{part}", f"agent/{part}@{place}")


def to_hydra_overrides(arguments: Sequence[str]) -> list[str]:
    """Convert arguments to Hydra overrides; if they give a budget, all other limits are removed."""
    arguments = [f"wandb.enabled={x[6:]}" if x.startswith("wandb=") else x for x in arguments]
    split = [REMOVALS.get(x, x).partition("=") for x in arguments]
    given = {key.lstrip("+"): value for key, _, value in split if key.lstrip("+") in BUDGET_OPTIONS}
    others = [f"{name}=null" for name in BUDGET_OPTIONS if name not in given] if set(given.values()) - {"null"} else []
    others += ["~env"] * _is_problem_chosen(split)
    keys = (
        f"+{key}@{_locate_choice(split, key)}.{key}" if key in LEARNER_GROUPS else resolve_group(key)[1]
        for key, _, _ in split
    )
    given = (f"{key}{equals}{value}" for key, (_, equals, value) in zip(keys, split, strict=True))
    return [*others, *given]  # in this order, since Hydra reads no overrides after a flag such as --cfg


def _is_problem_chosen(split: Sequence[tuple[str, str, str]]) -> bool:
    """Return whether a problem replaces the environment; raise OptionError if both are given."""
    given = {key: value for key, _, value in split if key in ("env", "problem") and value != "null"}
    if len(given) == 2:
        raise OptionError(
            f"problem={given['problem']}: cannot be combined with env={given['env']}; give one of the two"
        )
    return "problem" in given


def _locate_choice(split: Sequence[tuple[str, str, str]], key: str) -> str:
    """Return the place of a choice in the learning agent; for a team, it goes to the agents of the team."""
    place, name = _find_learner(split)
    of_agents = LEARNER_GROUPS[key].endswith("agent") and _is_team(name)
    return f"{place}.{LEARNER_GROUPS[key]}{'.agents' if of_agents else ''}"


def _is_team(name: str) -> bool:
    """Return whether the agent of a file, or of a file it is based on, is a team of agents."""
    choice = find_choices("agent").get(name)
    node: Any = choice.read() if choice is not None else {}
    for part in ("workflow", "agent"):
        node = node[part] if isinstance(node.get(part), dict) else {}
    bases = (base for base, same in _read_defaults(choice).items() if base == same and base != name)
    return "agents" in node or any(map(_is_team, bases))


def _find_learner(split: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return the place and the name of the agent that learns, the innermost of nested agents, such as agent.inner."""
    given = {key: value for key, _, value in split}
    of_experiment = find_experiment_agents(given.get("experiment", "null"))
    place, key, name = "agent", "agent", str(_read_defaults(Choice(PACKAGE_CONFIGS / "config.yaml")).get("agent"))
    while True:
        name = given.get(key) or of_experiment.get(resolve_group(key)[1], name)
        inner = _find_inner_agent(name)
        if inner is None:
            return place, name
        place, key, name = f"{place}.inner", f"{key}/inner", inner


def _find_inner_agent(name: str) -> str | None:
    """Return the inner agent of an agent, or of an agent that its file is based on; None if there is none."""
    chosen = _read_defaults(find_choices("agent").get(name))
    bases = (_find_inner_agent(base) for base, same in chosen.items() if base == same and base in find_choices("agent"))
    return chosen.get("agent@inner") or next(filter(None, bases), None)


def check_choices(arguments: list[str]) -> None:
    """Raise OptionError if an argument chooses something that does not exist, such as agent=tt3."""
    for argument in arguments:
        key, given, value = argument.lstrip("+").partition("=")
        group, _ = resolve_group(key)
        if group not in GROUPS or not given:
            continue
        for name in value.split(","):
            none = name == "null" and group in OPTIONAL_GROUPS
            if (
                name not in (known := find_choices(group))
                and not none
                and name.isprintable()
                and not split_suite_name(group, name)
            ):
                alike = [f"{one}/{name.partition('/')[2]}" for one, choice in known.items() if choice.is_suite]
                raise unknown_name_error(group, name, [*known, *alike], "python -m evorl.train --list")
    _check_agents(arguments)


def _check_agents(arguments: list[str]) -> None:
    """Raise OptionError if an agent is chosen together with an experiment for another agent.

    The options of the experiment are made for its own agent.
    """
    given = {key: value for key, _, value in (argument.lstrip("+").partition("=") for argument in arguments)}
    for experiment in given.get("experiment", "null").split(","):
        own = find_experiment_agents(experiment)
        for key, names in given.items():
            for name in names.split(",") if (place := resolve_group(key)[1]) in own else []:
                allowed = f"experiment={experiment} is made for {key}={own[place]}; give one of the two"
                require(name == own[place], key, name, allowed)


def find_experiment_agents(experiment: str) -> dict[str, str]:
    """Return the agents that an experiment chooses, by place (agent or agent@agent.inner).

    The result is empty if the experiment cannot be read.
    """
    found: dict[str, str] = {}
    for place, name in _read_defaults(find_choices("experiment").get(experiment)).items():
        if place.partition("@")[0] == "agent":
            found[place] = name
        elif place == name.lstrip("/") and place != "_self_":
            found |= find_experiment_agents(
                posixpath.relpath(posixpath.join("/experiment", experiment, "..", name), "/experiment")
            )
    return found


def _read_defaults(one: Choice | None) -> dict[str, str]:
    """Return the choices in the defaults list of a file, by place; a choice without a place is its own place."""
    found: dict[str, str] = {}
    for choice in (one.read() if one is not None else {}).get("defaults") or []:
        choice = choice if isinstance(choice, dict) else {choice: choice}
        found |= {str(key).removeprefix("override ").lstrip("/"): str(name) for key, name in choice.items()}
    return found
