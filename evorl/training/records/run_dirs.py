"""Creation and removal of run directories."""

import datetime
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evorl.errors import OptionError, require
from evorl.training.configuration import config

RUNS_FOLDER = Path("runs")  # parent of run directories without a given name


def create_run_dir(data: Mapping[str, Any]) -> Path:
    """Create the run directory that a configuration names, or a new one in runs/ if it names none.

    Raises:
        OptionError: The directory already exists or cannot be created.
    """
    if data["run_dir"] is not None:
        run_dir = Path(str(data["run_dir"]))
        require(bool(run_dir.name), "run_dir", data["run_dir"], "must be the name of a new folder")
        if run_dir.exists():
            raise OptionError(f"run_dir={run_dir}: exists already; use resume={run_dir} to continue it")
    else:
        now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        run_dir = (
            RUNS_FOLDER / f"{config.format_title(data).replace(' on ', '-').replace('/', '-')}-{now}-{os.getpid()}"
        )
    try:
        run_dir.mkdir(parents=True)
    except (OSError, ValueError) as error:
        raise OptionError(f"run_dir={run_dir}: cannot be created: {getattr(error, 'strerror', error)}") from error
    return run_dir


def remove_run_dir(run_dir: Path) -> None:
    """Remove a run directory in which nothing was trained, and runs/ if it is then empty."""
    shutil.rmtree(run_dir)
    if run_dir.parent == RUNS_FOLDER and not any(RUNS_FOLDER.iterdir()):
        RUNS_FOLDER.rmdir()
