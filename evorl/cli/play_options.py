"""Options of `python -m evorl.play`."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from evorl.command import require_words, split_options
from evorl.errors import OptionError, require

HELP = """usage: python -m evorl.play [RUN] [option=value ...]

  RUN              run directory; by default the newest run in runs/; zoo:NAME for a policy that ships with evorl
                   (zoo: lists them); or FILE.npz of evorl.export

  episodes=128     number of evaluation episodes; with a suite, per maze (10 in the paper's tables)
  which=           best: the policy of the best evaluation, the default; last: the newest policy, the default of a
                   Pareto front
  solution=        a solution of a Pareto front, by its number in RUN/play/front.csv; 0 is best in the first objective
  seed=, member=   one of several seeds, or a member of a population; by default the best, with PBT the fittest;
                   member=[2,0] is a member of nested populations, outermost first;
                   with a suite, by default all seeds, for intervals over seeds
  against=         in a multi-agent environment, a run that controls all agents except group=; random: random actions
  group=           with against=, the agents that this run controls: GROUP, or one agent of a group, GROUP/NUMBER
  eval_env=        another environment, named as in evorl.train, with options eval_env.*; by default the eval_env of
                   the run, or else its training environment; null: the training environment
  explore=false    true: samples actions as in training, which is the default of suite=risk
  key=0            seed of the episodes
  human=false      true: you play an episode with the keyboard in the terminal, which shows the keys
  suite=           prints a table of first episodes on levels instead:
                   ood: out-of-distribution mazes, greedy and sampled actions, for an agent trained on mazes
                   minimax: the same; the first direction is to the right if a maze does not set it
                   risk: solved rates on the worst 0.1 to 100 % of random levels of the training distribution
  levels=10000     suite=risk: number of levels, all of which have a solution
  attempts=10      suite=risk: episodes per level to rank it, and as many other episodes to evaluate it
  trust=[NAME]     packages whose classes the configuration of the run may name
  json=false       true: prints returns and files as one line of JSON to standard output, and text to stderr
  browser=false    true: opens the viewer, or the picture of the episode, in the web browser
  record=FILE.npz  writes the transitions of the episodes, for preload= of evorl.train (docs/howto/demonstrations.md)
  out=RUN/play     folder for the viewer, the pictures and the front; out=null writes none"""

INTERNAL_FIELDS = {"given", "of_env"}  # fields that are derived from others


@dataclass(frozen=True)
class PlayOptions:
    """Options of the command."""

    run: str
    episodes: int = 128
    which: str | None = None
    solution: int | None = None
    seed: int | None = None
    member: int | list | None = None
    against: str | None = None
    eval_env: str | None = ""  # the eval_env of the run
    of_env: Mapping[str, Any] = field(default_factory=dict)  # options of eval_env, by name
    group: str | None = None
    explore: bool | None = None
    key: int = 0
    human: bool = False
    suite: str | None = None
    levels: int = 10_000
    attempts: int = 10
    json: bool = False
    browser: bool = False
    record: str | None = None
    out: str | None = ""
    trust: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)  # values missing from the saved configuration, by name


def parse_play_options(arguments: list[str]) -> PlayOptions:
    """Return the options of the command line; raise OptionError if one is invalid."""
    from evorl.training.configuration.config_file import parse_trust

    kinds = {field.name: field.type for field in fields(PlayOptions) if field.name not in INTERNAL_FIELDS}
    dotted = {word.partition("=")[0] for word in arguments if "." in word.partition("=")[0] and "=" in word}
    runs, options = split_options(arguments, kinds | dict.fromkeys(dotted, Any) | {"trust": Any})
    require_words(len(runs) <= 1, "run", runs, "give one run directory: python -m evorl.play RUN")
    options["run"] = runs[0] if runs else str(find_newest_run(Path("runs")))
    options["given"] = {name: options.pop(name) for name in dotted}
    if "trust" in options:
        options["trust"] = parse_trust(options["trust"])
    require(options.get("episodes", 1) >= 1, "episodes", options.get("episodes"), "must be at least 1")
    if options.get("browser"):
        for name in ("human", "suite"):
            require(not options.get(name), name, options.get(name), "has no pictures for browser=true")
        require(options.get("out", "") is not None, "out", "null", "writes no pictures for browser=true")
    record = options.get("record")
    require(record is None or record.endswith(".npz"), "record", record, "must end with .npz")
    if options.get("eval_env"):
        of_env = [name for name in options["given"] if name.startswith("eval_env.")]
        options["of_env"] = {name.partition(".")[2]: options["given"].pop(name) for name in of_env}
    return PlayOptions(**options)


def find_newest_run(folder: Path) -> Path:
    """Return the run of a folder whose metrics were written last.

    Raises:
        OptionError: If the folder has no runs.
    """
    written = {path.parent: path.stat().st_mtime for path in folder.glob("*/metrics.jsonl")}
    if not written:
        raise OptionError(f"run={folder}: has no runs; give a run directory: python -m evorl.play RUN")
    newest = max(written, key=lambda run: written[run])
    print(f"{newest}: the newest run of {folder}", file=sys.stderr)
    return newest
