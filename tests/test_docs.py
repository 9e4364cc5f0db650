"""What is generated in docs is up to date."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tables_of_hyperparameters_are_those_of_the_dataclasses():
    script = ROOT / "scripts" / "agent_pages.py"
    stale = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert stale.returncode == 0, stale.stdout + stale.stderr


def test_every_agent_but_the_random_one_has_a_page():
    agents = {path.stem for path in (ROOT / "configs" / "agent").glob("*.yaml")}
    pages = {path.stem for path in (ROOT / "docs" / "agents").glob("*.md")}
    assert agents - pages == {"cemrl", "random"}
