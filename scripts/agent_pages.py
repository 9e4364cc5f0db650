"""Writes the tables of hyperparameters and sizes in docs/agents/*.md from the dataclasses that the configurations name.

python scripts/agent_pages.py            writes them
python scripts/agent_pages.py --check    says which pages are out of date; exit code 1 where one is
"""

import argparse
import dataclasses
import importlib
import math
import sys
from pathlib import Path
from typing import Any

from evorl.training import config

PAGES = Path(__file__).parents[1] / "docs" / "agents"
MARKS = "<!-- hyperparameters: made by scripts/agent_pages.py -->", "<!-- end -->"


def number(value: float) -> str:
    return "inf" if value == math.inf else "-inf" if value == -math.inf else f"{value:g}"


def table(agent: str) -> str:
    """The hyperparameters of an agent, with the defaults that its configuration has."""
    node = config.load([f"agent={agent}"]).agent.hyperparams
    module, _, name = node._target_.rpartition(".")
    fields: Any = dataclasses.fields(getattr(importlib.import_module(module), name))
    lines = ["| `agent.hyperparams.` | default | range | |", "|---|---|---|---|"]
    for field in fields:
        span = f"{number(field.metadata['low'])} to {number(field.metadata['high'])}"
        lines.append(f"| `{field.name}` | {number(node[field.name])} | {span} | {field.metadata['about']} |")
    return "\n".join(lines)


def written(page: Path) -> str:
    """The page with its table as it is to be."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n{table(page.stem)}\n{MARKS[1]}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page for page in sorted(PAGES.glob("*.md")) if written(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        print(page.name)
        if not check:
            page.write_text(written(page), encoding="utf-8")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
