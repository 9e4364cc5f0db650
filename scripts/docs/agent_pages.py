"""Writes the tables of hyperparameters in docs.

They are those of the dataclasses that the configurations name.

python scripts/docs/agent_pages.py            writes them
python scripts/docs/agent_pages.py --check    says which pages are out of date; exit code 1 where one is
"""

import argparse
import dataclasses
import importlib
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from evorl.training.configuration import config, parts

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(
    r"(<!-- hyperparameters(?: of (\w+))?: made by scripts/docs/agent_pages.py -->\n).*?(<!-- end -->)", re.DOTALL
)


def number(value: float) -> str:
    return "inf" if value == math.inf else "-inf" if value == -math.inf else f"{value:g}"


def table(agent: str) -> str:
    """The hyperparameters of an agent, with the defaults that its configuration has, and where they are searched."""
    node = config.compose_config([f"agent={agent}"]).agent
    rows = lines(node.hyperparams, node.space)
    return "\n".join(["| `agent.hyperparams.` | default | range | searched | |", "|---|---|---|---|---|", *rows])


def lines(node: Any, space: Any, prefix: str = "") -> Iterator[str]:
    """A line for each number of (nested) hyperparameters."""
    module, _, name = node._target_.rpartition(".")
    fields: Any = dataclasses.fields(getattr(importlib.import_module(module), name))
    for field in fields:
        value, about = node[field.name], field.metadata
        if "low" not in about:  # what another agent gives has its own page
            own = value and not OmegaConf.is_interpolation(node, field.name)
            yield from lines(value, space.get(field.name, {}), f"{prefix}{field.name}.") if own else ()
            continue
        span = f"{number(about['low'])} to {number(about['high'])}"
        prior = parts.instantiate(config.to_plain_data(space[field.name]), field.name) if field.name in space else None
        searched = " to ".join(map(number, prior.bounds)) if prior is not None else ""
        yield f"| `{prefix}{field.name}` | {number(value)} | {span} | {searched} | {about['about']} |"


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
