"""Execute the notebooks and store them with their outputs; --check reports outputs that do not match the code.

    pip install -e ".[dev]" && python scripts/docs/notebooks.py [notebooks/1_train_one_agent.ipynb ...]
    python scripts/docs/notebooks.py --check

Without names it executes those that fail the check. Each notebook is written as soon as it has run, so the script can
be stopped and started again.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from evorl.training.records import files

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
PICTURES = "%config InlineBackend.print_figure_kwargs = {'dpi': 60, 'bbox_inches': 'tight'}"


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def digest(notebook: Any) -> str:
    """Return the SHA-256 of the notebook's code and outputs."""
    shown = [[cell["source"], cell["execution_count"], cell["outputs"]] for cell in code(notebook)]
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def fault(path: Path) -> str:
    """Return why the outputs of a notebook do not match its code, or ""."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    if notebook["metadata"].get("executed", {}).get("sha256") != digest(notebook):
        return "its code or its outputs have changed since it was executed"
    if any(output["output_type"] in ("error", "stream") and output.get("name") != "stdout" for output in outputs):
        return "it shows an error or a warning"
    if not any("image/png" in output.get("data", {}) for output in outputs):
        return "it shows no picture"
    return ""


def execute(path: Path) -> None:
    """Run a notebook in its own process, and write it with small pictures."""
    import jax
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=None, record_timing=False, resources={"metadata": {"path": path.parent}})
    started = time.monotonic()
    with client.setup_kernel():
        assert client.kc is not None
        client.wait_for_reply(client.kc.execute(PICTURES, store_history=False))
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    seconds = round(time.monotonic() - started)
    where = {"jax": jax.__version__, "cores": os.cpu_count(), "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
        "executed": {"seconds": seconds, **where},
    }
    written = json.loads(nbformat.writes(notebook))
    written["metadata"]["executed"]["sha256"] = digest(written)
    files.write_atomically(path, json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.name}: {seconds} seconds, {path.stat().st_size // 1000} kB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    found = {path: fault(path) for path in given.notebooks or NOTEBOOKS}
    if given.check:
        faults = [
            f"{path.name}: {why}; python scripts/docs/notebooks.py executes it" for path, why in found.items() if why
        ]
        sys.exit("\n".join(faults) or None)
    for path in given.notebooks or [path for path, why in found.items() if why]:
        execute(path)


if __name__ == "__main__":
    main()
