"""The notebooks run, at tiny size and without Jupyter, and what they show is what their code showed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.mark.program
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(notebook, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.setenv("EVORL_TINY", "1")
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert names["TINY"]
    assert pyplot.get_fignums()
    pyplot.close("all")


def check(*paths):
    script = ROOT / "scripts" / "docs" / "notebooks.py"
    return subprocess.run([sys.executable, script, "--check", *paths], capture_output=True, text=True, check=False)


@pytest.mark.program
def test_what_they_show_is_what_their_code_showed():
    found = check()
    assert found.returncode == 0, found.stderr


@pytest.mark.program
@pytest.mark.parametrize("what", ["source", "outputs"])
def test_a_change_without_execution_is_found(what, tmp_path):
    notebook = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    cell = next(cell for cell in notebook["cells"] if cell.get("outputs"))
    cell[what] = cell[what][:-1]
    changed = tmp_path / "changed.ipynb"
    changed.write_text(json.dumps(notebook), encoding="utf-8")
    found = check(changed)
    assert found.returncode == 1
    assert found.stderr.startswith("changed.ipynb: its code or its outputs have changed since it was executed")


def test_there_are_six_and_the_meta_workflow_is_short():
    assert [path.stem[0] for path in NOTEBOOKS] == list("123456")
    sources = ["".join(cell["source"]) for cell in cells(NOTEBOOKS[3])]
    workflow = next(source for source in sources if "class OnePlusLambda" in source)
    assert len(workflow.splitlines()) < 80
