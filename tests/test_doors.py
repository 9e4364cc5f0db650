"""Find every place of the package that opens a file, and check that those of a run go through one module."""

import ast
from pathlib import Path

import evorl

PACKAGE = Path(evorl.__file__).parent
OPENS = {"open", "fdopen", "read_text", "read_bytes", "load", "loads", "safe_load", "connect", "ZipFile", "memmap"}
OPENS |= {"loadtxt", "genfromtxt", "fromfile", "imread", "CheckpointManager", "Checkpointer", "mmap", "unpickle"}
OURS = "shipped with the package, or in the user's own configs"
TEXT = "parses text or bytes that are read already"
DOORS = {  # where a file is opened, or what was read is parsed, and why that is right
    "training/records/files.py": "the one module that opens the files of runs, sweeps and caches",
    "sweeps/database.py": "SQLite opens the store itself, after files.require_regular_files",
    "training/records/checkpoint.py": "orbax opens, after files.require_regular_files; JSON that files.read_text gave",
    "distributed/results.py": "NumPy reads what files.open_for_reading opened, without pickle; writes anew",
    "training/configuration/choices.py": OURS,
    "training/configuration/config_file.py": TEXT,
    "training/configuration/saved_defaults.py": "JSON that was made on the same line",
    "training/records/rows.py": TEXT,
    "training/records/json_cache.py": TEXT,
    "training/records/recorders.py": "JSON that files.read_text gave",
    "training/exported_policy.py": "files of the package; others by files.open_for_reading",
    "training/demonstrations.py": "arrays of a file that files.open_for_reading opened, without pickle",
    "numpy_policy.py": "a policy's arrays, without pickle, and JSON in them",
    "lazy.py": OURS,
    "package.py": OURS,
    "envs/viewer.py": OURS,
    "envs/suites/playground.py": "an environment of that library's registry, whose options are no paths",
    "envs/mujoco/engine.py": "a state, from memory",
    "envs/host/serial_envs.py": "memory that workers share",
    "training/devices.py": "the system's limit of cores",
    "plots/chart.py": "a picture that was rendered a line before",
    "reports/page.py": OURS,
    "reports/policies.py": "a picture that was drawn a line before",
    "sweeps/worker_pool.py": "a worker's log, to write",
    "distributed/process_actor.py": "a worker's log, to write",
    "sweeps/messages.py": "JSON of limited length, of those who know the token or of files.read_text",
    "cli/league.py": "a table, to write",
    "cli/play.py": "a picture or a viewer that was just written, for the browser",
    "command.py": "an option of the command line; os.devnull, to write",
    "envs/host/worker.py": "what its parent sends through a pipe",
    "envs/host/subprocess_backend.py": "what a worker sends through a pipe",
    "distributed/worker.py": "what its parent sends",
    "training/processes.py": "JSON that another process of the same training sends",
}


def opening(file):
    """Return the lines of a module in which a file is opened, or data are parsed."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            of = getattr(getattr(node.func, "value", None), "id", "")
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in OPENS and f"{of}.{name}" != "config.load":  # which composes the user's own
                yield node.lineno


def test_every_place_that_opens_a_file_is_known():
    found = {str(file.relative_to(PACKAGE)): list(opening(file)) for file in PACKAGE.rglob("*.py")}
    found = {name: lines for name, lines in found.items() if lines}
    new = {name: lines for name, lines in found.items() if name not in DOORS}
    assert not new, f"{new}: read with evorl.training.records.files, or say here why not"
    assert set(found) == set(DOORS)
