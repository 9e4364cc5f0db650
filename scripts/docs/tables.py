"""Write the generated tables of README and docs: hyperparameters, algorithms, results.

Hyperparameters come from the dataclasses that the configurations name, the table of algorithms from the front matter of
their pages, results from recorded rows of `scripts/learning/experiments.py`.

python scripts/docs/tables.py            write the tables
python scripts/docs/tables.py --check    list the pages that are out of date, with exit code 1 if there are any
"""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

sys.path.append(str(Path(__file__).parents[1]))
import json_rows

from evorl import stats
from evorl.population.search import find_prior
from evorl.training.configuration import config, targets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- (\w+)(?: of ([\w ]+))?: made by scripts/docs/tables.py -->\n).*?(<!-- end -->)", re.DOTALL)
FAMILIES = (
    "on-policy",
    "off-policy",
    "imitation",
    "evolution",
    "multi-objective",
    "quality diversity",
    "hybrid",
    "population",
    "curriculum",
    "multi-agent",
    "league",
)
SHOWN = {  # experiments in the table of the README: algorithm and task
    "classic/ppo_cartpole": ("PPO", "CartPole"),
    "classic/dqn_cartpole": ("DQN", "CartPole"),
    "classic/openes_cartpole": ("OpenES", "CartPole"),
    "classic/ppo_acrobot": ("PPO", "Acrobot"),
    "classic/cma_es_acrobot": ("CMA-ES", "Acrobot"),
    "classic/ppo_pendulum": ("PPO", "Pendulum"),
    "classic/sac_pendulum": ("SAC", "Pendulum"),
    "classic/td3_pendulum": ("TD3", "Pendulum"),
    "classic/cma_es_pendulum": ("CMA-ES", "Pendulum"),
}


def number(value: Any) -> str:
    if isinstance(value, Mapping | DictConfig):  # a schedule
        of = {name: number(one) for name, one in value.items() if name != "_target_"}
        return f"{of.pop('start')} to {of.pop('end')} over {of.pop('over')} steps" if "over" in of else str(of)
    return "inf" if value == math.inf else "-inf" if value == -math.inf else f"{value:g}"


def hyperparameters(agent: str) -> str:
    """Return the hyperparameters of an agent, with the defaults of its configuration and their priors."""
    rows = lines(config.compose_config([f"agent={agent}"]).agent.workflow)
    return "\n".join(["| `agent.workflow.` | default | range | searched | |", "|---|---|---|---|---|", *rows])


def lines(node: Any, prefix: str = "", unused: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield a row for each hyperparameter of a node that has an effect; those of an inner agent are on its own page."""
    cls: Any = targets.import_target(node._target_)
    named = getattr(cls, "unused_numbers", {})  # a property depends on other options
    unused |= {f"{prefix}{name}" for name in (named if isinstance(named, Mapping) else ())}
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        about = field.metadata
        if (
            f"{prefix}{field.name}" in unused
            or field.name not in node
            or (OmegaConf.is_interpolation(node, field.name) and "low" not in about)
        ):
            continue
        value = node[field.name]
        if "low" in about:
            span = f"{number(about['low'])} to {number(about['high'])}"
            begins = value["start"] if isinstance(value, Mapping | DictConfig) else value
            prior = find_prior(begins, {"default": field.default, **about})
            searched = " to ".join(map(number, prior.bounds)) if prior is not None else ""
            yield f"| `{prefix}{field.name}` | {number(value)} | {span} | {searched} | {about['about']} |"
        elif isinstance(value, DictConfig) and "_target_" in value:
            yield from lines(value, f"{prefix}{field.name}.", unused)


def algorithms() -> str:
    """Return the table of all algorithms, from the front matter of their pages."""
    pages = [page for page in sorted((DOCS / "algorithms").glob("*.md")) if page.read_text("utf-8").startswith("---\n")]
    found = {page: yaml.safe_load(page.read_text("utf-8").split("---\n")[1]) for page in pages}
    rows = ["| algorithm | family | paper | source | command | result |", "|---|---|---|---|---|---|"]
    for page, of in sorted(found.items(), key=lambda item: (FAMILIES.index(item[1]["family"]), item[1]["title"])):
        source = f"[{Path(of['source']).name}](../../{of['source']})"
        command = f"`{of['command'].removeprefix('python -m ')}`" if of["command"] else ""
        rows.append(
            f"| [{of['title']}]({page.name}) | {of['family']} | {of['paper']} | {source} | {command} | {of['result']} |"
        )
    return "\n".join(rows)


def results(rows: str) -> str:
    """Return the final returns of recorded experiments without options, from docs/rows/NAME.jsonl."""
    found = json_rows.read_rows(DOCS / "rows" / f"{rows}.jsonl", "experiment", "seeds")
    recorded = {row["experiment"]: row for row in found if not row.get("options")}
    shown = [
        "| algorithm | task | environment steps per seed | seeds | return [95 %] | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for name, (algorithm, task) in SHOWN.items():
        row = recorded[name]
        returns = row["seeds"]["return"]
        estimate = f"{stats.MeanEstimate.from_scores(returns):.0f}"
        columns = (algorithm, task, f"{row['env_steps']:,}", len(returns), estimate, round(row["seconds"]))
        shown.append("| " + " | ".join(map(str, columns)) + " |")
    dates = sorted(recorded[name]["date"] for name in SHOWN)
    return "\n".join([*shown, f"\nMeasured {' to '.join(sorted({dates[0], dates[-1]}))}."])


def written(page: Path) -> str:
    """Return the text of a page with its generated tables up to date."""
    makers = {
        "hyperparameters": lambda of: hyperparameters(of or page.stem),
        "algorithms": lambda of: algorithms(),
        "results": results,
    }
    return BLOCK.sub(lambda found: f"{found[1]}{makers[found[2]](found[3])}\n{found[4]}", page.read_text("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    stale = [page for page in pages if written(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.name)
        if not check:
            page.write_text(written(page), encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
