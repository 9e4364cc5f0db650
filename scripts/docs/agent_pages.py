"""Writes the tables of hyperparameters in docs.

They are those of the dataclasses that the configurations name.

python scripts/docs/agent_pages.py            writes them
python scripts/docs/agent_pages.py --check    says which pages are out of date; exit code 1 where one is
"""

import argparse
import dataclasses
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from evorl.population.search import find_prior
from evorl.training.configuration import config, parts

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(
    r"(<!-- hyperparameters(?: of (\w+))?: made by scripts/docs/agent_pages.py -->\n).*?(<!-- end -->)", re.DOTALL
)


def number(value: Any) -> str:
    if isinstance(value, Mapping | DictConfig):  # a schedule
        of = {name: number(one) for name, one in value.items() if name != "_target_"}
        return f"{of.pop('start')} to {of.pop('end')} over {of.pop('over')} steps" if "over" in of else str(of)
    return "inf" if value == math.inf else "-inf" if value == -math.inf else f"{value:g}"


def table(agent: str) -> str:
    """The numbers of an agent, with the defaults that its configuration has, and where they are searched."""
    rows = lines(config.compose_config([f"agent={agent}"]).agent.workflow)
    return "\n".join(["| `agent.workflow.` | default | range | searched | |", "|---|---|---|---|---|", *rows])


def lines(node: Any, prefix: str = "") -> Iterator[str]:
    """A line for each number of a node and of those within it; what another agent gives has its own page."""
    cls: Any = parts.import_target(node._target_)
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        about = field.metadata
        if field.name not in node or (OmegaConf.is_interpolation(node, field.name) and "low" not in about):
            continue
        value = node[field.name]
        if "low" in about:
            span = f"{number(about['low'])} to {number(about['high'])}"
            begins = value["start"] if isinstance(value, Mapping | DictConfig) else value
            prior = find_prior(begins, {"default": field.default, **about})
            searched = " to ".join(map(number, prior.bounds)) if prior is not None else ""
            yield f"| `{prefix}{field.name}` | {number(value)} | {span} | {searched} | {about['about']} |"
        elif isinstance(value, DictConfig) and "_target_" in value:
            yield from lines(value, f"{prefix}{field.name}.")


def written(page: Path) -> str:
    """The page with its tables as they are to be, each of the agent that it names or of that of the page."""
    return TABLE.sub(lambda found: f"{found[1]}{table(found[2] or page.stem)}\n{found[3]}", page.read_text("utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page for page in sorted(DOCS.rglob("*.md")) if written(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.name)
        if not check:
            page.write_text(written(page), encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
