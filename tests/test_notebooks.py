"""The notebooks run, at tiny size and without Jupyter, and are stored without outputs."""

import json
from pathlib import Path

import jax
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(notebook):
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def quick_compilation():
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_is_stored_without_outputs(notebook, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.setenv("EVORL_TINY", "1")
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    names = {"__name__": "__main__"}
    for cell in code:
        exec("".join(cell["source"]), names)
    assert names["TINY"]
    assert pyplot.get_fignums()
    pyplot.close("all")


def test_there_are_six_and_the_meta_workflow_is_short():
    assert [path.stem[0] for path in NOTEBOOKS] == list("123456")
    sources = ["".join(cell["source"]) for cell in cells(NOTEBOOKS[3])]
    workflow = next(source for source in sources if "class OnePlusLambda" in source)
    assert len(workflow.splitlines()) < 80
