"""Command `python -m evorl.play RUN`, which evaluates a policy, renders an episode and shows the Pareto front."""

import sys
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from evorl.cli.play_options import HELP, PlayOptions, parse_play_options
from evorl.command import (
    choose_opengl,
    command,
    redirect_text,
    require_folder,
    wants_help,
)
from evorl.errors import OptionError, require

SHOWN = (".html", ".svg", ".mp4", ".gif", ".png")  # suffixes of files for a web browser, the best first


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user error prints one line and exits with code 2."""
    with command(arguments) as given:
        if wants_help(given):
            print(HELP)
        elif given == ["zoo:"]:
            from evorl.training.exported_policy import describe_zoo

            print(describe_zoo())
        else:
            options = parse_play_options(given)
            from evorl.training.records.display import heartbeat

            with redirect_text(False, options.json) as out, nullcontext() if options.human else heartbeat("playing"):
                found = play_run(options)
            if options.browser:
                open_browser(found["files"])
            if out is not None:
                print(make_json_line(found), file=out)


def open_browser(files: Sequence[Path]) -> None:
    """Open the viewer in the web browser or, if there is none, the best picture."""
    shown = sorted((path for path in files if path.suffix in SHOWN), key=lambda path: SHOWN.index(path.suffix))
    if not shown:
        print("this environment has no viewer and no picture", file=sys.stderr)
    elif not webbrowser.open(shown[0].resolve().as_uri()):
        print(f"no web browser found; open {shown[0]}", file=sys.stderr)


def play_run(options: PlayOptions) -> dict[str, Any]:
    """Evaluate a policy, print its mean return with the interval, and draw an episode.

    If the run has a Pareto front or an archive, that is shown too. If it has no policy, only that is shown.

    Returns:
        The returns, the episode lengths, and the paths of the written files, by name.
    """
    choose_opengl()
    from evorl.training.devices import enable_compilation_cache
    from evorl.training.exported_policy import find_policy_file

    file = find_policy_file(options.run)
    if file is None:
        require_folder(Path(options.run))
    enable_compilation_cache()
    if options.suite is not None or options.human:
        why = "cannot be combined with suite= or human="
        require(not options.eval_env, "eval_env", options.eval_env, why)
        require(not options.json, "json", "true", why)
        for name in ("record", "solution", "against", "group"):
            require(getattr(options, name) is None, name, getattr(options, name), why)
    if file is not None:
        return play_file(file, options)
    if options.suite is not None:
        return evaluate_suite(options)
    return play_run_by_keyboard(options) if options.human else play_trained_run(options)


def play_trained_run(options: PlayOptions) -> dict[str, Any]:
    """Evaluate and draw the policy of a run directory, and show its front; see `play_run`."""
    from evorl.training.devices import use_precision
    from evorl.training.pareto_front import Front, with_solution
    from evorl.training.policy import Policy
    from evorl.training.runs import restore_run
    from evorl.types import PolicyWorkflow

    run_dir = Path(options.run)
    run = restore_run(run_dir, "run", options.which, options.trust, options.given)
    workflow, state = run.select_member(options.seed, options.member)
    front = Front.from_state(workflow, state)
    state = with_solution(front, workflow, state, options.solution)
    folder = None if options.out is None else Path(options.out) if options.out else run_dir / "play"
    files = show_front(front, folder, not isinstance(workflow, PolicyWorkflow)) if front is not None else []
    if front is not None and not isinstance(workflow, PolicyWorkflow):
        return {"files": files}
    policy = Policy(run.require_policy(workflow), state, load_eval_env(run.cfg, options))
    with use_precision(run.cfg.get("precision")):
        return evaluate_and_draw(policy, folder, options, files)


def play_file(file: Path, options: PlayOptions) -> dict[str, Any]:
    """Evaluate and draw an exported policy, or one of the zoo, and show its front; see `play_run`."""
    from evorl.training import human
    from evorl.training.configuration import parts
    from evorl.training.exported_policy import ExportedPolicy
    from evorl.training.policy import require_same_spaces

    for name in ("seed", "member", "which", "suite"):
        value = getattr(options, name)
        require(value is None, name, value, "an exported policy has no choice of this")
    for name, value in options.given.items():
        raise OptionError(f"{name}={value}: an exported policy has no choice of this")
    if options.human:
        human.require_playable()
    policy = ExportedPolicy(file, options.solution, options.trust)
    if options.human:
        return _play_by_keyboard(policy.env, policy.env_params, options.key)
    if options.eval_env:
        other = load_eval_env(policy.about, options)
        require_same_spaces(policy.env, other)
        policy = ExportedPolicy(file, options.solution, options.trust, other)
    elif options.eval_env is None or options.record is not None:
        env = parts.make_wrapped_env(policy.about["env"], "env", policy.about)
        policy = ExportedPolicy(file, options.solution, options.trust, env)
    folder = None if options.out is None else Path(options.out) if options.out else Path("play") / file.stem
    files = show_front(policy.front, folder, False) if policy.front is not None else []
    return evaluate_and_draw(policy, folder, options, files)


def make_json_line(found: Mapping[str, Any]) -> str:
    """Return the results of `play_run` as one line of JSON, with the mean return and its 95 % confidence interval."""
    from evorl import stats
    from evorl.training.records.recorders import to_json_line

    data: dict[str, Any] = {"files": [str(path) for path in found["files"]]}
    if "returns" in found:
        returns = [float(x) for x in found["returns"]]
        low, high = stats.MeanEstimate.from_scores(returns).interval()
        data |= {"return": sum(returns) / len(returns), "low": low, "high": high}
        data |= {"returns": returns, "lengths": [int(x) for x in found["lengths"]]}
    return to_json_line(data)


def load_eval_env(data: Mapping[str, Any], options: PlayOptions) -> Any:
    """Return the environment to evaluate in; None for the training environment."""
    from evorl.training.configuration import config, parts

    if not options.eval_env:
        evaluates = options.eval_env == "" and options.record is None  # the training's own rewards are recorded
        return parts.make_eval_env(data) if evaluates else None
    overrides = [f"eval_env={options.eval_env}"]
    overrides += [f"eval_env.{name}={'null' if x is None else x}" for name, x in options.of_env.items()]
    return parts.make_wrapped_env(config.to_plain_data(config.compose_config(overrides))["eval_env"], "eval_env", data)


def evaluate_and_draw(
    policy: Any, folder: Path | None, options: PlayOptions, files: Sequence[Path] = ()
) -> dict[str, Any]:
    """Evaluate a policy, print its returns, and draw an episode.

    Args:
        policy: The policy, which knows its environment.
        folder: Folder for the pictures; None for none.
        options: Options of the command.
        files: Files that are already written.

    Returns:
        The returns, the episode lengths and the paths of the written files, by name.
    """
    import numpy as np

    from evorl.training import demonstrations, episodes
    from evorl.training.cross_play import CrossPlayPolicy, PlayerId

    explores, place = bool(options.explore), None
    if options.against is not None:
        place = PlayerId.from_name(options.group, policy.env)
        policy = CrossPlayPolicy(policy, place, load_opponent(options.against, options.trust))
    else:
        require(options.group is None, "group", options.group, "needs against=RUN")
    played = episodes.evaluate_policy(policy, options.episodes, options.key, explores)
    earned, lengths = {name: np.asarray(x) for name, x in played.return_sums.items()}, np.asarray(played.lengths)
    returns = earned.pop("return") if place is None else np.asarray(place.select_values(played.returns))
    print(
        f"return{f' of {options.group}' if place else ''} {_format_mean(returns)} over {len(returns)} episodes of "
        f"{lengths.mean():.0f} steps (median {np.median(returns):.1f}, "
        f"from {returns.min():.1f} to {returns.max():.1f})"
    )
    for name, x in earned.items():
        if name != "return":
            print(f"{name} {_format_mean(x)}")
    written = [] if folder is None else episodes.draw_episode(policy, folder, options.key, explores)
    if options.record is not None:
        require(place is None, "record", options.record, "cannot be combined with against=")
        demonstrations.write_demonstrations(
            Path(options.record), demonstrations.record_episodes(policy, options.episodes, options.key, explores)
        )
        written.append(Path(options.record))
    for path in written:
        print(path)
    return {"returns": returns, "lengths": lengths, "files": [*written, *files]}


def load_opponent(against: str, trust: Sequence[str]) -> Any:
    """Return the policy of a run, or an exported policy; None for random actions."""
    from evorl.training.exported_policy import ExportedPolicy, find_policy_file
    from evorl.training.policy import Policy
    from evorl.training.runs import restore_run

    if against == "random":
        return None
    if (file := find_policy_file(against)) is not None:
        return ExportedPolicy(file, trust=trust)
    return Policy(*restore_run(Path(against), "against", None, trust).select_policy(None, None))


def _format_mean(returns: Any) -> str:
    """Format the mean and its confidence interval over episodes."""
    from evorl import stats

    return f"{stats.MeanEstimate.from_scores(returns):.1f}"


def play_run_by_keyboard(options: PlayOptions) -> dict[str, Any]:
    """Let the user play one episode by keyboard; raise OptionError if that is not possible."""
    from evorl.training import human
    from evorl.training.runs import restore_run

    human.require_playable()
    run = restore_run(Path(options.run), "run", options.which, options.trust, options.given)
    workflow, state = run.select_policy(options.seed, options.member)
    return _play_by_keyboard(workflow.env, state.env_params, options.key)


def _play_by_keyboard(env: Any, env_params: Any, key: int) -> dict[str, Any]:
    from evorl.training import human

    earned, steps = human.play_by_keyboard(env, env_params, key)
    return {"returns": [earned], "lengths": [steps]}


def show_front(front: Any, folder: Path | None, with_params: bool) -> list[Path]:
    """Print a front and write front.csv, and front.png if there are several objectives or descriptors.

    front.png needs the extra `plot`. If `with_params`, parameters by name, such as the weights of a strategy, are
    also written to solution.yaml, for the best solution in the first objective.
    """
    from evorl.plots.chart import save_charts
    from evorl.plots.fronts import plot_front

    print(front)
    if folder is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "front.csv"]
    front.write_csv(written[0], with_params)
    if with_params and isinstance(front.params, Mapping):
        written.append(folder / "solution.yaml")
        front.write_solution(written[-1])
    if charts := plot_front(front):
        try:
            save_charts(charts, folder / "front.png", columns=3, width=280)
            written.append(folder / "front.png")
        except OptionError as missing:
            print(f"no picture of the front: {missing}", file=sys.stderr)
    for path in written:
        print(path)
    return written


def evaluate_suite(options: PlayOptions) -> dict[Any, Any]:
    """Print and return the table of an evaluation suite, for all seeds of a run or for one."""
    from evorl.training.devices import use_precision
    from evorl.training.runs import restore_run
    from evorl.training.suites import MazeSuite, RiskSuite, tables

    name = str(options.suite)
    tables.require_suite(name)
    run = restore_run(Path(options.run), "run", options.which, options.trust, options.given)
    first, count = run.cfg["seed"], run.cfg["num_seeds"]
    seeds = range(first, first + count) if options.seed is None else [options.seed]
    (workflow, *_), states = zip(*(run.select_policy(seed, options.member) for seed in seeds), strict=True)
    with use_precision(run.cfg.get("precision")):
        if name == "risk":
            suite = RiskSuite(workflow, options.levels, options.attempts, options.explore is not False)
            return tables.print_risk_table(suite, states, options.key)
        return tables.print_maze_table(MazeSuite(workflow, name, options.episodes), states, options.key)
